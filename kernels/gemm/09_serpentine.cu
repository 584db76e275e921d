/*
title = "Multiply-adds in an order that reuses registers"
entry = "serpentine"
rung = 9
precisions = ["fp32"]
layouts = ["nn", "nt", "tn", "tt"]
block = ["32 * WARPS_M * WARPS_N * SLICES"]
tile = ["64 * WARPS_M", "64 * WARPS_N"]
shared_bytes = "4 * max(STAGES * SLICES * 16 * (64 * WARPS_M + 64 * WARPS_N + 8), SLICES * 4096 * WARPS_M * WARPS_N * min(1, SLICES - 1))"
batched = true
min_compute_capability = "9.0"
variants = [
    { name = "128x256", WARPS_M = 2, WARPS_N = 4, SLICES = 1, STAGES = 4 },
    { name = "256x128", WARPS_M = 4, WARPS_N = 2, SLICES = 1, STAGES = 4 },
    { name = "128x128, 2 slices", WARPS_M = 2, WARPS_N = 2, SLICES = 2, STAGES = 3 },
    { name = "128x64, 4 slices", WARPS_M = 2, WARPS_N = 1, SLICES = 4, STAGES = 3 },
]
teaches = "the register file delivers two operands per clock; a multiply-add needs three"
*/

/*
The multiply-adds of `pipelined`, issued in the right order.

A multiply-add reads three registers. The register file has two banks, of even and of odd numbers,
and delivers one register of each per clock, so that multiply-adds that fetch all three take two
clocks. The way out is a small cache that keeps a register for the next instruction. So a thread
computes its 8 x 16 products back and forth along the rows: each shares a factor with the one before
it, and the sum and the other factor come from different banks.

Nobody can write that down in CUDA: the compiler numbers the registers and orders the instructions.
But it can be counted. In `nvdisasm -c` of the cubin, `.reuse` marks what is kept; a multiply-add
that must fetch two registers of one bank costs a clock more. With (instructions + these) /
multiply-adds one can try orders without a GPU. What makes this number small:

  - Values for the next step are read from shared memory during this one (a[2], b[2]). Multiply-adds
    that wait for a value are reordered by the compiler, and sharing ends.
  - The order in `multiply`, which is tried out: the count finds orders that are bad, but among good
    ones fewer conflicts were not faster.
  - Addresses are 32-bit numbers, and whole tiles are copied without any test for edges: all that
    remains is to move the pointers. Tiles at the end of K, and rows that are not quads, are copied
    one element at a time.

Learned:
  - If A is not transposed, so that threads read its tile along K, 16 bytes are copied at once, but
    then all 8 factors of a step are in one bank, and more is lost than won.
  - The copies of single elements are expensive: all warps start theirs right after the barrier, and
    stop there, presumably at a full queue. In layout nn the time grows with their number.
    So 128 x 256 is faster than 256 x 128, which copies twice as much of A, and 128 x 64 with 4
    slices is slow. Between multiply-adds they cost even more instructions. The next rung leaves
    them to other warps.

Tiles: 128 x 256 with 8 warps for large matrices. A matrix of 1024 x 1024 has only 32 such tiles. It
takes 128 tiles of 128 x 64, in which 4 slices of two warps each sum a quarter of K with the same
inner loop, and add up their parts in the end.

L2: blocks that run at the same time compute GROUP rows of tiles, so that they share operands.

Occupancy: up to 230 registers, one block of 8 warps per multiprocessor, two per scheduler.

Expect 1.15 times the speed of `pipelined`.
*/

#include "simt_pipeline.cuh"

constexpr int DEPTH = 16;  // steps of K that a warp computes from one tile
constexpr int TILE_K = DEPTH * SLICES;
using FeedA = Feed<!transpose_a, TILE_M, TILE_K, MULTIPLIERS>;
using FeedB = Feed<transpose_b, TILE_N, TILE_K, MULTIPLIERS>;
constexpr unsigned PITCH_A = FeedA::PITCH;
constexpr unsigned PITCH_B = FeedB::PITCH;
constexpr unsigned STAGE_BYTES = TILE_K * (PITCH_A + PITCH_B);

// Adds the 8 x 16 products, back and forth along the rows, so that each shares a factor with the one
// before it.
__device__ inline void multiply(float (&sum)[ROWS][COLUMNS], const float (&a)[ROWS],
                                const float (&b)[COLUMNS]) {
#pragma unroll
    for (int i = ROWS - 1; i >= 0; --i) {
#pragma unroll
        for (int step = 0; step < COLUMNS; ++step) {
            const int j = i % 2 ? step : COLUMNS - 1 - step;
            sum[i][j] += a[i] * b[j];
        }
    }
}

extern "C" __global__ void __launch_bounds__(MULTIPLIERS, 1)
serpentine(int M, int N, int K, float alpha, const float* A, const float* B, float beta, float* C) {
    select_batch(A, B, C, M, N, K);

    const unsigned block = blockIdx.y * gridDim.x + blockIdx.x;
    const Corner corner = corner_of<unsigned>(block, gridDim.y, gridDim.x);

    // Tiles of the operands go around a ring of stages.
    const SharedAddress ring = dynamic_shared();
    const auto next = [&](SharedAddress stage) {
        return stage + STAGE_BYTES == ring + STAGES * STAGE_BYTES ? ring : stage + STAGE_BYTES;
    };
    FeedA feed_a(A, M, K, corner.row);
    FeedB feed_b(B, N, K, corner.column);
    const bool whole = (transpose_a ? feed_a.matrix.aligned : true)
                       && (transpose_b ? true : feed_b.matrix.aligned);
    SharedAddress filled = ring;
    int copied = 0;
    const auto fill = [&] {
        if (whole && copied + TILE_K <= K) {
            feed_a.copy(filled);
            feed_b.copy(filled + TILE_K * PITCH_A);
        } else if (copied < K) {
            feed_a.copy_rest(filled, copied);
            feed_b.copy_rest(filled + TILE_K * PITCH_A, copied);
        }
        copied += TILE_K;
        filled = next(filled);
        commit_copies();
    };
    for (int stage = 0; stage < STAGES; ++stage) fill();

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
    SharedAddress stage = ring;
    SharedAddress from_a = stage + own_a;
    SharedAddress from_b = stage + own_b;
    const auto fetch_step = [&](int buffer, int k) {
        fetch(a[buffer], from_a + k * PITCH_A, LANES_M * 16);
        fetch(b[buffer], from_b + k * PITCH_B, LANES_N * 16);
    };
    wait_for_copies<STAGES - 1>();
    __syncthreads();
    fetch_step(0, 0);
#pragma unroll 1
    for (int first_k = 0; first_k < K; first_k += TILE_K) {
#pragma unroll
        for (int k = 0; k < DEPTH; ++k) {
            if (k + 1 == DEPTH) {
                // All threads have read this stage and the next tile has arrived.
                wait_for_copies<STAGES - 2>();
                __syncthreads();
                fill();
                stage = next(stage);
                from_a = stage + own_a;
                from_b = stage + own_b;
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
    __syncthreads();
#pragma unroll
    for (int quad = 0; quad < QUADS; ++quad) exchange.give(slice, quad, sum, alpha);
    __syncthreads();
    for (int quad = slice * QUADS / SLICES; quad < (slice + 1) * QUADS / SLICES; ++quad) {
        float total[4] = {};
#pragma unroll
        for (int other = 0; other < SLICES; ++other) exchange.take(other, quad, total);
        store(quad / 4, quad % 4 * 4, total, 1);
    }
}
