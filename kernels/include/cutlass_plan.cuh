// Shared by all CUTLASS kernels: the element types of a precision, and the report from the device
// to the host with everything that a launch needs.
//
// CUTLASS needs a host compiler, because C++ code on the host builds Kernel::Params, the kernel's
// parameters. Here NVRTC compiles that code for the device. A .cu file makes two kernels from one
// GemmKernel type:
//
//     plan    one thread, untimed: builds Params for a problem, writes its bytes to memory, and
//             fills the report below
//     gemm    takes Params by value, like CUTLASS's entry
//
// The host copies both back, writes the operands' addresses and TMA descriptors into the bytes, and
// launches `gemm` with them (rooflab/kernels/cutlass/report.py mirrors this layout).
//
// Macros give precision, layout, and whether C is read: ROOFLAB_READS_C is 1 if beta is not 0. The
// cubin for 0 needs no code for it.
//
// Needs -default-device, which makes unmarked functions device functions, and --device-int128, see
// below.
#pragma once

// CUTLASS divides by multiplication with 128-bit integers. It assumes that only GCC has them, and
// traps without them.
#define CUTLASS_UINT128_NATIVE

// Names of the standard library, which NVRTC does not have and CUTLASS uses.
#include <cuda/std/type_traits>
namespace std {
using cuda::std::is_const_v;
using cuda::std::is_pointer_v;
using cuda::std::is_same_v;
using cuda::std::void_t;
}  // namespace std

#include "cutlass/cutlass.h"
#include "cutlass/layout/matrix.h"
#include "cutlass/numeric_types.h"

// Element is the type of A and B, Output the type of C. All products are summed in FP32.
#if defined(ROOFLAB_PRECISION_FP32) || defined(ROOFLAB_PRECISION_TF32)
using Element = float;
using Output = float;
#elif defined(ROOFLAB_PRECISION_FP16)
using Element = cutlass::half_t;
using Output = cutlass::half_t;
#elif defined(ROOFLAB_PRECISION_FP16_FP32)
using Element = cutlass::half_t;
using Output = float;
#elif defined(ROOFLAB_PRECISION_BF16)
using Element = cutlass::bfloat16_t;
using Output = cutlass::bfloat16_t;
#elif defined(ROOFLAB_PRECISION_FP8)
using Element = cutlass::float_e4m3_t;
using Output = cutlass::bfloat16_t;
#else
#error "CUTLASS kernels need one of -DROOFLAB_PRECISION_FP32, _TF32, _FP16, _FP16_FP32, _BF16, _FP8"
#endif

// Stored row by row. op(B) = B^T, stored N x K, is a K x N matrix stored column by column.
template <bool transposed>
struct Stored {
    using Layout = cutlass::layout::RowMajor;
};
template <>
struct Stored<true> {
    using Layout = cutlass::layout::ColumnMajor;
};
using LayoutA = typename Stored<bool(ROOFLAB_TRANSPOSE_A)>::Layout;
using LayoutB = typename Stored<bool(ROOFLAB_TRANSPOSE_B)>::Layout;
using LayoutC = cutlass::layout::RowMajor;

// The contiguous extent of an operand, in elements: its leading dimension.
inline int leading_a(int M, int K) { return ROOFLAB_TRANSPOSE_A ? M : K; }
inline int leading_b(int N, int K) { return ROOFLAB_TRANSPOSE_B ? K : N; }

constexpr int ACCESS_BYTES = 16;  // the widest load, and the alignment of rows that TMA requires

// The problem, from the host. Matrices are packed, `batch` of them one after the other.
struct Problem {
    int M, N, K, batch;
    float alpha, beta;
    const void* A;
    const void* B;
    void* C;
    void* workspace;          // null in the first call, which returns the size needed
    int multiprocessors;      // that the grid of a persistent kernel may use
    int active_clusters;      // resident on the device at once, 0 if unknown
    int splits;               // along K
    int swizzle;              // tiles that share columns of B, as CUTLASS's schedulers count them
    int raster;               // 0 CUTLASS's choice, 1 along M, 2 along N
};

enum Operand : unsigned { OPERAND_A, OPERAND_B, OPERAND_C };

// The place of an operand's address in Params.
struct Pointer {
    unsigned offset;
    unsigned operand;
};

// The place of a TMA descriptor in Params, and the arguments of cuTensorMapEncodeTiled for it.
// `strides` is in bytes, without the innermost stride, which is one element.
struct Descriptor {
    unsigned offset;
    unsigned operand;
    unsigned data_type;  // CUtensorMapDataType
    unsigned rank;
    unsigned swizzle;  // CUtensorMapSwizzle
    unsigned box[5];
    unsigned long long extents[5];
    unsigned long long strides[4];
};

struct Report {
    unsigned magic;
    unsigned takes_problem;  // 0 if CUTLASS's can_implement rejects it
    unsigned params_bytes;
    unsigned shared_bytes;
    unsigned threads;
    unsigned grid[3];
    unsigned cluster[3];
    unsigned pointers;
    unsigned descriptors;
    unsigned reserved;
    unsigned long long workspace_bytes;
    unsigned long long zeroed_offset;  // the part of the workspace that must hold zeros before
    unsigned long long zeroed_bytes;   // every launch
    Pointer pointer[4];
    Descriptor descriptor[4];
};

constexpr unsigned REPORT_MAGIC = 0x524c4301;  // "RLC", version 1
constexpr unsigned PARAMS_LIMIT = 4096;        // bytes of kernel parameters that every driver accepts

static_assert(sizeof(Pointer) == 8 && sizeof(Descriptor) == 112 && sizeof(Report) == 560,
              "the host expects this layout of the report");

template <typename Params, typename Member>
inline unsigned offset_in(const Params& params, const Member& member) {
    return unsigned(reinterpret_cast<const char*>(&member) - reinterpret_cast<const char*>(&params));
}

template <typename Params, typename Member>
inline void report_pointer(Report& report, const Params& params, const Member& member,
                           Operand operand) {
    report.pointer[report.pointers++] = {offset_in(params, member), operand};
}
