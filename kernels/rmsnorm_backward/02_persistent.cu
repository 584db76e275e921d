/*
title = "Blocks that sum up weights over their rows"
entry = "persistent"
workload = "rmsnorm_backward"
rung = 2
precisions = ["fp32", "fp16", "bf16"]
block = ["min(RESIDENT, 32 * ceildiv(columns * input_bytes, 512 * VECTORS))"]
tile = [1]
blocks_per_sm = "RESIDENT // min(RESIDENT, 32 * ceildiv(columns * input_bytes, 512 * VECTORS))"
min_compute_capability = "8.0"
limits = { columns = 8192 }
variants = [
    { VECTORS = 1, RESIDENT = 1024, precisions = ["fp16", "bf16"] },
    { VECTORS = 2, RESIDENT = 512, precisions = ["fp16", "bf16"] },
    { VECTORS = 2, RESIDENT = 1024, precisions = ["fp32"] },
    { VECTORS = 4, RESIDENT = 512, precisions = ["fp32"] },
]
teaches = "sums down the columns cost one pass less if each block keeps its own in registers"
*/

/*
`block` reads X and DY once for rows and once more for weights. Here a block has the same columns of many
rows: it loads a row once, computes its gradient, and adds what belongs to the weights to sums in registers.

- The grid has only the blocks that are resident at a time; each takes every gridDim.x-th row. The next row
  is loaded while one is computed.
- In the end each block writes its sums, some 4 MB in all that stay in L2. After a barrier of the grid each
  block adds up 32 columns. No sum is atomic, so the order is always the same.

Traffic: X, DY and DX once, the least possible.

Limits: rows that fit in the registers of one block.

Expect 3.6 to 4.0 TB/s on an H200, of 4.8, at 8192 rows of 4096: the rate of rmsnorm's `registers`, less a few µs
for the sums.
*/

#include "norm_gradients.cuh"

template <bool ALIGNED>
__device__ void gradients(const Norm& norm) {
    const Share<VECTORS, ALIGNED> share(norm.columns);
    Accumulate weights[EACH] = {}, none[EACH];
    norm_gradients<false>(share, norm, AheadInRegisters<ALIGNED>(share, norm), weights, none);
    weight_sums.keep(share, weights);
}

extern "C" __global__ void __launch_bounds__(RESIDENT, 1)
persistent(long long rows, long long columns, const Input* X, const Input* DY, const Input* W,
           const Accumulate* RSTD, Output* DX, Output* DW) {
    const Norm norm{rows, columns, X, DY, W, nullptr, RSTD, DX};
    columns % WIDTH == 0 ? gradients<true>(norm) : gradients<false>(norm);
    grid_barrier();
    weight_sums.add(static_cast<int>(columns), DW);
}
