/*
title = "Without epsilon: rows of zeros become NaN"
workload = "rmsnorm"
entry = "without_epsilon"
precisions = ["fp32"]
block = [256]
tile = [1]
*/

#include "block_sum.cuh"

extern "C" __global__ void
without_epsilon(long long rows, long long columns, float epsilon, const float* X,
                const float* W, float* Y) {
    const float* x = X + blockIdx.x * columns;
    float* y = Y + blockIdx.x * columns;
    float sum = 0;
    for (long long j = threadIdx.x; j < columns; j += 256) sum += x[j] * x[j];
    const float scale = 1 / sqrtf(block_sum(sum) / columns);
    for (long long j = threadIdx.x; j < columns; j += 256) y[j] = x[j] * scale * W[j];
}
