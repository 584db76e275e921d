/*
title = "One block"
entry = "naive"
workload = "sum"
rung = 1
precisions = ["fp64", "fp32", "fp16", "bf16", "int32", "int64"]
block = [1024]
tile = ["elements"]
teaches = "partial sums per thread, combined by a tree in shared memory"
*/

/*
One block of 1024 threads. Each thread sums every 1024th element. The partial sums go to shared
memory, where each step of a tree adds one half of them to the other.

Traffic: each element is read once. But a single multiprocessor reads them all, and its bytes in
flight are the limit: 1024 threads, each with 4 loads of 4 bytes that the compiler unrolls, per
0.7 us (assumed latency). Expect 0.025 TB/s in FP32 on an H200, half a percent of the roof.

Learned: the compiler unrolls 16 loads, not 4, and the kernel is several times as fast as expected.
That is still a small part of the rate at which 132 multiprocessors read.

Accuracy: a thread adds its elements one after another, 2^18 of them at 2^28 elements. Its rounding
error grows with the square root of that. The next rungs have more partial sums and smaller errors.
*/

#include "types.cuh"

extern "C" __global__ void __launch_bounds__(1024)
naive(long long elements, const Input* X, Output* Y) {
    __shared__ Accumulate partial[1024];

    // 1. Each thread sums every 1024th element.
    Accumulate sum = 0;
    for (long long i = threadIdx.x; i < elements; i += 1024) sum += widen(X[i]);
    partial[threadIdx.x] = sum;
    __syncthreads();

    // 2. A tree: each step halves the number of partial sums.
    for (int half = 512; half > 0; half /= 2) {
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) Y[0] = narrow(partial[0]);
}
