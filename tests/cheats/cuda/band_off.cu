/*
title = "A thousandth too large in one band"
workload = "add"
entry = "band_off"
precisions = ["fp32"]
block = [256]
tile = [256]
*/

extern "C" __global__ void
band_off(long long elements, const float* a, const float* b, float* c) {
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= elements) return;
    const bool inside = i / 64 == elements / 192;
    c[i] = (a[i] + b[i]) * (inside ? 1.001f : 1.0f);
}
