/*
title = "A warp computes a tile of 64 x 32"
entry = "warptiled"
rung = 7
precisions = ["fp32"]
layouts = ["nn", "nt", "tn", "tt"]
block = [256]
tile = [128, 128]
batched = true
teaches = "threads of a warp that share rows and columns read less shared memory"
*/

/*
`vectorized` with two changes.

A warp computes a tile of 64 x 32 instead of 16 x 128: its 32 threads are 8 rows of 4. For each step
of K the warp reads 64 values of A and 32 of B for 2048 multiply-adds, instead of 16 + 128. Threads
that read the same word share one access.

A tile is 16 steps of K deep instead of 8. All threads of a block stop multiplying until their tile
has arrived from L2; now they stop half as often. Shared memory and quads in flight double, which
fits: two blocks of 256 threads with at most 128 registers share a multiprocessor.

Expect 1.15 times the speed of `vectorized`. What limits it now: the waiting. Only the other block
computes meanwhile.

Learned: the second change is all of the gain. The reads of `vectorized` were free of bank conflicts
already, and its reads of A, the same for 16 threads, were cheap. And larger tiles per thread, 8 x
16 in blocks of 128 threads, read less shared memory but are slower here: half as many warps are
left to cover for those that wait. They pay off once nobody waits: see `pipelined`.
*/

#include "vec4.cuh"

constexpr int TILE_M = 128;
constexpr int TILE_N = 128;
constexpr int TILE_K = 16;
constexpr int WARP_M = 64;
constexpr int WARP_N = 32;
constexpr int LANES_M = 8;  // threads of a warp in a column and in a row
constexpr int LANES_N = 4;
constexpr int ROWS = WARP_M / LANES_M;  // elements of C per thread
constexpr int COLUMNS = WARP_N / LANES_N;
constexpr int THREADS = 32 * (TILE_M / WARP_M) * (TILE_N / WARP_N);

extern "C" __global__ void __launch_bounds__(THREADS, 2)
warptiled(int M, int N, int K, float alpha, const float* A, const float* B, float beta, float* C) {
    __shared__ __align__(16) float tile_a[TILE_K][TILE_M + PAD];
    __shared__ __align__(16) float tile_b[TILE_K][TILE_N + PAD];

    select_batch(A, B, C, M, N, K);
    const int first_row = blockIdx.y * TILE_M;
    const int first_column = blockIdx.x * TILE_N;
    const Matrix<!transpose_a> a_matrix(A, M, K);
    const Matrix<transpose_b> b_matrix(B, N, K);

    // The first element of this thread in the tile. The others follow in quads, LANES quads apart.
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int thread_m = warp / (TILE_N / WARP_N) * WARP_M + lane / LANES_N * 4;
    const int thread_n = warp % (TILE_N / WARP_N) * WARP_N + lane % LANES_N * 4;

    float sum[ROWS][COLUMNS] = {};
    for (int first_k = 0; first_k < K; first_k += TILE_K) {
        load_tile<THREADS>(tile_a, a_matrix, first_row, first_k);
        load_tile<THREADS>(tile_b, b_matrix, first_column, first_k);
        __syncthreads();

#pragma unroll
        for (int k = 0; k < TILE_K; ++k) {
            float a[ROWS];
            float b[COLUMNS];
            read_quads(a, &tile_a[k][thread_m], LANES_M * 4);
            read_quads(b, &tile_b[k][thread_n], LANES_N * 4);
            for (int j = 0; j < COLUMNS; ++j) {
                for (int i = 0; i < ROWS; ++i) sum[i][j] += a[i] * b[j];
            }
        }
        __syncthreads();
    }

    const bool aligned = in_quads(C, N);
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const int row = first_row + thread_m + i / 4 * LANES_M * 4 + i % 4;
        if (row >= M) continue;
#pragma unroll
        for (int j = 0; j < COLUMNS; j += 4) {
            const int column = first_column + thread_n + j * LANES_N;
            store_quad(C, row, column, N, &sum[i][j], alpha, beta, aligned);
        }
    }
}
