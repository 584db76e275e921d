/*
title = "8 x 8 elements per thread"
entry = "blocktile_2d"
rung = 5
precisions = ["fp32", "fp16", "bf16", "fp16_fp32", "fp8"]
layouts = ["nn", "nt", "tn", "tt"]
block = [16, 16]
tile = [128, 128]
batched = true
teaches = "an outer product in registers uses the values of both operands 8 times"
*/

/*
`blocktile_1d` with one change: a thread computes 8 x 8 elements of C. For each step of K it reads 8
values of A and 8 of B into registers and adds their outer product: 16 reads for 64 multiply-adds.

A thread's elements are 16 rows and 16 columns apart. So at each read of B the 16 threads of a row
read 16 neighbouring words, and neighbouring threads store neighbouring elements of C.

Traffic: a block of 256 threads computes 128 x 128 elements. It reads 8 KB of FP32 for 262144 FLOP,
an intensity of 32 FLOP/byte, twice that of `blocktile_1d`. As each thread loads 4 elements of each
operand, the loads are loops now.

Occupancy: 64 sums and 16 operands take about 100 registers in FP32, so two blocks share a
multiprocessor.

Expect 1.5 times the speed of `blocktile_1d`. What limits it now: a multiprocessor starts one
warp-wide read of shared memory per clock, and four multiply-adds. 16 reads for 64 multiply-adds
keep both busy all the time, if nothing else happens. The next rung reads the same words with fewer
instructions.
*/

#include "gemm.cuh"

constexpr int TILE_M = 128;
constexpr int TILE_N = 128;
constexpr int TILE_K = 8;
constexpr int ROWS = 8;  // elements of C per thread
constexpr int COLUMNS = 8;
constexpr int SIDE = 16;  // threads in a row and in a column of the block
constexpr int THREADS = SIDE * SIDE;

// With 4 words more per row, 8 rows of K and 4 neighbouring columns are in 32 different banks: an
// operand that is contiguous along K is written there in that shape.
constexpr int PAD = 4;

static_assert(SIDE * ROWS == TILE_M && SIDE * COLUMNS == TILE_N, "the threads cover the tile");

extern "C" __global__ void __launch_bounds__(THREADS)
blocktile_2d(int M, int N, int K, Accumulate alpha, const Input* A, const Input* B,
             Accumulate beta, Output* C) {
    __shared__ Accumulate tile_a[TILE_K][TILE_M + PAD];
    __shared__ Accumulate tile_b[TILE_K][TILE_N + PAD];

    select_batch(A, B, C, M, N, K);
    const int x = threadIdx.x;
    const int y = threadIdx.y;
    const int first_row = blockIdx.y * TILE_M;
    const int first_column = blockIdx.x * TILE_N;

    const unsigned thread = y * SIDE + x;

    Accumulate sum[ROWS][COLUMNS] = {};
    for (int first_k = 0; first_k < K; first_k += TILE_K) {
        // 1. Load one tile of each operand. Zeros beyond the edges add nothing to a sum.
#pragma unroll
        for (int pass = 0; pass < TILE_M * TILE_K / THREADS; ++pass) {
            const unsigned i = pass * THREADS + thread;
            const int m = transpose_a ? i % TILE_M : i / TILE_K;
            const int k = transpose_a ? i / TILE_M : i % TILE_K;
            const bool inside = first_row + m < M && first_k + k < K;
            tile_a[k][m] =
                inside ? widen(element_a(A, first_row + m, first_k + k, M, K)) : Accumulate(0);
        }
#pragma unroll
        for (int pass = 0; pass < TILE_K * TILE_N / THREADS; ++pass) {
            const unsigned i = pass * THREADS + thread;
            const int k = transpose_b ? i % TILE_K : i / TILE_N;
            const int n = transpose_b ? i / TILE_K : i % TILE_N;
            const bool inside = first_k + k < K && first_column + n < N;
            tile_b[k][n] =
                inside ? widen(element_b(B, first_k + k, first_column + n, K, N)) : Accumulate(0);
        }
        __syncthreads();

        // 2. Multiply: a column of 8 values of A with a row of 8 values of B.
#pragma unroll
        for (int k = 0; k < TILE_K; ++k) {
            Accumulate a[ROWS];
            Accumulate b[COLUMNS];
            for (int i = 0; i < ROWS; ++i) a[i] = tile_a[k][y + i * SIDE];
            for (int j = 0; j < COLUMNS; ++j) b[j] = tile_b[k][x + j * SIDE];
            for (int j = 0; j < COLUMNS; ++j) {
                for (int i = 0; i < ROWS; ++i) sum[i][j] += a[i] * b[j];
            }
        }
        __syncthreads();
    }

#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
            const int row = first_row + y + i * SIDE;
            const int column = first_column + x + j * SIDE;
            if (row < M && column < N) store(C, row, column, N, sum[i][j], alpha, beta);
        }
    }
}
