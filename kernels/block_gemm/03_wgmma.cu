/*
title = "Hopper: a group is multiplied while the one before is scaled"
entry = "wgmma"
workload = "block_gemm"
rung = 3
precisions = ["fp8"]
compute_capability = "9.0"
block = ["128 * CONSUMERS + PRODUCER"]
tile = ["64 * CONSUMERS", "TILE_N"]
flat = true
blocks_per_sm = 1
shared_bytes = "STAGES * 128 * (64 * CONSUMERS + TILE_N) + CONSUMERS * 2 * 64 * 128 + 16 * STAGES"
constraints = { n = 8, k = 16 }
tensor_maps = [
  { operand = "x", box = ["64 * CONSUMERS", 128], swizzle = 128, promotion = 256 },
  { operand = "w", box = ["TILE_N", 128], swizzle = 128, promotion = 256 },
  { operand = "y", box = [16, 64], swizzle = 128, pointer = true },
]
variants = [
  { name = "128x128", CONSUMERS = 2, PRODUCER = 128, TILE_N = 128, STAGES = 6 },
  { name = "64x128", CONSUMERS = 1, PRODUCER = 32, TILE_N = 128, STAGES = 8 },
  { name = "64x64", CONSUMERS = 1, PRODUCER = 32, TILE_N = 64, STAGES = 12 },
  { name = "64x32", CONSUMERS = 1, PRODUCER = 32, TILE_N = 32, STAGES = 16 },
]
teaches = "sums that leave tensor cores every 128 products need a second set of registers to go to"
*/

/*
FP8 at its full rate needs wgmma: for Hopper ptxas makes FP16 of the operands of mma.sync. A group of 128 numbers
is a stage: TMA fills a ring of them, and four wgmma multiply one. Its sums must be scaled before they are added
to those of other groups, so tensor cores cannot go on adding, as in GEMM.

  - There are two sets of sums. While one group is multiplied, FP32 units scale the other and add it to the
    total: 64 multiply-adds of a thread beside 512 cycles of two warpgroups' products.
  - Scales are read from global memory two groups ahead: ptxas multiplies them before their group's products, which
    would wait for memory too. A lane reads one of three, and gets the others from its neighbours. What all lanes
    read alike ptxas moves to a register of the warp at once, and waits for it.
  - 128 columns are one block of W, so a tile has one scale of W in each group.

Traffic: 128 x 128 reads 256 rows of 128 bytes for a group, a third more for each product than 128 x 256, which
would need 384 registers for three sets of sums. For few rows there are narrow tiles: W once from memory, by
enough blocks.

Occupancy: one block for a multiprocessor with 192 KB of stages, 192 registers of sums in a thread.

Expect 900 to 1200 TFLOP/s on an H200 for 4096 rows, about what cuBLASLt has, and 3 to 3.8 TB/s for few rows.
*/

#define ROOFLAB_TRANSPOSE_A 0  // rows of X and of W lie along K
#define ROOFLAB_TRANSPOSE_B 1

#include "tile_ring.cuh"

constexpr int SUMS = TILE_N / 2;          // of a thread
constexpr bool BY_TMA = TILE_N >= CHUNK;  // which stores whole chunks of Y
constexpr int TOGETHER = 16;              // rows of tiles that are computed together
static_assert(TILE_K == 128, "a stage is a group");

// The sums of a group, the product of its two scales for each of a thread's two rows, and its stage. Of the scales
// of the next group whose sums lie here a lane has one: of four lanes two have those of rows of X, two that of W.
struct Partial {
    float sums[SUMS], scale[2], ahead;
    int stage;
};

__device__ inline void add_scaled(float (&total)[SUMS], const Partial& one) {
#pragma unroll
    for (int i = 0; i < SUMS; ++i) total[i] += one.scale[i / 2 % 2] * one.sums[i];
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
wgmma(int M, int N, int K, const __grid_constant__ TensorMap X, const __grid_constant__ TensorMap W,
      const float* x_scales, const float* w_scales, Output* Y, const __grid_constant__ TensorMap Y_map) {
    Shared& shared = reinterpret_cast<Shared&>(*dynamic_shared_tiles());
    const bool produces = begin_ring(shared, X, W, Y_map);
    const int rows = tiles_along(M, TILE_M), columns = tiles_along(N, TILE_N);
    const int groups = tiles_along(K, TILE_K);
    if (produces) {
        fill_ring<1, TOGETHER>(shared, X, W, rows, columns, groups, N);
        return;
    }

    if constexpr (GIVES_REGISTERS) grow_registers<232>();
    const int warpgroup = of_first_lane(threadIdx.x / WARPGROUP);
    const bool first = threadIdx.x % WARPGROUP == 0;
    Ring<STAGES> ring;
    const auto x_at_0 = descriptor(shared.x[0] + warpgroup * 64 * TILE_K);
    const auto w_at_0 = descriptor(shared.w[0]);
    for (int tile = blockIdx.x; tile < rows * columns; tile += gridDim.x) {
        const Place place = grouped(tile, rows, columns, TOGETHER);
        const int row = place.row * TILE_M + warpgroup * 64, column = place.column * TILE_N;
        const int lane = threadIdx.x % 4;
        const float* const scales = lane < 2 ? x_scales + min(row + row_in_warpgroup() + 8 * lane, M - 1)
                                             : w_scales + size_t(column / TILE_K) * groups;
        const size_t stride = lane < 2 ? M : 1;

        float total[SUMS] = {};
        Partial even, odd;
        const auto load_scale = [&](Partial& one, int group) { one.ahead = scales[min(group, groups - 1) * stride]; };
        const auto begin = [&](Partial& one, int group) {
            const float of_w = __shfl_sync(0xffffffff, one.ahead, 2, 4);
            for (int i = 0; i < 2; ++i) one.scale[i] = __shfl_sync(0xffffffff, one.ahead, i, 4) * of_w;
            load_scale(one, group + 2);
            one.stage = ring.stage;
            wait(&shared.full[ring.stage], ring.phase);
            begin_products();
            multiply_tiles(one.sums, x_at_0 + ring.stage * STAGE_STRIDE_X,
                           w_at_0 + ring.stage * STAGE_STRIDE_W, false);
            commit_products();
            ring.advance();
        };
        const auto end = [&](const Partial& one) {
            if (first) arrive(&shared.empty[one.stage]);
            add_scaled(total, one);
        };
        load_scale(even, 0);
        load_scale(odd, 1);
        begin(even, 0);
        for (int group = 1;; group += 2) {  // `even` is multiplied, and nothing else
            if (group >= groups) {
                wait_for_products<0>();
                end(even);
                break;
            }
            begin(odd, group);
            wait_for_products<1>();
            end(even);
            if (group + 1 >= groups) {
                wait_for_products<0>();
                end(odd);
                break;
            }
            begin(even, group + 1);
            wait_for_products<1>();
            end(odd);
        }

        if constexpr (BY_TMA) {
            store_chunks(total, two_buffers(shared.y[warpgroup]), Y_map, row, column);
        } else {
            store_sums(total, Y, row, column, M, N, 1, 0);
        }
    }
    if constexpr (BY_TMA) {
        if (elected()) wait_until_stores_have_read();
    }
}
