/*
title = "CuTe: blocks ordered for L2"
entry = "cute_rasterized"
rung = 36
precisions = ["fp16_fp32"]
layouts = ["nt"]
block = [128]
tile = [128, 128]
shared_bytes = 98304
batched = true
min_compute_capability = "8.0"
constraints = { K = 8 }
needs = ["cutlass"]
teaches = "the order of blocks decides how much of A and B they share in L2"
*/

/*
Blocks start in the order of their number, as many as fit at a time: two on each of an H200's 132
multiprocessors, 264 in all. In the order of blockIdx they are side by side along N. At M = N = K =
8192 that is 4 rows of 64 tiles, which need 4 bands of A but all 64 of B: 68 bands of 2 MB, 143 MB,
nearly three times the L2 cache, for each of the 16 waves.

Here blocks are numbered down a column of GROUP = 16 tiles, then down the next column. 264 of them
cover 16 rows and 17 columns: 33 bands, 69 MB. All of them move along K at about the same pace, so
the data in use at one time are much less than that. The grid is unchanged; five lines of integer
arithmetic at the start of a block compute its tile.

Prediction: 1.2 GB less to read from memory at 8192. At 4 TB/s that is 0.3 ms of about 2. Most of it
was hidden behind the multiplication, but less traffic also needs less power, and at the power limit
that raises the clock: 3 to 5 % at 8192, more at 16384, nothing at 4096 and below, where B fits into
L2.

What limits it now: mma.sync. Its operands pass from shared memory through registers, and we assume
that Hopper's tensor cores reach 63 % of their peak with it. wgmma reads shared memory directly.
*/

#include "cute_gemm.cuh"

constexpr int STAGES = 3;
constexpr int GROUP = 16;  // rows of tiles that are worked on together
using CopyIn = TileCopy<SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>>;
static_assert(sizeof(float) * cosize_v<SharedC> <=
              2 * sizeof(half_t) * cosize_v<SharedTiles<STAGES>>);

extern "C" __global__ void __launch_bounds__(128)
cute_rasterized(int M, int N, int K, Accumulate alpha, const Input* A, const Input* B,
                Accumulate beta, Output* C) {
    extern __shared__ __align__(128) half_t shared[];
    select_batch(A, B, C, M, N, K);

    // 1. This block's part of the matrices. The blocks of a group go down its columns, one column
    //    after the other. The last group may have fewer rows.
    const int number = blockIdx.y * gridDim.x + blockIdx.x;
    const int top = number / (GROUP * gridDim.x) * GROUP;
    const int height = min(GROUP, int(gridDim.y) - top);
    const int in_group = number - top * gridDim.x;
    const int first_row = (top + in_group % height) * 128;
    const int first_column = in_group / height * 128;
    Tensor mA = rows_from(first_row, A, M, K);
    Tensor mB = rows_from(first_column, B, N, K);
    Tensor mC = corner_from(first_row, first_column, C, M, N);

    // The coordinates of the same elements: they show which are outside.
    auto a_shape = shape(mA);
    auto b_shape = shape(mB);
    auto c_shape = shape(mC);
    Tensor cA = tiles_of_a(make_identity_tensor(a_shape));
    Tensor cB = tiles_of_b(make_identity_tensor(b_shape));
    Tensor cC = tile_of_c(make_identity_tensor(c_shape));
    Tensor gC = tile_of_c(mC);

    // 2. This thread's part of these.
    CopyIn copy_in;
    Mma mma;
    auto a = operand_a<CopyIn, STAGES>(mA, shared);
    auto b = operand_b<CopyIn, STAGES>(mB, shared);
    auto my_mma = mma.get_slice(threadIdx.x);
    Tensor tCrA = my_mma.partition_fragment_A(a.tiles(_, _, 0));
    Tensor tCrB = my_mma.partition_fragment_B(b.tiles(_, _, 0));
    Tensor tCrC = partition_fragment_C(mma, BlockTileC{});
    const int tiles = size<3>(a.global);
    auto my_copy_in = copy_in.get_slice(threadIdx.x);
    Tensor tAcA = my_copy_in.partition_S(cA);
    Tensor tBcB = my_copy_in.partition_S(cB);

    auto start_copy = [&](int tile) {
        if (tile < tiles) {
            const int stage = tile % STAGES;
            auto a_inside = is_inside(tAcA(_, _, _, tile), a_shape);
            auto b_inside = is_inside(tBcB(_, _, _, tile), b_shape);
            copy_if(copy_in, a_inside, a.global(_, _, _, tile), a.shared(_, _, _, stage));
            copy_if(copy_in, b_inside, b.global(_, _, _, tile), b.shared(_, _, _, stage));
        }
        cp_async_fence();  // an empty group counts as well
    };
    auto load_fragments = [&](int k, int stage) {
        a.load(k, stage, tCrA);
        b.load(k, stage, tCrB);
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
    constexpr int STEPS = size<2>(tCrA);
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
            gemm(mma, tCrA(_, _, k), tCrB(_, _, k), tCrC);
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
        store_rows<4>(sC, gC, cC, c_shape, alpha, beta);
    } else {
        store_rows<1>(sC, gC, cC, c_shape, alpha, beta);
    }
}
