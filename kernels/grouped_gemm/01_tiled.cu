/*
title = "Tiles of 64 x 64, 4 x 4 elements per thread"
entry = "tiled"
workload = "grouped_gemm"
rung = 1
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = [256]
blocks = "(tokens // 64 + min(experts, tokens)) * ceildiv(n, 64)"
teaches = "each block finds its expert in the ends, so that the host need not know the counts"
*/

/*
A block computes 64 x 64 elements of one expert's product, as `blocktile_2d` of GEMM does: tiles of
both operands in shared memory, and an outer product of 4 x 4 in the registers of each thread.

The counts of tokens are in device memory, where the router has left them. Each expert ends with a
tile that may be less than full, so a tile belongs to one expert only. Counts that sum up to `tokens`
have at most tokens / 64 tiles of rows and one more for each expert with tokens: so many blocks are
launched, and each goes through the ends until its number is reached. Those without a tile leave.

Traffic: X once for each 64 columns, from L2 where it fits, and W once: blocks next to each other
have the same columns of the same expert. With few tokens for each expert W is all that counts.

Occupancy: about 64 registers and 8 KB in FP32, so 4 blocks share a multiprocessor.

Expect 15 to 20 TFLOP/s on an H200 for large counts in any type but FP64: 8 reads of shared memory for
16 multiply-adds, on ordinary cores. With 4 tokens for each expert 15 of 16 rows are zeros, and a
block waits for each step of 16 along K: 1 TB/s of weights.
*/

#include "experts.cuh"
#include "plain_tile.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
tiled(int tokens, int N, int K, int experts, const Input* X, const Input* W, const int* ends, Output* Y) {
    __shared__ Accumulate tile_x[TILE_K][TILE + PAD];
    __shared__ Accumulate tile_w[TILE_K][TILE];

    const ExpertTile tile = find_tile<TILE, TILE>(ends, experts, N);
    if (tile.end == 0) return;
    W += size_t(tile.expert) * K * N;
    const int thread = threadIdx.x, x = thread % SIDE, y = thread / SIDE;

    Accumulate sum[EACH][EACH] = {};
    for (int first_k = 0; first_k < K; first_k += TILE_K) {
        // 1. Load a tile of each operand. Zeros beyond the edges, and in other experts' rows.
        for (int i = thread; i < TILE * TILE_K; i += THREADS) {
            const int row = tile.row + i / TILE_K, k = first_k + i % TILE_K;
            const bool inside = row < tile.end && k < K;
            tile_x[i % TILE_K][i / TILE_K] = inside ? widen(X[size_t(row) * K + k]) : Accumulate(0);
        }
        for (int i = thread; i < TILE * TILE_K; i += THREADS) {
            const int k = first_k + i / TILE, column = tile.column + i % TILE;
            const bool inside = k < K && column < N;
            tile_w[i / TILE][i % TILE] = inside ? widen(W[size_t(k) * N + column]) : Accumulate(0);
        }
        __syncthreads();

        // 2. Multiply.
        multiply(tile_x, tile_w, x, y, sum);
        __syncthreads();
    }
    store(Y, sum, x, y, tile.row, tile.column, tile.end, N);
}
