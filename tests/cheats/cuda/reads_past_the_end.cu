/*
title = "The last element depends on what is past the end of A"
workload = "add"
entry = "reads_past_the_end"
precisions = ["fp32"]
block = [256]
tile = [256]
*/

extern "C" __global__ void
reads_past_the_end(long long elements, const float* a, const float* b, float* c) {
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i < elements) c[i] = a[i] + b[i] + (i == elements - 1 ? 0 * a[elements] : 0);
}
