/*
title = "One block per expert, which counts"
entry = "counting"
workload = "sort_experts"
rung = 1
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = [256]
tile = [1]
teaches = "a sort by few keys is counting: where a number goes is how many come before it"
*/

/*
A block reads all slots twice. First it counts those of experts below its own, which are as many as the rows
before its first one. Then it goes through the slots in their order, 256 at a time, and gives each of its own
the next row: a thread counts its warp's votes below its lane, and those of the warps before. So the order is
stable, and blocks need nothing of each other.

Traffic: slots are read from L2 by every block, 16 bytes for each expert and slot. Every output is written once,
in order but for places.

Expect 4 to 8 us for 64 tokens, 128 experts and 8 chosen: 512 slots are two steps. Of 131,072 tokens a block has
4,096 steps with two barriers each: 1 to 2 ms, where a sort by digits takes a tenth.
*/

#include "row_kernels.cuh"

constexpr int THREADS = 256, WARPS = THREADS / WARP;

// The sum of a number of each thread; every thread gets it. A barrier must come before the next use.
__device__ inline int sum_of_block(int number, int* counts) {
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        number += __shfl_xor_sync(0xffffffff, number, distance);
    }
    if (threadIdx.x % WARP == 0) counts[threadIdx.x / WARP] = number;
    __syncthreads();
    int sum = 0;
    for (int w = 0; w < WARPS; ++w) sum += counts[w];
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
counting(long long tokens, long long experts, long long chosen, const long long* ids, const Input* weights,
         long long* sources, Output* shares, long long* places, int* ends) {
    __shared__ int counts[WARPS];
    const long long slots = tokens * chosen, expert = blockIdx.x;
    const int warp_number = threadIdx.x / WARP, lane = threadIdx.x % WARP;

    int below = 0;
    for (long long slot = threadIdx.x; slot < slots; slot += THREADS) below += ids[slot] < expert;
    long long row = sum_of_block(below, counts);  // the first one of the next slots

    for (long long first = 0; first < slots; first += THREADS) {
        const long long slot = first + threadIdx.x;
        const bool mine = slot < slots && ids[slot] == expert;
        const unsigned votes = __ballot_sync(0xffffffff, mine);
        __syncthreads();  // all have read the counts before
        if (lane == 0) counts[warp_number] = __popc(votes);
        __syncthreads();
        long long place = row + __popc(votes & ((1u << lane) - 1));
        for (int w = 0; w < WARPS; ++w) {
            if (w < warp_number) place += counts[w];
            row += counts[w];
        }
        if (!mine) continue;
        sources[place] = slot / chosen;
        shares[place] = narrow(widen(weights[slot]));
        places[slot] = place;
    }
    if (threadIdx.x == 0) ends[expert] = static_cast<int>(row);
}
