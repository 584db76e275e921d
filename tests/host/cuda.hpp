// Enough of CUDA to compile a kernel as C++ and run its blocks one after the other on threads of the
// CPU, under a sanitizer. It is included ahead of the kernel's source.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <cstddef>

#define __global__
#define __device__
#define __shared__ static  // one block runs at a time
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __grid_constant__

struct Index {
    unsigned x, y, z;
};
inline thread_local Index threadIdx;
inline thread_local Index blockIdx;
inline Index gridDim;

struct alignas(16) float4 {
    float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

using std::max;
using std::min;

inline pthread_barrier_t block_barrier;
inline void __syncthreads() { pthread_barrier_wait(&block_barrier); }

inline void __threadfence() {}
inline void atomicAdd(float* to, float value) { *to += value; }  // by one block at a time

inline thread_local pthread_barrier_t* warp_barrier;
inline void __syncwarp() { pthread_barrier_wait(warp_barrier); }
