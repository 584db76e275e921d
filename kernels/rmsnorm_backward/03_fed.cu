/*
title = "The copy engine loads rows ahead"
entry = "fed"
workload = "rmsnorm_backward"
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
`persistent` moved three quarters of what was expected †. Its threads load one row ahead into registers, all at
once after a barrier; while they reduce and compute, little else is under way. Here a ring in shared memory holds
STAGES rows of X and DY, loaded by the copy engine: as soon as all threads have read a stage, the next copy into
it begins. Sums and their order are those of `persistent`.

Traffic: X, DY and DX once, the least possible.

Limits: rows that fit in the registers of one block and begin at multiples of 16 bytes.

Expect 3.4 to 3.8 TB/s on an H200, of 4.8, at 8192 rows of 4096. Computing takes about half of the time of the
memory, beside it; the sums at the end a few µs.

Learned: nothing yet of this version. While both kernels widened each number twice, this one gained little in
BF16 and lost in FP32 †: loads were not all that `persistent` waited for. Now numbers stay widened.
*/

#include "dynamic_shared.cuh"
#include "fed_rows.cuh"

__device__ void gradients(const Norm& norm, const Share<VECTORS, true>& share, AheadInShared ahead) {
    Accumulate weights[EACH] = {}, none[EACH];
    norm_gradients<false>(share, norm, ahead, weights, none);
    weight_sums.keep(share, weights);
}

extern "C" __global__ void __launch_bounds__(RESIDENT, 1)
fed(long long rows, long long columns, const Input* X, const Input* DY, const Input* W,
    const Accumulate* RSTD, Output* DX, Output* DW) {
    Input* staged = reinterpret_cast<Input*>(dynamic_shared_memory());
    __shared__ Barrier full[STAGES];
    const Norm norm{rows, columns, X, DY, W, nullptr, RSTD, DX};
    const Share<VECTORS, true> share(columns);
    gradients(norm, share, AheadInShared(share, norm, staged, full));
    grid_barrier();
    weight_sums.add(static_cast<int>(columns), DW);
}
