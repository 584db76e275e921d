/*
title = "Tensor cores by warp: mma.sync, the epilogue in registers"
entry = "mma"
workload = "linear"
rung = 2
precisions = ["fp16", "bf16"]
min_compute_capability = "8.0"
block = ["32 * WARPS_M * WARPS_N"]
tile = ["TILE_M", "TILE_N // ROOFLAB_WEIGHTS"]
shared_bytes = "STAGES * (TILE_M + TILE_N) * 144"
constraints = { n = 2, k = 8 }
variants = [
    { TILE_M = 128, TILE_N = 128, WARPS_M = 4, WARPS_N = 2, STAGES = 4, BLOCKS = 1 },
    { TILE_M = 128, TILE_N = 256, WARPS_M = 2, WARPS_N = 4, STAGES = 3, BLOCKS = 1 },
    { TILE_M = 128, TILE_N = 128, WARPS_M = 2, WARPS_N = 2, STAGES = 3, BLOCKS = 2 },
    { TILE_M = 64, TILE_N = 128, WARPS_M = 2, WARPS_N = 2, STAGES = 3, BLOCKS = 2 },
    { TILE_M = 32, TILE_N = 128, WARPS_M = 1, WARPS_N = 4, STAGES = 4, BLOCKS = 2 },
    { TILE_M = 16, TILE_N = 128, WARPS_M = 1, WARPS_N = 4, STAGES = 5, BLOCKS = 2 },
    { TILE_M = 16, TILE_N = 64, WARPS_M = 1, WARPS_N = 2, STAGES = 6, BLOCKS = 3 },
]
teaches = "gate and up of an element meet in one lane: a warp has the same columns of both"
*/

/*
`tiled` on tensor cores, as `mma` of `grouped_gemm`: cp.async copies STAGES - 1 tiles ahead, ldmatrix takes them
to the lanes, and mma.sync multiplies pieces of 16 x 8 x 16. Rows of both operands lie along K, as mma.sync wants
them. They are 16 bytes longer in shared memory than a tile, so that 8 of them lie in different banks.

A tile has TILE_N rows of W. With SwiGLU half of them are the gate's and half are those of up for the same TILE_N
/ 2 columns of Y, so registers and shared memory are the same for each epilogue. A warp has as many rows of one
half as of the other: a lane holds both sums of an element, and multiplies them itself.

Blocks are in groups of GROUP rows of tiles, column by column, so that those that run at the same time share rows
of X and of W in L2.

Traffic: X once for each tile of columns and W once for each TILE_M rows, mostly from L2; Y once. Beside separate
kernels for product and activation a read and a write of Y are saved, with SwiGLU two reads and two writes.

Occupancy: 128 x 128 has 8 warps and 147 KB, one block for a multiprocessor; of 64 x 128 there is room for two,
one of which multiplies while the other one waits. 16 x 128 has 104 KB in 5 stages.

Expect 350 to 400 TFLOP/s on an H200 for many rows (mma.sync gets to 60 % of the peak), the same for each
epilogue, and for 64 rows 3 to 3.5 TB/s of weights.
*/

#include "copy_tile.cuh"
#include "dynamic_shared.cuh"
#include "linear.cuh"

constexpr int THREADS = 32 * WARPS_M * WARPS_N;
constexpr int TILE_K = 64;
constexpr int PITCH = 2 * TILE_K + 16;
constexpr int BYTES_X = TILE_M * PITCH;
constexpr int STAGE_BYTES = BYTES_X + TILE_N * PITCH;
constexpr int COLUMNS = TILE_N / WEIGHTS;  // of Y
constexpr int GROUP = 8;                   // rows of tiles that are worked on together

// What a warp computes: MS x NS pieces of 16 x 8 for each matrix of weights.
constexpr int WARP_M = TILE_M / WARPS_M;
constexpr int WARP_N = COLUMNS / WARPS_N;
constexpr int MS = WARP_M / 16;
constexpr int NS = WARP_N / 8;
static_assert(MS * 16 == WARP_M && NS * 8 == WARP_N, "warps have whole pieces");
static_assert(NS % 2 == 0, "those of W are loaded in pairs");

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
mma(int M, int N, int K, const Input* X, const Input* W, LINEAR_BIAS Output* Y) {
    const Address stages = shared_address(dynamic_shared_memory());

    // 1. This block's tile of Y, in groups of GROUP rows of tiles, column by column.
    const int number = blockIdx.y * gridDim.x + blockIdx.x;
    const int top = number / (GROUP * gridDim.x) * GROUP;
    const int height = min(GROUP, int(gridDim.y) - top);
    const int in_group = number - top * gridDim.x;
    const int first_row = (top + in_group % height) * TILE_M;
    const int first_column = in_group / height * COLUMNS;
    X += size_t(first_row) * K;
    W += size_t(first_column) * K;

    // 2. Start the copies of STAGES - 1 tiles. Beyond the end of K they are zeros, read from nowhere.
    int next_k = 0, next = 0;
    const auto copy_next = [&] {
        const Address of_x = stages + next * STAGE_BYTES;
        const int left = 2 * max(0, K - next_k), start = left > 0 ? next_k : 0;
        copy_tile<THREADS, TILE_M, 2 * TILE_K, PITCH>(of_x, X + start, 2 * size_t(K), M - first_row, left);
        for (int w = 0; w < WEIGHTS; ++w) {
            copy_tile<THREADS, COLUMNS, 2 * TILE_K, PITCH>(
                of_x + BYTES_X + w * COLUMNS * PITCH, W + size_t(w) * N * K + start, 2 * size_t(K),
                N - first_column, left);
        }
        copy_commit();
        next_k += TILE_K;
        next = next == STAGES - 1 ? 0 : next + 1;
    };
    for (int stage = 0; stage < STAGES - 1; ++stage) copy_next();

    // 3. Multiply a tile. Once all threads are past the barrier, the stage before takes a new one.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_row = warp / WARPS_N * WARP_M, warp_column = warp % WARPS_N * WARP_N;
    const Address lane_x = stages + (warp_row + lane % 16) * PITCH + lane / 16 * 16;
    const int row_of_w = warp_column + lane / 16 * 8 + lane % 8;
    const Address lane_w = stages + BYTES_X + row_of_w * PITCH + lane / 8 % 2 * 16;
    float sum[WEIGHTS][MS][NS][4] = {};
    int stage = 0;
    for (int k = 0; k < K; k += TILE_K) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        copy_next();
#pragma unroll
        for (int step = 0; step < TILE_K / 16; ++step) {
            const int at = stage * STAGE_BYTES + step * 32;
            unsigned x[MS][4];
            for (int m = 0; m < MS; ++m) load_matrices(x[m], lane_x + at + m * 16 * PITCH);
#pragma unroll
            for (int i = 0; i < WEIGHTS * NS; i += 2) {
                const int of = i / NS, n = i % NS;
                unsigned w[4];  // of two pieces
                load_matrices(w, lane_w + at + (of * COLUMNS + n * 8) * PITCH);
                for (int m = 0; m < MS; ++m) {
                    multiply_add(sum[of][m][n], x[m], w);
                    multiply_add(sum[of][m][n + 1], x[m], w + 2);
                }
            }
        }
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }

    // 4. Finish and store. A lane has two neighbours in a row, 8 rows below two more.
    const int row = first_row + warp_row + lane / 4, column = first_column + warp_column + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < NS; ++n) {
        const int j = column + n * 8;
        if (j >= N) continue;
#pragma unroll
        for (int m = 0; m < MS; ++m) {
            for (int below = 0; below < 2; ++below) {
                const int i = row + m * 16 + below * 8;
                if (i >= M) continue;
                float y[2];
                for (int one = 0; one < 2; ++one) {
                    const int of = 2 * below + one;
                    y[one] = finish(sum[0][m][n][of], sum[WEIGHTS - 1][m][n][of], bias, j + one);
                }
                *reinterpret_cast<unsigned*>(Y + size_t(i) * N + j) = pack_pair(y[0], y[1]);
            }
        }
    }
}
