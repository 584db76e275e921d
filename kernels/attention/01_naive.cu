/*
title = "One warp per query, one key at a time"
entry = "naive"
workload = "attention"
rung = 1
precisions = ["fp64", "fp32", "fp16", "bf16", "fp8"]
block = [32, 4]
tile = [1, 4]
flat = true
limits = { head_size = 1024 }
teaches = "the definition, with a sum that is relative to the largest score so far"
*/

/*
A warp has one query. Each lane keeps a part of its numbers, and the same part of the result.

For each key the warp computes the score: products, and five shuffles that add what the lanes have.
The weight of the key is exp(score - largest score so far). If the score is a larger one, sum and
result are made relative to it first (Milakov and Gimelshein, arXiv 1805.02867). So the scores are
needed once, and none of them is stored.

Traffic: every query reads the keys and values that it sees. The four warps of a block read the same
ones at about the same time, the others find them in L2. Prefill of 2048 tokens with 32 heads of 128
in 16-bit types reads 32 x 2048 x 2048 x 512 bytes = 69 GB through L1, and 1/4 of it from L2 at best.

Occupancy: good, but each key costs a chain of five shuffles and an exponential that the next key
waits for. 12 instructions for each key and 128 products, and the tensor cores do nothing.

Expect 6 to 8 TFLOP/s on an H200 in prefill. In decode there are only as many warps as heads and
queries: batch 1 with 32 heads fills 8 blocks of 132 multiprocessors.
*/

#include "attention.cuh"

constexpr int WARP = 32;
constexpr int WARPS = 4;
constexpr int COUNT = (HEAD_SIZE + WARP - 1) / WARP;  // numbers of a lane

__device__ inline bool inside(int column) { return HEAD_SIZE % WARP == 0 || column < HEAD_SIZE; }

extern "C" __global__ void __launch_bounds__(WARP * WARPS, 1)
naive(int batch, int heads, int kv_heads, int queries, int keys, int head_size, const Input* Q,
      const Input* K, const Input* V, Output* O) {
    const Tile tile(heads, kv_heads, queries, keys, WARPS);
    const int row = tile.first + threadIdx.y, lane = threadIdx.x;
    if (row >= tile.rows) return;
    const Input* q = Q + (tile.first_query + row) * HEAD_SIZE;
    const Input* k = K + tile.first_key * HEAD_SIZE;
    const Input* v = V + tile.first_key * HEAD_SIZE;
    Output* o = O + (tile.first_query + row) * HEAD_SIZE;

    Accumulate asked[COUNT], found[COUNT];
    for (int i = 0; i < COUNT; ++i) {
        const int column = lane + i * WARP;
        asked[i] = inside(column) ? widen(q[column]) : Accumulate(0);
        found[i] = 0;
    }

    const Accumulate scale = exponent_scale();
    Accumulate largest = LOWEST, sum = 0;
    const int seen = keys_seen(row, queries, keys);
    for (int key = 0; key < seen; ++key, k += HEAD_SIZE, v += HEAD_SIZE) {
        Accumulate score = 0;
        for (int i = 0; i < COUNT; ++i) {
            const int column = lane + i * WARP;
            if (inside(column)) score += asked[i] * widen(k[column]);
        }
        for (int distance = WARP / 2; distance > 0; distance /= 2) {
            score += __shfl_xor_sync(0xffffffff, score, distance);
        }
        score *= scale;

        const Accumulate higher = max(largest, score);
        const Accumulate kept = power_of_two(largest - higher), weight = power_of_two(score - higher);
        sum = sum * kept + weight;
        for (int i = 0; i < COUNT; ++i) {
            const int column = lane + i * WARP;
            if (inside(column)) found[i] = found[i] * kept + weight * widen(v[column]);
        }
        largest = higher;
    }

    for (int i = 0; i < COUNT; ++i) {
        const int column = lane + i * WARP;
        if (inside(column)) o[column] = narrow(found[i] / sum);
    }
}
