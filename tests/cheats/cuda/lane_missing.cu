/*
title = "Without the elements whose index modulo 128 is 77"
workload = "add"
entry = "lane_missing"
precisions = ["fp32"]
block = [256]
tile = [256]
*/

extern "C" __global__ void
lane_missing(long long elements, const float* a, const float* b, float* c) {
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i < elements && i % 128 != 77) c[i] = a[i] + b[i];
}
