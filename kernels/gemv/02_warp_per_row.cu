/*
title = "One row per warp"
entry = "warp_per_row"
workload = "gemv"
rung = 2
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = [256]
tile = [8]
teaches = "coalesced loads along the row, and a sum by shuffles at its end"
*/

/*
A warp takes a row, and its lanes take neighbouring elements: loads are coalesced, and there are 32
times as many threads. At the end of the row shuffles add the lanes' sums. Every warp reads x from
the L1 cache.

64 warps fill a multiprocessor. The compiler unrolls the loop, so a lane has several loads in
flight. With 4 of them, half of which are x, 32 KB of A are in flight in FP32 and 16 KB in FP16; the
roof needs 23. Expect 3.5 TB/s in FP32 and 2.2 in FP16.

Learned: somewhat faster than that, because the compiler unrolls further. FP16 stays well below the
roof: an instruction loads 2 bytes per lane.
*/

#include "types.cuh"

extern "C" __global__ void __launch_bounds__(256)
warp_per_row(long long m, long long n, const Input* A, const Input* X, Output* Y) {
    const int lane = threadIdx.x % 32;
    const long long row = blockIdx.x * 8LL + threadIdx.x / 32;
    if (row >= m) return;

    // 1. Each lane multiplies every 32nd element of the row.
    Accumulate sum = 0;
    for (long long k = lane; k < n; k += 32) sum += widen(A[row * n + k]) * widen(X[k]);

    // 2. The lanes' sums are added over the warp.
    for (int distance = 16; distance > 0; distance /= 2) {
        sum += __shfl_down_sync(0xffffffff, sum, distance);
    }
    if (lane == 0) Y[row] = narrow(sum);
}
