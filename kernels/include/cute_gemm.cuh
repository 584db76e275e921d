// Shared by the CuTe kernels: the layouts, and each thread's part of A, B and C.
//
// A block of 128 threads computes 128 x 128 elements of C. Steps of 64 along K pass through shared
// memory, which holds STAGES tiles of A, then STAGES tiles of B.
//
// CuTe's names: g, s and r are global memory, shared memory and registers; tAsA is sA as the copy
// of A assigns it to this thread, tXsA as ldmatrix does, and tCrC the part of C in its registers.
//
// Functions are CUTE_DEVICE, which forces inlining: without it some of the kernels spill registers.
#pragma once

#include <cute/tensor.hpp>

#include "gemm.cuh"

using namespace cute;

// 1. Layouts --------------------------------------------------------------------------------------

using BlockTile = Shape<_128, _128, _64>;  // M, N, K of a block's tiles
using BlockTileC = Shape<_128, _128>;

// Global to shared memory: 16 rows of 8 threads, each with 8 halves.
template <class Instruction>
using TileCopy = decltype(make_tiled_copy(Copy_Atom<Instruction, half_t>{},
                                          Layout<Shape<_16, _8>, Stride<_8, _1>>{},
                                          Layout<Shape<_1, _8>>{}));

// Shared memory, for A and B alike: 8 x 64, row-major, swizzled, repeated down to 128 rows, and all
// of that for each stage.
template <int STAGES>
using SharedTiles = decltype(tile_to_shape(
    composition(Swizzle<3, 3, 3>{}, Layout<Shape<_8, _64>, Stride<_64, _1>>{}),
    Shape<_128, _64, Int<STAGES>>{}));

// Shared memory to registers.
using Ldmatrix = Copy_Atom<SM75_U32x4_LDSM_N, half_t>;

// 2 x 2 warps of 16 x 8; twice along N, since one ldmatrix of B feeds two of them.
using Mma = TiledMMA<MMA_Atom<SM80_16x8x16_F32F16F16F32_TN>, Layout<Shape<_2, _2, _1>>,
                     Tile<_32, _32, _16>>;

// 2. This block's part of the matrices ------------------------------------------------------------

// The matrices from the block's first row and column on. Pointers move by 64-bit offsets, because
// M * K may pass 2^31; 32 bits are enough for the block's 128 rows, and save registers.
CUTE_DEVICE auto rows_from(int first, const Input* matrix, int rows, int K) {
    return make_tensor(make_gmem_ptr<half_t>(matrix + size_t(first) * K),
                       make_shape(rows - first, K), make_stride(K, _1{}));
}

CUTE_DEVICE auto corner_from(int first_row, int first_column, Output* C, int M, int N) {
    return make_tensor(make_gmem_ptr(C + size_t(first_row) * N + first_column),
                       make_shape(M - first_row, N - first_column), make_stride(N, _1{}));
}

// Their tiles: along M and N the first, along K all of them.
template <class Matrix>
CUTE_DEVICE auto tiles_of_a(const Matrix& mA) {  // (128, 64, tiles)
    return local_tile(mA, BlockTile{}, make_coord(0, 0, _), Step<_1, X, _1>{});
}

template <class Matrix>
CUTE_DEVICE auto tiles_of_b(const Matrix& mB) {  // (128, 64, tiles)
    return local_tile(mB, BlockTile{}, make_coord(0, 0, _), Step<X, _1, _1>{});
}

template <class Matrix>
CUTE_DEVICE auto tile_of_c(const Matrix& mC) {  // (128, 128)
    return local_tile(mC, BlockTile{}, make_coord(0, 0, _), Step<_1, _1, X>{});
}

// 3. This thread's part of an operand -------------------------------------------------------------

// Comments give CuTe's names for A.
template <class Tiles, class Global, class Shared, class Load, class LoadFrom>
struct Operand {
    Tiles tiles;         // sA   (128, 64, stages), the whole block's
    Global global;       // tAgA (8 halves, rows, chunks, tiles): what this thread copies from
    Shared shared;       // tAsA (8 halves, rows, chunks, stages): and to
    Load ldmatrix;
    LoadFrom load_from;  // tXsA (values of one ldmatrix, along M, along K, stages)

    // Brings step k of the tile in a stage from shared memory into the fragments of an MMA.
    // ldmatrix groups their registers in its own way: tXrA.
    template <class Fragments>
    CUTE_DEVICE void load(int k, int stage, Fragments& fragments) const {
        Tensor load_to = ldmatrix.get_slice(threadIdx.x).retile_D(fragments);
        copy(ldmatrix, load_from(_, _, k, stage), load_to(_, _, k));
    }
};

template <class... Members>
Operand(Members...) -> Operand<Members...>;

template <class CopyIn, int STAGES, class Matrix>
CUTE_DEVICE auto operand_a(const Matrix& mA, half_t* shared) {
    Tensor sA = make_tensor(make_smem_ptr(shared), SharedTiles<STAGES>{});
    auto copy_in = CopyIn{}.get_slice(threadIdx.x);
    auto ldmatrix = make_tiled_copy_A(Ldmatrix{}, Mma{});
    return Operand{sA, copy_in.partition_S(tiles_of_a(mA)), copy_in.partition_D(sA), ldmatrix,
                   ldmatrix.get_slice(threadIdx.x).partition_S(sA)};
}

template <class CopyIn, int STAGES, class Matrix>
CUTE_DEVICE auto operand_b(const Matrix& mB, half_t* shared) {
    half_t* const behind_a = shared + cosize_v<SharedTiles<STAGES>>;
    Tensor sB = make_tensor(make_smem_ptr(behind_a), SharedTiles<STAGES>{});
    auto copy_in = CopyIn{}.get_slice(threadIdx.x);
    auto ldmatrix = make_tiled_copy_B(Ldmatrix{}, Mma{});
    return Operand{sB, copy_in.partition_S(tiles_of_b(mB)), copy_in.partition_D(sB), ldmatrix,
                   ldmatrix.get_slice(threadIdx.x).partition_S(sB)};
}

// 4. The pipeline, from cute_predicated on --------------------------------------------------------

// tCrC = A x B, by the loop of cute_pipelined. start_copy(tile) starts the copies of a tile of A and
// of B into stage tile % STAGES, if there is such a tile.
template <int STAGES, class OperandA, class OperandB, class StartCopy, class Sums>
CUTE_DEVICE void multiply(const OperandA& a, const OperandB& b, int tiles,
                          const StartCopy& start_copy, Sums& tCrC) {
    Mma mma;
    auto my_mma = mma.get_slice(threadIdx.x);
    Tensor tCrA = my_mma.partition_fragment_A(a.tiles(_, _, 0));
    Tensor tCrB = my_mma.partition_fragment_B(b.tiles(_, _, 0));
    auto start_next = [&](int tile) {
        if (tile < tiles) start_copy(tile);
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

    for (int tile = 0; tile < STAGES - 1; ++tile) start_next(tile);
    wait_for_oldest();
    load_fragments(0, 0);

    clear(tCrC);
    constexpr int STEPS = size<2>(tCrA);
    for (int tile = 0; tile < tiles; ++tile) {
        #pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            const bool last = k == STEPS - 1;
            if (last) wait_for_oldest();
            load_fragments((k + 1) % STEPS, (last ? tile + 1 : tile) % STAGES);
            if (k == 0) start_next(tile + STAGES - 1);
            gemm(mma, tCrA(_, _, k), tCrB(_, _, k), tCrC);
        }
    }
}

// 5. Edges, from cute_predicated on ---------------------------------------------------------------

// Whether each copy of 8 elements is inside a matrix. Its first element is enough: K is a multiple
// of 8.
template <class Coordinates, class Extents>
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

// The same with the predicates of cute_predicated, from cute_epilogue on.
template <class CopyIn, int STAGES, class MatrixA, class MatrixB, class Sums>
CUTE_DEVICE void multiply_inside(const MatrixA& mA, const MatrixB& mB, half_t* shared,
                                 Sums& tCrC) {
    CopyIn copy_in;
    auto my_copy_in = copy_in.get_slice(threadIdx.x);
    auto a = operand_a<CopyIn, STAGES>(mA, shared);
    auto b = operand_b<CopyIn, STAGES>(mB, shared);
    auto a_shape = shape(mA);
    auto b_shape = shape(mB);
    Tensor tAcA = my_copy_in.partition_S(tiles_of_a(make_identity_tensor(a_shape)));
    Tensor tBcB = my_copy_in.partition_S(tiles_of_b(make_identity_tensor(b_shape)));
    auto start_copy = [&](int tile) {
        const int stage = tile % STAGES;
        auto a_inside = is_inside(tAcA(_, _, _, tile), a_shape);
        auto b_inside = is_inside(tBcB(_, _, _, tile), b_shape);
        copy_if(copy_in, a_inside, a.global(_, _, _, tile), a.shared(_, _, _, stage));
        copy_if(copy_in, b_inside, b.global(_, _, _, tile), b.shared(_, _, _, stage));
    };
    multiply<STAGES>(a, b, size<3>(a.global), start_copy, tCrC);
}

// 6. C through shared memory, from cute_epilogue on -----------------------------------------------

// The tile of C in shared memory: row-major and swizzled. Two floats per copy bring it there.
using SharedC = decltype(composition(Swizzle<2, 3, 4>{},
                                     Layout<Shape<_128, _128>, Stride<_128, _1>>{}));
using StagePairs = Copy_Atom<UniversalCopy<uint64_t>, float>;

// Shared to global memory: 4 rows of 32 threads, each with WIDTH floats.
template <int WIDTH>
using RowCopy = decltype(make_tiled_copy(Copy_Atom<UniversalCopy<uint_bit_t<32 * WIDTH>>, float>{},
                                         Layout<Shape<_4, _32>, Stride<_32, _1>>{},
                                         Layout<Shape<_1, Int<WIDTH>>>{}));

// gC = alpha * sC + beta * gC inside `extents`, WIDTH floats at a time: each copy is inside or
// outside as a whole. gC is not read if beta is 0.
template <int WIDTH, class Shared, class Global, class Coordinates, class Extents>
__device__ void store_rows(const Shared& sC, Global& gC, const Coordinates& cC,
                           const Extents& extents, Accumulate alpha, Accumulate beta) {
    RowCopy<WIDTH> store;
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

// The sums of all threads to C by the way of cute_epilogue, which cute_rasterized uses.
template <class Matrix, class Sums>
CUTE_DEVICE void store_through_shared(const Matrix& mC, int N, float* shared, const Sums& tCrC,
                                      Accumulate alpha, Accumulate beta) {
    auto c_shape = shape(mC);
    Tensor cC = tile_of_c(make_identity_tensor(c_shape));
    Tensor gC = tile_of_c(mC);
    Tensor sC = make_tensor(make_smem_ptr(shared), SharedC{});
    auto stage_pairs = make_tiled_copy_C(StagePairs{}, Mma{});
    auto my_stage_pairs = stage_pairs.get_slice(threadIdx.x);
    __syncthreads();
    copy(stage_pairs, my_stage_pairs.retile_S(tCrC), my_stage_pairs.partition_D(sC));
    __syncthreads();
    if (N % 4 == 0) {
        store_rows<4>(sC, gC, cC, c_shape, alpha, beta);
    } else {
        store_rows<1>(sC, gC, cC, c_shape, alpha, beta);
    }
}
