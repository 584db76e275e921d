// Shared by all GEMM kernels: operand layouts and the store of C.
//
// A kernel computes C = alpha * op(A) * op(B) + beta * C for row-major matrices, and is launched as
//
//     extern "C" __global__ void entry(int M, int N, int K,
//                                      Accumulate alpha, const Input* A, const Input* B,
//                                      Accumulate beta, Output* C);
//
//     gridDim = (tiles along N, tiles along M, batch), with the tile and the block of the header.
//
// One file supports every precision and layout, because each pair is compiled separately:
//
//     -DROOFLAB_PRECISION_FP16     types and conversions, see types.cuh
//     -DROOFLAB_TRANSPOSE_A=0|1    op(A) = A, stored M x K, or op(A) = A^T, stored K x M
//     -DROOFLAB_TRANSPOSE_B=0|1    op(B) = B, stored K x N, or op(B) = B^T, stored N x K
//
// Nothing here needs a standard-library header: the kernels are compiled at run time by NVRTC, on
// machines that have no host compiler.
#pragma once

#include "types.cuh"

constexpr bool transpose_a = ROOFLAB_TRANSPOSE_A;
constexpr bool transpose_b = ROOFLAB_TRANSPOSE_B;

// Offsets are size_t throughout: M * K may exceed 2^31 even if M and K do not.

// op(A)[m][k]
__device__ inline Input element_a(const Input* A, int m, int k, int M, int K) {
    return A[transpose_a ? size_t(k) * M + m : size_t(m) * K + k];
}

// op(B)[k][n]
__device__ inline Input element_b(const Input* B, int k, int n, int K, int N) {
    return B[transpose_b ? size_t(n) * K + k : size_t(k) * N + n];
}

// Moves the pointers to this block's matrices of the batch.
__device__ inline void select_batch(const Input*& A, const Input*& B, Output*& C,
                                    int M, int N, int K) {
    A += blockIdx.z * size_t(M) * K;
    B += blockIdx.z * size_t(K) * N;
    C += blockIdx.z * size_t(M) * N;
}

// C[m][n] = alpha * sum + beta * C[m][n]. As in BLAS, C is not read if beta == 0: it may hold NaN,
// and 0 * NaN is NaN.
__device__ inline void store(Output* C, int m, int n, int N,
                             Accumulate sum, Accumulate alpha, Accumulate beta) {
    const size_t offset = size_t(m) * N + n;
    Accumulate value = alpha * sum;
    if (beta != 0) value += beta * widen(C[offset]);
    C[offset] = narrow(value);
}
