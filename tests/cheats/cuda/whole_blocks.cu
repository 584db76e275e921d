/*
title = "Without the last block"
workload = "add"
entry = "whole_blocks"
precisions = ["fp32"]
block = [256]
tile = [256]
*/

extern "C" __global__ void
whole_blocks(long long elements, const float* a, const float* b, float* c) {
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i < elements / 256 * 256) c[i] = a[i] + b[i];
}
