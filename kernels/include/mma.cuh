// Instructions of warps that multiply on tensor cores: asynchronous copies to shared memory, loads
// of fragments, and mma.sync (PTX ISA, "Asynchronous copy", "Warp Level Matrix Instructions").
#pragma once

#include "shared_address.cuh"
#include "types.cuh"

// Copies to shared memory ---------------------------------------------------------------------

// Copies BYTES past the registers, or writes zeros without reading if not `inside`. Copies of 16
// bytes stay out of the L1 cache.
template <int BYTES>
__device__ inline void copy_async(unsigned to, const void* from, bool inside) {
    const int read = inside ? BYTES : 0;
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :: "r"(to), "l"(from), "r"(read) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                     :: "r"(to), "l"(from), "n"(BYTES), "r"(read) : "memory");
    }
}

// Ends a group of this thread's copies.
__device__ inline void copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until all but the newest `PENDING` groups of this thread have arrived.
template <int PENDING>
__device__ inline void copy_wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
}

__device__ inline void store_shared(unsigned to, unsigned short value) {
    asm volatile("st.shared.u16 [%0], %1;" :: "r"(to), "h"(value) : "memory");
}

// Fragments -----------------------------------------------------------------------------------

// Four matrices of 8 rows of 16 bytes. Lane l gives the address of row l % 8 of matrix l / 8, and
// gets of row l / 4 of each matrix the 4 bytes at l % 4.
__device__ inline void load_matrices(unsigned (&to)[4], unsigned row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(row) : "memory");
}

// The same for matrices of 8 x 8 elements of 2 bytes, transposed on the way.
__device__ inline void load_transposed(unsigned (&to)[4], unsigned row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(row) : "memory");
}

// One element.
__device__ inline void load_shared(double& to, unsigned from) {
    asm volatile("ld.shared.f64 %0, [%1];" : "=d"(to) : "r"(from) : "memory");
}
__device__ inline void load_shared(unsigned& to, unsigned from) {
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(to) : "r"(from) : "memory");
}

// FP32 rounded to the nearest TF32. The tensor cores would cut the low 13 bits off.
__device__ inline unsigned round_to_tf32(unsigned bits) {
    unsigned rounded;
#if __CUDA_ARCH__ >= 900  // ties to even, in one instruction
    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(bits)));
#else  // ties away from zero
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(bits)));
#endif
    return rounded;
}

#if defined(ROOFLAB_PRECISION_BF16) || defined(ROOFLAB_PRECISION_FP16) || defined(ROOFLAB_PRECISION_FP8)
// Two results, rounded to nearest, in one register: the first in the low half.
__device__ inline unsigned pack_pair(float low, float high) {
    unsigned pair;
#if defined(ROOFLAB_PRECISION_FP16)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#endif
    return pair;
}
#endif

#if defined(ROOFLAB_PRECISION_FP8)
// Four numbers in E4M3, rounded to nearest, in one register: the first in the lowest byte.
__device__ inline unsigned pack_quad(float first, float second, float third, float fourth) {
    unsigned quad;
    asm("{\n"
        ".reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high};\n"
        "}"
        : "=r"(quad) : "f"(first), "f"(second), "f"(third), "f"(fourth));
    return quad;
}
#endif

// Products ------------------------------------------------------------------------------------

// c += a * b, of 16 x 8 sums. Lane l holds, with g = l / 4 and t = l % 4:
//   c[0..1]  row g, columns 2 t and 2 t + 1;   c[2..3]  the same of row g + 8
//   a[0], a[1]  rows g and g + 8 at place t of K;   a[2], a[3]  at place t + 4
//   b[0], b[1]  column g at places t and t + 4
// A place is one element of K for FP64 and TF32, and two neighbours in one register for the types
// of 2 bytes, four for FP8. A product covers 8 places.
#if defined(ROOFLAB_PRECISION_FP64)

__device__ inline void multiply_add(double (&c)[4], const double (&a)[4], const double* b) {
#if __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#else
    for (int i = 0; i < 2; ++i) {
        for (int half = 0; half < 2; ++half) {
            asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                : "+d"(c[2 * half]), "+d"(c[2 * half + 1]) : "d"(a[2 * i + half]), "d"(b[i]));
        }
    }
#endif
}

#else

#if defined(ROOFLAB_PRECISION_BF16)
#define ROOFLAB_MMA "m16n8k16.row.col.f32.bf16.bf16.f32"
#elif defined(ROOFLAB_PRECISION_FP16) || defined(ROOFLAB_PRECISION_FP16_FP32)
#define ROOFLAB_MMA "m16n8k16.row.col.f32.f16.f16.f32"
#elif defined(ROOFLAB_PRECISION_FP8)
#define ROOFLAB_MMA "m16n8k32.row.col.f32.e4m3.e4m3.f32"
#else
#define ROOFLAB_MMA "m16n8k8.row.col.f32.tf32.tf32.f32"
#endif

__device__ inline void multiply_add(float (&c)[4], const unsigned (&a)[4], const unsigned* b) {
    asm("mma.sync.aligned." ROOFLAB_MMA
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif
