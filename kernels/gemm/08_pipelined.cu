/*
title = "Warp tiles, loaded ahead by cp.async"
entry = "pipelined"
rung = 8
precisions = ["fp32"]
layouts = ["nn", "nt", "tn", "tt"]
block = [128]
tile = [128, 128]
batched = true
min_compute_capability = "8.0"
teaches = "copies that run ahead in the background, so that the block always has a tile to multiply"
*/

/*
`warptiled` with one idea more: the next tiles are loaded while one is multiplied. Shared memory holds
STAGES tiles of each operand, and cp.async fills them without registers: a thread only starts the
copy, and waits for it STAGES - 1 tiles later.

As nobody waits any more, fewer warps are enough, and a thread can compute 8 x 16 elements: 6 reads
of 16 bytes for 128 multiply-adds instead of 4 for 64. A warp computes 64 x 64, a block has 128
threads. A tile has 8 steps of K instead of 16.

One barrier per tile is enough. It says two things at once: what every thread has waited for is
visible to all, and every thread has finished with the tile before, so that its stage can be filled
again.

A copy cannot transpose a quad. For an operand that is contiguous along K (A in layout nn) it moves
single elements, 4 bytes each, straight to their place. 8 threads read neighbouring elements along K
and write them a row of 132 words apart: 32 different banks. The other operand is copied in quads.

Occupancy: 128 sums and 24 factors, with addresses about 230 registers; two blocks of 128 threads.

Expect 1.15 times the speed of `warptiled`. What limits it now: the copies of single elements, and
multiply-adds that wait for registers: see `serpentine`.
*/

#include "async_copy.cuh"
#include "vec4.cuh"

constexpr int TILE_M = 128;
constexpr int TILE_N = 128;
constexpr int TILE_K = 8;
constexpr int STAGES = 4;
constexpr int WARP_M = 64;
constexpr int WARP_N = 64;
constexpr int LANES_M = 8;  // threads of a warp in a column and in a row
constexpr int LANES_N = 4;
constexpr int ROWS = WARP_M / LANES_M;  // elements of C per thread
constexpr int COLUMNS = WARP_N / LANES_N;
constexpr int THREADS = 32 * (TILE_M / WARP_M) * (TILE_N / WARP_N);

// As load_tile, but in the background. COUNT elements are copied at a time.
template <int COUNT, bool ALONG_K>
__device__ inline void copy_elements(float (&tile)[TILE_K][TILE_M + PAD],
                                     const Matrix<ALONG_K>& matrix, int first_row, int first_k) {
#pragma unroll
    for (int pass = 0; pass < TILE_M * TILE_K / COUNT / THREADS; ++pass) {
        const unsigned i = pass * THREADS + threadIdx.x;
        const int row = ALONG_K ? i / TILE_K : i % (TILE_M / COUNT) * COUNT;
        const int k = ALONG_K ? i % TILE_K : i / (TILE_M / COUNT);
        const float* from = matrix.template at<COUNT>(first_row + row, first_k + k);
        copy_async<COUNT * 4>(address_of(&tile[k][row]), from, first_k + k < matrix.K ? COUNT * 4 : 0);
    }
}

template <bool ALONG_K>
__device__ inline void copy_tile(float (&tile)[TILE_K][TILE_M + PAD], const Matrix<ALONG_K>& matrix,
                                 int first_row, int first_k) {
    if (ALONG_K || !matrix.aligned) {
        copy_elements<1>(tile, matrix, first_row, first_k);
    } else {
        copy_elements<4>(tile, matrix, first_row, first_k);
    }
}

static_assert(TILE_M == TILE_N, "copy_tile serves both operands");

extern "C" __global__ void __launch_bounds__(THREADS)
pipelined(int M, int N, int K, float alpha, const float* A, const float* B, float beta, float* C) {
    __shared__ __align__(16) float tile_a[STAGES][TILE_K][TILE_M + PAD];
    __shared__ __align__(16) float tile_b[STAGES][TILE_K][TILE_N + PAD];

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
    const auto copy = [&](int tile) {
        const int stage = tile % STAGES;
        copy_tile(tile_a[stage], a_matrix, first_row, tile * TILE_K);
        copy_tile(tile_b[stage], b_matrix, first_column, tile * TILE_K);
    };
    const int tiles = (K + TILE_K - 1) / TILE_K;
    for (int tile = 0; tile < STAGES - 1; ++tile) {
        if (tile < tiles) copy(tile);
        commit_copies();
    }

    for (int tile = 0; tile < tiles; ++tile) {
        // 1. This tile has arrived, and all threads have finished the one before it.
        wait_for_copies<STAGES - 2>();
        __syncthreads();

        // 2. Load the tile that takes the finished one's stage. An empty group keeps the count.
        if (tile + STAGES - 1 < tiles) copy(tile + STAGES - 1);
        commit_copies();

        // 3. Multiply.
        const auto& a_tile = tile_a[tile % STAGES];
        const auto& b_tile = tile_b[tile % STAGES];
#pragma unroll
        for (int k = 0; k < TILE_K; ++k) {
            float a[ROWS];
            float b[COLUMNS];
            read_quads(a, &a_tile[k][thread_m], LANES_M * 4);
            read_quads(b, &b_tile[k][thread_n], LANES_N * 4);
            for (int j = 0; j < COLUMNS; ++j) {
                for (int i = 0; i < ROWS; ++i) sum[i][j] += a[i] * b[j];
            }
        }
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
