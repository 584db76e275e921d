/*
title = "Also writes one element past the end of C"
workload = "add"
entry = "past_the_end"
precisions = ["fp32"]
block = [256]
tile = [256]
*/

extern "C" __global__ void
past_the_end(long long elements, const float* a, const float* b, float* c) {
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i < elements) c[i] = a[i] + b[i];
    if (i == 0) c[elements] = -1e30f;
}
