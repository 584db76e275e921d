/*
title = "Tiles of 64 x 64, numbers scaled on the way to shared memory"
entry = "tiled"
workload = "block_gemm"
rung = 1
precisions = ["fp8"]
block = [256]
tile = [64, 64]
teaches = "with its scale a number of FP8 is one of FP32: what is left is GEMM"
*/

/*
The tiles of GEMM, 64 x 64 elements of Y for a block and 4 x 4 for a thread. A number is widened and
scaled once, on its way to shared memory, for all 64 rows or columns of the tile. Sums are FP32.

Layout: W has a row for each column of Y. The scales of X have a row for each 128 along K, those of W one
for each 128 columns of Y.

Traffic: W once for each 64 rows of X and X once for each 64 columns, a byte per number, from L2 if there
are several.

Occupancy: about 64 registers and 9 KB, so 4 blocks share a multiprocessor.

Expect 15 to 20 TFLOP/s on an H200, as of any tile of 64 x 64 on ordinary cores: a hundredth of what its
tensor cores can do in FP8.
*/

#include <cuda_fp8.h>

#include "plain_tile.cuh"

constexpr int GROUP = 128;

extern "C" __global__ void __launch_bounds__(THREADS)
tiled(int M, int N, int K, const __nv_fp8_e4m3* X, const __nv_fp8_e4m3* W, const float* x_scales,
      const float* w_scales, Output* Y) {
    __shared__ float tile_x[TILE_K][TILE + PAD];
    __shared__ float tile_w[TILE_K][TILE + PAD];
    const int first_row = blockIdx.y * TILE, first_column = blockIdx.x * TILE;
    const int groups = (K + GROUP - 1) / GROUP;
    const int thread = threadIdx.x, x = thread % SIDE, y = thread / SIDE;

    float sum[EACH][EACH] = {};
    for (int first_k = 0; first_k < K; first_k += TILE_K) {
        // 1. Load a tile of each operand. Its numbers along K are of one group.
        const int group = first_k / GROUP;
        for (int i = thread; i < TILE * TILE_K; i += THREADS) {
            const int place = i / TILE_K, k = first_k + i % TILE_K;
            const int row = first_row + place, column = first_column + place;
            float of_x = 0, of_w = 0;
            if (row < M && k < K) of_x = float(X[size_t(row) * K + k]) * x_scales[size_t(group) * M + row];
            if (column < N && k < K) {
                of_w = float(W[size_t(column) * K + k]) * w_scales[size_t(column / GROUP) * groups + group];
            }
            tile_x[i % TILE_K][place] = of_x;
            tile_w[i % TILE_K][place] = of_w;
        }
        __syncthreads();

        // 2. Multiply.
        multiply(tile_x, tile_w, x, y, sum);
        __syncthreads();
    }
    store(Y, sum, x, y, first_row, first_column, M, N);
}
