/*
title = "CuTe: tiled copies and a tiled MMA, one stage"
entry = "cute_gemm"
rung = 31
precisions = ["fp16_fp32"]
layouts = ["nt"]
block = [128]
tile = [128, 128]
shared_bytes = 32768
batched = true
min_compute_capability = "8.0"
constraints = { M = 128, N = 128, K = 64 }
needs = ["cutlass"]
teaches = "layouts as algebra: who copies and who multiplies what, with no index computed by hand"
*/

/*
CuTe, the layout library within CUTLASS, has one idea: a layout is a function from coordinates to
an offset, written as a shape and strides, and layouts can be composed, divided and inverted.

    (8, 64) : (64, 1)            8 rows of 64, row-major: (r, c) -> 64 r + c
    Swizzle<3, 3, 3> after it    chunk c / 8 of row r moves to chunk (c / 8) XOR (r mod 8)
    (16, 8) : (8, 1)             128 threads as 16 rows of 8: what a tiled copy is made from

A tile divided by a layout of threads leaves, for each thread, the tensor of what is its own. That
is all that partition_S (source) and partition_D (destination) do, and all index arithmetic below
follows from it. Names are CuTe's custom: g, s and r say global, shared and registers; tAsA is sA
as the copy of A deals it to this thread, tXsA as ldmatrix does, and tCrC the part of C that the
multiplication leaves in its registers.

Four layouts meet here:
- Global to shared: a thread takes 16 bytes, eight threads a row of 64 halves, 128 bytes: a full
  cache line. cp.async moves them past the registers and past L1.
- Shared: ldmatrix reads eight rows' chunks of 16 bytes at a time. Unswizzled, rows lie 128 bytes
  apart and all eight chunks are in the same four banks. Exclusive-or by the row spreads them over
  all 32, and the writes, which run along a row, stay within it: neither has a conflict.
- Shared to registers: one ldmatrix brings a warp four matrices of 8 x 8, in the very order in which
  the tensor core wants its operands. make_tiled_copy_A and _B derive that from the MMA.
- The MMA: one mma.sync multiplies 16 x 8 x 16. Four warps, 2 x 2, each do 64 x 64 of the block's
  128 x 128 with 128 accumulators per thread.

Limits, per multiprocessor of an H200. mma.sync reaches about 63 % of Hopper's tensor-core peak,
which is wgmma's to use: 2580 FLOP per clock of 4096, some 620 TFLOP/s of 989. A step of 64 along K
is 2.1 MFLOP, 813 clocks at that rate. In it the block writes 32 KB to shared memory and reads
64 KB (every row of A serves two warps, every column of B too): 768 clocks at 128 bytes per clock.
L2 gives it 32 KB, 40 bytes per clock. All three are close together: 128 x 128 with warps of
64 x 64 is about as small as a tile may be.

What one stage costs: load, wait, multiply, in that order, so that a block's tensor cores stand
still for a whole trip to L2 or beyond, about 600 clocks, and for the transfer, 32 KB at about 39
bytes per clock (5120 from L2 for all multiprocessors together: NVIDIA's A100 whitepaper; we assume
no more of an H200). With some 250 registers per thread two blocks share a multiprocessor, and one
may multiply while the other waits. With 600 + 840 clocks for a load and 813 for its use, two blocks
keep the tensor cores at most 2 x 813 / 2253 = 72 % busy.

Prediction: 350 TFLOP/s at 8192. What limits it is the wait; `cute_double_buffered` loads ahead.
Measured on an H200 at 4096, as for the other rungs: 324 TFLOP/s, 0.45 of cuBLAS.
*/

#include <cute/tensor.hpp>

#include "gemm.cuh"

using namespace cute;

using BlockTile = Shape<_128, _128, _64>;  // M, N, K of what a block has in shared memory

// Global to shared memory: 16 rows of 8 threads, each with 8 halves.
using CopyIn = decltype(make_tiled_copy(Copy_Atom<SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>, half_t>{},
                                        Layout<Shape<_16, _8>, Stride<_8, _1>>{},
                                        Layout<Shape<_1, _8>>{}));

// Shared memory, for A and B alike: 8 x 64, row-major, swizzled, repeated down to 128 rows.
using SharedTile = decltype(tile_to_shape(
    composition(Swizzle<3, 3, 3>{}, Layout<Shape<_8, _64>, Stride<_64, _1>>{}),
    Shape<_128, _64>{}));

// Shared memory to registers.
using Ldmatrix = Copy_Atom<SM75_U32x4_LDSM_N, half_t>;

// 2 x 2 warps of 16 x 8; twice along N, since one ldmatrix of B feeds two of them.
using Mma = TiledMMA<MMA_Atom<SM80_16x8x16_F32F16F16F32_TN>, Layout<Shape<_2, _2, _1>>,
                     Tile<_32, _32, _16>>;

extern "C" __global__ void __launch_bounds__(128)
cute_gemm(int M, int N, int K, Accumulate alpha, const Input* A, const Input* B,
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

    Tensor sA = make_tensor(make_smem_ptr(shared), SharedTile{});
    Tensor sB = make_tensor(make_smem_ptr(shared + cosize_v<SharedTile>), SharedTile{});

    // 2. This thread's part in the copies from global memory: (8 halves, rows, chunks, tiles).
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
    Tensor tCrA = my_mma.partition_fragment_A(sA);
    Tensor tCrB = my_mma.partition_fragment_B(sB);
    Tensor tCrC = my_mma.make_fragment_C(tCgC);

    // 4. Its part in ldmatrix, which sees the same registers in groups of its own.
    auto load_a = make_tiled_copy_A(Ldmatrix{}, mma);
    auto load_b = make_tiled_copy_B(Ldmatrix{}, mma);
    Tensor tXsA = load_a.get_slice(threadIdx.x).partition_S(sA);
    Tensor tXsB = load_b.get_slice(threadIdx.x).partition_S(sB);
    Tensor tXrA = load_a.get_slice(threadIdx.x).retile_D(tCrA);
    Tensor tXrB = load_b.get_slice(threadIdx.x).retile_D(tCrB);

    clear(tCrC);
    for (int tile = 0; tile < size<2>(gA); ++tile) {
        // 5. Load one tile of each operand, and wait until every thread's part is there.
        copy(copy_in, tAgA(_, _, _, tile), tAsA);
        copy(copy_in, tBgB(_, _, _, tile), tBsB);
        cp_async_fence();
        cp_async_wait<0>();
        __syncthreads();

        // 6. Multiply, 16 steps of K at a time.
        #pragma unroll
        for (int k = 0; k < size<2>(tCrA); ++k) {
            copy(load_a, tXsA(_, _, k), tXrA(_, _, k));
            copy(load_b, tXsB(_, _, k), tXrB(_, _, k));
            gemm(mma, tCrA(_, _, k), tCrB(_, _, k), tCrC);
        }

        // 7. Wait until every warp has read, because the next turn overwrites the tiles.
        __syncthreads();
    }

    // 8. C = alpha * sums + beta * C, which is not read where beta is 0.
    axpby(alpha, tCrC, beta, tCgC);
}
