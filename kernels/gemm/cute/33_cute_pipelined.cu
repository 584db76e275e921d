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
teaches = "a software pipeline through both memories: loads start long before their data are needed"
*/

/*
One rule, applied twice: start a load long before its data are needed.

- Global to shared memory: STAGES - 1 tiles are always in flight. Groups of cp.async complete in the
  order of their fences, so after cp_async_wait<STAGES - 2> all but the newest STAGES - 2 groups
  have arrived, the next tile among them. Each iteration closes one group, even an empty one, so
  that the count stays right at the end.
- Shared memory to registers: while the tensor cores compute step k of a tile, ldmatrix loads step
  k + 1, and in the tile's last step the first step of the next tile. The barrier is before that
  last step, so each warp still has the MMAs of a whole step to issue after the barrier.

    tile t     | 0    | 1    | 2    | 3           |
    cp.async   | t+2  |      |      |             |   into the stage of tile t - 1
    ldmatrix   | t, 1 | t, 2 | t, 3 | t + 1, 0    |   after wait and barrier
    mma.sync   | t, 0 | t, 1 | t, 2 | t, 3        |

The fragments are declared for all four steps of a tile, but at most two steps are live at once:
2 x 32 registers beside 128 accumulators. The compiler can use this because the loop over k is
unrolled and all indices in it are constants.

Costs: 96 KB of shared memory. One block fits on a multiprocessor of sm_80 (163 KB) and of sm_86,
sm_89 and sm_120 (99 KB), two on sm_90 (227 KB). With a fourth stage only one block would fit on
sm_90.

Prediction: a load may take two tiles' time, 3250 clocks with two blocks at work, and needs 1440;
and the gap at the start of each tile closes. The remaining limits are those of `cute_gemm`, first
shared memory at 768 of 813 clocks: 520 TFLOP/s at 8192, 84 % of mma.sync's rate and about 0.7 of
cuBLAS, whose wgmma reads its operands from shared memory and is not limited to 63 % of the peak.
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

    auto start_copy = [&](int tile) {
        if (tile < tiles) {
            copy(copy_in, a.global(_, _, _, tile), a.shared(_, _, _, tile % STAGES));
            copy(copy_in, b.global(_, _, _, tile), b.shared(_, _, _, tile % STAGES));
        }
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

    // 3. Fill the pipeline: all stages but one, and the fragments of the first step.
    for (int tile = 0; tile < STAGES - 1; ++tile) start_copy(tile);
    wait_for_oldest();
    load_fragments(0, 0);

    clear(tCrC);
    constexpr int STEPS = size<2>(tCrA);
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
            gemm(mma, tCrA(_, _, k), tCrB(_, _, k), tCrC);
        }
    }

    // 7. C = alpha * sums + beta * C. C is not read if beta is 0.
    axpby(alpha, tCrC, beta, tCgC);
}
