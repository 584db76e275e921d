/*
title = "C by TMA, behind the next tile"
entry = "overlapped"
rung = 25
precisions = ["bf16", "fp16", "fp16_fp32", "tf32", "fp8"]
layouts = ["nt"]
compute_capability = "9.0"
block = [384]
tile = [128, 256]
flat = true
blocks_per_sm = 1
cluster = [2]
shared_bytes = "4 * 128 * (128 + 256) + 2 * 2 * 64 * 128 + 2 * 4 * 8"
tensor_maps = [
  { operand = "a", box = [128, "128 // input_bytes"], swizzle = 128, padded = true },
  { operand = "b", box = [128, "128 // input_bytes"], swizzle = 128, padded = true },
  { operand = "c", box = [16, "128 // output_bytes"], swizzle = 128, pointer = true, padded = true },
]
teaches = "warps hand C to the copy engine in whole lines and go on"
*/

/*
`clusters` with another way for C. A thread's sums are pairs of columns, eight rows apart between
lanes: written straight to C, a warp touches half of each 32-byte sector, and 128 stores per thread
stand between two tiles. Here each warp puts 16 rows x 128 bytes at a time into shared memory, and TMA
writes them as whole lines. stmatrix moves four 8 x 8 matrices per instruction, and TMA's swizzle keeps
it free of bank conflicts. There are two such buffers per warp; TMA reads the last two while the next
tile has begun. 32 KB are enough, so the four stages stay.

TMA wants rows of C of a multiple of 16 bytes. With beta the old C is read straight into registers.

Expect the time of the stores: one to two microseconds of the 40 per tile at K = 4096, half of that
at 8192; and more, because blocks that meet wait for whoever still writes C. What remains: consumers
still wait until the first two chunks of C have been read, and TMA reads them behind the copies of the
next tile. See `champion`.
*/

#include "hopper.cuh"
#include "lockstep.cuh"

constexpr int TILE_M = 128, TILE_N = 256, STAGES = 4, CONSUMERS = 2;
constexpr int CLUSTER = 2;  // blocks above each other
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

            const int row = place.row * TILE_M + warpgroup * 64;
            const int column = place.column * TILE_N;
            scale_sums(sums, C, row, column, M, N, alpha, beta);
            store_chunks(sums, two_buffers(shared.c[warpgroup]), C_map, row, column);
        }
        if (elected()) wait_until_stores_have_read();
    }
}
