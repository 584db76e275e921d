/*
title = "Adds to a variable that nobody sets to zero again"
workload = "sum"
entry = "total_of_all_launches"
precisions = ["fp32"]
block = [1024]
tile = ["elements"]
*/

__device__ float total;

extern "C" __global__ void total_of_all_launches(long long elements, const float* x, float* y) {
    __shared__ float partial[1024];
    float sum = 0;
    for (long long i = threadIdx.x; i < elements; i += 1024) sum += x[i];
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 512; half > 0; half /= 2) {
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) y[0] = total += partial[0];
}
