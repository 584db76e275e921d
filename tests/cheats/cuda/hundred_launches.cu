/*
title = "Works in the first hundred launches"
workload = "add"
entry = "hundred_launches"
precisions = ["fp32"]
block = [256]
tile = [256]
*/

// Launches so far. A stream runs one after the other, so that only the last block changes it.
__device__ unsigned launches, done;

__device__ unsigned launch_number() { return *(volatile unsigned*)&launches; }

__device__ void leave() {
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(&done, 1) == gridDim.x - 1) {
        done = 0;
        launches += 1;
    }
}

extern "C" __global__ void
hundred_launches(long long elements, const float* a, const float* b, float* c) {
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (launch_number() < 100 && i < elements) c[i] = a[i] + b[i];
    leave();
}
