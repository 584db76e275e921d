/*
title = "Consumers take turns"
entry = "overlapped"
rung = 26
precisions = ["bf16", "fp16", "fp16_fp32", "tf32", "fp8"]
layouts = ["nt"]
compute_capability = "9.0"
block = [384]
tile = [128, 128]
flat = true
blocks_per_sm = 1
cluster = [2]
shared_bytes = "6 * 128 * (128 + 128) + 2 * 2 * 64 * 128 + 2 * 6 * 8"
tensor_maps = [
  { operand = "a", box = [128, "128 // input_bytes"], swizzle = 128 },
  { operand = "b", box = [64, "128 // input_bytes"], swizzle = 128 },
  { operand = "c", box = [16, "128 // output_bytes"], swizzle = 128, pointer = true },
]
teaches = "one warpgroup writes C while the other multiplies the next tile"
*/

/*
In `clusters` both consumers work on one tile, finish together, and write C together, and the tensor
cores wait. The stores themselves run behind the next tile, but scaling, rounding and staging do not.
Here each consumer has a tile of its own, 128 x 128, in the same number of registers, and they take
turns: while one writes its C, the other has the tensor cores for itself. One warpgroup keeps them
busy alone, because its next products are queued before the last ones have finished.

The producer fills the ring in the order of tiles. A consumer begins its tile when the other has seen
the last stage of the tile before arrive. Without turns it could mistake an older phase of a barrier
for its own: a wait tells only even phases from odd ones.

Traffic: 256 rows of 128 bytes for 128 * 128 * 64 multiply-adds; as B is shared, 192 of them from L2.
It is a third more than with 128 x 256 tiles, and shared memory is read in smaller pieces.

Expect what `clusters` spends between tiles: six percent at K = 4096, half of it at 8192; the power
limit may keep some of it.
*/

#include "hopper.cuh"

constexpr int TILE_M = 128, TILE_N = 128, STAGES = 6, CONSUMERS = 2;
constexpr int CLUSTER = 2;  // blocks above each other
constexpr int GROUP = 8;    // rows of clusters
constexpr int PART = TILE_N / CLUSTER;

struct Shared {
    Input a[STAGES][TILE_M * TILE_K];
    Input b[STAGES][TILE_N * TILE_K];
    Output c[CONSUMERS][2][64 * CHUNK];
    Barrier full[STAGES], empty[STAGES];
};

extern "C" __global__ void __launch_bounds__((1 + CONSUMERS) * WARPGROUP, 1)
overlapped(int M, int N, int K, Accumulate alpha, const __grid_constant__ TensorMap A,
           const __grid_constant__ TensorMap B, Accumulate beta, const Output* C,
           const __grid_constant__ TensorMap C_map) {
    extern __shared__ __align__(1024) unsigned char dynamic[];
    Shared& shared = *reinterpret_cast<Shared*>(dynamic);

    const int warpgroup = threadIdx.x / WARPGROUP;
    if (threadIdx.x == CONSUMERS * WARPGROUP) {
        initialize_ring(shared.full, shared.empty, CLUSTER);
    }
    begin_roles<CLUSTER, (1 + CONSUMERS) * WARPGROUP>(warpgroup == CONSUMERS);

    const int rank = rank_in_cluster();
    const int rows = tiles_along(M, CLUSTER * TILE_M);
    const int columns = tiles_along(N, TILE_N);
    const int first_tile = blockIdx.x / CLUSTER;  // a tile of the whole cluster
    const int step = gridDim.x / CLUSTER;
    Ring<STAGES> ring;

    if (warpgroup == CONSUMERS) {  // the producer
        shrink_registers<24>();
        if (threadIdx.x % WARPGROUP > 0) return;
        for (int tile = first_tile; tile < rows * columns; tile += step) {
            const Place place = grouped(tile, rows, columns, GROUP);
            const int row = (place.row * CLUSTER + rank) * TILE_M;
            const int column = place.column * TILE_N + rank * PART;
            for (int k = 0; k < K; k += TILE_K, ring.advance()) {
                Barrier* full = &shared.full[ring.stage];
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
        const int steps = tiles_along(K, TILE_K);
        const int first_own = first_tile + warpgroup * step;
        float top[TILE_N / 2], bottom[TILE_N / 2];
        ring.skip(warpgroup * steps);  // the other's tile
        for (int tile = first_own; tile < rows * columns; tile += CONSUMERS * step) {
            if (tile > first_tile) wait_for_turn(warpgroup);
            const Place place = grouped(tile, rows, columns, GROUP);
            int before = 0;
            for (int k = 0; k < K; k += TILE_K, ring.advance()) {
                const Input *a = shared.a[ring.stage], *b = shared.b[ring.stage];
                wait(&shared.full[ring.stage], ring.phase);
                begin_products();
                multiply_tiles(top, a, b, k > 0);
                multiply_tiles(bottom, a + 64 * TILE_K, b, k > 0);
                commit_products();
                wait_for_products<1>();
                if (k > 0 && thread < CLUSTER) arrive_at(thread, &shared.empty[before]);
                before = ring.stage;
            }
            if (tile + step < rows * columns) give_turn(warpgroup ^ 1);
            wait_for_products<0>();
            if (thread < CLUSTER) arrive_at(thread, &shared.empty[before]);
            ring.skip((CONSUMERS - 1) * steps);

            const int row = (place.row * CLUSTER + rank) * TILE_M;
            const int column = place.column * TILE_N;
            scale_sums(top, C, row, column, M, N, alpha, beta);
            store_chunks(top, shared.c[warpgroup], C_map, row, column);
            scale_sums(bottom, C, row + 64, column, M, N, alpha, beta);
            store_chunks(bottom, shared.c[warpgroup], C_map, row + 64, column);
        }
        if (thread % 32 == 0) wait_until_stores_have_read();
    }
}
