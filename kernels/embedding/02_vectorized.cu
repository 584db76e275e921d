/*
title = "16 bytes per access"
entry = "vectorized"
workload = "embedding"
rung = 2
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = [256]
tile = ["256 // GROUP"]
variants = [{ GROUP = 32 }, { GROUP = 128 }, { GROUP = 256 }]
teaches = "wide accesses, of which several are in flight before the first is stored"
*/

/*
`block` with accesses of 16 bytes, four of them loaded before the first is stored. GROUP threads copy the
row of a token: short rows need few. Rows that do not begin at multiples of 16 bytes are copied element by
element.

Traffic: that of `block`.

Expect 3.6 to 4.0 TB/s on an H200, of 4.8, in every precision: the rate of `copy` with such accesses.
*/

#include "vector.cuh"

constexpr int EACH = 4;

extern "C" __global__ void __launch_bounds__(256)
vectorized(long long tokens, long long columns, const int* ids, const Input* table, Output* Y) {
    const long long token = blockIdx.x * (256LL / GROUP) + threadIdx.x / GROUP;
    if (token >= tokens) return;
    const Input* row = table + ids[token] * columns;
    Output* y = Y + token * columns;
    const int place = threadIdx.x % GROUP;
    if (columns % WIDTH != 0) {
        for (long long c = place; c < columns; c += GROUP) y[c] = row[c];
        return;
    }
    constexpr int STEP = GROUP * WIDTH;
    for (long long first = place * WIDTH; first < columns; first += EACH * STEP) {
        Vector<WIDTH> kept[EACH];
        #pragma unroll
        for (int k = 0; k < EACH; ++k) {
            if (first + k * STEP < columns) kept[k] = load(row + first + k * STEP);
        }
        #pragma unroll
        for (int k = 0; k < EACH; ++k) {
            if (first + k * STEP < columns) store_streaming(y + first + k * STEP, kept[k]);
        }
    }
}
