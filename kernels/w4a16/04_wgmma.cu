/*
title = "Hopper: W as the operand that lies in registers"
entry = "wgmma"
workload = "w4a16"
rung = 4
precisions = ["fp16", "bf16"]
compute_capability = "9.0"
block = [384]
tile = ["ROWS", 128]
flat = true
blocks_per_sm = 1
shared_bytes = "STAGES * (128 * ROWS + 4096) + 2 * 2 * 64 * 128 + 16 * STAGES"
constraints = { n = 8, k = 32 }
tensor_maps = [
  { operand = "x", box = ["ROWS", 64], swizzle = 128, promotion = 256 },
  { operand = "w", box = [128, 32] },
  { operand = "y", box = [64, 64], swizzle = 128 },
]
variants = [
  { ROWS = 256, STAGES = 5 },
  { ROWS = 128, STAGES = 8 },
  { ROWS = 64, STAGES = 12 },
]
teaches = "the operand in registers may be made there: Y^T = W X^T puts the weights on that side"
*/

/*
wgmma reads its second operand from shared memory only, but the first one may lie in registers. So this is
the transposed problem, Y^T = W X^T: weights come packed into shared memory, 4 bits each, and are unpacked and
scaled in the registers of the lanes that multiply them. Nothing of 16 bits is written to shared memory but X.

  - TMA fills a ring of stages: 64 places along K of up to 256 rows of X, and 32 bytes of 128 rows of W.
  - X lies in its own order, so the order of terms is not free as in `mma`: of each 8 weights, a word, a lane
    wants neighbours, a byte. Four lanes read the same words, and each takes its byte of them.
  - A step's weights are unpacked while the products of the step before run in the background: two sets of 16
    registers in turn, each for a half of a group, which has one scale. Scales come a group ahead.
  - stmatrix transposes Y on its way to shared memory, and TMA stores it, 64 rows of 64 columns at a time.

Arithmetic: per weight half a choice of a byte, a shift, a logical operation, a subtraction and a
multiplication, 140 operations of a lane for a step, during which tensor cores multiply for 1000 cycles. Two
warps of a scheduler take 280 of them.

Traffic: W once for each ROWS rows of X, X once for each 128 columns; of 36 KB for a step 32 are X.

Occupancy: one block for a multiprocessor with 180 KB of stages and 32 KB of Y.

Expect 500 to 600 TFLOP/s on an H200 for 4096 rows: as a product of 16-bit operands, less the time in which a
tile is stored, which nothing hides, and less what unpacking takes of the power.

Learned: it was faster than that, as fast as a product of 16-bit operands. Unpacking beside the products costs
nothing that can be seen.
*/

#define ROOFLAB_TRANSPOSE_A 0  // rows of W and of X lie along K
#define ROOFLAB_TRANSPOSE_B 1

#include "hopper.cuh"
#include "w4_pair.cuh"

constexpr int COLUMNS = 128, CONSUMERS = 2;  // columns of Y, rows of W: 64 for each consumer
constexpr int THREADS = (CONSUMERS + 1) * WARPGROUP;
constexpr int W_BYTES = TILE_K / 2;  // of a row of a tile
constexpr int SUMS = ROWS / 2;
constexpr int TOGETHER = 32;  // tiles along N that are computed together: W has few bytes

struct Shared {
    Input x[STAGES][ROWS * TILE_K];
    Output y[CONSUMERS][2][64 * CHUNK];
    unsigned char w[STAGES][COLUMNS * W_BYTES];
    Barrier full[STAGES], empty[STAGES];
};
constexpr unsigned STAGE_STRIDE = sizeof(Shared::x[0]) / 16;  // in the units of descriptors

using Weights = unsigned[PRODUCTS_PER_STAGE][4];  // of a lane, for a step

// The weights of a step, scaled: of rows l / 4 and l / 4 + 8 of a warp, byte l % 4 of each four.
__device__ inline void unpack(Weights& to, const unsigned char* rows, const unsigned (&scales)[2]) {
    const int lane = threadIdx.x % 32;
    const unsigned own_byte = 0x4440 + lane % 4;
#pragma unroll
    for (int below = 0; below < 2; ++below) {
        const uint4* row = reinterpret_cast<const uint4*>(rows + (lane / 4 + 8 * below) * W_BYTES);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint4 four = row[half];
            const unsigned words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                to[2 * half + i / 2][i % 2 * 2 + below] =
                    scaled(weights_of(__byte_perm(words[i], 0, own_byte)), scales[below]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
wgmma(int M, int N, int K, const __grid_constant__ TensorMap X, const __grid_constant__ TensorMap W,
      const Input* scales, const __grid_constant__ TensorMap Y) {
    Shared& shared = reinterpret_cast<Shared&>(*dynamic_shared_tiles());
    const int warpgroup = of_first_lane(threadIdx.x / WARPGROUP);
    if (threadIdx.x == CONSUMERS * WARPGROUP) {
        prefetch(X);
        prefetch(W);
        prefetch(Y);
        initialize_ring(shared.full, shared.empty, CONSUMERS);
    }
    begin_roles<1, THREADS>(warpgroup == CONSUMERS);

    const int along_n = tiles_along(N, COLUMNS), along_m = tiles_along(M, ROWS);
    const int groups = tiles_along(K, GROUP);
    Ring<STAGES> ring;

    if (warpgroup == CONSUMERS) {  // the producer
        shrink_registers<40>();
        if (threadIdx.x >= CONSUMERS * WARPGROUP + 32 || !elected()) return;
        for (int tile = blockIdx.x; tile < along_n * along_m; tile += gridDim.x) {
            const Place place = grouped(tile, along_n, along_m, TOGETHER);
            for (int step = 0; step < 2 * groups; ++step, ring.advance()) {
                Barrier* full = &shared.full[ring.stage];
                wait(&shared.empty[ring.stage], ring.phase ^ 1);
                announce(full, sizeof(shared.x[0]) + sizeof(shared.w[0]));
                copy_box(shared.x[ring.stage], X, place.column * ROWS, step * TILE_K, full);
                copy_box(shared.w[ring.stage], W, place.row * COLUMNS, step * W_BYTES, full);
            }
        }
        return;
    }

    grow_registers<232>();
    const int thread = threadIdx.x % WARPGROUP, warp = thread / 32, lane = threadIdx.x % 32;
    const int own_rows = warpgroup * 64 + warp * 16;
    const auto x_at_0 = descriptor(shared.x[0]);
    for (int tile = blockIdx.x; tile < along_n * along_m; tile += gridDim.x) {
        const Place place = grouped(tile, along_n, along_m, TOGETHER);

        // Scales come a group ahead of their use.
        const unsigned short* scale[2];
        unsigned short ahead[2];
        unsigned pairs[2];
        for (int below = 0; below < 2; ++below) {
            const int row = min(place.row * COLUMNS + own_rows + lane / 4 + 8 * below, N - 1);
            scale[below] = reinterpret_cast<const unsigned short*>(scales) + size_t(row) * groups;
            ahead[below] = *scale[below];
        }
        const auto next_scales = [&](int group) {
            for (int below = 0; below < 2; ++below) {
                pairs[below] = scale_pair(ahead[below]);
                ahead[below] = scale[below][min(group + 1, groups - 1)];
            }
        };

        float sums[SUMS];
        Weights even, odd;
        int before = -1;
        const auto take = [&](Weights& weights) {
            wait(&shared.full[ring.stage], ring.phase);
            unpack(weights, shared.w[ring.stage] + own_rows * W_BYTES, pairs);
        };
        const auto multiply_step = [&](const Weights& weights, bool add) {
            begin_products();
#pragma unroll
            for (int i = 0; i < PRODUCTS_PER_STAGE; ++i) {
                multiply(sums, weights[i], x_at_0 + ring.stage * STAGE_STRIDE + 2 * i, add || i > 0);
            }
            commit_products();
            wait_for_products<1>();
            if (before >= 0 && thread == 0) arrive(&shared.empty[before]);
            before = ring.stage;
            ring.advance();
        };
        next_scales(0);
        take(even);
        for (int group = 0; group < groups; ++group) {
            multiply_step(even, group > 0);
            take(odd);
            multiply_step(odd, true);
            if (group + 1 == groups) break;
            next_scales(group + 1);
            take(even);
        }
        wait_for_products<0>();
        if (thread == 0) arrive(&shared.empty[before]);

        // Y: 64 rows of it at a time, transposed on the way to shared memory.
#pragma unroll
        for (int chunk = 0; chunk < ROWS / 64; ++chunk) {
            Output* staged = shared.y[warpgroup][chunk % 2];
            if (chunk % 2 == 0) {
                if (thread == 0) wait_until_stores_have_read();
                sync_threads(2 + warpgroup, WARPGROUP);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {  // 16 rows
                const float* s = sums + chunk * 32 + i * 8;
                const unsigned words[4] = {pack(s[0], s[1]), pack(s[2], s[3]), pack(s[4], s[5]),
                                           pack(s[6], s[7])};
                const int row = i * 16 + lane / 16 * 8 + lane % 8;
                const unsigned piece = (warp * 2 + lane / 8 % 2) ^ (row % 8);
                store_transposed(shared_address(staged) + row * ROW_BYTES + piece * 16, words);
            }
            publish_to_tma();
            sync_threads(2 + warpgroup, WARPGROUP);
            if (thread == 0) {
                const int row = place.column * ROWS + chunk * 64;
                store_box(Y, row, place.row * COLUMNS + warpgroup * 64, staged);
            }
        }
    }
    if (thread == 0) wait_until_stores_have_read();
}
