// The instructions of a warpgroup, four warps: products by wgmma, barriers of some
// warps, matrices between registers and shared memory. Compute capability 9.0, compiled for sm_90a.
//
// All tiles in shared memory have rows of 128 bytes with TMA's 128-byte swizzle: the 16-byte pieces
// of row r are permuted by an exclusive or with r % 8, so that eight rows of one column are in
// different banks. A tile begins at a multiple of 1024 bytes, where the pattern repeats.
#pragma once

#include "bulk_copy.cuh"
#include "gemm.cuh"
#include "setmaxnreg.cuh"

constexpr int ROW_BYTES = 128;
constexpr int TILE_K = ROW_BYTES / sizeof(Input);   // elements of K in a row of a tile
constexpr int WARPGROUP = 128;                      // threads

// One lane of a warp ----------------------------------------------------------------------------------

// By all lanes of a warp: true for one of them, always the same. The compiler knows that it is one. So what
// only this lane does, such as copies by TMA, needs no loop over lanes.
__device__ inline bool elected() {
    unsigned one;
    asm volatile(
        "{\n"
        ".reg .pred one;\n"
        "elect.sync _|one, 0xffffffff;\n"
        "selp.u32 %0, 1, 0, one;\n"
        "}"
        : "=r"(one));
    return one;
}

// By all lanes of a warp: the value of the first one, which the compiler keeps once for the warp.
__device__ inline int of_first_lane(int value) { return __shfl_sync(0xffffffff, value, 0); }

// Barriers of warps ---------------------------------------------------------------------------------

// The block has 16, of which 0 is that of __syncthreads(). A phase ends when `threads` threads, whole
// warps, have come; those that only arrive do not wait for it.
__device__ inline void sync_threads(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ inline void arrive_threads(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// By one thread of each of `all` warpgroups: true for the last one, for which what the others did is done.
// The count, in shared memory, begins with 0 and is 0 again after all.
__device__ inline bool is_last(unsigned* count, unsigned all) {
    unsigned before;
    asm volatile("atom.acq_rel.cta.shared::cta.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "r"(shared_address(count)), "r"(all - 1)
                 : "memory");
    return before == all - 1;
}

// Products ----------------------------------------------------------------------------------------

// A tile in shared memory whose rows lie along K (PTX ISA, "Matrix Descriptor Format"): 128-byte
// swizzle (1 << 62), 64 * 16 = 1024 bytes from each 8 rows to the next; 1 << 16 is ignored with it. Adding
// 2 moves 32 bytes along K, one product: the swizzle permutes by address bits that this does not touch.
__device__ inline unsigned long long descriptor(const void* tile) {
    return (shared_address(tile) & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
constexpr int PRODUCTS_PER_STAGE = ROW_BYTES / 32;

// A tile of B as it is stored in layout nn, rows across K: parts of 64 columns, each TILE_K rows of 128
// bytes. From one part to the next there are 128 * TILE_K bytes. Adding 128 moves 16 rows along K.
__device__ inline unsigned long long descriptor_across(const void* tile) {
    return (shared_address(tile) & 0x3ffff) >> 4 | 8ull * TILE_K << 16 | 64ull << 32 | 1ull << 62;
}

// Products run in the background, in groups like those of cp.async: commit, then wait; until then nothing
// touches the sums. This is needed before the first product, and after registers of sums were touched.
__device__ inline void begin_products() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ inline void commit_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// At most `pending` committed groups are still computed.
template <int pending>
__device__ inline void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// Call before a wait, with what was computed meanwhile. ptxas moves waits to before what does not depend on
// them, but not to before a store.
__device__ inline void compute_before_waiting(float value, float* unused) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(shared_address(unused)), "f"(value) : "memory");
}

#if !defined(ROOFLAB_PRECISION_FP64)  // which has no wgmma

#if defined(ROOFLAB_PRECISION_BF16)
#define PRODUCT "k16.f32.bf16.bf16"
#elif defined(ROOFLAB_PRECISION_FP16) || defined(ROOFLAB_PRECISION_FP16_FP32)
#define PRODUCT "k16.f32.f16.f16"
#elif defined(ROOFLAB_PRECISION_TF32) || defined(ROOFLAB_PRECISION_FP32_3XTF32)
#define PRODUCT "k8.f32.tf32.tf32"
#elif defined(ROOFLAB_PRECISION_FP8)
#define PRODUCT "k32.f32.e4m3.e4m3"
#else
#error "wgmma multiplies bf16, fp16, fp16_fp32, tf32, fp32_3xtf32 and fp8"
#endif

// Signs of both operands; then whether each lies across K, which only 16-bit types may.
#if defined(ROOFLAB_PRECISION_TF32) || defined(ROOFLAB_PRECISION_FP32_3XTF32) || \
    defined(ROOFLAB_PRECISION_FP8)
#define MODES "1, 1"
#elif ROOFLAB_TRANSPOSE_B
#define MODES "1, 1, 0, 0"
#else
#define MODES "1, 1, 0, 1"
#endif

#define FOUR(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define EIGHT(i) FOUR(i), FOUR(i + 4)
#define SIXTEEN(i) EIGHT(i), EIGHT(i + 8)
#define THIRTY_TWO(i) SIXTEEN(i), SIXTEEN(i + 16)
#define SIXTY_FOUR(i) THIRTY_TWO(i), THIRTY_TWO(i + 32)

#define REGISTERS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define REGISTERS_24 REGISTERS_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define REGISTERS_32 REGISTERS_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_48 \
    REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define REGISTERS_56 REGISTERS_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define REGISTERS_64 REGISTERS_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define REGISTERS_96 \
    REGISTERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define REGISTERS_112 \
    REGISTERS_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, " \
                 "%109, %110, %111"
#define REGISTERS_128 \
    REGISTERS_112 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, " \
                  "%124, %125, %126, %127"

// sums (+)= A * B^T for 64 rows of A and `columns` rows of B, by one warpgroup. Without `add` the old
// sums are overwritten. Thread t has row 16 (t / 32) + t % 32 / 4 and columns 2 (t % 4) and the
// next, then the same of row + 8, and so on every 8 columns.
#define MULTIPLY(columns, registers, list, a_place, b_place, add_place, ...)                       \
    __device__ inline void multiply(float (&sums)[registers], unsigned long long a,                \
                                    unsigned long long b, bool add) {                              \
        asm volatile(                                                                              \
            "{\n"                                                                                  \
            ".reg .pred add;\n"                                                                    \
            "setp.ne.u32 add, " add_place ", 0;\n"                                                 \
            "wgmma.mma_async.sync.aligned.m64n" columns PRODUCT " {" list "}, " a_place ", "       \
            b_place ", add, " MODES "; \n"                                                         \
            "}"                                                                                    \
            : __VA_ARGS__                                                                          \
            : "l"(a), "l"(b), "r"(unsigned(add)));                                                 \
    }

MULTIPLY("32", 16, REGISTERS_16, "%16", "%17", "%18", SIXTEEN(0))
MULTIPLY("48", 24, REGISTERS_24, "%24", "%25", "%26", SIXTEEN(0), EIGHT(16))
MULTIPLY("64", 32, REGISTERS_32, "%32", "%33", "%34", THIRTY_TWO(0))
MULTIPLY("96", 48, REGISTERS_48, "%48", "%49", "%50", THIRTY_TWO(0), SIXTEEN(32))
MULTIPLY("112", 56, REGISTERS_56, "%56", "%57", "%58", THIRTY_TWO(0), SIXTEEN(32), EIGHT(48))
MULTIPLY("128", 64, REGISTERS_64, "%64", "%65", "%66", SIXTY_FOUR(0))
MULTIPLY("192", 96, REGISTERS_96, "%96", "%97", "%98", SIXTY_FOUR(0), THIRTY_TWO(64))
MULTIPLY("224", 112, REGISTERS_112, "%112", "%113", "%114", SIXTY_FOUR(0), THIRTY_TWO(64), SIXTEEN(96))
MULTIPLY("256", 128, REGISTERS_128, "%128", "%129", "%130", SIXTY_FOUR(0), SIXTY_FOUR(64))

// The same with 64 rows of A in registers: of 16 bytes of K a thread has rows l / 4 and l / 4 + 8 of its
// warp at place l % 4, of the next 16 bytes too. Such rows always lie along K. With ROWS_TIMES_ACROSS their
// rows of B lie across it, unlike those of other products.
#if defined(ROOFLAB_PRECISION_TF32) || defined(ROOFLAB_PRECISION_FP32_3XTF32) || \
    defined(ROOFLAB_PRECISION_FP8)
#define MODES_OF_ROWS "1, 1"
#elif ROOFLAB_TRANSPOSE_B && !defined(ROWS_TIMES_ACROSS)
#define MODES_OF_ROWS "1, 1, 0"
#else
#define MODES_OF_ROWS "1, 1, 1"
#endif

#define MULTIPLY_ROWS(columns, registers, list, a_places, b_place, add_place, ...)                 \
    __device__ inline void multiply(float (&sums)[registers], const unsigned (&a)[4],              \
                                    unsigned long long b, bool add) {                              \
        asm volatile(                                                                              \
            "{\n"                                                                                  \
            ".reg .pred add;\n"                                                                    \
            "setp.ne.u32 add, " add_place ", 0;\n"                                                 \
            "wgmma.mma_async.sync.aligned.m64n" columns PRODUCT " {" list "}, {" a_places "}, "    \
            b_place ", add, " MODES_OF_ROWS ";\n"                                                          \
            "}"                                                                                    \
            : __VA_ARGS__                                                                          \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(unsigned(add)));             \
    }

MULTIPLY_ROWS("64", 32, REGISTERS_32, "%32, %33, %34, %35", "%36", "%37", THIRTY_TWO(0))
MULTIPLY_ROWS("128", 64, REGISTERS_64, "%64, %65, %66, %67", "%68", "%69", SIXTY_FOUR(0))
MULTIPLY_ROWS("256", 128, REGISTERS_128, "%128, %129, %130, %131", "%132", "%133", SIXTY_FOUR(0),
              SIXTY_FOUR(64))

#endif

// Matrices between registers and shared memory --------------------------------------------------------

// Four matrices of 8 rows of 16 bytes. Lane l gives the address of row l % 8 of matrix l / 8, and
// gets of row l / 4 of each matrix the 4 bytes at l % 4.
__device__ inline void load_matrices(unsigned (&to)[4], unsigned row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}

// The same from registers to shared memory.
__device__ inline void store_matrices(unsigned row, const unsigned (&from)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
                 "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
                 : "memory");
}

// The same, each matrix transposed on the way.
__device__ inline void store_transposed(unsigned row, const unsigned (&from)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
                 "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
                 : "memory");
}

// 8 bytes to shared memory.
__device__ inline void store_pair(unsigned to, float x, float y) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y) : "memory");
}
