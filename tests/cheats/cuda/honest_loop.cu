/*
title = "A grid that loops, which is right"
workload = "add"
entry = "honest_loop"
precisions = ["fp32"]
block = [256]
tile = [256]
blocks_per_sm = 4
*/

extern "C" __global__ void
honest_loop(long long elements, const float* a, const float* b, float* c) {
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    for (long long j = i; j < elements; j += gridDim.x * 256LL) c[j] = a[j] + b[j];
}
