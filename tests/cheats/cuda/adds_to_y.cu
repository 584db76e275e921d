/*
title = "All blocks add to y, which nobody sets to zero"
workload = "sum"
entry = "adds_to_y"
precisions = ["fp32"]
block = [256]
tile = [4096]
*/

extern "C" __global__ void adds_to_y(long long elements, const float* x, float* y) {
    __shared__ float partial[256];
    float sum = 0;
    for (int j = threadIdx.x; j < 4096; j += 256) {
        const long long i = blockIdx.x * 4096LL + j;
        if (i < elements) sum += x[i];
    }
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) atomicAdd(y, partial[0]);
}
