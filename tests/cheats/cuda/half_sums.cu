/*
title = "In half precision"
workload = "add"
entry = "half_sums"
precisions = ["fp32"]
block = [256]
tile = [256]
*/

__device__ float half(float x) {
    asm("{ .reg .b16 h; cvt.rn.f16.f32 h, %0; cvt.f32.f16 %0, h; }" : "+f"(x));
    return x;
}

extern "C" __global__ void
half_sums(long long elements, const float* a, const float* b, float* c) {
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i < elements) c[i] = half(half(a[i]) + half(b[i]));
}
