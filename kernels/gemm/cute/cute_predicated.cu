/*
title = "CuTe: any M and N, predicated"
entry = "cute_predicated"
rung = 34
precisions = ["fp16_fp32"]
layouts = ["nt"]
block = [128]
tile = [128, 128]
shared_bytes = 98304
batched = true
min_compute_capability = "8.0"
constraints = { K = 8 }
needs = ["cutlass"]
teaches = "the tensor of coordinates: a copy that knows where the matrix ends"
*/

/*
At the edge of a matrix each 16-byte copy has to know whether it is inside. CuTe answers with a
tensor whose elements are their own coordinates:

    make_identity_tensor((M, K))(m, k) = (m, k)

Nothing is stored; it is a layout whose strides are the unit vectors. Tiled and partitioned exactly
as the matrix is, it tells for every element of a thread's part where in the matrix it lies, and
elem_less(coordinate, (M, K)) is the predicate. copy_if passes that to cp.async, which writes zeros
where it is false and reads nothing: zeros add nothing to a sum, so that the multiplication need not
know of edges. The last stretch of K, shorter than 64, takes the same way. The store is masked by
the coordinates of C.

Any M and N are taken. K must be a multiple of 8: rows of A and B then begin at multiples of 16
bytes, which is what a copy of 16 bytes asks for, and a copy is inside as a whole or not at all.

A load of zeros costs what a load costs: a 1 x 1 problem takes as long as a 128 x 128 one.

Prediction: 32 comparisons per thread and tile, beside 128 MMAs that take 6 clocks each, are hidden:
within 2 % of `cute_pipelined` where that one can run. (For sm_80 the compiler spills a few
addresses in the store of C where beta is not 0; the loop over K has none.)

Measured at 4096: 360 TFLOP/s where `cute_pipelined` has 408, and at 1024 and 2048 likewise 14 %
less. The prediction was wrong: what a copy has to know costs more than its comparison.

What limits it now, beside what limits `cute_pipelined`: the store. A thread's accumulators are
pairs of neighbours, and single floats are stored: a warp touches 8 sectors of 8 rows and fills half
of each, twice over. `cute_epilogue` stores whole lines.
*/

#include "cute_gemm.cuh"

constexpr int STAGES = 3;
using CopyIn = TileCopy<SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>>;

extern "C" __global__ void __launch_bounds__(128)
cute_predicated(int M, int N, int K, Accumulate alpha, const Input* A, const Input* B,
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

    // The coordinates of the elements that it copies and stores: they show which are outside.
    auto my_copy_in = copy_in.get_slice(threadIdx.x);
    Tensor tAcA = my_copy_in.partition_S(tiles_of_a(make_identity_tensor(shape(mA))));
    Tensor tBcB = my_copy_in.partition_S(tiles_of_b(make_identity_tensor(shape(mB))));
    Tensor tCcC = mma.get_slice(threadIdx.x).partition_C(
        tile_of_c(make_identity_tensor(shape(mC))));

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

    // 7. C = alpha * sums + beta * C inside C. C is not read if beta is 0.
    auto c_inside = [&](int i) { return elem_less(tCcC(i), shape(mC)); };
    axpby(alpha, tCrC, beta, tCgC, c_inside);
}
