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

#include <cute/tensor.hpp>

#include "gemm.cuh"

using namespace cute;

constexpr int STAGES = 2;

using BlockTile = Shape<_128, _128, _64>;  // M, N, K of what a block has in shared memory

// Global to shared memory: 16 rows of 8 threads, each with 8 halves.
using CopyIn = decltype(make_tiled_copy(Copy_Atom<SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>, half_t>{},
                                        Layout<Shape<_16, _8>, Stride<_8, _1>>{},
                                        Layout<Shape<_1, _8>>{}));

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

extern "C" __global__ void __launch_bounds__(128)
cute_double_buffered(int M, int N, int K, Accumulate alpha, const Input* A, const Input* B,
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
    Tensor gA = local_tile(mA, BlockTile{}, first, Step<_1, X, _1>{});  // (128, 64, K / 64)
    Tensor gB = local_tile(mB, BlockTile{}, first, Step<X, _1, _1>{});  // (128, 64, K / 64)
    Tensor gC = local_tile(mC, BlockTile{}, first, Step<_1, _1, X>{});  // (128, 128)

    Tensor sA = make_tensor(make_smem_ptr(shared), SharedTiles{});  // (128, 64, stages)
    Tensor sB = make_tensor(make_smem_ptr(shared + cosize_v<SharedTiles>), SharedTiles{});

    // 2. This thread's part in the copies from global memory: (8 halves, rows, chunks, tiles)
    //    of the matrices, (8 halves, rows, chunks, stages) of shared memory.
    CopyIn copy_in;
    auto my_copy_in = copy_in.get_slice(threadIdx.x);
    Tensor tAgA = my_copy_in.partition_S(gA);
    Tensor tAsA = my_copy_in.partition_D(sA);
    Tensor tBgB = my_copy_in.partition_S(gB);
    Tensor tBsB = my_copy_in.partition_D(sB);

    // 3. Its part in the multiplication: (values of one MMA, MMAs along M or N, along K or N).
    Mma mma;
    auto my_mma = mma.get_slice(threadIdx.x);
    Tensor tCgC = my_mma.partition_C(gC);
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

    auto start_copy = [&](int tile) {
        copy(copy_in, tAgA(_, _, _, tile), tAsA(_, _, _, tile % STAGES));
        copy(copy_in, tBgB(_, _, _, tile), tBsB(_, _, _, tile % STAGES));
        cp_async_fence();
    };

    // 5. The first tile has nothing to hide behind.
    const int tiles = size<2>(gA);
    start_copy(0);
    clear(tCrC);
    for (int tile = 0; tile < tiles; ++tile) {
        // 6. Wait for this tile. The barrier also tells that every warp has read the one before.
        cp_async_wait<0>();
        __syncthreads();

        // 7. So the next one may take its place.
        if (tile + 1 < tiles) start_copy(tile + 1);

        // 8. Multiply meanwhile, 16 steps of K at a time.
        const int stage = tile % STAGES;
        #pragma unroll
        for (int k = 0; k < size<2>(tCrA); ++k) {
            copy(load_a, tXsA(_, _, k, stage), tXrA(_, _, k));
            copy(load_b, tXsB(_, _, k, stage), tXrB(_, _, k));
            gemm(mma, tCrA(_, _, k), tCrB(_, _, k), tCrC);
        }
    }

    // 9. C = alpha * sums + beta * C, which is not read where beta is 0.
    axpby(alpha, tCrC, beta, tCgC);
}
