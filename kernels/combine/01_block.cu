/*
title = "One block per token"
entry = "block"
workload = "combine"
rung = 1
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = [256]
tile = [1]
teaches = "a weighted sum gathers its rows itself: nothing is put in order before"
*/

/*
A block adds the rows of one token's experts, wherever they are. Neighbouring threads take neighbouring
columns, so that loads are coalesced. All threads read the same places and weights, from L1 but for the first
time.

Traffic: every row is read once, every sum is written once, the least possible.

Expect 2.0 to 2.5 TB/s in BF16 on an H200, of 4.8, for rows of 2,048: as in the `block` of `embedding`, with one
load after the other for each column.
*/

#include "types.cuh"

extern "C" __global__ void __launch_bounds__(256)
block(long long tokens, long long columns, long long chosen, const Input* rows, const Input* shares,
      const long long* places, Output* Y) {
    places += blockIdx.x * chosen;
    Output* y = Y + blockIdx.x * columns;
    for (long long c = threadIdx.x; c < columns; c += 256) {
        Accumulate sum = 0;
        for (long long j = 0; j < chosen; ++j) {
            sum += widen(shares[places[j]]) * widen(rows[places[j] * columns + c]);
        }
        y[c] = narrow(sum);
    }
}
