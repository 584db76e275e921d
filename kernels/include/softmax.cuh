// Shared by the softmax kernels.
#pragma once

#include "exponential.cuh"
#include "row_kernels.cuh"

// The hardware's power of two is accurate enough: its error is far below that of a sum over a row.
__device__ inline float exponential(float x) { return power_of_two(x * 1.4426950408889634f); }

__device__ inline double exponential(double x) { return exp(x); }

// One row of any length and alignment by one block, for rows that a kernel's main path does not
// support. It reads the row three times, one element at a time.
__device__ inline void softmax_any_row(long long columns, const Input* x, Output* y) {
    __shared__ Accumulate maxima[WARP], sums[WARP];

    Accumulate largest = Maximum::nothing();
    for (long long c = threadIdx.x; c < columns; c += blockDim.x) {
        largest = max(largest, widen(x[c]));
    }
    largest = reduce_block<Maximum>(largest, maxima);

    Accumulate sum = 0;
    for (long long c = threadIdx.x; c < columns; c += blockDim.x) {
        sum += exponential(widen(x[c]) - largest);
    }
    const Accumulate scale = 1 / reduce_block<Sum>(sum, sums);

    for (long long c = threadIdx.x; c < columns; c += blockDim.x) {
        y[c] = narrow(exponential(widen(x[c]) - largest) * scale);
    }
}
