/*
title = "As many blocks as fit on the GPU at once, which its own host code asks CUDA for"
workload = "add"
launcher = "sums::add<float>"
precisions = ["fp32"]
options = ["-std=c++20", "-O3"]
variants = [{ THREADS = 256 }, { THREADS = 1024 }]
*/

#include <algorithm>

namespace sums {

template <typename T>
__global__ void add_all(long long elements, const T* a, const T* b, T* c) {
    const long long step = (long long)gridDim.x * THREADS;
    for (long long i = blockIdx.x * (long long)THREADS + threadIdx.x; i < elements; i += step) {
        c[i] = a[i] + b[i];
    }
}

template <typename T>
cudaError_t add(long long elements, const T* a, const T* b, T* c, cudaStream_t stream) {
    int device = 0, multiprocessors = 0, each = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, add_all<T>, THREADS, 0);
    const long long needed = (elements + THREADS - 1) / THREADS;
    const int blocks = int(std::min<long long>(needed, (long long)each * multiprocessors));
    add_all<T><<<blocks, THREADS, 0, stream>>>(elements, a, b, c);
    return cudaGetLastError();
}

}  // namespace sums
