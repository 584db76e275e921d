/*
title = "Persistent blocks in an order for L2"
entry = "persistent"
rung = 23
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
teaches = "a block stays and takes tile after tile, its copies run on across them"
*/

/*
In `specialised` each block fills its ring, multiplies, and writes C, and nothing else runs on the
multiprocessor meanwhile. Here one block per multiprocessor takes one tile after the other. Its
producer does not wait for C: when the consumers begin to write, the first stages of the next tile
are already on their way.

With that the order of tiles is ours. 132 blocks that compute neighbours in a square of C share rows
of A and B in L2; 132 in a line share one and need all of the other. A group of 16 tiles of 128 rows
by 8 of 256 columns is about square: 2048 + 2048 rows instead of 128 + 33792.

Expect what `specialised` loses at its ends: filling takes about one microsecond and writing two of
the 40 that a tile takes at K = 4096; more where the order saves DRAM traffic, from 8192 up. The
write of C is not hidden: while the consumers write C, nobody multiplies.
*/

#include "hopper.cuh"

constexpr int TILE_M = 128, TILE_N = 256, STAGES = 4, CONSUMERS = 2;
constexpr int GROUP = 16;  // rows of tiles

struct Shared {
    Input a[STAGES][TILE_M * TILE_K];
    Input b[STAGES][TILE_N * TILE_K];
    Barrier full[STAGES], empty[STAGES];
};

extern "C" __global__ void __launch_bounds__((1 + CONSUMERS) * WARPGROUP, 1)
persistent(int M, int N, int K, Accumulate alpha, const __grid_constant__ TensorMap A,
           const __grid_constant__ TensorMap B, Accumulate beta, Output* C) {
    Shared& shared = reinterpret_cast<Shared&>(*dynamic_shared_tiles());

    if (threadIdx.x == 0) initialize_ring(shared.full, shared.empty, CONSUMERS);
    __syncthreads();

    const int rows = tiles_along(M, TILE_M);
    const int columns = tiles_along(N, TILE_N);
    const int warpgroup = threadIdx.x / WARPGROUP;
    Ring<STAGES> ring;  // goes on across tiles, for the producer and the consumers alike

    if (warpgroup == CONSUMERS) {  // the producer
        shrink_registers<24>();
        if (threadIdx.x % WARPGROUP > 0) return;
        for (int tile = blockIdx.x; tile < rows * columns; tile += gridDim.x) {
            const Place place = grouped(tile, rows, columns, GROUP);
            for (int k = 0; k < K; k += TILE_K, ring.advance()) {
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
        for (int tile = blockIdx.x; tile < rows * columns; tile += gridDim.x) {
            const Place place = grouped(tile, rows, columns, GROUP);
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
