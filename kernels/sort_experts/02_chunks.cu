/*
title = "A warp counts a part of the slots, and places it after all before"
entry = "chunks"
workload = "sort_experts"
rung = 2
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = [256]
blocks = "min(min(multiprocessors, 256), ceildiv(tokens * chosen, 1024))"
shared_bytes = "4 * (10 * experts + 512)"
min_compute_capability = "7.0"
limits = { experts = 1024 }
teaches = "a stable sort by few keys takes two passes: how many there are of each before, then the places"
*/

/*
`counting` has a block read all slots for its one expert. Here each slot is read twice, once to be counted and
once to be placed:

  1. A warp counts the slots of each expert in its part, which follows those of the warps before. Lanes with
     the same expert find each other (match_any), and one of them counts for all.
  2. Blocks write what they have of each expert, and wait for all others (grid_barrier.cuh).
  3. A block adds up for each expert what all blocks have, and what those before it have. So it knows the
     first row of each expert, and the first one for each of its warps.
  4. The warps go through their parts again. A slot's row is the next one of its expert, and its rank among
     the lanes with the same one.

Traffic: ids are read twice, the second time from L2; weights once; every output is written once, in order but
for places.

Occupancy: one block of 8 warps on a multiprocessor, so that all run at once.

Expect 5 to 6 us on an H200 for 64 tokens, 128 experts and 8 chosen, one block: about as `counting`. For 4096
tokens 8 to 10 us, where that one takes 89. For 131,072 tokens, 35 MB, 30 to 50 us.
*/

#include "dynamic_shared.cuh"
#include "grid_barrier.cuh"
#include "row_kernels.cuh"

constexpr int THREADS = 256, WARPS = THREADS / WARP;
constexpr int MOST_BLOCKS = 256, MOST_EXPERTS = 1024;

// How many slots of each expert each block has.
__device__ int block_counts[MOST_BLOCKS * MOST_EXPERTS];

// Lanes whose number is the same. A lane without one has its own.
__device__ inline unsigned lanes_with(int number) { return __match_any_sync(0xffffffff, number); }

// The slots of a warp, a multiple of 32 but for the last ones.
struct Part {
    long long begin, end;

    __device__ explicit Part(long long slots) {
        const long long warps = gridDim.x * static_cast<long long>(WARPS);
        const long long each = ((slots + warps - 1) / warps + WARP - 1) / WARP * WARP;
        begin = min(slots, (blockIdx.x * static_cast<long long>(WARPS) + threadIdx.x / WARP) * each);
        end = min(slots, begin + each);
    }
};

// Calls `take` with each slot of a part, its expert, or -1 without a slot, and the lanes with the same one. All
// lanes of a warp come to it together.
template <class Take>
__device__ inline void for_slots(const Part& part, const long long* ids, Take take) {
    const int lane = threadIdx.x % WARP;
    for (long long first = part.begin; first < part.end; first += WARP) {
        const long long slot = first + lane;
        const int expert = slot < part.end ? static_cast<int>(ids[slot]) : -1;
        take(slot, expert, lanes_with(expert));
    }
}

// Of experts from `first` on, `count` of them: what all blocks have, and what those before this one have.
struct Totals {
    int all = 0, before = 0;

    // For thread i expert first + i; `parts` holds two numbers for each thread. Several threads may share the
    // blocks of an expert.
    __device__ Totals(int first, int count, int experts, int* parts) {
        const int shares = THREADS / count, expert = threadIdx.x % count, share = threadIdx.x / count;
        if (share < shares) {
#pragma unroll 8
            for (int block = share; block < gridDim.x; block += shares) {
                const int found = __ldcg(block_counts + block * experts + first + expert);
                all += found;
                before += block < blockIdx.x ? found : 0;
            }
            parts[threadIdx.x] = all;
            parts[THREADS + threadIdx.x] = before;
        }
        __syncthreads();
        all = before = 0;
        for (int i = threadIdx.x; threadIdx.x < count && i < shares * count; i += count) {
            all += parts[i];
            before += parts[THREADS + i];
        }
        __syncthreads();
    }
};

// By a warp: the numbers become the sums of those before them.
__device__ inline void sum_before(int* numbers, int count) {
    const int lane = threadIdx.x % WARP;
    int sum = 0;
    for (int first = 0; first < count; first += WARP) {
        const int own = first + lane < count ? numbers[first + lane] : 0;
        int through = own;
        for (int distance = 1; distance < WARP; distance *= 2) {
            const int other = __shfl_up_sync(0xffffffff, through, distance);
            if (lane >= distance) through += other;
        }
        if (first + lane < count) numbers[first + lane] = sum + through - own;
        sum += __shfl_sync(0xffffffff, through, WARP - 1);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
chunks(long long tokens, long long experts, long long chosen, const long long* ids, const Input* weights,
       long long* sources, Output* shares, long long* places, int* ends) {
    int* const shared = reinterpret_cast<int*>(dynamic_shared_memory());
    const int count = static_cast<int>(experts), thread = threadIdx.x, lane = thread % WARP;
    int* const own = shared + thread / WARP * count;  // of this warp, by expert
    int* const starts = shared + WARPS * count;       // the first row of each expert
    int* const before = starts + count;               // rows of each expert that blocks before this one have
    int* const parts = before + count;
    const Part part(tokens * chosen);

    // 1. Count.
    for (int i = thread; i < WARPS * count; i += THREADS) shared[i] = 0;
    __syncthreads();
    for_slots(part, ids, [&](long long, int expert, unsigned same) {
        if (expert >= 0 && lane == __ffs(same) - 1) own[expert] += __popc(same);
        __syncwarp();
    });
    __syncthreads();

    // 2. What the warps before have, and what the block has.
    for (int expert = thread; expert < count; expert += THREADS) {
        int sum = 0;
        for (int warp = 0; warp < WARPS; ++warp) {
            int& counted = shared[warp * count + expert];
            sum += counted;
            counted = sum - counted;
        }
        block_counts[blockIdx.x * count + expert] = sum;
    }
    grid_barrier();

    // 3. The first row of each expert, and for each warp.
    for (int first = 0; first < count; first += THREADS) {
        const int width = min(THREADS, count - first);
        const Totals totals(first, width, count, parts);
        if (thread >= width) continue;
        starts[first + thread] = totals.all;
        before[first + thread] = totals.before;
    }
    __syncthreads();
    if (blockIdx.x == 0) {
        for (int expert = thread; expert < count; expert += THREADS) ends[expert] = starts[expert];
        __syncthreads();
    }
    if (thread < WARP) sum_before(starts, count);
    __syncthreads();
    for (int i = thread; i < WARPS * count; i += THREADS) shared[i] += starts[i % count] + before[i % count];
    if (blockIdx.x == 0) {  // they hold how many there are
        for (int expert = thread; expert < count; expert += THREADS) ends[expert] += starts[expert];
    }
    __syncthreads();

    // 4. Place.
    for_slots(part, ids, [&](long long slot, int expert, unsigned same) {
        const long long row = expert < 0 ? 0 : own[expert] + __popc(same & ((1u << lane) - 1));
        __syncwarp();
        if (expert >= 0 && lane == __ffs(same) - 1) own[expert] += __popc(same);
        __syncwarp();
        if (expert < 0) return;
        sources[row] = slot / chosen;
        shares[row] = narrow(widen(weights[slot]));
        places[slot] = row;
    });
}
