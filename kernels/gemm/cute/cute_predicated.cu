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

#include <cute/tensor.hpp>

#include "gemm.cuh"

using namespace cute;

constexpr int STAGES = 3;

using BlockTile = Shape<_128, _128, _64>;  // M, N, K of what a block has in shared memory

// Global to shared memory: 16 rows of 8 threads, each with 8 halves, or zeros in their place.
using CopyIn =
    decltype(make_tiled_copy(Copy_Atom<SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>, half_t>{},
                             Layout<Shape<_16, _8>, Stride<_8, _1>>{}, Layout<Shape<_1, _8>>{}));

// Shared memory, for A and B alike: 8 x 64, row-major, swizzled, repeated down to 128 rows, and
// that for each stage.
using SharedTiles = decltype(tile_to_shape(
    composition(Swizzle<3, 3, 3>{}, Layout<Shape<_8, _64>, Stride<_64, _1>>{}),
    Shape<_128, _64, Int<STAGES>>{}));

// Shared memory to registers.
using Ldmatrix = Copy_Atom<SM75_U32x4_LDSM_N, half_t>;

// 2 x 2 warps of 16 x 8; twice along N, since one ldmatrix of B feeds two of them.
using Mma = TiledMMA<MMA_Atom<SM80_16x8x16_F32F16F16F32_TN>, Layout<Shape<_2, _2, _1>>,
                     Tile<_32, _32, _16>>;

// One bool per copy of 8 elements, of which the first stands for all: K is a multiple of 8.
template <typename Coordinates, typename Extents>
__device__ auto is_inside(const Coordinates& coordinates, const Extents& extents) {
    Tensor inside = make_tensor<bool>(replace<0>(shape(coordinates), _1{}));
    #pragma unroll
    for (int row = 0; row < size<1>(inside); ++row) {
        #pragma unroll
        for (int chunk = 0; chunk < size<2>(inside); ++chunk) {
            inside(0, row, chunk) = elem_less(coordinates(0, row, chunk), extents);
        }
    }
    return inside;
}

extern "C" __global__ void __launch_bounds__(128)
cute_predicated(int M, int N, int K, Accumulate alpha, const Input* A, const Input* B,
                Accumulate beta, Output* C) {
    extern __shared__ __align__(128) half_t shared[];
    select_batch(A, B, C, M, N, K);

    // 1. The matrices from this block's first row and column on, cut into tiles. The pointers move
    //    by 64-bit offsets, because M * K may pass 2^31; 32 bits do for the 128 rows of a block,
    //    and save registers.
    const int first_row = blockIdx.y * 128;
    const int first_column = blockIdx.x * 128;
    A += size_t(first_row) * K;
    B += size_t(first_column) * K;
    C += size_t(first_row) * N + first_column;
    auto a_shape = make_shape(M - first_row, K);
    auto b_shape = make_shape(N - first_column, K);
    auto c_shape = make_shape(M - first_row, N - first_column);
    Tensor mA = make_tensor(make_gmem_ptr<half_t>(A), a_shape, make_stride(K, _1{}));
    Tensor mB = make_tensor(make_gmem_ptr<half_t>(B), b_shape, make_stride(K, _1{}));
    Tensor mC = make_tensor(make_gmem_ptr(C), c_shape, make_stride(N, _1{}));

    auto first = make_coord(0, 0, _);  // along M and N the first tile, along K all of them
    Tensor gA = local_tile(mA, BlockTile{}, first, Step<_1, X, _1>{});  // (128, 64, tiles)
    Tensor gB = local_tile(mB, BlockTile{}, first, Step<X, _1, _1>{});  // (128, 64, tiles)
    Tensor gC = local_tile(mC, BlockTile{}, first, Step<_1, _1, X>{});  // (128, 128)

    // The coordinates of the same elements: what lies outside is known by them.
    Tensor cA = local_tile(make_identity_tensor(a_shape), BlockTile{}, first, Step<_1, X, _1>{});
    Tensor cB = local_tile(make_identity_tensor(b_shape), BlockTile{}, first, Step<X, _1, _1>{});
    Tensor cC = local_tile(make_identity_tensor(c_shape), BlockTile{}, first, Step<_1, _1, X>{});

    Tensor sA = make_tensor(make_smem_ptr(shared), SharedTiles{});  // (128, 64, stages)
    Tensor sB = make_tensor(make_smem_ptr(shared + cosize_v<SharedTiles>), SharedTiles{});

    // 2. This thread's part in the copies from global memory: (8 halves, rows, chunks, tiles)
    //    of the matrices, (8 halves, rows, chunks, stages) of shared memory.
    CopyIn copy_in;
    auto my_copy_in = copy_in.get_slice(threadIdx.x);
    Tensor tAgA = my_copy_in.partition_S(gA);
    Tensor tAsA = my_copy_in.partition_D(sA);
    Tensor tAcA = my_copy_in.partition_S(cA);
    Tensor tBgB = my_copy_in.partition_S(gB);
    Tensor tBsB = my_copy_in.partition_D(sB);
    Tensor tBcB = my_copy_in.partition_S(cB);

    // 3. Its part in the multiplication: (values of one MMA, MMAs along M or N, along K or N).
    Mma mma;
    auto my_mma = mma.get_slice(threadIdx.x);
    Tensor tCgC = my_mma.partition_C(gC);
    Tensor tCcC = my_mma.partition_C(cC);
    Tensor tCrA = my_mma.partition_fragment_A(sA(_, _, 0));
    Tensor tCrB = my_mma.partition_fragment_B(sB(_, _, 0));
    Tensor tCrC = my_mma.make_fragment_C(tCgC);

    // 4. Its part in ldmatrix, which sees the same registers in groups of its own.
    auto load_a = make_tiled_copy_A(Ldmatrix{}, mma);
    auto load_b = make_tiled_copy_B(Ldmatrix{}, mma);
    Tensor tXsA = load_a.get_slice(threadIdx.x).partition_S(sA);
    Tensor tXsB = load_b.get_slice(threadIdx.x).partition_S(sB);
    Tensor tXrA = load_a.get_slice(threadIdx.x).retile_D(tCrA);
    Tensor tXrB = load_b.get_slice(threadIdx.x).retile_D(tCrB);

    const int tiles = size<2>(gA);
    auto start_copy = [&](int tile) {
        if (tile < tiles) {
            const int stage = tile % STAGES;
            auto a_inside = is_inside(tAcA(_, _, _, tile), a_shape);
            auto b_inside = is_inside(tBcB(_, _, _, tile), b_shape);
            copy_if(copy_in, a_inside, tAgA(_, _, _, tile), tAsA(_, _, _, stage));
            copy_if(copy_in, b_inside, tBgB(_, _, _, tile), tBsB(_, _, _, stage));
        }
        cp_async_fence();  // an empty group counts as well
    };
    auto load_fragments = [&](int k, int stage) {
        copy(load_a, tXsA(_, _, k, stage), tXrA(_, _, k));
        copy(load_b, tXsB(_, _, k, stage), tXrB(_, _, k));
    };
    auto wait_for_oldest = [] {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
    };

    // 5. Fill the pipeline: all stages but one, and the fragments of the first step.
    for (int tile = 0; tile < STAGES - 1; ++tile) start_copy(tile);
    wait_for_oldest();
    load_fragments(0, 0);

    clear(tCrC);
    constexpr int STEPS = size<2>(tCrA);
    for (int tile = 0; tile < tiles; ++tile) {
        #pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            // 6. The fragments of the next step; with the last step those of the next tile, which
            //    must have landed. (Behind the last tile they are stale and never used.)
            const bool last = k == STEPS - 1;
            if (last) wait_for_oldest();
            load_fragments((k + 1) % STEPS, (last ? tile + 1 : tile) % STAGES);

            // 7. The stage of the tile before is free: the barrier of 6 came after its last read.
            if (k == 0) start_copy(tile + STAGES - 1);

            // 8. Multiply what was loaded a step ago.
            gemm(mma, tCrA(_, _, k), tCrB(_, _, k), tCrC);
        }
    }

    // 9. C = alpha * sums + beta * C where there is a C. It is not read where beta is 0.
    auto c_inside = [&](int i) { return elem_less(tCcC(i), c_shape); };
    axpby(alpha, tCrC, beta, tCgC, c_inside);
}
