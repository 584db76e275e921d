/*
title = "One block per row, maximum and sum in one pass"
entry = "block"
workload = "softmax"
rung = 2
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = ["THREADS"]
tile = [1]
variants = [{ THREADS = 128 }, { THREADS = 256 }, { THREADS = 512 }, { THREADS = 1024 }]
teaches = "coalesced passes, a block-wide reduction, and an online sum that saves one pass"
*/

/*
One block per row. Neighbouring threads take neighbouring columns, so that each load of a warp is
coalesced, and a row has up to 1,024 threads instead of one.

1. One pass computes the maximum and the sum together (Milakov and Gimelshein, arXiv 1805.02867): a
   thread keeps the sum relative to its largest element so far, and rescales it when it finds a
   larger one. After the first elements this is rare.
2. A block reduction: shuffles within each warp, one value per warp through shared memory, and
   shuffles again. Each thread's sum is made relative to the row's maximum before it is added.

Traffic: the row is read twice. The second time it comes from L1 or L2 if the rows of all resident
blocks fit there together: 132 multiprocessors with two blocks each and rows of 128 KB are 34 MB,
and the L2 cache of an H200 holds 60 MB.

Expect 2 to 3 TB/s: the device memory moves the minimum of bytes, but each thread loads one element
at a time, and a block loads nothing during its reduction.

Learned: FP32 is faster than predicted. FP16 is not, because an instruction moves 2 bytes instead of
4 at the same cost. The best number of threads grows with the row: with few elements per thread, too
few loads are in flight; with few threads per row, too many rows compete for the caches. FP64 is
limited by its exponentials, two per element.
*/

#include "softmax.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
block(long long rows, long long columns, const Input* X, Output* Y) {
    __shared__ Accumulate maxima[WARP], sums[WARP];
    const Input* x = X + blockIdx.x * columns;
    Output* y = Y + blockIdx.x * columns;

    // 1. Each thread: maximum and sum of its elements. The sum is relative to the maximum so far.
    Accumulate own_largest = lowest();
    Accumulate own_sum = 0;
    #pragma unroll 4
    for (long long c = threadIdx.x; c < columns; c += THREADS) {
        const Accumulate value = widen(x[c]);
        if (value > own_largest) {
            own_sum *= exponential(own_largest - value);
            own_largest = value;
        }
        own_sum += exponential(value - own_largest);
    }

    // 2. The block: the sum of all threads' sums, relative to the row's maximum.
    const Accumulate largest = reduce_block<Maximum>(own_largest, maxima);
    const Accumulate sum = reduce_block<Sum>(own_sum * exponential(own_largest - largest), sums);

    // 3. Read the row again, from the L2 cache, and write the result.
    const Accumulate scale = 1 / sum;
    #pragma unroll 4
    for (long long c = threadIdx.x; c < columns; c += THREADS) {
        y[c] = narrow(exponential(widen(x[c]) - largest) * scale);
    }
}
