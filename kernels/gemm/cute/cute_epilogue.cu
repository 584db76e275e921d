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

// The tile of C in shared memory, row-major and swizzled, and how it gets there.
using SharedC = decltype(composition(Swizzle<2, 3, 4>{},
                                     Layout<Shape<_128, _128>, Stride<_128, _1>>{}));
using StagePairs = Copy_Atom<UniversalCopy<uint64_t>, float>;
static_assert(sizeof(float) * cosize_v<SharedC> <= 2 * sizeof(half_t) * cosize_v<SharedTiles>);

// Shared to global memory: 4 rows of 32 threads, each with WIDTH floats.
template <int WIDTH>
using Store = decltype(make_tiled_copy(Copy_Atom<UniversalCopy<uint_bit_t<32 * WIDTH>>, float>{},
                                       Layout<Shape<_4, _32>, Stride<_32, _1>>{},
                                       Layout<Shape<_1, Int<WIDTH>>>{}));

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

// gC = alpha * sC + beta * gC inside of extents, WIDTH floats at a time, which are inside as a
// whole or not at all. gC is not read where beta is 0.
template <int WIDTH, typename Shared, typename Global, typename Coordinates, typename Extents>
__device__ void store_tile(const Shared& sC, Global& gC, const Coordinates& cC,
                           const Extents& extents, Accumulate alpha, Accumulate beta) {
    Store<WIDTH> store;
    auto my_store = store.get_slice(threadIdx.x);
    Tensor tSsC = my_store.partition_S(sC);  // (WIDTH floats, rows, columns)
    Tensor tSgC = my_store.partition_D(gC);
    Tensor tScC = my_store.partition_D(cC);
    #pragma unroll 4
    for (int i = 0; i < size<1>(tSsC) * size<2>(tSsC); ++i) {
        const int row = i / size<2>(tSsC);
        const int column = i % size<2>(tSsC);
        if (!elem_less(tScC(0, row, column), extents)) continue;
        Tensor sums = make_fragment_like(tSsC(_, 0, 0));
        Tensor result = make_fragment_like(sums);
        copy(store, tSsC(_, row, column), sums);
        if (beta != 0) copy(store, tSgC(_, row, column), result);
        axpby(alpha, sums, beta, result);
        copy(store, result, tSgC(_, row, column));
    }
}

extern "C" __global__ void __launch_bounds__(128)
cute_epilogue(int M, int N, int K, Accumulate alpha, const Input* A, const Input* B,
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
    Tensor tCrA = my_mma.partition_fragment_A(sA(_, _, 0));
    Tensor tCrB = my_mma.partition_fragment_B(sB(_, _, 0));
    Tensor tCrC = partition_fragment_C(mma, select<0, 1>(BlockTile{}));

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

    // 9. Once every warp is done with the tiles, the accumulators take their place.
    Tensor sC = make_tensor(make_smem_ptr(reinterpret_cast<float*>(shared)), SharedC{});
    auto stage_pairs = make_tiled_copy_C(StagePairs{}, mma);
    auto my_stage_pairs = stage_pairs.get_slice(threadIdx.x);
    __syncthreads();
    copy(stage_pairs, my_stage_pairs.retile_S(tCrC), my_stage_pairs.partition_D(sC));
    __syncthreads();

    // 10. Store rows, 16 bytes per thread where they begin at multiples of that.
    if (N % 4 == 0) {
        store_tile<4>(sC, gC, cC, c_shape, alpha, beta);
    } else {
        store_tile<1>(sC, gC, cC, c_shape, alpha, beta);
    }
}
