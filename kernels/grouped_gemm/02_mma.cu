/*
title = "Tensor cores by warp: mma.sync"
entry = "mma"
workload = "grouped_gemm"
rung = 2
precisions = ["fp16", "bf16"]
min_compute_capability = "8.0"
block = ["32 * WARPS_M * WARPS_N"]
blocks = "(tokens // TILE_M + min(experts, tokens)) * ceildiv(n, TILE_N)"
shared_bytes = "STAGES * (TILE_M * 144 + 64 * (2 * TILE_N + 16))"
constraints = { n = 8, k = 8 }
variants = [
    { TILE_M = 128, TILE_N = 128, WARPS_M = 4, WARPS_N = 2, STAGES = 4, BLOCKS = 1 },
    { TILE_M = 128, TILE_N = 256, WARPS_M = 2, WARPS_N = 4, STAGES = 3, BLOCKS = 1 },
    { TILE_M = 64, TILE_N = 128, WARPS_M = 2, WARPS_N = 2, STAGES = 3, BLOCKS = 2 },
    { TILE_M = 32, TILE_N = 128, WARPS_M = 1, WARPS_N = 4, STAGES = 4, BLOCKS = 2 },
    { TILE_M = 16, TILE_N = 128, WARPS_M = 1, WARPS_N = 4, STAGES = 5, BLOCKS = 2 },
    { TILE_M = 16, TILE_N = 64, WARPS_M = 1, WARPS_N = 2, STAGES = 6, BLOCKS = 3 },
]
teaches = "the tile follows the tokens of an expert: tall for prefill, 16 rows for decode"
*/

/*
`tiled` on tensor cores, as `mma` of GEMM: cp.async copies STAGES - 1 tiles ahead, ldmatrix takes them
to the lanes, transposed for W, whose rows are along N, and mma.sync multiplies pieces of 16 x 8 x 16.
Rows in shared memory are 16 bytes longer than a tile, so that 8 of them lie in different banks.

The height of the tile decides. With many tokens for each expert a tall one reads W seldom from L2.
With few, most rows of a tile are zeros, which cost time but no traffic: 16 rows are the least that an
instruction takes. What a device prefers for a problem is found by a search.

Traffic: X once for each TILE_N columns and W once for each TILE_M rows of an expert, from L2 as far as
blocks next to each other ask for it, which share columns of one expert.

Occupancy: 128 x 128 has 8 warps of 170 registers, one block for a multiprocessor; of 64 x 128 there is
room for two, one of which multiplies while the other one waits. 16 x 128 has 99 KB in 5 stages, of which
4 are in flight: 139 KB of W for the two blocks of a multiprocessor, where 40 KB would do for 4.8 TB/s.

Expect 350 to 400 TFLOP/s on an H200 for 8 experts with 1024 tokens each (mma.sync gets to 60 % of the
peak, and the last tile of each expert is less than full), and 3.5 TB/s of weights for 4 tokens each.
*/

#include "copy_tile.cuh"
#include "dynamic_shared.cuh"
#include "experts.cuh"

constexpr int THREADS = 32 * WARPS_M * WARPS_N;
constexpr int TILE_K = 64;
constexpr int PITCH_X = 2 * TILE_K + 16;
constexpr int PITCH_W = 2 * TILE_N + 16;
constexpr int STAGE_BYTES = TILE_M * PITCH_X + TILE_K * PITCH_W;

// What a warp computes: MS x NS pieces of 16 x 8.
constexpr int WARP_M = TILE_M / WARPS_M;
constexpr int WARP_N = TILE_N / WARPS_N;
constexpr int MS = WARP_M / 16;
constexpr int NS = WARP_N / 8;
static_assert(MS * 16 == WARP_M && NS % 2 == 0, "warps have whole pieces, those of W in pairs");

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
mma(int tokens, int N, int K, int experts, const Input* X, const Input* W, const int* ends, Output* Y) {
    const ExpertTile tile = find_tile<TILE_M, TILE_N>(ends, experts, N);
    if (tile.end == 0) return;
    X += size_t(tile.row) * K;
    W += size_t(tile.expert) * K * N + tile.column;
    const Address stages = shared_address(dynamic_shared_memory());

    // 1. Start the copies of STAGES - 1 tiles. Beyond the end of K they are zeros, read from nowhere.
    int next_k = 0, next = 0;
    const auto copy_next = [&] {
        const Address of_x = stages + next * STAGE_BYTES, of_w = of_x + TILE_M * PITCH_X;
        const int left = max(0, K - next_k), start = min(next_k, K - 1);
        copy_tile<THREADS, TILE_M, 2 * TILE_K, PITCH_X>(
            of_x, X + start, 2 * size_t(K), tile.end - tile.row, 2 * left);
        copy_tile<THREADS, TILE_K, 2 * TILE_N, PITCH_W>(
            of_w, W + size_t(start) * N, 2 * size_t(N), left, 2 * (N - tile.column));
        copy_commit();
        next_k += TILE_K;
        next = next == STAGES - 1 ? 0 : next + 1;
    };
    for (int stage = 0; stage < STAGES - 1; ++stage) copy_next();

    // 2. Multiply a tile. Once all threads are past the barrier, the stage before takes a new one.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first_row = warp / WARPS_N * WARP_M, first_column = warp % WARPS_N * WARP_N;
    const Address lane_x = stages + (first_row + lane % 16) * PITCH_X + lane / 16 * 16;
    const Address lane_w = stages + TILE_M * PITCH_X + lane % 16 * PITCH_W + lane / 16 * 16 + first_column * 2;
    float sum[MS][NS][4] = {};
    int stage = 0;
    for (int k = 0; k < K; k += TILE_K) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        copy_next();
#pragma unroll
        for (int step = 0; step < TILE_K / 16; ++step) {
            unsigned x[MS][4];
            for (int m = 0; m < MS; ++m) {
                load_matrices(x[m], lane_x + stage * STAGE_BYTES + m * 16 * PITCH_X + step * 32);
            }
#pragma unroll
            for (int n = 0; n < NS; n += 2) {
                unsigned w[4];
                load_transposed(w, lane_w + stage * STAGE_BYTES + step * 16 * PITCH_W + n * 16);
                for (int m = 0; m < MS; ++m) {
                    multiply_add(sum[m][n], x[m], w);
                    multiply_add(sum[m][n + 1], x[m], w + 2);
                }
            }
        }
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }

    // 3. Store. A lane has two neighbours in a row, 8 rows below two more.
    const int row = tile.row + first_row + lane / 4, column = tile.column + first_column + lane % 4 * 2;
    for (int m = 0; m < MS; ++m) {
        for (int n = 0; n < NS; ++n) {
            for (int half = 0; half < 2; ++half) {
                const int i = row + m * 16 + half * 8, j = column + n * 8;
                if (i >= tile.end || j >= N) continue;
                const unsigned pair = pack_pair(sum[m][n][2 * half], sum[m][n][2 * half + 1]);
                *reinterpret_cast<unsigned*>(Y + size_t(i) * N + j) = pair;
            }
        }
    }
}
