/*
title = "One block per row, and one per 32 columns of the weights"
entry = "block"
workload = "rmsnorm_backward"
rung = 1
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = ["THREADS"]
blocks = "rows + ceildiv(columns, 32)"
variants = [{ THREADS = 256 }, { THREADS = 1024 }]
teaches = "one launch with two kinds of blocks: rows for their gradient, columns for that of the weights"
*/

/*
The gradient of a row needs one sum over the row, that of a weight one over all rows. Blocks cannot wait
for each other, so each sum is made by one block: the first blocks of the grid have a strip of 32 columns
each, the others a row. No sum is written twice, and its order is always the same.

A row: the mean of w·dy·n, where n = x·rstd, then the result from the same numbers again. Neighbouring
threads take neighbouring columns, so that loads are coalesced.

A strip: each warp takes every 8th or 32nd row, each lane one column; then the warps' sums are added. Loads of
a warp are 64 or 128 neighbouring bytes. Strips come first, because a block of them takes longest.

Traffic: X and DY are read twice by the blocks of rows, the second time from L1 or L2, and once more by
strips, from memory if they do not fit in L2: five passes over a matrix for the three that must be, 60 % of
the roof at most. Atomic sums would save two, but need zeroed weights and another order each time.

Expect 1.2 to 1.8 TB/s of operands in BF16 on an H200, of 4.8, at 8192 rows of 4096, with 1,024 threads:
4,096 columns are only 128 strips, so that 2 MB of their loads are in flight. With 256 threads expect half of it.
*/

#include "column_sums.cuh"

constexpr int WARPS = THREADS / WARP;

// The gradient of one row.
__device__ void row(long long columns, const Input* x, const Input* dy, const Input* W, Accumulate rstd,
                    Output* dx) {
    __shared__ Accumulate partials[WARP];
    Accumulate sum = 0;
    #pragma unroll 4
    for (long long c = threadIdx.x; c < columns; c += THREADS) {
        sum += widen(W[c]) * widen(dy[c]) * (widen(x[c]) * rstd);
    }
    const Accumulate along = reduce_block<Sum>(sum, partials) / columns;
    #pragma unroll 4
    for (long long c = threadIdx.x; c < columns; c += THREADS) {
        dx[c] = narrow(rstd * (widen(W[c]) * widen(dy[c]) - widen(x[c]) * rstd * along));
    }
}

// The gradient of 32 weights, from column `first` on.
__device__ void strip(long long rows, long long columns, long long first, const Input* X, const Input* DY,
                      const Accumulate* RSTD, Output* DW) {
    __shared__ Accumulate parts[WARPS][WARP];
    const long long column = first + threadIdx.x % WARP;
    const bool inside = column < columns;
    Accumulate sum = 0;
    #pragma unroll 4
    for (long long r = threadIdx.x / WARP; r < (inside ? rows : 0); r += WARPS) {
        const long long place = r * columns + column;
        sum += widen(DY[place]) * (widen(X[place]) * RSTD[r]);
    }
    sum = sum_of_lanes(sum, parts);
    if (threadIdx.x < WARP && inside) DW[column] = narrow(sum);
}

extern "C" __global__ void __launch_bounds__(THREADS)
block(long long rows, long long columns, const Input* X, const Input* DY, const Input* W,
      const Accumulate* RSTD, Output* DX, Output* DW) {
    const long long r = blockIdx.x - strips(columns);
    if (r < 0) {
        strip(rows, columns, blockIdx.x * static_cast<long long>(WARP), X, DY, RSTD, DW);
    } else {
        row(columns, X + r * columns, DY + r * columns, W, RSTD[r], DX + r * columns);
    }
}
