/*
title = "Also writes one element of A"
workload = "add"
entry = "writes_an_input"
precisions = ["fp32"]
block = [256]
tile = [256]
*/

extern "C" __global__ void
writes_an_input(long long elements, const float* a, const float* b, float* c) {
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i < elements) c[i] = a[i] + b[i];
    if (i == elements / 2) const_cast<float*>(a)[i] = 0.5f;
}
