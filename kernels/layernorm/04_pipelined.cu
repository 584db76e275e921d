/*
title = "The next rows are loaded while one is computed"
entry = "pipelined"
workload = "layernorm"
rung = 4
precisions = ["fp32", "fp16", "bf16"]
block = ["min(RESIDENT, 32 * ceildiv(columns * input_bytes, 512 * VECTORS))"]
tile = [1]
blocks_per_sm = "min(32, RESIDENT // min(RESIDENT, 32 * ceildiv(columns * input_bytes, 512 * VECTORS)))"
shared_bytes = "STAGES * columns * input_bytes"
min_compute_capability = "9.0"
limits = { columns = 8192 }
constraints = { columns = 8 }
variants = [
    { VECTORS = 2, RESIDENT = 1024, STAGES = 2, LAST = 1, BATCH = 8192 },
    { VECTORS = 2, RESIDENT = 768, STAGES = 2, LAST = 1, BATCH = 8192, precisions = ["fp16", "bf16"] },
    { VECTORS = 4, RESIDENT = 512, STAGES = 2, LAST = 1, BATCH = 8192 },
]
teaches = "a persistent block has weights and biases in registers, and needs the fewest instructions for a row"
*/

/*
`moments` in persistent blocks, whose next rows the copy engine loads meanwhile (rows_ahead.cuh), as in the
`pipelined` of rmsnorm. What does not depend on the row is done once per block: weights and biases come to
registers, and the shares of the warps are computed.

Traffic: X and Y once, the least possible. Weights and biases once per block.

Instructions: about 260 for 16 elements of BF16, of 350 in `moments`: 16 us at 8192 rows of 4096 on an H200,
beside 28 us of its memory at the roof.

Limits: as those of `moments`. FP64 is left out: its weights and biases need too many registers.

Learned: no faster than `moments`, which waits for memory already (docs/lab/layers.md).
*/

#include "dynamic_shared.cuh"
#include "layernorm.cuh"
#include "rows_ahead.cuh"

constexpr int WARPS = 8192 / WIDTH / VECTORS / WARP;  // of a block, at most

// RESIDENT: threads per multiprocessor. BATCH: bytes of the rows that a block takes at once.
extern "C" __global__ void __launch_bounds__(RESIDENT, 1)
pipelined(long long rows, long long columns, Accumulate epsilon, const Input* X, const Input* W,
          const Input* B, Output* Y) {
    __shared__ Ahead ahead;
    __shared__ Accumulate partials[2][2][WARPS];
    const Input zero = narrow(0);
    const Share<VECTORS, true> share(columns);
    const Moments<VECTORS, WARPS> moments(share);

    RowsAhead next(ahead, reinterpret_cast<Input*>(dynamic_shared_memory()), X, rows, columns, BATCH);
    uint4 weights[VECTORS], biases[VECTORS];
    for (int k = 0; k < VECTORS; ++k) weights[k] = share.load(W, k, zero);
    for (int k = 0; k < VECTORS; ++k) biases[k] = share.load(B, k, zero);

    int turn = 0;
    while (true) {
        const long long row = next.wait_for_row();
        if (row >= rows) break;
        Accumulate centered[VECTORS * WIDTH];
        for (int k = 0; k < VECTORS; ++k) {
            widen(share.load(next.values(), k, zero), centered + k * WIDTH);
        }
        const Scaling scaling = moments.exchange(moments.center(centered), epsilon, partials[turn]);
        turn ^= 1;
        next.taken_by_all();  // the exchange was a barrier
        for (int k = 0; k < VECTORS; ++k) {
            keep_packed(weights[k]);
            keep_packed(biases[k]);
            const Vector vector = normalised(centered + k * WIDTH, scaling, weights[k], biases[k]);
            share.store(Y + row * columns, k, vector);
        }
    }
    next.finish();
}
