/*
title = "Warps that copy and warps that multiply"
entry = "specialised"
rung = 22
precisions = ["bf16", "fp16", "fp16_fp32", "tf32", "fp8"]
layouts = ["nt"]
compute_capability = "9.0"
block = [384]
tile = [128, 256]
shared_bytes = "4 * 128 * (128 + 256) + 2 * 4 * 8"
tensor_maps = [
  { operand = "a", box = [128, "128 // input_bytes"], swizzle = 128, padded = true },
  { operand = "b", box = [256, "128 // input_bytes"], swizzle = 128, padded = true },
]
teaches = "a producer runs ahead of its consumers through a ring of stages"
*/

/*
In `wgmma` the same threads ask for a tile, wait for it and multiply it. Here one warpgroup only
copies, and two only multiply, through a ring of four stages. Two barriers per stage count bytes that
have arrived and consumers that have finished. No thread waits for all others any more, and the copy
of a tile begins up to three stages before its use.

The tile grows to 128 x 256: each consumer multiplies 64 rows by 256, the largest instruction, whose
sums take 128 registers of every thread. The compiler may use 168 for each of 384 threads; setmaxnreg
moves those that the producer does not need to the consumers.

A consumer frees a stage when the products of the next one have started: so there are always products
to compute.

Traffic: 384 rows of 128 bytes for 128 * 256 * 64 multiply-adds, 85 FLOP per byte; from shared memory
wgmma reads 64 + 256 rows for each 64 x 256 products.

Occupancy: one block per multiprocessor, 192 KB of stages. It cannot hide the time in which it fills
its ring and in which it writes C: for that see the next rungs. Expect nearly twice the speed of
`wgmma`; it is less, because three small blocks already hide much of each other's waiting.
*/

#include "hopper.cuh"

constexpr int TILE_M = 128, TILE_N = 256, STAGES = 4, CONSUMERS = 2;

struct Shared {
    Input a[STAGES][TILE_M * TILE_K];
    Input b[STAGES][TILE_N * TILE_K];
    Barrier full[STAGES], empty[STAGES];
};

extern "C" __global__ void __launch_bounds__((1 + CONSUMERS) * WARPGROUP, 1)
specialised(int M, int N, int K, Accumulate alpha, const __grid_constant__ TensorMap A,
            const __grid_constant__ TensorMap B, Accumulate beta, Output* C) {
    Shared& shared = reinterpret_cast<Shared&>(*dynamic_shared_tiles());

    if (threadIdx.x == 0) initialize_ring(shared.full, shared.empty, CONSUMERS);
    __syncthreads();

    const int row = blockIdx.y * TILE_M;
    const int column = blockIdx.x * TILE_N;
    const int warpgroup = threadIdx.x / WARPGROUP;
    Ring<STAGES> ring;

    if (warpgroup == CONSUMERS) {  // the producer
        shrink_registers<24>();
        if (threadIdx.x % WARPGROUP > 0) return;
        for (int k = 0; k < K; k += TILE_K, ring.advance()) {
            Barrier* full = &shared.full[ring.stage];
            wait(&shared.empty[ring.stage], ring.phase ^ 1);  // at first all stages are empty
            announce(full, sizeof(shared.a[0]) + sizeof(shared.b[0]));
            copy_box(shared.a[ring.stage], A, row, k, full);
            copy_box(shared.b[ring.stage], B, column, k, full);
        }
    } else {
        grow_registers<240>();
        float sums[TILE_N / 2];
        for (int k = 0; k < K; k += TILE_K, ring.advance()) {
            wait(&shared.full[ring.stage], ring.phase);
            begin_products();
            multiply_tiles(sums, shared.a[ring.stage] + warpgroup * 64 * TILE_K,
                           shared.b[ring.stage], k > 0);
            commit_products();
            wait_for_products<1>();  // those of the stage before
            // The whole warpgroup issues a product, so one thread's wait covers its four warps.
            if (k > 0 && threadIdx.x % WARPGROUP == 0) {
                arrive(&shared.empty[(ring.stage + STAGES - 1) % STAGES]);
            }
        }
        wait_for_products<0>();
        store_sums(sums, C, row + warpgroup * 64, column, M, N, alpha, beta);
    }
}
