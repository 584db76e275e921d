/*
title = "One element per thread"
entry = "naive"
workload = "copy"
rung = 1
precisions = ["fp64", "fp32", "fp16", "bf16", "int32", "int64"]
block = [256]
tile = [256]
teaches = "neighbouring threads on neighbouring addresses, and bytes in flight"
*/

/*
C = A, one element per thread. Neighbouring threads take neighbouring elements, so the accesses of a
warp are coalesced: 128 consecutive bytes in FP32, 4 full sectors.

Traffic: one read and one write per element, the least possible, and no arithmetic at all.

What limits it is latency. We assume 0.7 us for a load from an H200's memory under load. A copy at
4.2 TB/s reads 2.1 TB/s, so 1.5 MB of loads must be in flight at any time (Little's law), 11 KB per
multiprocessor. A multiprocessor holds 2048 threads with one load each: 16 KB in FP64, 8 KB in FP32,
4 KB in FP16. Blocks start and end, so not all threads wait for a load at any moment. Expect
3.5 TB/s in FP64, 2.8 in FP32 and 1.5 in FP16, counting reads and writes.

Learned: the prediction held, except that FP64 comes closer to the roof.
*/

#include "types.cuh"

extern "C" __global__ void __launch_bounds__(256)
naive(long long elements, const Input* A, Output* C) {
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i < elements) C[i] = A[i];
}
