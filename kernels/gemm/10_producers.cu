/*
title = "Four warps copy, eight multiply"
entry = "producers"
rung = 10
precisions = ["fp32"]
layouts = ["nn", "nt", "tn", "tt"]
block = ["32 * WARPS_M * WARPS_N * SLICES + 128"]
tile = ["64 * WARPS_M", "64 * WARPS_N"]
shared_bytes = "4 * max(STAGES * SLICES * 16 * (64 * WARPS_M + 64 * WARPS_N + 8), SLICES * 4096 * WARPS_M * WARPS_N * min(1, SLICES - 1))"
batched = true
compute_capability = "9.0"
variants = [
    { name = "256x128", WARPS_M = 4, WARPS_N = 2, SLICES = 1, STAGES = 4 },
    { name = "128x256", WARPS_M = 2, WARPS_N = 4, SLICES = 1, STAGES = 4 },
    { name = "128x128, 2 slices", WARPS_M = 2, WARPS_N = 2, SLICES = 2, STAGES = 4 },
    { name = "128x64, 4 slices", WARPS_M = 2, WARPS_N = 1, SLICES = 4, STAGES = 4 },
]
teaches = "warps that only copy, so that those that multiply never wait for the copy queue"
*/

/*
`serpentine` with one change: 4 more warps do all of the copying. The 8 warps that multiply have no
copies, no pointers and no barrier of the whole block left in their loop: of 100 instructions 94 are
multiply-adds, the others read shared memory. A warp that copies may stop at the full queue for
copies; nobody waits for it, because it is STAGES - 1 tiles ahead.

Two barriers per stage connect them. `full` counts the copying threads: a thread's arrival takes
effect when its copies have arrived. `empty` counts the multiplying warps: each arrives when it has
used the last values of a stage, one step into the next tile. So warps may be apart by almost a
tile, instead of meeting at a barrier for each.

Registers are divided anew: 72 for a thread that copies, 216 for one that multiplies (setmaxnreg).

The order of the products is up and down the columns here, because the compiler keeps more shared
factors in it: with 8 % of conflicts, and 6 % of other instructions, a multiply-add takes 1.14
clocks. The warps that copy take 2 or 3 % of the instructions.

Expect 0.85 of the FP32 peak where all multiprocessors have a tile to compute.
*/

#include "setmaxnreg.cuh"
#include "simt_pipeline.cuh"

constexpr unsigned THREADS = 128;  // that copy
// Per thread. A block begins with 65536 / 384 each, a multiple of 8: 168.
constexpr unsigned GIVEN = 72;
constexpr unsigned TAKEN = 216;
static_assert(THREADS * GIVEN + MULTIPLIERS * TAKEN <= 168 * (THREADS + MULTIPLIERS), "or it hangs");

constexpr int DEPTH = 16;  // steps of K that a warp computes from one tile
constexpr int TILE_K = DEPTH * SLICES;
using FeedA = Feed<!transpose_a, TILE_M, TILE_K, THREADS, MULTIPLIERS>;
using FeedB = Feed<transpose_b, TILE_N, TILE_K, THREADS, MULTIPLIERS>;
constexpr unsigned PITCH_A = FeedA::PITCH;
constexpr unsigned PITCH_B = FeedB::PITCH;
constexpr unsigned STAGE_BYTES = TILE_K * (PITCH_A + PITCH_B);

// Adds the 8 x 16 products, up and down the columns, so that each shares a factor with the one before.
__device__ inline void multiply(float (&sum)[ROWS][COLUMNS], const float (&a)[ROWS],
                                const float (&b)[COLUMNS]) {
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
        for (int step = 0; step < ROWS; ++step) {
            const int i = j % 2 ? step : ROWS - 1 - step;
            sum[i][j] += a[i] * b[j];
        }
    }
}

extern "C" __global__ void __launch_bounds__(MULTIPLIERS + THREADS, 1)
producers(int M, int N, int K, float alpha, const float* A, const float* B, float beta, float* C) {
    select_batch(A, B, C, M, N, K);

    const unsigned block = blockIdx.y * gridDim.x + blockIdx.x;
    const Corner corner = corner_of<unsigned>(block, gridDim.y, gridDim.x);

    // Tiles of the operands go around a ring of stages. A stage is full when all copies have arrived,
    // and empty when all multiplying warps have read it.
    __shared__ unsigned long long barriers[2 * STAGES];
    const SharedAddress ring = dynamic_shared();
    const SharedAddress full = address_of(barriers);
    const SharedAddress empty = full + 8 * STAGES;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            initialize(full + 8 * stage, THREADS);
            initialize(empty + 8 * stage, MULTIPLIERS / 32);
        }
    }
    __syncthreads();
    const int tiles = (K + TILE_K - 1) / TILE_K;

    if (threadIdx.x >= MULTIPLIERS) {
        shrink_registers<GIVEN>();
        FeedA feed_a(A, M, K, corner.row);
        FeedB feed_b(B, N, K, corner.column);
        const bool whole = (!transpose_a || feed_a.matrix.aligned)
                           && (transpose_b || feed_b.matrix.aligned);
#pragma unroll 1
        for (int tile = 0; tile < tiles; ++tile) {
            const unsigned stage = unsigned(tile) % STAGES;
            // The multiplying warps empty a stage when they are in the tile after: see below.
            if (tile >= STAGES - 1) wait(empty + 8 * stage, ((tile + 1) / STAGES - 1) % 2);
            const SharedAddress to_a = ring + stage * STAGE_BYTES;
            const SharedAddress to_b = to_a + TILE_K * PITCH_A;
            if (whole && (tile + 1) * TILE_K <= K) {
                feed_a.copy(to_a);
                feed_b.copy(to_b);
            } else {
                feed_a.copy_rest(to_a, tile * TILE_K);
                feed_b.copy_rest(to_b, tile * TILE_K);
            }
            arrive_with_copies(full + 8 * stage);
        }
        wait_for_copies<0>();
        return;
    }

    grow_registers<TAKEN>();
    const unsigned slice = threadIdx.x / 32 / WARPS;
    const unsigned warp = threadIdx.x / 32 % WARPS;
    const unsigned lane = threadIdx.x % 32;
    const unsigned thread_m = warp / WARPS_N * WARP_TILE + lane / LANES_N * 4;
    const unsigned thread_n = warp % WARPS_N * WARP_TILE + lane % LANES_N * 4;
    const unsigned own_a = slice * DEPTH * PITCH_A + thread_m * 4;
    const unsigned own_b = TILE_K * PITCH_A + slice * DEPTH * PITCH_B + thread_n * 4;

    float sum[ROWS][COLUMNS] = {};
    float a[2][ROWS];
    float b[2][COLUMNS];
    SharedAddress from_a = ring + own_a;
    SharedAddress from_b = ring + own_b;
    const auto fetch_step = [&](int buffer, int k) {
        fetch(b[buffer], from_b + k * PITCH_B, LANES_N * 16);
        fetch(a[buffer], from_a + k * PITCH_A, LANES_M * 16);
    };
    unsigned stage = 0;
    unsigned phase = 0;
    wait(full, 0);
    fetch_step(0, 0);
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
        const SharedAddress before = empty + 8 * ((stage + STAGES - 1) % STAGES);
#pragma unroll
        for (int k = 0; k < DEPTH; ++k) {
            // All values of the tile before have been used by now.
            if (k == 1) {
                __syncwarp();
                if (lane == 0) arrive(before);
            }
            if (k + 1 == DEPTH) {
                stage = (stage + 1) % STAGES;
                phase ^= stage == 0;
                if (tile + 1 < tiles) wait(full + 8 * stage, phase);
                from_a = ring + stage * STAGE_BYTES + own_a;
                from_b = ring + stage * STAGE_BYTES + own_b;
            }
            fetch_step((k + 1) % 2, (k + 1) % DEPTH);
            multiply(sum, a[k % 2], b[k % 2]);
        }
    }

    const bool aligned = in_quads(C, N);
    const auto store = [&](int i, int j, const float* quad, float scale) {
        const int row = corner.row + thread_m + i / 4 * LANES_M * 4 + i % 4;
        const int column = corner.column + thread_n + j * LANES_N;
        if (row < M) store_quad(C, row, column, N, quad, scale, beta, aligned);
    };
    if (SLICES == 1) {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
#pragma unroll
            for (int j = 0; j < COLUMNS; j += 4) store(i, j, &sum[i][j], alpha);
        }
        return;
    }

    // Each slice has summed a part of K. Each adds up and stores a part of the rows.
    const Exchange exchange(ring);
    constexpr int QUADS = Exchange::QUADS;
    sync_part<MULTIPLIERS>();
#pragma unroll
    for (int quad = 0; quad < QUADS; ++quad) exchange.give(slice, quad, sum, alpha);
    sync_part<MULTIPLIERS>();
    for (int quad = slice * QUADS / SLICES; quad < (slice + 1) * QUADS / SLICES; ++quad) {
        float total[4] = {};
#pragma unroll
        for (int other = 0; other < SLICES; ++other) exchange.take(other, quad, total);
        store(quad / 4, quad % 4 * 4, total, 1);
    }
}
