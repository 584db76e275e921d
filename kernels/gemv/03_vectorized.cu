/*
title = "16 bytes per load, several loads in flight"
entry = "vectorized"
workload = "gemv"
rung = 3
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = [256]
tile = [8]
variants = [
    { UNROLL = 2 },
    { UNROLL = 4 },
    { UNROLL = 8 },
]
teaches = "wide loads along the row, narrower ones if rows are not aligned"
*/

/*
`warp_per_row` with loads of 16 bytes, UNROLL of them in flight per lane. A is read once and evicted
first; the next row reads x again, which stays in L1.

Alignment: rows start at multiples of 16 bytes only if n elements are a multiple of 16 bytes.
Otherwise the kernel uses the widest access that divides a row, 8, 4 or 2 bytes, and keeps more of
them in flight. It has one loop for each width.

In flight, with 8 loads: 4 KB per warp and 64 KB or more per multiprocessor, at the 16 warps that
the registers allow. Expect 4.2 TB/s for large matrices in any precision.

Learned: large matrices are faster than that. Eight loads are best if a row fills them, at n = 4096
and above in FP16; short rows need two. What limits it now: rows shorter than a warp's 512 bytes
leave lanes idle, few rows leave multiprocessors idle, and a warp at the end of its row has no loads
in flight during the shuffles.
*/

#include "vector.cuh"

// Adds the products of LOADS vectors of a row and of x, 32 * COUNT elements apart.
template <int COUNT, int LOADS>
__device__ inline void add_products(Accumulate* sums, const Input* row, const Input* X) {
    // All loads come before the first product, so that all are in flight together.
    Vector<COUNT> a[LOADS], x[LOADS];
    for (int v = 0; v < LOADS; ++v) {
        a[v] = load_streaming<COUNT>(row + v * 32 * COUNT);
        x[v] = load<COUNT>(X + v * 32 * COUNT);
    }
    for (int v = 0; v < LOADS; ++v) {
        for (int i = 0; i < COUNT; ++i) {
            sums[v] += widen(a[v].element[i]) * widen(x[v].element[i]);
        }
    }
}

// This lane's share of a row times x, in accesses of COUNT elements, or of fewer if COUNT does not
// divide n, because rows are then not aligned.
template <int COUNT>
__device__ inline Accumulate dot(const Input* row, const Input* X, long long n, int lane) {
    if constexpr (COUNT > 1) {
        if (n % COUNT != 0) return dot<COUNT / 2>(row, X, n, lane);
    }
    constexpr int STEP = 32 * COUNT;
    // Narrow accesses hold fewer bytes in flight, so there are more of them.
    constexpr int LOADS = UNROLL * (WIDTH / COUNT < 4 ? WIDTH / COUNT : 4);
    Accumulate sums[LOADS] = {};
    long long k = lane * COUNT;
#pragma unroll 1
    for (; k + STEP * (LOADS - 1) < n; k += STEP * LOADS) {
        add_products<COUNT, LOADS>(sums, row + k, X + k);
    }
#pragma unroll 1
    for (; k < n; k += STEP) add_products<COUNT, 1>(sums, row + k, X + k);

    for (int v = 1; v < LOADS; ++v) sums[0] += sums[v];
    return sums[0];
}

extern "C" __global__ void __launch_bounds__(256, 1)
vectorized(long long m, long long n, const Input* A, const Input* X, Output* Y) {
    const int lane = threadIdx.x % 32;
    const long long row = blockIdx.x * 8LL + threadIdx.x / 32;
    if (row >= m) return;

    Accumulate sum = dot<WIDTH>(A + row * n, X, n, lane);
    for (int distance = 16; distance > 0; distance /= 2) {
        sum += __shfl_down_sync(0xffffffff, sum, distance);
    }
    if (lane == 0) Y[row] = narrow(sum);
}
