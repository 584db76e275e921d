/*
title = "One element per thread"
entry = "naive"
workload = "triad"
rung = 1
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = [256]
tile = [256]
teaches = "neighbouring threads on neighbouring addresses, and bytes in flight"
*/

/*
C = A + alpha * B, the Triad of the STREAM benchmark, one element per thread. Neighbouring threads
take neighbouring elements, so the accesses of a warp are coalesced: 128 consecutive bytes in FP32,
4 full sectors.

Traffic: each operand crosses the memory bus once, the least possible. One multiply-add per three
elements is far below the ridge: only the bandwidth matters.

What limits it is latency. We assume 0.7 us for a load from an H200's memory under load. Two thirds
of the traffic are loads, 2.8 TB/s, so 2 MB must be in flight at any time (Little's law), 15 KB per
multiprocessor. A multiprocessor holds 2048 threads with two loads each: 32 KB in FP64, 16 KB in
FP32, 8 KB in FP16, and somewhat less while blocks start and end. Expect the roof (4.1 TB/s) in
FP64, 3.7 in FP32 and 2.2 in FP16, counting reads and writes.

Learned: the prediction held. FP64 cannot gain from wider accesses; FP16 leaves much of the
bandwidth unused.
*/

#include "types.cuh"

extern "C" __global__ void __launch_bounds__(256)
naive(long long elements, Accumulate alpha, const Input* A, const Input* B, Output* C) {
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i < elements) C[i] = narrow(widen(A[i]) + alpha * widen(B[i]));
}
