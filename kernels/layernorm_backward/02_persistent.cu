/*
title = "Blocks that sum up weights and biases over their rows"
entry = "persistent"
workload = "layernorm_backward"
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
teaches = "two sums over a row need one barrier, two sums down the columns no pass of their own"
*/

/*
As the `persistent` of rmsnorm_backward, which says how. Both sums of a row are reduced at once, with one
barrier; those of weights and biases are in registers.

Traffic: X, DY and DX once, the least possible.

Limits: rows that fit in the registers of one block.

Expect 3.4 to 3.9 TB/s on an H200, of 4.8, at 8192 rows of 4096: a little less than rmsnorm_backward, for
twice the registers of sums.
*/

#include "norm_gradients.cuh"

__device__ ColumnSums bias_sums;

template <bool ALIGNED>
__device__ void gradients(const Norm& norm) {
    const Share<VECTORS, ALIGNED> share(norm.columns);
    Accumulate weights[EACH] = {}, biases[EACH] = {};
    norm_gradients<true>(share, norm, AheadInRegisters<ALIGNED>(share, norm), weights, biases);
    weight_sums.keep(share, weights);
    bias_sums.keep(share, biases);
}

extern "C" __global__ void __launch_bounds__(RESIDENT, 1)
persistent(long long rows, long long columns, const Input* X, const Input* DY, const Input* W,
           const Accumulate* MEAN, const Accumulate* RSTD, Output* DX, Output* DW, Output* DB) {
    const Norm norm{rows, columns, X, DY, W, MEAN, RSTD, DX};
    columns % WIDTH == 0 ? gradients<true>(norm) : gradients<false>(norm);
    grid_barrier();
    weight_sums.add(static_cast<int>(columns), DW);
    bias_sums.add(static_cast<int>(columns), DB);
}
