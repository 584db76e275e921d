/*
title = "One thread per row, two passes"
entry = "naive"
workload = "rmsnorm"
rung = 1
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = [64]
tile = [64]
teaches = "the definition: a pass for the mean square, a pass for the result"
*/

/*
The definition: the mean of the squares, then each element times the inverse root and its weight.

Traffic: the row is read twice and written once, the weights come from the caches. The 32 threads of
a warp read 32 different rows: one load instruction touches 32 sectors of 32 bytes and uses one
element of each, and the L1 cache must keep the rest until the thread reads it.

Occupancy: one thread per row. With 4,096 rows half of the multiprocessors are idle, and each thread
waits for one or two loads at a time.

Expect 0.1 to 0.4 TB/s on an H200, of 4.8: softmax's time with one pass less.

Learned: as predicted. A thread that adds a whole row of squares also has the largest rounding
error: in FP32 it grows with the row, unlike that of the other kernels.
*/

#include "rmsnorm.cuh"

extern "C" __global__ void
naive(long long rows, long long columns, Accumulate epsilon, const Input* X,
      const Input* W, Output* Y) {
    const long long row = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const Input* x = X + row * columns;
    Output* y = Y + row * columns;

    Accumulate squares = 0;
    for (long long c = 0; c < columns; ++c) squares += widen(x[c]) * widen(x[c]);

    const Accumulate scale = inverse_root(squares / columns + epsilon);
    for (long long c = 0; c < columns; ++c) y[c] = narrow(widen(x[c]) * scale * widen(W[c]));
}
