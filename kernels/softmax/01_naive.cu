/*
title = "One thread per row, three passes"
entry = "naive"
workload = "softmax"
rung = 1
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = [64]
tile = [64]
teaches = "a stable softmax is three passes: the maximum, the sum, the result"
*/

/*
The definition, in its stable form. exp(x) overflows for x above 88 in FP32, so the row's maximum is
subtracted first: every exponential is then at most 1, and their sum at least 1.

Traffic: the row is read three times and written once. The 32 threads of a warp read 32 different
rows: one load instruction touches 32 sectors of 32 bytes and uses one element of each. The L1 cache
keeps the sectors for the next elements as long as it has room.

Occupancy: one thread per row. A matrix of 4,096 rows occupies 64 blocks of 64 threads. Half of the
multiprocessors are idle, and each thread waits for one or two loads at a time.

Expect 0.1 to 0.3 TB/s on an H200, of 4.8, depending on the number of rows: latency is the limit,
not bandwidth.

Learned: as predicted. Rows of medium length are the fastest. With short rows a multiprocessor has
more threads, and L1 evicts sectors before all their elements are used; with long rows there are too
few threads. FP16 is no faster in rows per second than FP32, so bytes are not the limit. A thread
that adds a whole row also has the largest rounding error: in FP32 it grows with the row, unlike
that of the next kernels.
*/

#include "softmax.cuh"

extern "C" __global__ void
naive(long long rows, long long columns, const Input* X, Output* Y) {
    const long long row = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const Input* x = X + row * columns;
    Output* y = Y + row * columns;

    // 1. The largest element. Subtracting it keeps every exponential at 1 or below.
    Accumulate largest = Maximum::nothing();
    for (long long c = 0; c < columns; ++c) largest = max(largest, widen(x[c]));

    // 2. The sum of the exponentials.
    Accumulate sum = 0;
    for (long long c = 0; c < columns; ++c) sum += exponential(widen(x[c]) - largest);

    // 3. The exponentials divided by their sum.
    const Accumulate scale = 1 / sum;
    for (long long c = 0; c < columns; ++c) {
        y[c] = narrow(exponential(widen(x[c]) - largest) * scale);
    }
}
