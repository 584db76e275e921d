/*
title = "CuTe: three stages and fragments loaded ahead"
entry = "cute_pipelined"
rung = 33
precisions = ["fp16_fp32"]
layouts = ["nt"]
block = [128]
tile = [128, 128]
shared_bytes = 98304
batched = true
min_compute_capability = "8.0"
constraints = { M = 128, N = 128, K = 64 }
needs = ["cutlass"]
teaches = "a software pipeline through both memories: nothing is asked for when it is needed"
*/

/*
One rule, applied twice: ask for data long before they are used.

- Global to shared memory: STAGES - 1 tiles are under way at any time. Groups of cp.async complete
  in the order of their fences, so that cp_async_wait<STAGES - 2> says: all but the youngest
  STAGES - 2 have landed, the next tile among them. Every turn closes one group, if need be an empty
  one, which keeps the count right at the end.
- Shared memory to registers: while the tensor cores work on step k of a tile, ldmatrix brings step
  k + 1, and during a tile's last step the first of the next tile. The barrier stands before that
  last step, with a whole step of MMAs still to be issued behind it: no warp comes out of the
  barrier with empty hands.

    tile t     | 0    | 1    | 2    | 3           |
    cp.async   | t+2  |      |      |             |   into the stage that tile t - 1 has left
    ldmatrix   | t, 1 | t, 2 | t, 3 | t + 1, 0    |   after wait and barrier
    mma.sync   | t, 0 | t, 1 | t, 2 | t, 3        |

The fragments are declared for all four steps of a tile, but at most two steps of them are alive at
once: 2 x 32 registers beside 128 accumulators. The compiler sees that, since the loop over k is
unrolled and every index in it a constant.

Costs: 96 KB of shared memory. Two blocks share a multiprocessor of sm_80 (163 KB: one), sm_90
(227 KB: two); sm_86, sm_89 and sm_120 have 99 KB for one block. A fourth stage would leave the
second block out on sm_90.

Prediction: a load has two tiles' time to arrive, 3250 clocks with two blocks at work, where 1440
are needed, and the gap at the top of each tile closes. What remains are the limits that
`cute_gemm` lists, shared memory at 768 of 813 clocks first: 520 TFLOP/s at 8192, 84 % of what
mma.sync can do and about 0.7 of cuBLAS, whose wgmma reads its operands from shared memory itself
and is not bound to 63 % of the peak. Measured at 4096: 408 TFLOP/s, 0.57 of cuBLAS.
*/

#include <cute/tensor.hpp>

#include "gemm.cuh"

using namespace cute;

constexpr int STAGES = 3;

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
cute_pipelined(int M, int N, int K, Accumulate alpha, const Input* A, const Input* B,
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

    const int tiles = size<2>(gA);
    auto start_copy = [&](int tile) {
        if (tile < tiles) {
            copy(copy_in, tAgA(_, _, _, tile), tAsA(_, _, _, tile % STAGES));
            copy(copy_in, tBgB(_, _, _, tile), tBsB(_, _, _, tile % STAGES));
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

    // 9. C = alpha * sums + beta * C, which is not read where beta is 0.
    axpby(alpha, tCrC, beta, tCgC);
}
