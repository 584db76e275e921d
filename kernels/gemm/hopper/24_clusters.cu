/*
title = "Clusters of two that share copies, and meet"
entry = "clusters"
rung = 24
precisions = ["bf16", "fp16", "fp16_fp32", "tf32", "fp8"]
layouts = ["nt"]
compute_capability = "9.0"
block = [384]
tile = [128, 256]
flat = true
blocks_per_sm = 1
cluster = [2]
shared_bytes = "4 * 128 * (128 + 256) + 2 * 4 * 8"
tensor_maps = [
  { operand = "a", box = [128, "128 // input_bytes"], swizzle = 128, padded = true },
  { operand = "b", box = [128, "128 // input_bytes"], swizzle = 128, padded = true },
]
teaches = "blocks of a cluster copy halves of a tile for each other, and all of them stay together"
*/

/*
Two blocks, one above the other, need the same tile of B. In a cluster they run at the same time, and
TMA can deliver a copy to both: each block copies its tile of A and half of the tile of B, which it
multicasts. So it asks L2 for a third less: 256 instead of 384 rows of 128 bytes per stage. And 64
clusters compute 16 x 8 tiles at a time, a wave, and meet every eight steps (lockstep.cuh), so that what
one has read from DRAM is still in L2 when the others ask for it.

A producer now writes to the other block's shared memory. So a stage is empty only if the consumers
of both blocks have finished it: each arrives at both barriers. And no block may end while the other
still arrives there: its producer waits until all stages are empty.

Expect little where L2 keeps up, which the order of `persistent` ensures; less traffic is less power, and at
the power limit that is a higher clock. Measured in BF16: with multicasts alone L2 reads a fifth less, 8.7
instead of 11.0 GB at 8192; there are as many cycles as in `persistent`, and the time is equal at 4096 and 2 %
shorter at 8192. With meetings there are 3 to 4 % more cycles at 4096 and 1 to 2 % at 8192, presumably because
a block then waits for those that still write C. But at the power limit a block that waits leaves its power to
the others: in three runs the time was 0.3, 1, and 2.4 % shorter at 4096, and 2.5 to 3.5 % at 8192.

Lessons: meetings every 16 or 32 steps gain less at 4096. Neighbours in squares of 4 x 4, as in `champion`:
nothing more here. Pairs that go from stage to stage together, but copy all of B themselves: 2 % slower at
4096, equal at 8192. If several multiprocessors of a GPC request the same line at about the same time, L2
gets one request anyway, but only if none of them is a multicast. So squares that meet, without clusters,
read 4.8 GB at 8192, and `persistent` with them is 3 % faster at 4096 and 6 % at 8192: that is what `champion`
does. Lower in the ladder clusters gain nothing: in `specialised`, where blocks run in the order of the grid,
they change nothing within the noise, and in `wgmma`, where a block has to wait until the other one's tile is
free, they cost 3 %, and 16 to 30 % in fours.
*/

#include "hopper.cuh"
#include "lockstep.cuh"

constexpr int TILE_M = 128, TILE_N = 256, STAGES = 4, CONSUMERS = 2;
constexpr int CLUSTER = 2;  // blocks above each other
constexpr int PART = TILE_N / CLUSTER;

struct Shared {
    Input a[STAGES][TILE_M * TILE_K];
    Input b[STAGES][TILE_N * TILE_K];
    Barrier full[STAGES], empty[STAGES];
};

extern "C" __global__ void __launch_bounds__((1 + CONSUMERS) * WARPGROUP, 1)
clusters(int M, int N, int K, Accumulate alpha, const __grid_constant__ TensorMap A,
         const __grid_constant__ TensorMap B, Accumulate beta, Output* C) {
    const Turns turns = turns_in_columns();
    if (blockIdx.x >= turns.apart) return;  // a whole cluster
    Shared& shared = reinterpret_cast<Shared&>(*dynamic_shared_tiles());

    const int warpgroup = threadIdx.x / WARPGROUP;
    if (threadIdx.x == CONSUMERS * WARPGROUP) {
        initialize_ring(shared.full, shared.empty, CLUSTER * CONSUMERS);
    }
    begin_roles<CLUSTER, (1 + CONSUMERS) * WARPGROUP>(warpgroup == CONSUMERS);

    const int rank = rank_in_cluster();
    const int rows = tiles_along(M, CLUSTER * TILE_M) * CLUSTER;  // an even number
    const int columns = tiles_along(N, TILE_N);
    Ring<STAGES> ring;

    if (warpgroup == CONSUMERS) {  // the producer
        shrink_registers<24>();
        if (threadIdx.x % WARPGROUP > 0) return;
        for (int tile = turns.first; tile < rows * columns; tile += turns.apart) {
            const Place place = grouped(tile, rows, columns, WAVE_ROWS);
            const int row = place.row * TILE_M;
            const int column = place.column * TILE_N + rank * PART;
            const bool meets = wave_is_whole(turns, tile, rows * columns);
            for (int k = 0; k < K; k += TILE_K, ring.advance()) {
                Barrier* full = &shared.full[ring.stage];
                if (meets && meets_before(k / TILE_K, tile)) meet();
                wait(&shared.empty[ring.stage], ring.phase ^ 1);
                announce(full, sizeof(shared.a[0]) + sizeof(shared.b[0]));
                copy_box(shared.a[ring.stage], A, row, k, full);
                copy_box_to((1 << CLUSTER) - 1, shared.b[ring.stage] + rank * PART * TILE_K, B,
                            column, k, full);
            }
        }
        wait_until_empty(ring, shared.empty);
    } else {
        grow_registers<240>();
        const int thread = threadIdx.x % WARPGROUP;
        float sums[TILE_N / 2];
        for (int tile = turns.first; tile < rows * columns; tile += turns.apart) {
            const Place place = grouped(tile, rows, columns, WAVE_ROWS);
            int before = 0;
            for (int k = 0; k < K; k += TILE_K, ring.advance()) {
                wait(&shared.full[ring.stage], ring.phase);
                begin_products();
                multiply_tiles(sums, shared.a[ring.stage] + warpgroup * 64 * TILE_K,
                               shared.b[ring.stage], k > 0);
                commit_products();
                wait_for_products<1>();
                if (k > 0 && thread < CLUSTER) arrive_at(thread, &shared.empty[before]);
                before = ring.stage;
            }
            wait_for_products<0>();
            if (thread < CLUSTER) arrive_at(thread, &shared.empty[before]);

            store_sums(sums, C, place.row * TILE_M + warpgroup * 64, place.column * TILE_N, M, N,
                       alpha, beta);
        }
    }
}
