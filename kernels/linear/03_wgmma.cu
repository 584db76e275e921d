/*
title = "Hopper: what follows a product is computed where its sums are"
entry = "wgmma"
workload = "linear"
rung = 3
precisions = ["fp16", "bf16"]
compute_capability = "9.0"
block = ["128 * CONSUMERS + PRODUCER"]
tile = ["64 * CONSUMERS", "TILE_N // ROOFLAB_WEIGHTS"]
flat = true
blocks_per_sm = 1
shared_bytes = "STAGES * 128 * (64 * CONSUMERS + TILE_N) + CONSUMERS * 2 * 64 * 128 + 16 * STAGES"
constraints = { n = 8, k = 8 }
tensor_maps = [
  { operand = "x", box = ["64 * CONSUMERS", 64], swizzle = 128, promotion = 256 },
  { operand = "w", box = ["TILE_N // ROOFLAB_WEIGHTS", 64], swizzle = 128, promotion = 256 },
  { operand = "y", box = [16, 64], swizzle = 128 },
]
variants = [
  { name = "128x256", CONSUMERS = 2, PRODUCER = 128, TILE_N = 256, STAGES = 4 },
  { name = "128x128", CONSUMERS = 2, PRODUCER = 128, TILE_N = 128, STAGES = 6 },
  { name = "64x256", CONSUMERS = 1, PRODUCER = 32, TILE_N = 256, STAGES = 5 },
  { name = "64x128", CONSUMERS = 1, PRODUCER = 32, TILE_N = 128, STAGES = 8 },
]
teaches = "one instruction may multiply two matrices of weights: their sums meet in a thread"
*/

/*
`mma` with TMA and wgmma, in the way of `persistent` of `grouped_gemm`: a producer fills a ring of stages, one or
two warpgroups multiply, a block takes tile after tile, and stores one behind the products of the next.

With SwiGLU a tile of W is half the gate's rows, half those of up for the same columns. wgmma takes both as one
operand, so a thread has the sums of an element in registers SUMS / 2 apart. Y has half as many columns.

Traffic: that of a product, less a write and a read of Y, or two of each with SwiGLU, that a kernel for the
activation would need.

Occupancy: one block for a multiprocessor with 192 to 200 KB of stages.

Expect 600 to 680 TFLOP/s on an H200 for 4096 rows, as `persistent` of `grouped_gemm`, less the exponentials and
quotients of an element, which hide only behind the products of the other warpgroup. For 64 rows 3.5 to 3.8 TB/s
of weights.
*/

#define ROOFLAB_TRANSPOSE_A 0  // rows of X and of W lie along K
#define ROOFLAB_TRANSPOSE_B 1

#include "linear.cuh"
#include "tile_ring.cuh"

constexpr int COLUMNS = TILE_N / WEIGHTS;                   // of Y
constexpr int SUMS = TILE_N / 2, RESULTS = SUMS / WEIGHTS;  // of a thread
constexpr int CHUNKS = RESULTS / CHUNK_SUMS;                // of a consumer's part of Y
constexpr int FIRST_STORE = 4;                              // the step of the next tile in which one is stored
constexpr int LAST_STORE = FIRST_STORE + 2 * (CHUNKS - 1) + 2 * (CONSUMERS - 1);
constexpr int TOGETHER = 16;                                // rows of tiles that are computed together

extern "C" __global__ void __launch_bounds__(THREADS, 1)
wgmma(int M, int N, int K, const __grid_constant__ TensorMap X, const __grid_constant__ TensorMap W,
      LINEAR_BIAS const __grid_constant__ TensorMap Y) {
    Shared& shared = reinterpret_cast<Shared&>(*dynamic_shared_tiles());
    const bool produces = begin_ring(shared, X, W, Y);
    const int rows = tiles_along(M, TILE_M), columns = tiles_along(N, COLUMNS);
    const int steps = tiles_along(K, TILE_K);
    if (produces) {
        fill_ring<WEIGHTS, TOGETHER>(shared, X, W, rows, columns, steps, N);
        return;
    }

    if constexpr (GIVES_REGISTERS) grow_registers<232>();
    const int warpgroup = of_first_lane(threadIdx.x / WARPGROUP);
    const bool first = threadIdx.x % WARPGROUP == 0;
    const auto x_at_0 = descriptor(shared.x[0] + warpgroup * 64 * TILE_K);
    const auto w_at_0 = descriptor(shared.w[0]);
    Word kept[CHUNKS * CHUNK_WORDS];  // this consumer's part of Y, packed, of the tile before
    int kept_row = 0, kept_column = 0;
    bool keeps = false;
    Ring<STAGES> ring;
    const auto store = [&](int chunk) {
        store_packed(kept + chunk * CHUNK_WORDS, 1, chunk, two_buffers(shared.y[warpgroup]), Y, kept_row,
                     kept_column);
    };
    const auto store_all = [&] {
#pragma unroll
        for (int i = 0; i < CHUNKS; ++i) store(i);
        keeps = false;
    };
    for (int tile = blockIdx.x; tile < rows * columns; tile += gridDim.x) {
        float sums[SUMS];
        int before = 0;
        for (int step = 0; step < steps; ++step, ring.advance()) {
            wait(&shared.full[ring.stage], ring.phase);
            begin_products();
            multiply_tiles(sums, x_at_0 + ring.stage * STAGE_STRIDE_X, w_at_0 + ring.stage * STAGE_STRIDE_W,
                           step > 0);
            commit_products();
#pragma unroll
            for (int i = 0; i < CHUNKS; ++i) {
                if (keeps && step == FIRST_STORE + 2 * i + 2 * warpgroup) store(i);
            }
            wait_for_products<1>();
            if (step > 0 && first) arrive(&shared.empty[before]);
            before = ring.stage;
        }
        const Place place = grouped(tile, rows, columns, TOGETHER);
        kept_row = place.row * TILE_M + warpgroup * 64;
        kept_column = place.column * COLUMNS;
        wait_for_products<0>();
        if (first) arrive(&shared.empty[before]);
        const float* const others = sums + (WEIGHTS - 1) * RESULTS;
#pragma unroll
        for (int i = 0; i < RESULTS; i += 2) {
            const int column = min(kept_column + column_in_eight() + i / 4 * 8, N - 2);
            kept[i / 2] = pack(finish(sums[i], others[i], bias, column),
                               finish(sums[i + 1], others[i + 1], bias, column + 1));
        }
        keeps = true;
        if (steps <= LAST_STORE) store_all();
    }
    if (keeps) store_all();
    if (elected()) wait_until_stores_have_read();
}
