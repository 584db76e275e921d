/*
title = "Tensor cores by warp, weights unpacked in registers"
entry = "mma"
workload = "w4a16"
rung = 3
precisions = ["fp16", "bf16"]
min_compute_capability = "8.0"
block = ["32 * WARPS_M * WARPS_N"]
tile = ["TILE_M", "TILE_N"]
shared_bytes = "STAGES * (TILE_M * 144 + TILE_N * 32)"
constraints = { n = 2, k = 32 }
variants = [
    { TILE_M = 128, TILE_N = 128, WARPS_M = 2, WARPS_N = 4, STAGES = 4, BLOCKS = 1 },
    { TILE_M = 128, TILE_N = 256, WARPS_M = 2, WARPS_N = 4, STAGES = 4, BLOCKS = 1 },
    { TILE_M = 64, TILE_N = 128, WARPS_M = 1, WARPS_N = 4, STAGES = 4, BLOCKS = 2 },
    { TILE_M = 32, TILE_N = 64, WARPS_M = 1, WARPS_N = 4, STAGES = 6, BLOCKS = 3 },
    { TILE_M = 16, TILE_N = 64, WARPS_M = 1, WARPS_N = 4, STAGES = 8, BLOCKS = 3 },
    { TILE_M = 16, TILE_N = 32, WARPS_M = 1, WARPS_N = 4, STAGES = 8, BLOCKS = 4 },
]
teaches = "a sum has no order: its terms may lie in registers as memory delivers them"
*/

/*
mma.sync wants a lane to have certain elements along K. But the order of the terms of a sum is free, as
long as both operands agree. So of a tile's 64 places along K a lane takes 16 that lie next to each other:
8 bytes of W, 32 of X. Both are loaded as they lie in memory, without ldmatrix and without an offline
layout. A word of W has the lane's weights for two products.

  - cp.async copies tiles of X, and of W as packed as it is, STAGES - 1 ahead.
  - Weights are unpacked in registers two at a time, scaled, which rounds them to 16 bits, and multiplied.
  - A tile has 64 places along K, half a group: one scale for each column.

Arithmetic: two operations for a weight, and half of one to pair numbers of X as weights are paired. A warp
unpacks for its own columns, and WARPS_M of them the same ones. With 64 rows for a warp, 4 weights of a lane
come before 4 products, which take the tensor cores some 26 cycles of a scheduler at the rate of mma.sync.

Traffic: W once for each TILE_M rows at half a byte per weight, X once for each TILE_N columns.

Occupancy: 128 x 128 has 8 warps and 90 KB, 16 x 64 has 3 blocks of 35 KB: 43 KB of W in flight.

Expect 300 TFLOP/s on an H200 for many rows, half of what FP16 weights reach with wgmma, and 1.5 to 2 TB/s of
weights for 16 rows, less than `rows`, whose warps do not wait for each other.
*/

#include "copy_tile.cuh"
#include "dynamic_shared.cuh"
#include "w4_pair.cuh"

constexpr int THREADS = 32 * WARPS_M * WARPS_N;
constexpr int TILE_K = 64;
constexpr int PITCH_X = 2 * TILE_K + 16;  // 8 rows in different banks
constexpr int PITCH_W = TILE_K / 2;
constexpr int BYTES_X = TILE_M * PITCH_X;
constexpr int STAGE_BYTES = BYTES_X + TILE_N * PITCH_W;

// What a warp computes: MS x NS pieces of 16 x 8.
constexpr int WARP_M = TILE_M / WARPS_M;
constexpr int WARP_N = TILE_N / WARPS_N;
constexpr int MS = WARP_M / 16;
constexpr int NS = WARP_N / 8;
static_assert(MS * 16 == WARP_M && NS * 8 == WARP_N, "warps have whole pieces");

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
mma(int M, int N, int K, const Input* X, const unsigned char* W, const Input* scales, Output* Y) {
    const int first_row = blockIdx.y * TILE_M, first_column = blockIdx.x * TILE_N;
    X += size_t(first_row) * K;
    W += size_t(first_column) * (K / 2);
    unsigned char* const stages = dynamic_shared_memory();

    // 1. Start the copies of STAGES - 1 tiles. Beyond the end of K those of X are zeros.
    int next_k = 0, next = 0;
    const auto copy_next = [&] {
        const Address of_x = shared_address(stages + next * STAGE_BYTES);
        const int left = max(0, K - next_k), start = left > 0 ? next_k : 0;
        copy_tile<THREADS, TILE_M, 2 * TILE_K, PITCH_X>(
            of_x, X + start, 2 * size_t(K), M - first_row, 2 * left);
        copy_tile<THREADS, TILE_N, TILE_K / 2, PITCH_W>(
            of_x + BYTES_X, W + start / 2, K / 2, N - first_column, left / 2);
        copy_commit();
        next_k += TILE_K;
        next = next == STAGES - 1 ? 0 : next + 1;
    };
    for (int stage = 0; stage < STAGES - 1; ++stage) copy_next();

    // 2. Multiply a tile. Once all threads are past the barrier, the stage before takes a new one.
    const int warp = threadIdx.x / 32, group = threadIdx.x % 32 / 4, place = threadIdx.x % 4;
    const int warp_row = warp / WARPS_N * WARP_M, warp_column = warp % WARPS_N * WARP_N;
    const unsigned char* const lane_x = stages + (warp_row + group) * PITCH_X + place * 32;
    const unsigned char* const lane_w = stages + BYTES_X + (warp_column + group) * PITCH_W + place * 8;
    const int groups = (K + GROUP - 1) / GROUP, column = first_column + warp_column;
    unsigned short ahead[NS];  // the scales of the next tile
    const auto load_scales = [&](int k) {
        for (int n = 0; n < NS; ++n) {
            const size_t of = min(column + n * 8 + group, N - 1);
            ahead[n] = reinterpret_cast<const unsigned short*>(scales)[of * groups + min(k, K - 1) / GROUP];
        }
    };
    load_scales(0);
    float sum[MS][NS][4] = {};
    int stage = 0;
    for (int k = 0; k < K; k += TILE_K) {
        unsigned scale[NS];
        for (int n = 0; n < NS; ++n) scale[n] = scale_pair(ahead[n]);
        copy_wait<STAGES - 2>();
        __syncthreads();
        copy_next();
        load_scales(k + TILE_K);
#pragma unroll
        for (int half = 0; half < 2; ++half) {  // 8 of the lane's 16 places: two products
            unsigned x[MS][2][4];
            for (int m = 0; m < MS; ++m) {
                for (int below = 0; below < 2; ++below) {
                    const int row = m * 16 + below * 8;
                    pair_up(x[m][below], *reinterpret_cast<const uint4*>(
                        lane_x + stage * STAGE_BYTES + row * PITCH_X + half * 16));
                }
            }
#pragma unroll
            for (int n = 0; n < NS; ++n) {
                const unsigned word = *reinterpret_cast<const unsigned*>(
                    lane_w + stage * STAGE_BYTES + n * 8 * PITCH_W + half * 4);
                unsigned w[4];
                for (int i = 0; i < 4; ++i) w[i] = scaled(weight_pair(word, i), scale[n]);
                for (int m = 0; m < MS; ++m) {
                    for (int i = 0; i < 4; i += 2) {
                        const unsigned both[4] = {x[m][0][i], x[m][1][i], x[m][0][i + 1], x[m][1][i + 1]};
                        multiply_add(sum[m][n], both, w + i);
                    }
                }
            }
        }
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }

    // 3. Store. A lane has two neighbours in a row, 8 rows below two more.
    for (int m = 0; m < MS; ++m) {
        for (int n = 0; n < NS; ++n) {
            for (int below = 0; below < 2; ++below) {
                const int i = first_row + warp_row + group + m * 16 + below * 8, j = column + n * 8 + place * 2;
                if (i >= M || j >= N) continue;
                const unsigned pair = pack_pair(sum[m][n][2 * below], sum[m][n][2 * below + 1]);
                *reinterpret_cast<unsigned*>(Y + size_t(i) * N + j) = pair;
            }
        }
    }
}
