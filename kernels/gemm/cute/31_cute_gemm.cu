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
teaches = "layouts as algebra: they assign copies and products to threads, without index arithmetic"
*/

/*
CuTe, the layout library of CUTLASS, has one main idea: a layout is a function from coordinates to
an offset, written as a shape and strides. Layouts can be composed, divided and inverted.

    (8, 64) : (64, 1)            8 rows of 64, row-major: (r, c) -> 64 r + c
    Swizzle<3, 3, 3> after it    chunk c / 8 of row r moves to chunk (c / 8) XOR (r mod 8)
    (16, 8) : (8, 1)             128 threads as 16 rows of 8: the threads of a tiled copy

A tile divided by a layout of threads gives each thread a tensor of its elements. partition_S
(source) and partition_D (destination) do this, and all index arithmetic follows from it. The
layouts and partitions of this ladder are in cute_gemm.cuh.

Four layouts are needed:
- Global to shared memory: a thread copies 16 bytes, eight threads a row of 64 halves, 128 bytes: a
  full cache line. cp.async bypasses the registers and L1.
- Shared memory: ldmatrix reads 16-byte chunks of eight rows at a time. Without a swizzle rows are
  128 bytes apart, and all eight chunks are in the same four banks. Exclusive-or with the row number
  spreads them over all 32 banks. Writes follow a row and stay in it. Neither has bank conflicts.
- Shared memory to registers: one ldmatrix loads four 8 x 8 matrices for a warp, in the order of the
  tensor core's operands. make_tiled_copy_A and _B derive that order from the MMA.
- The MMA: one mma.sync multiplies 16 x 8 x 16. Each of 2 x 2 warps computes 64 x 64 of the block's
  128 x 128, with 128 accumulators per thread.

Limits, per multiprocessor of an H200. We assume that mma.sync reaches 63 % of Hopper's tensor-core
peak, which only wgmma reaches: 2580 FLOP per clock of 4096, some 620 TFLOP/s of 989. A step of 64
along K is 2.1 MFLOP, 813 clocks at that rate. In this step the block writes 32 KB to shared memory
and reads 64 KB (two warps read each row of A and each column of B): 768 clocks at 128 bytes per
clock. It loads 32 KB from L2, 40 bytes per clock. All three times are similar: 128 x 128 with warps
of 64 x 64 is about the smallest useful tile.

The cost of one stage: load, wait and multiply follow each other. The block's tensor cores are idle
for the latency of L2 or memory, about 600 clocks, and for the transfer of 32 KB at about 39 bytes
per clock (5120 from L2 for all multiprocessors together: NVIDIA's A100 whitepaper; we assume the
same for an H200). With some 250 registers per thread two blocks share a multiprocessor, and one may
multiply while the other waits. With 600 + 840 clocks for a load and 813 for its use, two blocks
keep the tensor cores at most 2 x 813 / 2253 = 72 % busy.

Prediction: 350 TFLOP/s at 8192. What limits it is the wait; `cute_double_buffered` loads ahead.
*/

#include "cute_gemm.cuh"

constexpr int STAGES = 1;
using CopyIn = TileCopy<SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>>;

extern "C" __global__ void __launch_bounds__(128)
cute_gemm(int M, int N, int K, Accumulate alpha, const Input* A, const Input* B,
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

    clear(tCrC);
    for (int tile = 0; tile < tiles; ++tile) {
        // 3. Load one tile of each operand, and wait until every thread's part has arrived.
        copy(copy_in, a.global(_, _, _, tile), a.shared(_, _, _, 0));
        copy(copy_in, b.global(_, _, _, tile), b.shared(_, _, _, 0));
        cp_async_fence();
        cp_async_wait<0>();
        __syncthreads();

        // 4. Multiply, 16 steps of K at a time.
        #pragma unroll
        for (int k = 0; k < size<2>(tCrA); ++k) {
            a.load(k, 0, tCrA);
            b.load(k, 0, tCrB);
            gemm(mma, tCrA(_, _, k), tCrB(_, _, k), tCrC);
        }

        // 5. Wait until every warp has read the tiles: the next iteration overwrites them.
        __syncthreads();
    }

    // 6. C = alpha * sums + beta * C. C is not read if beta is 0.
    axpby(alpha, tCrC, beta, tCgC);
}
