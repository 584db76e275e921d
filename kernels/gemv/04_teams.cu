/*
title = "A team of threads per row, sized to the row"
entry = "teams"
workload = "gemv"
rung = 4
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = ["THREADS"]
tile = ["ROWS * THREADS // TEAM"]
variants = [
    { THREADS = 256, TEAM = 8, ROWS = 4, UNROLL = 1 },
    { THREADS = 256, TEAM = 32, ROWS = 1, UNROLL = 4 },
    { THREADS = 128, TEAM = 128, ROWS = 1, UNROLL = 4 },
    { THREADS = 256, TEAM = 256, ROWS = 2, UNROLL = 4 },
    { THREADS = 1024, TEAM = 1024, ROWS = 1, UNROLL = 4 },
]
teaches = "the shape of the matrix decides how many threads share a row"
*/

/*
`vectorized` with a team of TEAM threads, not a warp, for each group of ROWS rows.
- Several warps share a long row: it ends sooner, fewer rows fill the GPU, and the last rows of the
  grid finish close together. The warps combine their sums once per row, in shared memory.
- A short row takes a part of a warp, so no lane is idle.
- Several rows at a time keep several loads in flight if one row is too short for them. They share
  each load of x and its conversion to FP32.

Shared memory holds only TEAM / 32 sums per row. 64 to 80 registers allow 24 to 32 warps per
multiprocessor, each with 2 to 4 KB in flight. Expect 4.3 TB/s for large matrices in any precision.

Learned:
- Teams of 4 warps in blocks of 4 warps are the best choice for most shapes from 4096 columns up:
  small blocks start and end independently. 64 rows of a million columns need 1024 threads per row;
  a million rows of 64 columns need 8.
- Several rows at a time help short rows only.
- A ring of chunks per warp, filled by the copy engine (TMA), keeps loading across the ends of rows,
  and is clearly slower nevertheless.
- Evict-first on A saves a constant fraction of a microsecond per launch. A prefetch of 256 bytes
  into L2 is slower.
- Rows with an odd number of elements in FP16 are much slower than aligned ones: their loads are 2
  bytes wide, and probably the number of loads becomes the limit.
*/

#include "vector.cuh"

constexpr int TEAMS = THREADS / TEAM;         // in a block
constexpr int LANES = TEAM < 32 ? TEAM : 32;  // of a team, in one warp
constexpr int WARPS = TEAM / LANES;           // of a team

// Adds the products of LOADS vectors of each row and of x, TEAM * COUNT elements apart.
template <int COUNT, int LOADS>
__device__ inline void add_products(Accumulate (&sums)[ROWS], const Input* const (&row)[ROWS],
                                    const Input* X, long long k) {
    // All loads come before the first product, so that all are in flight together.
    Vector<COUNT> a[ROWS][LOADS], x[LOADS];
    for (int v = 0; v < LOADS; ++v) {
        const long long at = k + v * TEAM * COUNT;
        for (int r = 0; r < ROWS; ++r) a[r][v] = load_streaming<COUNT>(row[r] + at);
        x[v] = load<COUNT>(X + at);
    }
    for (int v = 0; v < LOADS; ++v) {
        for (int i = 0; i < COUNT; ++i) {
            const Accumulate factor = widen(x[v].element[i]);
            for (int r = 0; r < ROWS; ++r) sums[r] += widen(a[r][v].element[i]) * factor;
        }
    }
}

// This thread's share of the rows times x, in accesses of COUNT elements, or of fewer if COUNT does
// not divide n, because rows are then not aligned.
template <int COUNT>
__device__ inline void dots(Accumulate (&sums)[ROWS], const Input* const (&row)[ROWS],
                            const Input* X, long long n, int thread) {
    if constexpr (COUNT > 1) {
        if (n % COUNT != 0) return dots<COUNT / 2>(sums, row, X, n, thread);
    }
    constexpr int STEP = TEAM * COUNT;
    // Narrow accesses hold fewer bytes in flight, so there are more of them.
    constexpr int LOADS = UNROLL * (WIDTH / COUNT < 4 ? WIDTH / COUNT : 4);
    long long k = thread * COUNT;
#pragma unroll 1
    for (; k + STEP * (LOADS - 1) < n; k += STEP * LOADS) {
        add_products<COUNT, LOADS>(sums, row, X, k);
    }
#pragma unroll 1
    for (; k < n; k += STEP) add_products<COUNT, 1>(sums, row, X, k);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
teams(long long m, long long n, const Input* A, const Input* X, Output* Y) {
    const int team = threadIdx.x / TEAM;
    const int thread = threadIdx.x % TEAM;

    // Neighbouring teams take neighbouring rows. Teams beyond the last row read the last row.
    const long long first_row = blockIdx.x * (long long)(ROWS * TEAMS) + team;
    const Input* row[ROWS];
    for (int r = 0; r < ROWS; ++r) row[r] = A + min(first_row + r * TEAMS, m - 1) * n;

    // 1. Each thread's share.
    Accumulate sums[ROWS] = {};
    dots<WIDTH>(sums, row, X, n, thread);

    // 2. The sum over the team's lanes of a warp.
    for (int r = 0; r < ROWS; ++r) {
        for (int distance = LANES / 2; distance > 0; distance /= 2) {
            sums[r] += __shfl_down_sync(0xffffffff, sums[r], distance, LANES);
        }
    }

    // 3. The sum over the team's warps.
    if constexpr (WARPS > 1) {
        __shared__ Accumulate partial[TEAMS][WARPS][ROWS];
        if (thread % 32 == 0) {
            for (int r = 0; r < ROWS; ++r) partial[team][thread / 32][r] = sums[r];
        }
        __syncthreads();
        if (thread == 0) {
            for (int w = 1; w < WARPS; ++w) {
                for (int r = 0; r < ROWS; ++r) sums[r] += partial[team][w][r];
            }
        }
    }
    if (thread == 0) {
        for (int r = 0; r < ROWS; ++r) {
            if (first_row + r * TEAMS < m) Y[first_row + r * TEAMS] = narrow(sums[r]);
        }
    }
}
