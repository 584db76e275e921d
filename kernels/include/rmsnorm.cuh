// Shared by the rmsnorm kernels.
#pragma once

#include "row_kernels.cuh"

__device__ inline float inverse_root(float x) { return rsqrtf(x); }
__device__ inline double inverse_root(double x) { return rsqrt(x); }

// One row of any length and alignment by one block, for rows that a kernel's main path does not
// support. It reads the row twice, one element at a time.
__device__ inline void rmsnorm_any_row(long long columns, Accumulate epsilon, const Input* x,
                                       const Input* W, Output* y) {
    __shared__ Accumulate partials[WARP];
    __syncthreads();  // the previous row's partials have been read

    Accumulate squares = 0;
    for (long long c = threadIdx.x; c < columns; c += blockDim.x) {
        squares += widen(x[c]) * widen(x[c]);
    }
    squares = reduce_block<Sum>(squares, partials);

    const Accumulate scale = inverse_root(squares / columns + epsilon);
    for (long long c = threadIdx.x; c < columns; c += blockDim.x) {
        y[c] = narrow(widen(x[c]) * scale * widen(W[c]));
    }
}
