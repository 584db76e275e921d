// The sum of a number of each of 256 threads, for all of them.
#pragma once

__device__ inline float block_sum(float value) {
    __shared__ float partial[256];
    __syncthreads();  // of an earlier sum
    partial[threadIdx.x] = value;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
        __syncthreads();
    }
    return partial[0];
}
