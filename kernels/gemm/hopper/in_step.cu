/*
title = "Blocks in step"
entry = "in_step"
rung = 25
precisions = ["bf16", "fp16", "fp16_fp32", "tf32", "fp8"]
layouts = ["nt"]
compute_capability = "9.0"
block = [384]
tile = [128, 256]
flat = true
blocks_per_sm = 1
shared_bytes = "4 * 128 * (128 + 256) + 2 * 4 * 8"
tensor_maps = [
  { operand = "a", box = [128, "128 // input_bytes"], swizzle = 128, padded = true },
  { operand = "b", box = [256, "128 // input_bytes"], swizzle = 128, padded = true },
]
teaches = "blocks that read the same at the same time read it once"
*/

/*
`persistent` on 128 multiprocessors, whose blocks keep together. Two things change.

The order: 128 blocks compute 16 x 8 tiles of C at a time, a wave, and 16 neighbours among them a square
of 4 x 4. Neighbours run in one GPC. What several multiprocessors of a GPC ask for within about 100
cycles L2 is asked for once. So a square could read a quarter of what its blocks ask for.

The meetings: left alone, blocks drift apart by some microseconds. So the producers of a wave wait for
each other every 8 steps (in_step.cuh). It is a hint only: after 32 looks a block goes on alone, so that
it cannot hang.

Expect half of the traffic from L2, which was 11 GB at 8192 in BF16, and no more from DRAM than each wave
needs once. From 4096 on the chip is at its power limit, where less traffic is a higher clock: 2 to 3 %.
Measured: 4.8 GB, and 3 % at 4096, 6 % at 8192, as at each meeting blocks also make up for different times
of writing C. Of squares, meetings, and 128 blocks, each alone gains less. The four multiprocessors that
are left out are no loss where tiles come in whole waves.

Not done: clusters of two here too. They ask L2 once for both, but what they ask for is not joined with
what others ask for: 8 GB at 8192, and 4 to 5 % slower. And to keep the blocks together within 20 ns
instead of 60: consumers that empty the tensor cores once per tile, and start again when the last block
of 128 does. L2 then reads another 10 to 15 % less, but the clock falls as well, and nothing is gained.
*/

#include "hopper.cuh"
#include "in_step.cuh"

constexpr int TILE_M = 128, TILE_N = 256, STAGES = 4, CONSUMERS = 2;

struct Shared {
    Input a[STAGES][TILE_M * TILE_K];
    Input b[STAGES][TILE_N * TILE_K];
    Barrier full[STAGES], empty[STAGES];
};

extern "C" __global__ void __launch_bounds__((1 + CONSUMERS) * WARPGROUP, 1)
in_step(int M, int N, int K, Accumulate alpha, const __grid_constant__ TensorMap A,
        const __grid_constant__ TensorMap B, Accumulate beta, Output* C) {
    const Share share = share_of_block(true);
    if (blockIdx.x >= share.blocks) return;
    Shared& shared = reinterpret_cast<Shared&>(*dynamic_shared_tiles());

    if (threadIdx.x == 0) initialize_ring(shared.full, shared.empty, CONSUMERS);
    __syncthreads();

    const int rows = tiles_along(M, TILE_M);
    const int columns = tiles_along(N, TILE_N);
    const int tiles = rows * columns;
    const int warpgroup = threadIdx.x / WARPGROUP;
    Ring<STAGES> ring;  // goes on across tiles, for the producer and the consumers alike

    if (warpgroup == CONSUMERS) {  // the producer
        shrink_registers<24>();
        if (threadIdx.x % WARPGROUP > 0) return;
        for (int tile = share.first; tile < tiles; tile += share.blocks) {
            const Place place = grouped(tile, rows, columns, WAVE_ROWS);
            const bool meets = wave_is_whole(share, tile, tiles);
            for (int k = 0; k < K; k += TILE_K, ring.advance()) {
                if (meets && meets_before(k / TILE_K, tile)) meet();
                Barrier* full = &shared.full[ring.stage];
                wait(&shared.empty[ring.stage], ring.phase ^ 1);
                announce(full, sizeof(shared.a[0]) + sizeof(shared.b[0]));
                copy_box(shared.a[ring.stage], A, place.row * TILE_M, k, full);
                copy_box(shared.b[ring.stage], B, place.column * TILE_N, k, full);
            }
        }
    } else {
        grow_registers<240>();
        const bool first = threadIdx.x % WARPGROUP == 0;
        float sums[TILE_N / 2];
        for (int tile = share.first; tile < tiles; tile += share.blocks) {
            const Place place = grouped(tile, rows, columns, WAVE_ROWS);
            int before = 0;
            for (int k = 0; k < K; k += TILE_K, ring.advance()) {
                wait(&shared.full[ring.stage], ring.phase);
                begin_products();
                multiply_tiles(sums, shared.a[ring.stage] + warpgroup * 64 * TILE_K,
                               shared.b[ring.stage], k > 0);
                commit_products();
                wait_for_products<1>();
                if (k > 0 && first) arrive(&shared.empty[before]);
                before = ring.stage;
            }
            wait_for_products<0>();
            if (first) arrive(&shared.empty[before]);  // before C, so that the producer runs on
            store_sums(sums, C, place.row * TILE_M + warpgroup * 64, place.column * TILE_N, M, N,
                       alpha, beta);
        }
    }
}
