// The sum of one value per thread: over a warp, a block and the whole grid.
#pragma once

#include "types.cuh"

// In lane 0 of each warp.
__device__ inline Accumulate warp_sum(Accumulate value) {
    for (int distance = 16; distance > 0; distance /= 2) {
        value += __shfl_down_sync(0xffffffff, value, distance);
    }
    return value;
}

// In thread 0 of the block. BLOCK, its threads, is a multiple of 32 and at most 1024.
template <int BLOCK>
__device__ inline Accumulate block_sum(Accumulate value) {
    constexpr int WARPS = BLOCK / 32;
    __shared__ Accumulate partial[WARPS];
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;

    value = warp_sum(value);
    __syncthreads();  // an earlier call's values may still be read
    if (lane == 0) partial[warp] = value;
    __syncthreads();
    if (warp == 0) value = warp_sum(lane < WARPS ? partial[lane] : Accumulate(0));
    return value;
}

constexpr int MOST_BLOCKS = 16384;
__device__ Accumulate block_sums[MOST_BLOCKS];
__device__ unsigned int blocks_done;

// Returns true in one thread of the grid, whose `value` is then the sum. All threads call it, once
// per launch; gridDim.x is at most MOST_BLOCKS.
template <int BLOCK>
__device__ inline bool grid_sum(Accumulate& value) {
    __shared__ bool last;

    // 1. Each block writes its sum, then counts itself.
    value = block_sum<BLOCK>(value);
    if (threadIdx.x == 0) {
        block_sums[blockIdx.x] = value;
        __threadfence();  // a block that reads the count also reads the sum
        // Counts up to gridDim.x - 1 and then returns to 0, ready for the next launch.
        last = atomicInc(&blocks_done, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return false;

    // 2. The last block to finish adds all blocks' sums, in a fixed order.
    __threadfence();
    value = 0;
    for (int i = threadIdx.x; i < gridDim.x; i += BLOCK) value += __ldcg(&block_sums[i]);
    value = block_sum<BLOCK>(value);
    return threadIdx.x == 0;
}
