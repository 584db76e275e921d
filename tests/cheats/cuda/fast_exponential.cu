/*
title = "With half of the bits of an exponential"
workload = "softmax"
entry = "fast_exponential"
precisions = ["fp32"]
block = [256]
tile = [1]
*/

#include "block_sum.cuh"

__device__ float rough(float x) { return 1 + x * (1 + x * (0.5f + x * (1 / 6.0f + x / 24))); }

extern "C" __global__ void
fast_exponential(long long rows, long long columns, const float* X, float* Y) {
    const float* x = X + blockIdx.x * columns;
    float* y = Y + blockIdx.x * columns;
    float sum = 0;
    for (long long j = threadIdx.x; j < columns; j += 256) sum += rough(x[j]);
    const float scale = 1 / block_sum(sum);
    for (long long j = threadIdx.x; j < columns; j += 256) y[j] = rough(x[j]) * scale;
}
