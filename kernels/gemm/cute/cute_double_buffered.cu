/*
title = "CuTe: two stages"
entry = "cute_double_buffered"
rung = 32
precisions = ["fp16_fp32"]
layouts = ["nt"]
block = [128]
tile = [128, 128]
shared_bytes = 65536
batched = true
min_compute_capability = "8.0"
constraints = { M = 128, N = 128, K = 64 }
needs = ["cutlass"]
teaches = "the copy of the next tile runs while this one is multiplied"
*/

/*
`cute_gemm` waits for a tile that it has only just asked for. Here shared memory holds two tiles of
each operand: while one is multiplied, cp.async fills the other. cp.async is what makes this easy:
the copy needs no register to hold what is under way, and no thread to move it on.

In layouts, a stage is one more mode. The swizzled tile is repeated not to (128, 64) but to
(128, 64, 2), the last mode with a stride of one tile; partitions carry it along, and choosing a
stage is an index:

    tAsA : (8 halves, rows, chunks, stages)        tAsA(_, _, _, stage)

One barrier per tile now does both duties. Behind it, every thread's part of this tile has landed,
and every warp is done with the tile before, whose place the next one takes.

Costs: 64 KB of shared memory per block instead of 32. Registers still decide how many blocks share
a multiprocessor: three where the compiler takes 168, as it does for sm_90, two where it takes more.

Prediction: `cute_gemm` lost a load's 600 + 840 clocks per tile and block, unless the other block
had work to fill them. Now a load has the time of one tile's multiplication to arrive: 813 clocks,
and twice or three times that where blocks share the tensor cores. 1626 is just above 1440, so that
most of the wait goes: 450 TFLOP/s at 8192. Measured at 4096: 361, and at 2048 no gain.

What limits it now: a block by itself has no slack for a load that is late, and at the top of each
tile all four of its warps wait for the same barrier and then for their first ldmatrix, some 30
clocks and more, with nothing left to multiply. Only another block can fill that gap.
`cute_pipelined` looks further ahead, in both memories.
*/

#include "cute_gemm.cuh"

constexpr int STAGES = 2;
using CopyIn = TileCopy<SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>>;

extern "C" __global__ void __launch_bounds__(128)
cute_double_buffered(int M, int N, int K, Accumulate alpha, const Input* A, const Input* B,
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
    Tensor tCgC = mma.get_slice(threadIdx.x).partition_C(tile_of_c(mC));
    Tensor tCrC = partition_fragment_C(mma, BlockTileC{});
    const int tiles = size<3>(a.global);

    auto start_copy = [&](int tile) {
        copy(copy_in, a.global(_, _, _, tile), a.shared(_, _, _, tile % STAGES));
        copy(copy_in, b.global(_, _, _, tile), b.shared(_, _, _, tile % STAGES));
        cp_async_fence();
    };

    // 3. Nothing hides the load of the first tile.
    start_copy(0);

    clear(tCrC);
    for (int tile = 0; tile < tiles; ++tile) {
        // 4. Wait for this tile. After the barrier every warp has also read the tile before it,
        cp_async_wait<0>();
        __syncthreads();

        // 5. so the next tile may take that one's place.
        if (tile + 1 < tiles) start_copy(tile + 1);

        // 6. Multiply in the meantime, 16 steps of K at a time.
        const int stage = tile % STAGES;
        #pragma unroll
        for (int k = 0; k < size<2>(a.fragment); ++k) {
            a.load(k, stage);
            b.load(k, stage);
            gemm(mma, a.fragment(_, _, k), b.fragment(_, _, k), tCrC);
        }
    }

    // 7. C = alpha * sums + beta * C. C is not read if beta is 0.
    axpby(alpha, tCrC, beta, tCgC);
}
