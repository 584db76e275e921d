// Sums down the columns of a matrix, by blocks of which each has a strip: a column for each lane.
#pragma once

#include "row_kernels.cuh"

// Strips of a row.
__device__ inline long long strips(long long columns) { return (columns + WARP - 1) / WARP; }

// Adds the values of all threads with the same lane, in the order of their warps. Every thread gets the
// sum. `parts` are in shared memory, used once.
template <int WARPS>
__device__ inline Accumulate sum_of_lanes(Accumulate value, Accumulate (&parts)[WARPS][WARP]) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    parts[warp][lane] = value;
    __syncthreads();
    Accumulate sum = 0;
    for (int other = 0; other < WARPS; ++other) sum += parts[other][lane];
    return sum;
}
