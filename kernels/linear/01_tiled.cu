/*
title = "Tiles of 64 x 64, 4 x 4 elements per thread"
entry = "tiled"
workload = "linear"
rung = 1
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = [256]
tile = [64, 64]
teaches = "what follows a product costs nothing while its sums are in registers"
*/

/*
The tiles of GEMM, 64 x 64 elements of Y for a block and 4 x 4 for a thread. A thread adds the bias to its sums,
and computes GELU, before it stores them: without a kernel of their own, which would read and write Y again.
With SwiGLU a block has the same columns of gate and up, two tiles of W for one of X, and a thread both sums of
its elements.

Layout: W has a row for each column of Y, and with SwiGLU N rows of the gate before N rows of up.

Traffic: X once for each 64 columns of Y and W once for each 64 rows, from L2 where they fit. The bias is read
once for each tile. Y is written once, and sums never leave the registers.

Occupancy: 48 registers and 9 KB in FP32, so 5 blocks share a multiprocessor. With SwiGLU twice as many sums
take 80 registers and 13 KB: 3 blocks.

Expect 15 to 20 TFLOP/s on an H200 in any type but FP64, as of any tile of 64 x 64 on ordinary cores, and with
SwiGLU a little more: a number of X is read from shared memory for two products. Beside a sum of thousands of
products an exponential takes no time that shows.
*/

#include "linear.cuh"
#include "plain_tile.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
tiled(int M, int N, int K, const Input* X, const Input* W, LINEAR_BIAS Output* Y) {
    __shared__ Accumulate tile_x[TILE_K][TILE + PAD];
    __shared__ Accumulate tile_w[WEIGHTS][TILE_K][TILE + PAD];
    const int first_row = blockIdx.y * TILE, first_column = blockIdx.x * TILE;
    const int thread = threadIdx.x, x = thread % SIDE, y = thread / SIDE;

    Accumulate sum[WEIGHTS][EACH][EACH] = {};
    for (int first_k = 0; first_k < K; first_k += TILE_K) {
        // 1. Load a tile of each operand, zeros beyond the edges.
        for (int i = thread; i < TILE * TILE_K; i += THREADS) {
            const int place = i / TILE_K, k = first_k + i % TILE_K;
            const int row = first_row + place, column = first_column + place;
            tile_x[i % TILE_K][place] = row < M && k < K ? widen(X[size_t(row) * K + k]) : Accumulate(0);
            for (int w = 0; w < WEIGHTS; ++w) {
                const bool inside = column < N && k < K;
                const size_t of_w = size_t(w) * N + column;
                tile_w[w][i % TILE_K][place] = inside ? widen(W[of_w * K + k]) : Accumulate(0);
            }
        }
        __syncthreads();

        // 2. Multiply.
#pragma unroll
        for (int w = 0; w < WEIGHTS; ++w) multiply(tile_x, tile_w[w], x, y, sum[w]);
        __syncthreads();
    }

    // 3. Finish what a thread has, and store it.
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        const int column = first_column + x + j * SIDE;
        if (column >= N) continue;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            sum[0][i][j] = finish(sum[0][i][j], sum[WEIGHTS - 1][i][j], bias, column);
        }
    }
    store(Y, sum[0], x, y, first_row, first_column, M, N);
}
