/*
title = "16 bytes per access"
entry = "vectorized"
workload = "combine"
rung = 2
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = [256]
tile = ["256 // GROUP"]
variants = [
    { GROUP = 256, EACH = 4 },
    { GROUP = 256, EACH = 8 },
    { GROUP = 256, EACH = 2 },
    { GROUP = 64, EACH = 4 },
]
teaches = "the loads of several rows are in flight before the first is added"
*/

/*
`block` with accesses of 16 bytes. A thread loads parts of EACH rows before it adds the first. GROUP threads add
the rows of a token: short rows need few. Rows that do not begin at multiples of 16 bytes are read element by
element.

Traffic: that of `block`.

Expect 3.6 to 4.1 TB/s on an H200, of 4.8, in every precision: the rate of `copy` with such accesses. For 64
tokens 4 to 5 us: three loads, one after the other, from memory.
*/

#include "vector.cuh"

// Adds up to EACH rows, which begin at `rows` plus a multiple of `columns`.
template <int COUNT>
__device__ inline void add_rows(Accumulate (&sum)[COUNT], int count, const long long* places, long long columns,
                                const Input* rows, const Input* shares) {
    Vector<COUNT> kept[EACH];
    Accumulate share[EACH];
    #pragma unroll
    for (int k = 0; k < EACH; ++k) {
        if (k < count) {
            kept[k] = load_streaming<COUNT>(rows + places[k] * columns);
            share[k] = widen(shares[places[k]]);
        }
    }
    #pragma unroll
    for (int k = 0; k < EACH; ++k) {
        if (k < count) {
            #pragma unroll
            for (int e = 0; e < COUNT; ++e) sum[e] += share[k] * widen(kept[k].element[e]);
        }
    }
}

// A token's sums in columns from `place` on, COUNT neighbouring ones of each `step`.
template <int COUNT>
__device__ inline void combine(int place, int step, long long columns, long long chosen, const Input* rows,
                               const Input* shares, const long long* places, Output* y) {
    for (long long c = place * COUNT; c < columns; c += step * COUNT) {
        Accumulate sum[COUNT] = {};
        #pragma unroll 1
        for (long long j = 0; j < chosen; j += EACH) {
            const int count = min(chosen - j, (long long)EACH);
            add_rows<COUNT>(sum, count, places + j, columns, rows + c, shares);
        }
        Vector<COUNT> sums;
        #pragma unroll
        for (int e = 0; e < COUNT; ++e) sums.element[e] = narrow(sum[e]);
        store_streaming(y + c, sums);
    }
}

extern "C" __global__ void __launch_bounds__(256)
vectorized(long long tokens, long long columns, long long chosen, const Input* rows, const Input* shares,
           const long long* places, Output* Y) {
    const long long token = blockIdx.x * (256LL / GROUP) + threadIdx.x / GROUP;
    if (token >= tokens) return;
    const int place = threadIdx.x % GROUP;
    places += token * chosen;
    Output* y = Y + token * columns;
    if (columns % WIDTH == 0) {
        combine<WIDTH>(place, GROUP, columns, chosen, rows, shares, places, y);
    } else {
        combine<1>(place, GROUP, columns, chosen, rows, shares, places, y);
    }
}
