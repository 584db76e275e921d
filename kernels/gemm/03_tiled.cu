/*
title = "Shared-memory tiles of 32 x 32"
entry = "tiled"
rung = 3
precisions = ["fp32", "fp64", "fp16", "bf16", "fp16_fp32", "fp8"]
layouts = ["nn", "nt", "tn", "tt"]
block = [32, 32]
tile = [32, 32]
batched = true
teaches = "a block reads each element once and shares it through shared memory"
*/

/*
Neighbouring elements of C need the same rows of A and columns of B. So the threads of a block load
a 32 x 32 tile of each operand into shared memory once, and all of them compute from these tiles.
Then the block moves 32 steps along K.

Traffic: each thread loads 2 elements per 32 multiply-adds; in `coalesced` it loads 64. From L2 a
block reads 8 KB of FP32 for 65536 FLOP, an intensity of 8 FLOP/byte instead of 0.25.

Layouts: the threads of a warp read contiguous memory in every layout. For a transposed operand x
and y swap roles in the load, and the threads write the tile to shared memory down a column. The
tile's rows are then one word longer, so that a column's words are in 32 different banks. Everything
after the load is the same for all four layouts, and so is the speed.

Occupancy: with 1024 threads at 32 registers, and 8 KB of shared memory, two blocks share an sm_80
or sm_90 multiprocessor: one computes while the other waits at its barrier. For newer targets the
compiler may use more registers, and then only one block fits.

What limits it now: each multiply-add reads shared memory at least once. A multiprocessor starts one
warp-wide read per clock, but four warp-wide FP32 multiply-adds: at most a quarter of the FP32 peak.
On an H200 expect about 9 TFLOP/s of 67. To be faster, a thread must compute several elements, so
that each value it reads is used for more than one of them.

FP16, BF16 and FP8 are multiplied and summed in FP32 here, on the same units as FP32: they halve or
quarter the traffic from global memory and gain nothing else. The tiles always hold FP32, so that a
column's words are in different banks for elements of any size. Later rungs use tensor cores.
*/

#include "gemm.cuh"

constexpr int TILE = 32;

// A transposed operand is written to shared memory down a column. At a pitch of 32 words all 32
// threads would write to one bank; with one word more per row they write to 32 different banks.
constexpr int PAD_A = transpose_a ? 1 : 0;
constexpr int PAD_B = transpose_b ? 1 : 0;

extern "C" __global__ void
tiled(int M, int N, int K, Accumulate alpha, const Input* A, const Input* B,
      Accumulate beta, Output* C) {
    // Widened on the way in: once per load here, instead of once per product below.
    __shared__ Accumulate tile_a[TILE][TILE + PAD_A];  // [m][k]
    __shared__ Accumulate tile_b[TILE][TILE + PAD_B];  // [k][n]

    select_batch(A, B, C, M, N, K);
    const int x = threadIdx.x;
    const int y = threadIdx.y;
    const int first_row = blockIdx.y * TILE;
    const int first_column = blockIdx.x * TILE;

    // The element of each tile that this thread loads. x, which numbers the threads of a warp,
    // always follows the contiguous dimension, so that a warp reads consecutive addresses.
    const int a_m = transpose_a ? x : y;
    const int a_k = transpose_a ? y : x;
    const int b_k = transpose_b ? x : y;
    const int b_n = transpose_b ? y : x;

    Accumulate sum = 0;
    for (int first_k = 0; first_k < K; first_k += TILE) {
        // 1. Load one tile of each operand. Zeros beyond the edges add nothing to a sum.
        const bool a_inside = first_row + a_m < M && first_k + a_k < K;
        const bool b_inside = first_k + b_k < K && first_column + b_n < N;
        tile_a[a_m][a_k] =
            a_inside ? widen(element_a(A, first_row + a_m, first_k + a_k, M, K)) : Accumulate(0);
        tile_b[b_k][b_n] =
            b_inside ? widen(element_b(B, first_k + b_k, first_column + b_n, K, N)) : Accumulate(0);

        // 2. Wait until every thread has written, because each reads what others loaded.
        __syncthreads();

        // 3. Multiply. A warp shares y and k: tile_a is one address for all of it, a broadcast;
        //    tile_b is 32 consecutive words, one in each bank.
        for (int k = 0; k < TILE; ++k) {
            sum += tile_a[y][k] * tile_b[k][x];
        }

        // 4. Wait until every thread has read: the next iteration overwrites the tiles.
        __syncthreads();
    }

    const int row = first_row + y;
    const int column = first_column + x;
    if (row < M && column < N) store(C, row, column, N, sum, alpha, beta);
}
