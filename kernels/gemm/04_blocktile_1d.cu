/*
title = "8 elements of a column per thread"
entry = "blocktile_1d"
rung = 4
precisions = ["fp32", "fp64", "fp16", "bf16", "fp16_fp32", "fp8"]
layouts = ["nn", "nt", "tn", "tt"]
block = [64, 8]
tile = [64, 64]
batched = true
teaches = "a thread that computes 8 elements uses each value of B 8 times"
*/

/*
`tiled` with one change: a thread computes 8 elements of a column of C instead of one. Each value of
B that it reads from shared memory stays in a register and is multiplied by 8 values of A.

Shared memory: for 8 multiply-adds a thread reads 1 value of B and 8 of A. The reads of A are
broadcasts, and 4 neighbouring steps of K can be read by one instruction, because a row of tile_a is
contiguous along K. So 8 multiply-adds need 3 reads instead of 16.

Traffic: a block of 512 threads computes 64 x 64 elements from 8 steps of K at a time. It reads 4 KB
of FP32 for 65536 FLOP, an intensity of 16 FLOP/byte, twice that of `tiled`.

Expect twice the speed of `tiled`. What limits it now: the reads of A. A value of A is used for one
multiply-add per read only, like both operands in `tiled`. The next rung keeps both in registers.
*/

#include "gemm.cuh"

constexpr int TILE_M = 64;
constexpr int TILE_N = 64;
constexpr int TILE_K = 8;
constexpr int ROWS = 8;  // elements of C per thread, in a column

static_assert(TILE_M * TILE_K == 512 && TILE_K * TILE_N == 512, "a thread loads one of each tile");

extern "C" __global__ void __launch_bounds__(512)
blocktile_1d(int M, int N, int K, Accumulate alpha, const Input* A, const Input* B,
             Accumulate beta, Output* C) {
    __shared__ __align__(16) Accumulate tile_a[TILE_M][TILE_K];
    __shared__ Accumulate tile_b[TILE_K][TILE_N];

    select_batch(A, B, C, M, N, K);
    const int x = threadIdx.x;
    const int y = threadIdx.y;
    const int first_row = blockIdx.y * TILE_M;
    const int first_column = blockIdx.x * TILE_N;

    // The element of each tile that this thread loads. Neighbouring threads follow the contiguous
    // dimension.
    const int thread = y * TILE_N + x;
    const int a_m = transpose_a ? thread % TILE_M : thread / TILE_K;
    const int a_k = transpose_a ? thread / TILE_M : thread % TILE_K;
    const int b_k = transpose_b ? thread % TILE_K : thread / TILE_N;
    const int b_n = transpose_b ? thread / TILE_K : thread % TILE_N;

    Accumulate sum[ROWS] = {};
    for (int first_k = 0; first_k < K; first_k += TILE_K) {
        // 1. Load one tile of each operand. Zeros beyond the edges add nothing to a sum.
        const bool a_inside = first_row + a_m < M && first_k + a_k < K;
        const bool b_inside = first_k + b_k < K && first_column + b_n < N;
        tile_a[a_m][a_k] =
            a_inside ? widen(element_a(A, first_row + a_m, first_k + a_k, M, K)) : Accumulate(0);
        tile_b[b_k][b_n] =
            b_inside ? widen(element_b(B, first_k + b_k, first_column + b_n, K, N)) : Accumulate(0);
        __syncthreads();

        // 2. Multiply: one value of B with a column of 8 values of A.
#pragma unroll
        for (int k = 0; k < TILE_K; ++k) {
            const Accumulate b = tile_b[k][x];
#pragma unroll
            for (int i = 0; i < ROWS; ++i) sum[i] += tile_a[y * ROWS + i][k] * b;
        }
        __syncthreads();
    }

    const int column = first_column + x;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const int row = first_row + y * ROWS + i;
        if (row < M && column < N) store(C, row, column, N, sum[i], alpha, beta);
    }
}
