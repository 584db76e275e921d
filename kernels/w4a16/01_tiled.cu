/*
title = "Tiles of 64 x 64, weights unpacked on the way to shared memory"
entry = "tiled"
workload = "w4a16"
rung = 1
precisions = ["fp32", "fp16", "bf16"]
block = [256]
tile = [64, 64]
teaches = "weights are small in memory only: before they are multiplied they are numbers as all others"
*/

/*
The tiles of GEMM, 64 x 64 elements of Y for a block and 4 x 4 for a thread. A weight is unpacked and
scaled once, on its way to shared memory, for all 64 rows of the tile.

Layout: W is N x K / 2 bytes, a row for each column of Y. The low half of byte k / 2 is the weight of
the even k. Scales are N x K / 128.

Traffic: W once for each 64 rows of X, at half a byte per weight, from L2 if there are more rows; X
once for each 64 columns.

Occupancy: about 64 registers and 9 KB, so 4 blocks share a multiprocessor.

Expect 15 to 20 TFLOP/s on an H200 for many rows, as of any tile of 64 x 64 on ordinary cores, and at
M = 1 a few per cent of the roof: 63 of 64 rows are zeros. See `rows` for that.
*/

#include "plain_tile.cuh"
#include "w4.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
tiled(int M, int N, int K, const Input* X, const unsigned char* W, const Input* scales, Output* Y) {
    __shared__ float tile_x[TILE_K][TILE + PAD];
    __shared__ float tile_w[TILE_K][TILE + PAD];
    const int first_row = blockIdx.y * TILE, first_column = blockIdx.x * TILE;
    const int bytes = (K + 1) / 2, groups = (K + GROUP - 1) / GROUP;
    const int thread = threadIdx.x, x = thread % SIDE, y = thread / SIDE;

    float sum[EACH][EACH] = {};
    for (int first_k = 0; first_k < K; first_k += TILE_K) {
        // 1. Load a tile of each operand. Rows of X end with zeros: what W has there does not matter.
        for (int i = thread; i < TILE * TILE_K; i += THREADS) {
            const int row = first_row + i / TILE_K, k = first_k + i % TILE_K;
            const bool inside = row < M && k < K;
            tile_x[i % TILE_K][i / TILE_K] = inside ? widen(X[size_t(row) * K + k]) : 0;
        }
        for (int i = thread; i < TILE * TILE_K / 2; i += THREADS) {
            const int column = first_column + i / (TILE_K / 2), k = i % (TILE_K / 2) * 2;
            const bool inside = column < N && first_k + k < K;
            const unsigned byte = inside ? W[size_t(column) * bytes + (first_k + k) / 2] : 0;
            const float scale = inside ? widen(scales[size_t(column) * groups + first_k / GROUP]) : 0;
            tile_w[k][i / (TILE_K / 2)] = scale * weight(byte, 0);
            tile_w[k + 1][i / (TILE_K / 2)] = scale * weight(byte, 1);
        }
        __syncthreads();

        // 2. Multiply.
        multiply(tile_x, tile_w, x, y, sum);
        __syncthreads();
    }
    store(Y, sum, x, y, first_row, first_column, M, N);
}
