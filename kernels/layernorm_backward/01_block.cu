/*
title = "One block per row, and one per 32 columns of weights and biases"
entry = "block"
workload = "layernorm_backward"
rung = 1
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = ["THREADS"]
blocks = "rows + ceildiv(columns, 32)"
variants = [{ THREADS = 256 }, { THREADS = 1024 }]
teaches = "two sums over a row and two over a column, each in one block"
*/

/*
As the `block` of rmsnorm_backward, which says why one launch has two kinds of blocks. Here a row has two
sums, of w·dy and of w·dy·n, where n = (x - mean)·rstd, and a strip of 32 columns has two, for weights and
biases.

The difference from the mean comes first: x·rstd - mean·rstd would lose the digits that rows far from zero
have in common.

Traffic: X and DY are read twice by the blocks of rows, the second time from L1 or L2, and once more by
strips: five passes over a matrix for the three that must be, 60 % of the roof at most.

Expect 1.1 to 1.7 TB/s of operands in BF16 on an H200, of 4.8, at 8192 rows of 4096, with 1,024 threads: a
second reduction per row, and the same loads as rmsnorm_backward.
*/

#include "column_sums.cuh"

constexpr int WARPS = THREADS / WARP;

// The gradient of one row.
__device__ void row(long long columns, const Input* x, const Input* dy, const Input* W, Accumulate mean,
                    Accumulate rstd, Output* dx) {
    __shared__ Accumulate partials[WARP], others[WARP];
    Accumulate sum = 0, product = 0;
    #pragma unroll 4
    for (long long c = threadIdx.x; c < columns; c += THREADS) {
        const Accumulate each = widen(W[c]) * widen(dy[c]);
        sum += each;
        product += each * ((widen(x[c]) - mean) * rstd);
    }
    const Accumulate offset = reduce_block<Sum>(sum, partials) / columns;
    const Accumulate along = reduce_block<Sum>(product, others) / columns;
    #pragma unroll 4
    for (long long c = threadIdx.x; c < columns; c += THREADS) {
        const Accumulate normal = (widen(x[c]) - mean) * rstd;
        dx[c] = narrow(rstd * (widen(W[c]) * widen(dy[c]) - offset - normal * along));
    }
}

// The gradients of 32 weights and biases, from column `first` on.
__device__ void strip(long long rows, long long columns, long long first, const Input* X, const Input* DY,
                      const Accumulate* MEAN, const Accumulate* RSTD, Output* DW, Output* DB) {
    __shared__ Accumulate weights[WARPS][WARP], biases[WARPS][WARP];
    const long long column = first + threadIdx.x % WARP;
    const bool inside = column < columns;
    Accumulate weight = 0, bias = 0;
    #pragma unroll 4
    for (long long r = threadIdx.x / WARP; r < (inside ? rows : 0); r += WARPS) {
        const long long place = r * columns + column;
        weight += widen(DY[place]) * ((widen(X[place]) - MEAN[r]) * RSTD[r]);
        bias += widen(DY[place]);
    }
    weight = sum_of_lanes(weight, weights);
    bias = sum_of_lanes(bias, biases);
    if (threadIdx.x < WARP && inside) {
        DW[column] = narrow(weight);
        DB[column] = narrow(bias);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
block(long long rows, long long columns, const Input* X, const Input* DY, const Input* W,
      const Accumulate* MEAN, const Accumulate* RSTD, Output* DX, Output* DW, Output* DB) {
    const long long r = blockIdx.x - strips(columns);
    if (r < 0) {
        const long long first = blockIdx.x * static_cast<long long>(WARP);
        strip(rows, columns, first, X, DY, MEAN, RSTD, DW, DB);
    } else {
        const Input* x = X + r * columns;
        row(columns, x, DY + r * columns, W, MEAN[r], RSTD[r], DX + r * columns);
    }
}
