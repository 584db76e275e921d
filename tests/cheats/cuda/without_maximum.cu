/*
title = "Without the maximum: large logits overflow"
workload = "softmax"
entry = "without_maximum"
precisions = ["fp32"]
block = [256]
tile = [1]
*/

#include "block_sum.cuh"

extern "C" __global__ void
without_maximum(long long rows, long long columns, const float* X, float* Y) {
    const float* x = X + blockIdx.x * columns;
    float* y = Y + blockIdx.x * columns;
    float sum = 0;
    for (long long j = threadIdx.x; j < columns; j += 256) sum += expf(x[j]);
    const float scale = 1 / block_sum(sum);
    for (long long j = threadIdx.x; j < columns; j += 256) y[j] = expf(x[j]) * scale;
}
