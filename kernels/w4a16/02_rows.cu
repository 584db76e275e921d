/*
title = "A stream of weights past few rows"
entry = "rows"
workload = "w4a16"
rung = 2
precisions = ["fp16", "bf16"]
min_compute_capability = "8.0"
block = ["32 * WARPS"]
tile = ["8 * EIGHTS", "16 * TILES"]
shared_bytes = "TILES * (1024 * WARPS * STAGES + 32 * ceildiv(k, 128))"
limits = { m = 64 }
constraints = { k = 32 }
variants = [
    { EIGHTS = 1, TILES = 1, WARPS = 4, STAGES = 4, BLOCKS = 6 },
    { EIGHTS = 1, TILES = 1, WARPS = 4, STAGES = 6, BLOCKS = 6 },
    { EIGHTS = 1, TILES = 1, WARPS = 8, STAGES = 4, BLOCKS = 3 },
    { EIGHTS = 1, TILES = 1, WARPS = 8, STAGES = 6, BLOCKS = 3 },
    { EIGHTS = 1, TILES = 2, WARPS = 4, STAGES = 3, BLOCKS = 5 },
    { EIGHTS = 1, TILES = 2, WARPS = 8, STAGES = 3, BLOCKS = 2 },
    { EIGHTS = 2, TILES = 2, WARPS = 4, STAGES = 3, BLOCKS = 4 },
    { EIGHTS = 2, TILES = 4, WARPS = 4, STAGES = 3, BLOCKS = 3 },
    { EIGHTS = 2, TILES = 4, WARPS = 8, STAGES = 3, BLOCKS = 1 },
]
teaches = "with 4 bits the instructions that unpack a weight are as scarce as bytes"
*/

/*
With few rows W is read once and multiplied at once. At the bandwidth of an H200 a multiprocessor gets
about 40 weights per clock, and starts 128 operations of lanes: three for each weight are what memory waits
for. On ordinary cores a shift, two logical operations, a subtraction, a conversion of x and a multiply-add
are twice as many, and more rows add two each.

  - Two weights at a time: a shift, one logical operation and one subtraction make both (w4_pair.cuh).
  - mma.sync multiplies 16 rows of W by 8 rows of X, of which some may not exist: one instruction for 8
    weights of a lane, with sums in FP32. A scale is applied once for 128 terms.
  - The order of the terms of a sum is free: a lane takes 32 weights of a row that lie next to each other, 16
    bytes, four lanes a group. They have the same scale. Of X it takes the same 32 numbers, through L1.
  - Each warp has a ring of its own, which cp.async fills STAGES - 1 groups ahead. Lanes read what they have
    copied themselves, so nobody waits for another warp: warps split K, and meet at the end only. What is in
    flight takes no registers.

Traffic: W and scales once for each 8 * EIGHTS rows of X. X comes from L1, or L2 if its rows do not fit there,
once for each 16 * TILES columns.

Occupancy: 56 registers and 20 KB with 16 columns for a block, 6 blocks: 72 KB of W in flight. Of 8192
columns there are 4 blocks for a multiprocessor, hence the variants with more in flight for each.

Expect two and a half operations for a weight, so that memory is the limit: 60 to 75 % of the roof on an H200
at M = 1 (a launch and the ends of blocks take 3 of 11 microseconds for 8192 x 8192), and little less at M = 8.
At M = 16 X comes from L2 with as many bytes as W: half of the roof.

Learned: with 28,672 columns it reaches half of the roof, and less with fewer. It is faster than PyTorch's kernel
at every size, but memory is not yet what limits it; that a weight takes few operations is not enough.
*/

#include "async_copy.cuh"
#include "dynamic_shared.cuh"
#include "mma.cuh"
#include "w4_pair.cuh"

constexpr int THREADS = 32 * WARPS;
constexpr int COLUMNS = 16 * TILES;  // of Y, which are rows of W
constexpr int CHUNK = GROUP / 4;     // weights that a lane takes of a row
constexpr int PIECES = 2 * TILES;    // of 8 rows of W
constexpr int PIECE_BYTES = 32 * CHUNK / 2;
constexpr int STAGE_BYTES = PIECES * PIECE_BYTES;
constexpr int SUMS = TILES * EIGHTS * 4;  // of a lane

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
rows(int M, int N, int K, const Input* X, const unsigned char* W, const Input* scales, Output* Y) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, place = lane % 4;
    const int first_row = blockIdx.y * 8 * EIGHTS, first_column = blockIdx.x * COLUMNS;
    const int groups = (K + GROUP - 1) / GROUP;
    unsigned char* const ring = dynamic_shared_memory() + warp * STAGES * STAGE_BYTES + lane * 16;
    unsigned char* const after = dynamic_shared_memory() + WARPS * STAGES * STAGE_BYTES;
    const Input* const own_scales = reinterpret_cast<const Input*>(after);

    // Beyond the last row of W or X the last one is read again.
    const unsigned char* w[PIECES];
    for (int i = 0; i < PIECES; ++i) {
        w[i] = W + size_t(min(first_column + 8 * i + group, N - 1)) * (K / 2) + place * (CHUNK / 2);
    }
    const Input* x[EIGHTS];
    for (int i = 0; i < EIGHTS; ++i) {
        x[i] = X + size_t(min(first_row + 8 * i + group, M - 1)) * K + warp * GROUP + place * CHUNK;
    }

    // 1. Copy the scales of all columns, which lie next to each other, and start the copies of the first
    // groups of W.
    const char* const from = reinterpret_cast<const char*>(scales + size_t(first_column) * groups);
    const int bytes = min(COLUMNS, N - first_column) * groups * int(sizeof(Input));
    for (int at = threadIdx.x * 16; at < bytes; at += THREADS * 16) {
        copy_async<16>(shared_address(after) + at, from + at, min(16, bytes - at));
    }
    const auto copy_group = [&](int number, int stage) {
        const bool inside = number * GROUP + place * CHUNK < K;
        for (int i = 0; i < PIECES; ++i) {
            copy_async<16>(shared_address(ring + stage * STAGE_BYTES + i * PIECE_BYTES),
                           w[i] + (inside ? number * (GROUP / 2) : 0), inside ? 16 : 0);
        }
        commit_copies();
    };
    for (int stage = 0; stage < STAGES - 1; ++stage) copy_group(warp + stage * WARPS, stage);
    wait_for_copies<STAGES - 2>();
    __syncthreads();  // for the scales

    float sum[TILES][EIGHTS][4] = {};
    int stage = 0;
#pragma unroll 1
    for (int number = warp; number < groups; number += WARPS) {
        // 2. Load numbers of X, zeros beyond the end of K, where any weights may be. Wait for W meanwhile.
        uint4 eights[EIGHTS][4] = {};
        const bool inside = number * GROUP + place * CHUNK < K;
        for (int i = 0; i < EIGHTS; ++i) {
            for (int j = 0; j < 4; ++j) {
                if (inside) eights[i][j] = *reinterpret_cast<const uint4*>(x[i] + 8 * j);
            }
            x[i] += WARPS * GROUP;
        }
        copy_group(number + (STAGES - 1) * WARPS, stage == 0 ? STAGES - 1 : stage - 1);
        wait_for_copies<STAGES - 1>();
        __align__(16) unsigned words[PIECES][4];
        for (int i = 0; i < PIECES; ++i) {
            reinterpret_cast<uint4&>(words[i]) =
                *reinterpret_cast<const uint4*>(ring + stage * STAGE_BYTES + i * PIECE_BYTES);
        }

        // 3. Multiply: a word of each row has the lane's weights for two products.
        float part[TILES][EIGHTS][4] = {};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            unsigned pairs[EIGHTS][4];
            for (int i = 0; i < EIGHTS; ++i) pair_up(pairs[i], eights[i][j]);
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                const unsigned above = words[2 * tile][j], below = words[2 * tile + 1][j];
#pragma unroll
                for (int p = 0; p < 4; p += 2) {
                    const unsigned both[4] = {weight_pair(above, p), weight_pair(below, p),
                                              weight_pair(above, p + 1), weight_pair(below, p + 1)};
                    for (int i = 0; i < EIGHTS; ++i) multiply_add(part[tile][i], both, pairs[i] + p);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            const float scale = widen(own_scales[(8 * i + group) * groups + number]);
            for (int j = 0; j < EIGHTS; ++j) {
                for (int k = i % 2 * 2; k < i % 2 * 2 + 2; ++k) sum[i / 2][j][k] += scale * part[i / 2][j][k];
            }
        }
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }

    // 4. Add the sums of the warps. A lane has two neighbours in a column of X, 8 rows of W below two more.
    __shared__ float sums[WARPS][SUMS][32];
    for (int i = 0; i < SUMS; ++i) sums[warp][i][lane] = sum[i / 4 / EIGHTS][i / 4 % EIGHTS][i % 4];
    __syncthreads();
    for (int i = threadIdx.x; i < SUMS * 32; i += THREADS) {
        const int number = i / 32, of = i % 32;
        const int row = first_row + number / 4 % EIGHTS * 8 + of % 4 * 2 + number % 2;
        const int column = first_column + number / 4 / EIGHTS * 16 + number % 4 / 2 * 8 + of / 4;
        if (row >= M || column >= N) continue;
        float total = 0;
        for (int from = 0; from < WARPS; ++from) total += sums[from][number][of];
        Y[size_t(row) * N + column] = narrow(total);
    }
}
