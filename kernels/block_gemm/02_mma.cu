/*
title = "Tensor cores by warp, sums of 128 scaled in registers"
entry = "mma"
workload = "block_gemm"
rung = 2
precisions = ["fp8"]
min_compute_capability = "8.9"
block = ["32 * WARPS_M * WARPS_N"]
tile = ["TILE_M", "TILE_N"]
shared_bytes = "STAGES * (TILE_M + TILE_N) * 160"
constraints = { n = 2, k = 16 }
variants = [
    { TILE_M = 128, TILE_N = 128, WARPS_M = 2, WARPS_N = 4, STAGES = 4, BLOCKS = 1 },
    { TILE_M = 128, TILE_N = 64, WARPS_M = 2, WARPS_N = 2, STAGES = 3, BLOCKS = 2 },
    { TILE_M = 64, TILE_N = 64, WARPS_M = 2, WARPS_N = 2, STAGES = 4, BLOCKS = 2 },
    { TILE_M = 16, TILE_N = 64, WARPS_M = 1, WARPS_N = 4, STAGES = 5, BLOCKS = 3 },
    { TILE_M = 16, TILE_N = 32, WARPS_M = 1, WARPS_N = 4, STAGES = 7, BLOCKS = 4 },
]
teaches = "scales are for sums, not for numbers: each 128 products share two of them"
*/

/*
All numbers of a group have the same two scales, one of X's row and one of W's block, so these multiply
the sum of its products: once for 128 of them. Where tensor cores cut sums in FP8 off after 13 bits, as
wgmma does on Hopper, this also keeps sums short: each begins at zero, and FP32 units add it to the total.

  - cp.async copies tiles of X and W, 128 bytes of K, a group, STAGES - 1 ahead.
  - The order of the terms of a sum is free, as long as both operands agree. So of the 32 bytes of a product
    a lane takes 8 that lie next to each other, without ldmatrix.
  - A tile has columns of one block of W, hence one scale of W.

Arithmetic: an element of Y costs a multiplication and an addition for each group, beside 128 products.
For Hopper ptxas widens the operands of mma.sync to FP16 and multiplies these: wgmma alone has FP8 there.

Traffic: W once for each TILE_M rows, and X once for each TILE_N columns.

Occupancy: 128 x 128 has 8 warps and 160 KB. A lane has 64 sums twice, those of the group and all.

Expect 250 to 400 TFLOP/s on an H200 for many rows, at most what mma.sync reaches in FP16, and for few rows 2
to 3 TB/s: W has half the bytes.

Learned: many rows are at the lower end of that, few rows at half of it.
*/

#include "copy_tile.cuh"
#include "dynamic_shared.cuh"

constexpr int GROUP = 128;
constexpr int THREADS = 32 * WARPS_M * WARPS_N;
constexpr int PITCH = GROUP + 32;  // so that 16 lanes read 8 bytes each of different banks
constexpr int STEP = 32;           // numbers along K in a product
constexpr int BYTES_X = TILE_M * PITCH;
constexpr int STAGE_BYTES = BYTES_X + TILE_N * PITCH;
static_assert(GROUP % TILE_N == 0, "a tile has columns of one block of W");

// What a warp computes: MS x NS pieces of 16 x 8.
constexpr int WARP_M = TILE_M / WARPS_M;
constexpr int WARP_N = TILE_N / WARPS_N;
constexpr int MS = WARP_M / 16;
constexpr int NS = WARP_N / 8;
static_assert(MS * 16 == WARP_M && NS * 8 == WARP_N, "warps have whole pieces");

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
mma(int M, int N, int K, const unsigned char* X, const unsigned char* W, const float* x_scales,
    const float* w_scales, Output* Y) {
    const int first_row = blockIdx.y * TILE_M, first_column = blockIdx.x * TILE_N;
    const int groups = (K + GROUP - 1) / GROUP;
    X += size_t(first_row) * K;
    W += size_t(first_column) * K;
    w_scales += size_t(first_column / GROUP) * groups;
    unsigned char* const stages = dynamic_shared_memory();

    // 1. Start the copies of STAGES - 1 groups. What is beyond the end of K becomes zeros.
    int next_k = 0, next = 0;
    const auto copy_next = [&] {
        const Address of_x = shared_address(stages + next * STAGE_BYTES);
        const int left = max(0, K - next_k), start = left > 0 ? next_k : 0;
        copy_tile<THREADS, TILE_M, GROUP, PITCH>(of_x, X + start, K, M - first_row, left);
        copy_tile<THREADS, TILE_N, GROUP, PITCH>(of_x + BYTES_X, W + start, K, N - first_column, left);
        copy_commit();
        next_k += GROUP;
        next = next == STAGES - 1 ? 0 : next + 1;
    };
    for (int stage = 0; stage < STAGES - 1; ++stage) copy_next();

    // 2. Multiply a group. Once all threads are past the barrier, the stage before takes a new one.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32 / 4, place = threadIdx.x % 4;
    const int warp_row = warp / WARPS_N * WARP_M, warp_column = warp % WARPS_N * WARP_N;
    const unsigned char* const lane_x = stages + (warp_row + lane) * PITCH + place * 8;
    const unsigned char* const lane_w = stages + BYTES_X + (warp_column + lane) * PITCH + place * 8;
    float total[MS][NS][4] = {};
    int stage = 0;
    for (int group = 0; group < groups; ++group) {
        float scale[MS][2];
        for (int m = 0; m < MS; ++m) {
            for (int below = 0; below < 2; ++below) {
                const int row = min(first_row + warp_row + lane + m * 16 + below * 8, M - 1);
                scale[m][below] = x_scales[size_t(group) * M + row] * w_scales[group];
            }
        }
        copy_wait<STAGES - 2>();
        __syncthreads();
        copy_next();
        float sum[MS][NS][4] = {};
#pragma unroll
        for (int step = 0; step < GROUP / STEP; ++step) {
            const int from = stage * STAGE_BYTES + step * STEP;
            unsigned x[MS][4], w[2];
            for (int m = 0; m < MS; ++m) {
                for (int below = 0; below < 2; ++below) {
                    const auto* row = lane_x + from + (m * 16 + below * 8) * PITCH;
                    const uint2 pair = *reinterpret_cast<const uint2*>(row);
                    x[m][below] = pair.x;
                    x[m][2 + below] = pair.y;
                }
            }
#pragma unroll
            for (int n = 0; n < NS; ++n) {
                const uint2 pair = *reinterpret_cast<const uint2*>(lane_w + from + n * 8 * PITCH);
                w[0] = pair.x;
                w[1] = pair.y;
                for (int m = 0; m < MS; ++m) multiply_add(sum[m][n], x[m], w);
            }
        }

        // 3. Scale the sums of the group: those of a row, and of the row 8 below.
        for (int m = 0; m < MS; ++m) {
            for (int n = 0; n < NS; ++n) {
                for (int i = 0; i < 4; ++i) total[m][n][i] += scale[m][i / 2] * sum[m][n][i];
            }
        }
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }

    // 4. Store. A lane has two neighbours in a row, 8 rows below two more.
    for (int m = 0; m < MS; ++m) {
        for (int n = 0; n < NS; ++n) {
            for (int below = 0; below < 2; ++below) {
                const int i = first_row + warp_row + lane + m * 16 + below * 8;
                const int j = first_column + warp_column + n * 8 + place * 2;
                if (i >= M || j >= N) continue;
                __align__(4) Output pair[2];
                for (int k = 0; k < 2; ++k) pair[k] = narrow(total[m][n][2 * below + k]);
                *reinterpret_cast<unsigned*>(Y + size_t(i) * N + j) = reinterpret_cast<unsigned&>(pair);
            }
        }
    }
}
