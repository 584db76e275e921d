/*
title = "CuTe: C stored through shared memory"
entry = "cute_epilogue"
rung = 35
precisions = ["fp16_fp32"]
layouts = ["nt"]
block = [128]
tile = [128, 128]
shared_bytes = 98304
batched = true
min_compute_capability = "8.0"
constraints = { K = 8 }
needs = ["cutlass"]
teaches = "threads exchange accumulators in shared memory, so that C is stored in whole lines"
*/

/*
The MMA determines each thread's accumulators: pairs of neighbours in many rows. If threads store
them directly, a warp's 32 floats fall into 8 rows of C. It is better that a warp stores 128
neighbours of one row, and the layout for this is one line, RowCopy. The accumulators pass through
shared memory from one partition of the tile to the other. The pipeline no longer needs it then:
64 KB of its 96 hold the tile in FP32.

    registers -> sC        (2 floats) x MMAs, in the MMA's layout: 8 bytes per copy
    sC -> global memory    (4, 32) : (32, 1) threads, each with 4 floats: 4 rows of 512 bytes

Half a warp writes 8 bytes per thread into 4 rows of 32 bytes. Rows are 512 bytes apart, in the same
banks, so a swizzle spreads them: Swizzle<2, 3, 4> exclusive-ors the number of the 32-byte piece,
bits 3 and 4 of an offset in floats, with the last two bits of the row, 7 and 8. For the reads,
eight threads take 16 bytes each of one row: 128 bytes in any order, without conflicts.

A row of C begins at a multiple of 16 bytes only if N is a multiple of 4. For other N the same
function stores single floats, with a warp's 32 threads side by side: four instructions instead of
one, but still whole sectors.

Prediction: a block stored 128 x 128 floats in 128 instructions per thread, each of 8 half sectors
per warp; now it uses 32, each of four full lines. Reads of C, if beta is not 0, gain the same. At
8192 a block computes 128 tiles, 200 thousand clocks if two share a multiprocessor, and stores in a
few thousand, which the other block hides: 1 %. At K = 512 or less it shows: 5 to 10 %.

What limits it now: at 8192 the 264 blocks that run together cover four rows of tiles: they read
nearly all of B, 134 MB, again in every wave. `cute_rasterized` changes their order.
*/

#include "cute_gemm.cuh"

constexpr int STAGES = 3;
using CopyIn = TileCopy<SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>>;
static_assert(sizeof(float) * cosize_v<SharedC> <=
              2 * sizeof(half_t) * cosize_v<SharedTiles<STAGES>>);

extern "C" __global__ void __launch_bounds__(128)
cute_epilogue(int M, int N, int K, Accumulate alpha, const Input* A, const Input* B,
              Accumulate beta, Output* C) {
    extern __shared__ __align__(128) half_t shared[];
    select_batch(A, B, C, M, N, K);

    // 1. This block's part of the matrices.
    const int first_row = blockIdx.y * 128;
    const int first_column = blockIdx.x * 128;
    Tensor mA = rows_from(first_row, A, M, K);
    Tensor mB = rows_from(first_column, B, N, K);
    Tensor mC = corner_from(first_row, first_column, C, M, N);

    // 2. A x B, as in cute_predicated.
    Mma mma;
    Tensor tCrC = partition_fragment_C(mma, BlockTileC{});
    multiply_inside<CopyIn, STAGES>(mA, mB, shared, tCrC);

    // 3. Once every warp has read the last tiles, the accumulators take their place.
    Tensor sC = make_tensor(make_smem_ptr(reinterpret_cast<float*>(shared)), SharedC{});
    auto stage_pairs = make_tiled_copy_C(StagePairs{}, mma);
    auto my_stage_pairs = stage_pairs.get_slice(threadIdx.x);
    __syncthreads();
    copy(stage_pairs, my_stage_pairs.retile_S(tCrC), my_stage_pairs.partition_D(sC));
    __syncthreads();

    // 4. Store rows, 16 bytes per thread if rows begin at multiples of 16 bytes.
    auto c_shape = shape(mC);
    Tensor cC = tile_of_c(make_identity_tensor(c_shape));
    Tensor gC = tile_of_c(mC);
    if (N % 4 == 0) {
        store_rows<4>(sC, gC, cC, c_shape, alpha, beta);
    } else {
        store_rows<1>(sC, gC, cC, c_shape, alpha, beta);
    }
}
