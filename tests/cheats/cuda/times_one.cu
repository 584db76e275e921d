/*
title = "Times one, as a fast multiplication does it: subnormal numbers become zero"
workload = "copy"
entry = "times_one"
precisions = ["fp32"]
block = [256]
tile = [256]
*/

extern "C" __global__ void times_one(long long elements, const float* a, float* c) {
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= elements) return;
    float x = a[i];
    asm("mul.ftz.f32 %0, %0, 0f3F800000;" : "+f"(x));
    c[i] = x;
}
