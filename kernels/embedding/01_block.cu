/*
title = "One block per token"
entry = "block"
workload = "embedding"
rung = 1
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = [256]
tile = [1]
teaches = "a gather is a copy whose rows begin anywhere"
*/

/*
A block copies the row of one token. Neighbouring threads take neighbouring columns, so that accesses are
coalesced wherever the row begins. Offsets have 64 bits: a table may have more than 2^31 elements.

Traffic: a row of the table and one of the result per token. A row that several tokens have comes from L2 if
it is still there.

Expect 2.0 to 2.5 TB/s in BF16 on an H200, of 4.8, and 3.5 in FP32, for rows of 4,096: the rates of the `naive`
of `copy`, with a few loads in flight per thread.
*/

#include "types.cuh"

extern "C" __global__ void __launch_bounds__(256)
block(long long tokens, long long columns, const int* ids, const Input* table, Output* Y) {
    const Input* row = table + ids[blockIdx.x] * columns;
    Output* y = Y + blockIdx.x * columns;
    for (long long c = threadIdx.x; c < columns; c += 256) y[c] = row[c];
}
