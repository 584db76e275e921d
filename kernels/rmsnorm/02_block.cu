/*
title = "One block per row, two coalesced passes"
entry = "block"
workload = "rmsnorm"
rung = 2
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = ["THREADS"]
tile = [1]
variants = [{ THREADS = 128 }, { THREADS = 256 }, { THREADS = 512 }, { THREADS = 1024 }]
teaches = "coalesced passes and a reduction over a block"
*/

/*
One block per row. Neighbouring threads take neighbouring columns, so that each load of a warp is
coalesced. A block reduction adds their sums of squares: shuffles within each warp, one value per
warp through shared memory, and shuffles again.

Traffic: the row is read twice. The second time it comes from L1 or L2 if the rows of all resident
blocks fit there together. The weights are the same for all rows and stay in L2.

Expect 2 to 3 TB/s: the device memory moves the minimum of bytes, but each thread loads one element
at a time, and a block loads nothing during its reduction.

Learned: short FP32 and FP64 rows are faster than predicted, close to a copy. FP16 is not, because
an instruction moves only 2 bytes at the same cost. The best number of threads grows with the row.
Rows of 128 KB and more are much slower: too many of them compete for the caches.
*/

#include "rmsnorm.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
block(long long rows, long long columns, Accumulate epsilon, const Input* X,
      const Input* W, Output* Y) {
    __shared__ Accumulate partials[WARP];
    const Input* x = X + blockIdx.x * columns;
    Output* y = Y + blockIdx.x * columns;

    // 1. Each thread sums the squares of its elements, then the block adds these sums.
    Accumulate own_squares = 0;
    #pragma unroll 4
    for (long long c = threadIdx.x; c < columns; c += THREADS) {
        own_squares += widen(x[c]) * widen(x[c]);
    }
    const Accumulate squares = reduce_block<Sum>(own_squares, partials);

    // 2. Read the row again, from the L2 cache, and write the result.
    const Accumulate scale = inverse_root(squares / columns + epsilon);
    #pragma unroll 4
    for (long long c = threadIdx.x; c < columns; c += THREADS) {
        y[c] = narrow(widen(x[c]) * scale * widen(W[c]));
    }
}
