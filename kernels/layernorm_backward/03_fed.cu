/*
title = "The copy engine loads rows ahead"
entry = "fed"
workload = "layernorm_backward"
rung = 3
precisions = ["fp32", "fp16", "bf16"]
block = ["min(RESIDENT, 32 * ceildiv(columns * input_bytes, 512 * VECTORS))"]
tile = [1]
blocks_per_sm = "RESIDENT // min(RESIDENT, 32 * ceildiv(columns * input_bytes, 512 * VECTORS))"
shared_bytes = "STAGES * 2 * columns * input_bytes"
min_compute_capability = "9.0"
limits = { columns = 8192 }
constraints = { columns = 8 }
variants = [
    { VECTORS = 1, RESIDENT = 1024, STAGES = 3, precisions = ["fp16", "bf16"] },
    { VECTORS = 1, RESIDENT = 1024, STAGES = 6, precisions = ["fp16", "bf16"] },
    { VECTORS = 2, RESIDENT = 512, STAGES = 4, precisions = ["fp16", "bf16"] },
    { VECTORS = 2, RESIDENT = 1024, STAGES = 3, precisions = ["fp32"] },
    { VECTORS = 4, RESIDENT = 512, STAGES = 3, precisions = ["fp32"] },
]
teaches = "loads that must span a barrier want shared memory: registers hold one row ahead, it holds several"
*/

/*
As the `fed` of rmsnorm_backward, which says how.

Traffic: X, DY and DX once, the least possible.

Limits: rows that fit in the registers of one block and begin at multiples of 16 bytes.

Expect 3.0 to 3.5 TB/s on an H200, of 4.8, at 8192 rows of 4096: less than rmsnorm_backward, since a thread has
some half more to compute.
*/

#include "dynamic_shared.cuh"
#include "fed_rows.cuh"

__device__ ColumnSums bias_sums;

__device__ void gradients(const Norm& norm, const Share<VECTORS, true>& share, AheadInShared ahead) {
    Accumulate weights[EACH] = {}, biases[EACH] = {};
    norm_gradients<true>(share, norm, ahead, weights, biases);
    weight_sums.keep(share, weights);
    bias_sums.keep(share, biases);
}

extern "C" __global__ void __launch_bounds__(RESIDENT, 1)
fed(long long rows, long long columns, const Input* X, const Input* DY, const Input* W,
    const Accumulate* MEAN, const Accumulate* RSTD, Output* DX, Output* DW, Output* DB) {
    Input* staged = reinterpret_cast<Input*>(dynamic_shared_memory());
    __shared__ Barrier full[STAGES];
    const Norm norm{rows, columns, X, DY, W, MEAN, RSTD, DX};
    const Share<VECTORS, true> share(columns);
    gradients(norm, share, AheadInShared(share, norm, staged, full));
    grid_barrier();
    weight_sums.add(static_cast<int>(columns), DW);
    bias_sums.add(static_cast<int>(columns), DB);
}
