/*
title = "One element is one too large"
workload = "add"
entry = "element_off"
precisions = ["fp32"]
block = [256]
tile = [256]
*/

extern "C" __global__ void
element_off(long long elements, const float* a, const float* b, float* c) {
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i < elements) c[i] = a[i] + b[i] + (i == elements * 5 / 7);
}
