/*
title = "16 bytes per load, several loads in flight"
entry = "vectorized"
workload = "sum"
rung = 3
precisions = ["fp64", "fp32", "fp16", "bf16", "int32", "int64"]
block = ["THREADS"]
tile = ["THREADS * UNROLL * 16 // input_bytes"]
blocks_per_sm = "BLOCKS"
variants = [
    { THREADS = 256, UNROLL = 4, BLOCKS = 8 },
    { THREADS = 512, UNROLL = 8, BLOCKS = 2 },
]
teaches = "independent loads, and partial sums that do not wait for each other"
*/

/*
A thread loads UNROLL vectors of 16 bytes before it adds the first one, into UNROLL partial sums.
With 512 threads, 8 vectors and 2 blocks, 128 KB are in flight per multiprocessor in any precision.
The 1 in __launch_bounds__(THREADS, 1) lets the compiler use enough registers for this. Without it,
the compiler uses 32 and issues the loads in small groups.

The grid is persistent: there are no writes whose order could matter, and each block adds many
elements before it writes its sum. Predicted: 4.35 TB/s, the rate at which an H200 reads.

Learned:
- Four vectors give most of the gain, eight add a little at 1 GiB, sixteen are no better. One block
  of 256 threads per multiprocessor is too small even with eight.
- A ring of tiles in shared memory, filled by the copy engine (TMA), is equally fast and needs three
  times as much code.
- Loads that prefetch 256 bytes into L2 are slower.
- At a few MiB the launch and the last block's additions take most of the time.

Accuracy: the elements of a vector are added pairwise, and a thread adds a few dozen vectors one
after another at 2^28 elements. The error is about that of a pairwise sum.
*/

#include "grid_sum.cuh"
#include "vector.cuh"

// Pairwise: adds one half of the elements to the other until one is left.
__device__ inline Accumulate sum_of(Vector<WIDTH> x) {
    Accumulate sum[WIDTH];
    for (int i = 0; i < WIDTH; ++i) sum[i] = widen(x.element[i]);
    for (int half = WIDTH / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) sum[i] += sum[i + half];
    }
    return sum[0];
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
vectorized(long long elements, const Input* X, Output* Y) {
    constexpr int STEP = THREADS * WIDTH;  // elements that the block loads at a time
    constexpr int TILE = STEP * UNROLL;
    const long long tiles = elements / TILE;
    Accumulate sums[UNROLL] = {};

    // 1. Whole tiles. All loads come before the first addition, so that all are in flight together.
    for (long long tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const Input* from = X + tile * TILE + threadIdx.x * WIDTH;
        Vector<WIDTH> x[UNROLL];
        for (int u = 0; u < UNROLL; ++u) x[u] = load_streaming(from + u * STEP);
        for (int u = 0; u < UNROLL; ++u) sums[u] += sum_of(x[u]);
    }

    // 2. The remaining elements, less than a tile, spread over all blocks.
    const long long thread = blockIdx.x * (long long)THREADS + threadIdx.x;
    const long long stride = gridDim.x * (long long)STEP;
    for (long long i = tiles * TILE + thread * WIDTH; i < elements; i += stride) {
        if (i + WIDTH <= elements) {
            sums[0] += sum_of(load(X + i));
        } else {
            for (long long j = i; j < elements; ++j) sums[0] += widen(X[j]);
        }
    }

    for (int u = 1; u < UNROLL; ++u) sums[0] += sums[u];
    if (grid_sum<THREADS>(sums[0])) Y[0] = narrow(sums[0]);
}
