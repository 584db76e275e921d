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
teaches = "a tensor of coordinates gives each copy at an edge its predicate"
*/

/*
At the edge of a matrix each 16-byte copy needs a predicate: is it inside? CuTe provides a tensor
with the coordinates as elements:

    make_identity_tensor((M, K))(m, k) = (m, k)

It stores nothing; it is a layout whose strides are the unit vectors. Tiled and partitioned like the
matrix, it gives the position in the matrix of each element of a thread's part, and
elem_less(coordinate, (M, K)) is the predicate. copy_if passes it to cp.async, which writes zeros
without reading if it is false. Zeros add nothing to a sum, so the multiplication needs no
predicate. The last part of K, shorter than 64, is handled in the same way. The coordinates of C
mask the store.

M and N may have any value. K must be a multiple of 8: rows of A and B then begin at multiples of 16
bytes, as a copy of 16 bytes requires, and each copy is completely inside or outside.

A load of zeros takes as long as any load: a 1 x 1 problem takes as long as a 128 x 128 one.

Prediction: 32 comparisons per thread and tile are hidden behind 128 MMAs of 6 clocks each: within
2 % of `cute_pipelined` for problems that it supports. (For sm_80 the compiler spills a few addresses
in the store of C if beta is not 0; the loop over K has no spills.)

Learned: the prediction was wrong. Predicated copies cost more than their comparisons.

What limits it now, beside the limits of `cute_pipelined`: the store. A thread's accumulators are
pairs of neighbours, and it stores single floats: a warp's store touches 8 sectors in 8 rows and
fills half of each, and a second store fills the other half. `cute_epilogue` stores whole lines.
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

    // The coordinates of the same elements: they show which are outside.
    auto a_shape = shape(mA);
    auto b_shape = shape(mB);
    auto c_shape = shape(mC);
    Tensor cA = tiles_of_a(make_identity_tensor(a_shape));
    Tensor cB = tiles_of_b(make_identity_tensor(b_shape));
    Tensor cC = tile_of_c(make_identity_tensor(c_shape));

    // 2. This thread's part of these.
    CopyIn copy_in;
    Mma mma;
    auto a = operand_a<CopyIn, STAGES>(mA, shared);
    auto b = operand_b<CopyIn, STAGES>(mB, shared);
    auto my_mma = mma.get_slice(threadIdx.x);
    Tensor tCgC = my_mma.partition_C(tile_of_c(mC));
    Tensor tCcC = my_mma.partition_C(cC);
    Tensor tCrC = partition_fragment_C(mma, BlockTileC{});
    auto my_copy_in = copy_in.get_slice(threadIdx.x);
    Tensor tAcA = my_copy_in.partition_S(cA);
    Tensor tBcB = my_copy_in.partition_S(cB);

    // 3. A tile's copies, each with a predicate.
    auto start_copy = [&](int tile) {
        const int stage = tile % STAGES;
        auto a_inside = is_inside(tAcA(_, _, _, tile), a_shape);
        auto b_inside = is_inside(tBcB(_, _, _, tile), b_shape);
        copy_if(copy_in, a_inside, a.global(_, _, _, tile), a.shared(_, _, _, stage));
        copy_if(copy_in, b_inside, b.global(_, _, _, tile), b.shared(_, _, _, stage));
    };

    // 4. The loop of cute_pipelined.
    multiply<STAGES>(a, b, size<3>(a.global), start_copy, tCrC);

    // 5. C = alpha * sums + beta * C inside C. C is not read if beta is 0.
    auto c_inside = [&](int i) { return elem_less(tCcC(i), c_shape); };
    axpby(alpha, tCrC, beta, tCgC, c_inside);
}
