// A barrier of all blocks of a grid, which must be resident at the same time.
#pragma once

#include "grid_flags.cuh"

__device__ unsigned blocks_arrived, barriers_passed;

// All threads call it. What any of them wrote before can be read by all after it, past the L1 cache.
__device__ inline void grid_barrier() {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        const unsigned passed = read_flag(&barriers_passed);
        // Counts up to gridDim.x - 1 and then returns to 0, ready for the next barrier.
        if (atomicInc(&blocks_arrived, gridDim.x - 1) == gridDim.x - 1) {
            __threadfence();  // what the others wrote before they arrived
            write_flag(&barriers_passed, passed + 1);
        } else {
            while (read_flag(&barriers_passed) == passed) {}
        }
    }
    __syncthreads();
}
