/*
title = "Tiles in shared memory, scores that never leave the chip"
entry = "flash"
workload = "attention"
rung = 2
precisions = ["fp64", "fp32", "fp16", "bf16", "fp8"]
block = [16, 16]
tile = [1, "ROWS"]
flat = true
shared_bytes = "(ROWS + KEYS) * (ROOFLAB_HEAD_SIZE + max(1, 4 // input_bytes)) * input_bytes + ROWS * (KEYS + 1) * max(4, input_bytes)"
limits = { head_size = 256 }
variants = [
    { ROWS = 64, KEYS = 64 },
    { ROWS = 64, KEYS = 32 },
    { ROWS = 32, KEYS = 64 },
    { ROWS = 16, KEYS = 64 },
    { ROWS = 16, KEYS = 16 },
]
teaches = "a tile of keys is read once for many queries, of all heads that share it"
*/

/*
FlashAttention (Dao et al., 2022) in plain multiply-adds. A block has ROWS queries, which go through
the keys in tiles of KEYS:

1. Keys to shared memory. A thread computes ROWS/16 x KEYS/16 scores, an outer product as in GEMM.
2. The 16 threads of a row find its largest score, make what they have relative to it, and write the
   weights of the keys to shared memory.
3. Values to shared memory, in the place of the keys. Weights times values is added to the result,
   of which a thread has ROWS/16 x HEAD_SIZE/16 numbers in registers.

Queries of different heads that share keys are rows of one tile. So decode with 4 heads for each
head of keys reads each key once, not four times. A causal block ends at the last key that one of its
rows sees.

Traffic: a block reads each key and value that it needs once: 64 rows need 1/64 of what `naive`
reads. Prefill of 2048 tokens with 32 heads of 128 in 16-bit types moves 1 GB from L2.

Occupancy: 64 x 64 with heads of 128 in 16-bit types needs 50 KB of shared memory, and so 4 blocks
of 256 threads fit on a multiprocessor of an H200.

Expect 15 to 25 TFLOP/s on an H200: the loops need one load of shared memory for 2 multiply-adds
(ROWS/16 + KEYS/16 for as many products), so that loads take as long as products, of 67 TFLOP/s.
Tensor cores, which could do 990, are the next rung. In decode ROWS = 16 is best, and few blocks are
the limit: nothing splits the keys of one head.
*/

#include "attention.cuh"
#include "dynamic_shared.cuh"

constexpr int SIDE = 16;
constexpr int ROW_COUNT = ROWS / SIDE, KEY_COUNT = KEYS / SIDE;  // of a thread
constexpr int COLUMNS = (HEAD_SIZE + SIDE - 1) / SIDE;
// Rows begin one bank further than the row before.
constexpr int STRIDE = HEAD_SIZE + (sizeof(Input) < 4 ? 4 / sizeof(Input) : 1);

__device__ inline bool inside(int column) { return HEAD_SIZE % SIDE == 0 || column < HEAD_SIZE; }

// Copies rows of HEAD_SIZE numbers to shared memory, and zeros for those that are past the end.
__device__ inline void load(Input* tile, const Input* from, int height, int present) {
    for (int i = threadIdx.y * SIDE + threadIdx.x; i < height * HEAD_SIZE; i += SIDE * SIDE) {
        const int row = i / HEAD_SIZE;
        tile[row * STRIDE + i % HEAD_SIZE] = row < present ? from[i] : Input(0.0f);
    }
}

extern "C" __global__ void __launch_bounds__(SIDE * SIDE, 1)
flash(int batch, int heads, int kv_heads, int queries, int keys, int head_size, const Input* Q,
      const Input* K, const Input* V, Output* O) {
    Input* asked = reinterpret_cast<Input*>(dynamic_shared_memory());           // [ROWS][STRIDE]
    Input* tile = asked + ROWS * STRIDE;                                        // [KEYS][STRIDE]
    Accumulate* weights = reinterpret_cast<Accumulate*>(tile + KEYS * STRIDE);  // [ROWS][KEYS + 1]

    const Tile of(heads, kv_heads, queries, keys, ROWS);
    const int x = threadIdx.x, y = threadIdx.y;
    const int first = of.first, present = min(ROWS, of.rows - first);
    const Input* k = K + of.first_key * HEAD_SIZE;
    const Input* v = V + of.first_key * HEAD_SIZE;
    load(asked, Q + (of.first_query + first) * HEAD_SIZE, ROWS, present);

    // Keys that a row of the tile sees: all if the tile has the last query of a head.
    const int last = first + present - 1;
    const bool ends = first / queries != last / queries;
    const int needed = ends ? keys : keys_seen(last, queries, keys);

    const Accumulate scale = exponent_scale();
    Accumulate largest[ROW_COUNT], sum[ROW_COUNT] = {}, found[ROW_COUNT][COLUMNS] = {};
    for (int r = 0; r < ROW_COUNT; ++r) largest[r] = LOWEST;

    for (int start = 0; start < needed; start += KEYS) {
        // 1. Scores.
        __syncthreads();  // the values before have been used
        load(tile, k + static_cast<long long>(start) * HEAD_SIZE, KEYS, keys - start);
        __syncthreads();
        Accumulate score[ROW_COUNT][KEY_COUNT] = {};
        #pragma unroll 4
        for (int c = 0; c < HEAD_SIZE; ++c) {
            Accumulate a[ROW_COUNT], b[KEY_COUNT];
            for (int r = 0; r < ROW_COUNT; ++r) a[r] = widen(asked[(y + r * SIDE) * STRIDE + c]);
            for (int j = 0; j < KEY_COUNT; ++j) b[j] = widen(tile[(x + j * SIDE) * STRIDE + c]);
            for (int r = 0; r < ROW_COUNT; ++r) {
                for (int j = 0; j < KEY_COUNT; ++j) score[r][j] += a[r] * b[j];
            }
        }

        // 2. Weights, relative to the largest score so far.
        for (int r = 0; r < ROW_COUNT; ++r) {
            const int row = y + r * SIDE, seen = keys_seen(first + row, queries, keys);
            Accumulate higher = largest[r];
            for (int j = 0; j < KEY_COUNT; ++j) {
                const bool sees = start + x + j * SIDE < seen;
                score[r][j] = sees ? score[r][j] * scale : LOWEST;
                higher = max(higher, score[r][j]);
            }
            for (int distance = SIDE / 2; distance > 0; distance /= 2) {
                higher = max(higher, __shfl_xor_sync(0xffffffff, higher, distance));
            }
            const Accumulate kept = power_of_two(largest[r] - higher);
            sum[r] *= kept;
            for (int j = 0; j < KEY_COUNT; ++j) {
                const Accumulate weight = power_of_two(score[r][j] - higher);
                sum[r] += weight;
                weights[row * (KEYS + 1) + x + j * SIDE] = weight;
            }
            for (int c = 0; c < COLUMNS; ++c) found[r][c] *= kept;
            largest[r] = higher;
        }

        // 3. Weights times values.
        __syncthreads();  // the keys have been used
        load(tile, v + static_cast<long long>(start) * HEAD_SIZE, KEYS, keys - start);
        __syncthreads();
        #pragma unroll 4
        for (int j = 0; j < KEYS; ++j) {
            Accumulate a[ROW_COUNT];
            for (int r = 0; r < ROW_COUNT; ++r) a[r] = weights[(y + r * SIDE) * (KEYS + 1) + j];
            for (int c = 0; c < COLUMNS; ++c) {
                if (!inside(x + c * SIDE)) continue;
                const Accumulate b = widen(tile[j * STRIDE + x + c * SIDE]);
                for (int r = 0; r < ROW_COUNT; ++r) found[r][c] += a[r] * b;
            }
        }
    }

    // Each thread has added the weights of its own keys.
    for (int r = 0; r < ROW_COUNT; ++r) {
        const int row = y + r * SIDE;
        for (int distance = SIDE / 2; distance > 0; distance /= 2) {
            sum[r] += __shfl_xor_sync(0xffffffff, sum[r], distance);
        }
        if (row >= present) continue;
        Output* o = O + (of.first_query + first + row) * HEAD_SIZE;
        for (int c = 0; c < COLUMNS; ++c) {
            if (inside(x + c * SIDE)) o[x + c * SIDE] = narrow(found[r][c] / sum[r]);
        }
    }
}
