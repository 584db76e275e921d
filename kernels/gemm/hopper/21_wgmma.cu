/*
title = "TMA and wgmma, one tile"
entry = "wgmma"
rung = 21
precisions = ["bf16", "fp16", "fp16_fp32", "tf32", "fp8"]
layouts = ["nt"]
compute_capability = "9.0"
block = [128]
tile = [128, 128]
tensor_maps = [
  { operand = "a", box = [128, "128 // input_bytes"], swizzle = 128, padded = true },
  { operand = "b", box = [128, "128 // input_bytes"], swizzle = 128, padded = true },
]
teaches = "one thread copies tiles, four warps multiply them with one instruction"
*/

/*
Hopper's tensor cores read operands from shared memory, and a warpgroup of four warps issues their
instruction together: wgmma multiplies 64 rows of A by up to 256 rows of B. So nothing is loaded into
registers but sums. The copy engine (TMA) moves a whole box of a matrix into shared memory for one
instruction of one thread, in the swizzled order that wgmma reads without bank conflicts.

This kernel has one tile of 128 x 128 per block, and one buffer: copy, wait, multiply, wait. Both
operands lie along K, layout nt. TMA wants rows of a multiple of 16 bytes.

Traffic: a block reads 256 rows of 128 bytes from L2 for 128 * 128 * 64 multiply-adds in 16 bits, 64
FLOP per byte.

Occupancy: 64 KB of sums and 32 KB of tiles per block: three blocks on a multiprocessor. While one
waits for its copy, another multiplies. That is all the overlap there is, so expect a third of the
peak. It is more: three blocks hide most of each other's waiting. The next rung makes the overlap
explicit, with a larger tile.

FP8 is summed by the tensor cores alone, which keep fewer bits than FP32 (cublasLt's fast mode).
*/

#include "hopper.cuh"

constexpr int TILE = 128;

extern "C" __global__ void __launch_bounds__(WARPGROUP, 3)
wgmma(int M, int N, int K, Accumulate alpha, const __grid_constant__ TensorMap A,
      const __grid_constant__ TensorMap B, Accumulate beta, Output* C) {
    __shared__ __align__(1024) Input tile_a[TILE * TILE_K];
    __shared__ __align__(1024) Input tile_b[TILE * TILE_K];
    __shared__ Barrier arrived;

    if (threadIdx.x == 0) initialize(&arrived);
    __syncthreads();

    const int row = blockIdx.y * TILE;
    const int column = blockIdx.x * TILE;
    float top[64], bottom[64];
    unsigned phase = 0;

    for (int k = 0; k < K; k += TILE_K) {
        // 1. One thread asks for both tiles.
        if (threadIdx.x == 0) {
            announce(&arrived, sizeof(tile_a) + sizeof(tile_b));
            copy_box(tile_a, A, row, k, &arrived);
            copy_box(tile_b, B, column, k, &arrived);
        }

        // 2. All wait until they have arrived.
        wait(&arrived, phase);
        phase ^= 1;

        // 3. The warpgroup multiplies 64 rows of A, and the other 64, by 128 rows of B.
        begin_products();
        multiply_tiles(top, tile_a, tile_b, k > 0);
        multiply_tiles(bottom, tile_a + 64 * TILE_K, tile_b, k > 0);
        commit_products();
        wait_for_products<0>();

        // 4. The next copy overwrites the tiles.
        __syncthreads();
    }

    store_sums(top, C, row, column, M, N, alpha, beta);
    store_sums(bottom, C, row + 64, column, M, N, alpha, beta);
}
