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
teaches = "the copy of the next tile runs during the multiplication of this one"
*/

/*
`cute_gemm` waits for each tile right after it starts the load. Here shared memory holds two tiles
of each operand: cp.async fills one while the other is multiplied. cp.async makes this simple: the
copy needs no registers for data in flight, and no thread has to continue it.

In the layout, a stage is one more mode. The swizzled tile is repeated to (128, 64, 2), not to
(128, 64, 1). Partitions keep the last mode, and an index selects the stage:

    tAsA : (8 halves, rows, chunks, stages)        tAsA(_, _, _, stage)

One barrier per tile is enough. After it, all threads' copies of this tile have arrived, and all
warps have read the previous tile, so the next one may overwrite that.

Costs: 64 KB of shared memory per block instead of 32. Registers still limit the blocks per
multiprocessor: three if the compiler uses 168, as for sm_90, two if it uses more.

Prediction: `cute_gemm` lost a load's 600 + 840 clocks per tile and block, unless the other block
had work for them. Now a load may take as long as one tile's multiplication: 813 clocks, and two or
three times that if blocks share the tensor cores. 1626 is just above 1440, so most of the wait is
hidden: 450 TFLOP/s at 8192.

What limits it now: a single block has no slack for a late load. At the start of each tile all four
of its warps wait for the same barrier and then for their first ldmatrix, some 30 clocks and more,
without anything to multiply. Only another block can fill that gap. `cute_pipelined` loads further
ahead, in both memories.
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

    // 2. This thread's part of these.
    CopyIn copy_in;
    Mma mma;
    auto a = operand_a<CopyIn, STAGES>(mA, shared);
    auto b = operand_b<CopyIn, STAGES>(mB, shared);
    auto my_mma = mma.get_slice(threadIdx.x);
    Tensor tCrA = my_mma.partition_fragment_A(a.tiles(_, _, 0));
    Tensor tCrB = my_mma.partition_fragment_B(b.tiles(_, _, 0));
    Tensor tCgC = my_mma.partition_C(tile_of_c(mC));
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
        // 4. Wait for this tile. After the barrier all warps have also read the previous tile.
        cp_async_wait<0>();
        __syncthreads();

        // 5. The next tile may overwrite that one.
        if (tile + 1 < tiles) start_copy(tile + 1);

        // 6. Multiply in the meantime, 16 steps of K at a time.
        const int stage = tile % STAGES;
        #pragma unroll
        for (int k = 0; k < size<2>(tCrA); ++k) {
            a.load(k, stage, tCrA);
            b.load(k, stage, tCrB);
            gemm(mma, tCrA(_, _, k), tCrB(_, _, k), tCrC);
        }
    }

    // 7. C = alpha * sums + beta * C. C is not read if beta is 0.
    axpby(alpha, tCrC, beta, tCgC);
}
