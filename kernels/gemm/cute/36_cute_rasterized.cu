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

    // 2. As in cute_epilogue.
    Tensor tCrC = partition_fragment_C(Mma{}, BlockTileC{});
    multiply_inside<CopyIn, STAGES>(mA, mB, shared, tCrC);
    store_through_shared(mC, N, reinterpret_cast<float*>(shared), tCrC, alpha, beta);
}
