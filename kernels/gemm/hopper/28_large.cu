/*
title = "The largest tile, for large problems"
entry = "large"
rung = 28
precisions = ["bf16", "fp16", "fp16_fp32", "tf32", "fp8"]
layouts = ["nn", "nt"]
k_major = ["tf32", "fp8"]
compute_capability = "9.0"
block = [384]
tile = [192, 256]
flat = true
blocks_per_sm = 1
shared_bytes = "3 * 128 * (192 + 256) + 3 * 2 * 64 * 128 + 3 * (8 + 4)"
tensor_maps = [
  { operand = "a", box = [192, "128 // input_bytes"], swizzle = 128 },
  { operand = "b", box = ["""ROOFLAB_TRANSPOSE_B * 256 \
    + (1 - ROOFLAB_TRANSPOSE_B) * 128 // input_bytes""", "128 // input_bytes"], swizzle = 128 },
  { operand = "c", box = [16, "128 // output_bytes"], swizzle = 128, pointer = true },
]
teaches = "three consumers and no producer: who is the last to finish a stage fills it again"
*/

/*
From 4096 on energy decides, and a sixth of it moves operands (docs/kernels.md). A tile of 192 x 256 reads
22 % less for a product than one of 128 x 256: 3 % less time expected at 16384.

The sums of three consumers leave no registers for a producer. With twelve warps there are 168 for each
thread. They are allocated for four warps at a time, so that a thirteenth warp leaves 128, and
`setmaxnreg` does not help: ptxas wants 154 for a product of 256 columns from the first instruction on.
So consumers copy. Each counts when it has multiplied a stage, and who is the last fills it again. Nobody
waits, there are no empty barriers and no roles. The first warp of each consumer follows what is copied
next.

Blocks are in step (lockstep.cuh). They must meet as soon as a copy has begun, not when the next stage is
finished: then its copy would be late. C leaves as in `overlapped`. There are no registers to keep it in
while the next tile is multiplied, as `champion` does, so that consumers wait for it, one part in 100 of a
tile's time at 8192, half of that at 16384.

What limits it: tiles do not come in whole waves at 8192 (10.75) and at 4096 (2.75), and less of K is left
for each write of C. So it is 0 to 2 % faster than `champion` at 16384 in FP16, 3.8 % in TF32, as fast or up
to 2 % slower at 8192, and 3 to 8 % slower at 4096. What was tried: docs/lab/large.md.
*/

#include "hopper.cuh"
#include "lockstep.cuh"

constexpr int CONSUMERS = 3, TILE_M = 64 * CONSUMERS, TILE_N = 256, STAGES = 3;

struct Shared {
    Input a[STAGES][TILE_M * TILE_K];
    Input b[STAGES][TILE_N * TILE_K];
    Output c[CONSUMERS][2][64 * CHUNK];
    Barrier full[STAGES];
    unsigned finished[STAGES];  // consumers that have multiplied what is in a stage
};

// From a stage to the next one, in the units of descriptors.
constexpr unsigned STAGE_STRIDE_A = sizeof(Shared::a[0]) / 16, STAGE_STRIDE_B = sizeof(Shared::b[0]) / 16;

// A step of a tile.
struct Step {
    int tile, step;
    Place place;
};

extern "C" __global__ void __launch_bounds__(CONSUMERS * WARPGROUP, 1)
large(int M, int N, int K, Accumulate alpha, const __grid_constant__ TensorMap A,
      const __grid_constant__ TensorMap B, Accumulate beta, const Output* C,
      const __grid_constant__ TensorMap C_map) {
    const Turns turns = turns_of_block(true);
    if (blockIdx.x >= turns.apart) return;
    Shared& shared = reinterpret_cast<Shared&>(*dynamic_shared_tiles());

    if (threadIdx.x == 0) {
        for (Barrier& full : shared.full) initialize(&full);
        for (unsigned& finished : shared.finished) finished = 0;
    }
    __syncthreads();

    const int rows = tiles_along(M, TILE_M);
    const int columns = tiles_along(N, TILE_N);
    const int tiles = rows * columns;
    const int steps = tiles_along(K, TILE_K);
    const int warpgroup = of_first_lane(threadIdx.x / WARPGROUP);
    const bool leads = of_first_lane(threadIdx.x % WARPGROUP / 32) == 0;

    // What is copied next. The leading warps of all consumers know it.
    Step next = {turns.first, 0, grouped(turns.first, rows, columns, WAVE_ROWS)};
    const auto advance = [&] {
        if (++next.step < steps) return;
        next.step = 0;
        next.tile += turns.apart;
        next.place = grouped(next.tile, rows, columns, WAVE_ROWS);
    };
    const auto fill = [&](int stage) {  // by one thread
        if (next.tile >= tiles) return;
        Barrier* full = &shared.full[stage];
        const int k = next.step * TILE_K;
        announce(full, sizeof(shared.a[0]) + sizeof(shared.b[0]));
        copy_box(shared.a[stage], A, next.place.row * TILE_M, k, full);
        copy_tile_of_b<TILE_N>(shared.b[stage], B, next.place.column * TILE_N, k, full);
    };
    // By the leading warp of a consumer that has multiplied what is in a stage.
    const auto finish = [&](int stage) {
        bool last = false;
        if (elected()) {
            last = is_last(&shared.finished[stage], CONSUMERS);
            if (last) fill(stage);
        }
        advance();
        if (last && wave_is_whole(turns, next.tile, tiles) && meets_before(next.step, next.tile)) {
            meet();
        }
    };

    for (int i = 0; leads && i < STAGES; ++i, advance()) {
        if (warpgroup == 0 && elected()) fill(i);
    }
    const auto a_at_0 = descriptor(shared.a[0] + warpgroup * 64 * TILE_K);
    const auto b_at_0 = descriptor_of_b(shared.b[0]);
    Ring<STAGES> ring;
    for (int tile = turns.first; tile < tiles; tile += turns.apart) {
        float sums[TILE_N / 2];
        int before = 0;
        for (int step = 0; step < steps; ++step, ring.advance()) {
            const int stage = of_first_lane(ring.stage);
            wait(&shared.full[stage], ring.phase);
            begin_products();
            multiply_tiles(sums, a_at_0 + stage * STAGE_STRIDE_A, b_at_0 + stage * STAGE_STRIDE_B,
                           step > 0);
            commit_products();
            wait_for_products<1>();
            if (leads && step > 0) finish(before);
            before = ring.stage;
        }
        const Place place = grouped(tile, rows, columns, WAVE_ROWS);
        const int row = place.row * TILE_M + warpgroup * 64, column = place.column * TILE_N;
        wait_for_products<0>();
        if (leads) finish(before);
        scale_sums(sums, C, row, column, M, N, alpha, beta);
        store_chunks(sums, two_buffers(shared.c[warpgroup]), C_map, row, column);
    }
    if (elected()) wait_until_stores_have_read();
}
