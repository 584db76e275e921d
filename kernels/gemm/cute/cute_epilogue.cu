/*
title = "CuTe: C leaves through shared memory"
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
teaches = "threads trade accumulators in shared memory, so that C is stored in whole lines"
*/

/*
The MMA decides which accumulators a thread has: two neighbours in each of many rows. Stored from
there, a warp's 32 floats fall into 8 rows of C. Better that a warp holds 128 neighbours of one row,
and the layout that says so is one line, Store below. Between two partitions of the same tile stands
shared memory, which the pipeline no longer needs: 64 KB of its 96 hold the tile in FP32.

    registers  (2 floats) x MMAs       -> sC   as the MMA has dealt them: 8 bytes
    sC -> global memory  (4, 32) : (32, 1) threads, each with 4 floats: 4 rows of 512 bytes

Writing, half a warp puts 8 bytes each into 4 rows of 32 bytes. Rows are 512 bytes apart, the same
banks, unless a swizzle moves them apart: Swizzle<2, 3, 4> exclusive-ors the number of the 32-byte
piece, bits 3 and 4 of an offset in floats, with the row's last two bits, 7 and 8. Reading, eight
threads take 16 bytes each of one row: 128 bytes in whatever order, no conflict either.

A row of C begins at a multiple of 16 bytes only if N is a multiple of 4. For other N the same
function stores single floats, with the 32 threads of a warp side by side: four instructions instead
of one, but still whole sectors.

Prediction: a block stored 128 x 128 floats in 128 instructions per thread, each of them 8 half
sectors to a warp; now in 32, each of four full lines. Reading C, where beta is not 0, gains the
same. At 8192 a block computes for 128 tiles, 200 thousand clocks when two share a multiprocessor,
and stores in a few thousand, which the other block hides: 1 %. At K = 512 or less it shows: 5 to
10 %. Measured: 4 % more than `cute_predicated` at 4096, 11 % at 1024, 19 % at 2048.

What limits it now: at 8192 the blocks that run together, 264 of them, take four rows of blocks:
they read nearly all of B, 134 MB, again in every wave. `cute_rasterized` orders them.
*/

#include "cute_gemm.cuh"

constexpr int STAGES = 3;
using CopyIn = TileCopy<SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>>;

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

    // 2. This thread's part of that.
    CopyIn copy_in;
    Mma mma;
    auto a = operand_a<CopyIn, STAGES>(mA, shared);
    auto b = operand_b<CopyIn, STAGES>(mB, shared);
    Tensor tCrC = partition_fragment_C(mma, BlockTileC{});
    const int tiles = size<3>(a.global);

    // The coordinates of the elements that it copies: they show which are outside.
    auto my_copy_in = copy_in.get_slice(threadIdx.x);
    Tensor tAcA = my_copy_in.partition_S(tiles_of_a(make_identity_tensor(shape(mA))));
    Tensor tBcB = my_copy_in.partition_S(tiles_of_b(make_identity_tensor(shape(mB))));

    auto start_copy = [&](int tile) {
        if (tile < tiles) {
            const int stage = tile % STAGES;
            auto a_inside = is_inside(tAcA(_, _, _, tile), shape(mA));
            auto b_inside = is_inside(tBcB(_, _, _, tile), shape(mB));
            copy_if(copy_in, a_inside, a.global(_, _, _, tile), a.shared(_, _, _, stage));
            copy_if(copy_in, b_inside, b.global(_, _, _, tile), b.shared(_, _, _, stage));
        }
        cp_async_fence();  // an empty group counts as well
    };
    auto load_fragments = [&](int k, int stage) {
        a.load(k, stage);
        b.load(k, stage);
    };
    auto wait_for_oldest = [] {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
    };

    // 3. Fill the pipeline: all stages but one, and the fragments of the first step.
    for (int tile = 0; tile < STAGES - 1; ++tile) start_copy(tile);
    wait_for_oldest();
    load_fragments(0, 0);

    clear(tCrC);
    constexpr int STEPS = size<2>(a.fragment);
    for (int tile = 0; tile < tiles; ++tile) {
        #pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            // 4. Load the fragments of the next step. In the last step these belong to the next
            //    tile, which must have arrived. (After the last tile they are stale and unused.)
            const bool last = k == STEPS - 1;
            if (last) wait_for_oldest();
            load_fragments((k + 1) % STEPS, (last ? tile + 1 : tile) % STAGES);

            // 5. The stage of the tile before this one is free: its last read was before the
            //    barrier of 4.
            if (k == 0) start_copy(tile + STAGES - 1);

            // 6. Multiply the fragments loaded one step ago.
            gemm(mma, a.fragment(_, _, k), b.fragment(_, _, k), tCrC);
        }
    }

    // 7. Once every warp has read the last tiles, the accumulators take their place.
    Tensor sC = make_tensor(make_smem_ptr(reinterpret_cast<float*>(shared)), SharedC{});
    auto stage_pairs = make_tiled_copy_C(StagePairs{}, mma);
    auto my_stage_pairs = stage_pairs.get_slice(threadIdx.x);
    __syncthreads();
    copy(stage_pairs, my_stage_pairs.retile_S(tCrC), my_stage_pairs.partition_D(sC));
    __syncthreads();

    // 8. Store rows, 16 bytes per thread if rows begin at multiples of 16 bytes.
    if (N % 4 == 0) {
        store_rows<4>(sC, mC, alpha, beta);
    } else {
        store_rows<1>(sC, mC, alpha, beta);
    }
}
