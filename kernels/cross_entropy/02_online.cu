/*
title = "Maximum and sum in one pass, 16 bytes per load"
entry = "online"
workload = "cross_entropy"
rung = 2
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = ["THREADS"]
tile = [1]
variants = [{ THREADS = 128 }, { THREADS = 256 }, { THREADS = 512 }]
teaches = "a sum that is rescaled where the maximum grows needs its numbers only once"
*/

/*
One pass in place of two: a thread keeps the largest of its numbers so far, and the sum of the exponentials
relative to it, which it rescales where a larger one comes (as in the `block` of softmax). It does so once for
4 vectors of 16 bytes, not for each number: 1 exponential in 9 of FP64, or in 33 of BF16, is for that. All four
loads start before the first is used. At the end the block combines the threads' sums.

Rows begin anywhere: a thread each takes the few columns before the first whole vector and after the last,
so that a vocabulary of 50,257 is as fast as one of 50,304.

Traffic: each row once, the least possible.

Limits: a block per row: fewer rows than multiprocessors leave some idle.

In flight: 64 bytes per thread. 46 to 56 registers allow 1,024 threads and more, 64 KB per multiprocessor, and
106 in FP64 half of that; 23 KB hide the latency of reading at 4.3 TB/s. At that rate BF16 needs half of the
special-function unit and half of the instructions that a multiprocessor can issue, FP64 most of its
multiplications.

Expect 4.0 to 4.2 TB/s on an H200, of 4.8, for 8192 rows of 128,256 in FP32, FP16 and BF16, and 3 to 3.5 in
FP64. Rows of 4,096 are a single step for a block of 128: expect 3.5 to 4 in BF16.
*/

#include "online.cuh"

constexpr int UNROLL = 4;  // vectors of a thread in flight

extern "C" __global__ void __launch_bounds__(THREADS, 1)
online(long long rows, long long columns, const Input* X, const int* targets, Output* Y) {
    __shared__ Accumulate maxima[WARP], sums[WARP];
    const Input* x = X + blockIdx.x * columns;
    const Vectors vectors(blockIdx.x, columns);
    const int target = targets[blockIdx.x];
    const uint4* packed = reinterpret_cast<const uint4*>(x + vectors.head);

    // 1. Each thread: one column outside of vectors, if there is one for it, then vectors.
    Online own;
    const long long edge = vectors.edge(threadIdx.x);
    if (edge < columns) own.add(widen(x[edge]));
    for (long long v = threadIdx.x; v < vectors.count; v += THREADS * UNROLL) {
        // No branch around a load, so that all are in flight together: the last vector comes again
        // in place of those past it, and is not used.
        uint4 some[UNROLL];
        for (int u = 0; u < UNROLL; ++u) some[u] = __ldcs(packed + min(v + u * THREADS, vectors.count - 1));
        for (int u = 0; u < UNROLL; ++u) {
            if (v + u * THREADS >= vectors.count) some[u] = filled(narrow(minus_infinity()));
        }
        own.add(some);
    }

    // 2. The block.
    const Accumulate chosen = threadIdx.x == 0 ? widen(x[target]) : Accumulate(0);
    own.combine(maxima, sums);
    if (threadIdx.x == 0) Y[blockIdx.x] = narrow(log(own.sum) - (chosen - own.largest));
}
