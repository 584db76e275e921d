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

#include "cute_gemm.cuh"

constexpr int STAGES = 3;
using CopyIn = TileCopy<SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>>;

extern "C" __global__ void __launch_bounds__(128)
cute_pipelined(int M, int N, int K, Accumulate alpha, const Input* A, const Input* B,
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

    auto start_copy = [&](int tile) {
        if (tile < tiles) {
            copy(copy_in, a.global(_, _, _, tile), a.shared(_, _, _, tile % STAGES));
            copy(copy_in, b.global(_, _, _, tile), b.shared(_, _, _, tile % STAGES));
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

    // 7. C = alpha * sums + beta * C. C is not read if beta is 0.
    axpby(alpha, tCrC, beta, tCgC);
}
