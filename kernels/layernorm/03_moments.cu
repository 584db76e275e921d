/*
title = "Mean and variance in one exchange"
entry = "moments"
workload = "layernorm"
rung = 3
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = ["min(1024, 32 * ceildiv(columns * input_bytes, 512 * VECTORS))"]
tile = [1]
min_compute_capability = "8.0"
limits = { columns = 8192 }
constraints = { columns = 8 }
variants = [
    { VECTORS = 2, RESIDENT = 1024, EARLY = 1, precisions = ["fp32", "fp16", "bf16"] },
    { VECTORS = 2, RESIDENT = 1536, EARLY = 0, precisions = ["fp32", "fp16", "bf16"] },
    { VECTORS = 4, RESIDENT = 512, EARLY = 1 },
    { VECTORS = 4, RESIDENT = 1024, EARLY = 0, precisions = ["fp32", "fp16", "bf16"] },
]
teaches = "warps that centre their own columns exchange mean and variance at once; instructions limit memory, too"
*/

/*
`registers` with one meeting of the block instead of two: a warp centres its own columns, and warps exchange
their means and squares (layernorm.cuh). Nothing large cancels, unlike in a mean of the squares less the square
of the mean.

Centred elements stay in registers in FP32, so that none is widened or subtracted twice.

Traffic: X and Y once, the least possible. Weights and biases stay in L1.

Instructions: for 16 elements of BF16 a thread of `registers` needs about 450, this one 350, counted in the
machine code. One per element takes an H200 1.0 us at 8192 rows of 4096: 28 and 22 us, beside 28 us of its memory
at the roof. So the first has no slack, and both are hardly hidden while a block waits for its own row.

Limits: rows of whole vectors that fit in the registers of one block.

Learned: it gained half as much again as its instructions promised; presumably the rest is the exchange that it does
not make (docs/lab/layers.md).
*/

#include "layernorm.cuh"

constexpr int THREADS = 8192 / WIDTH / VECTORS;  // at most

// RESIDENT: threads for which a multiprocessor must have registers. EARLY: whether weights and biases are loaded
// before the exchange, or a vector of each at a time after it.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT / THREADS)
moments(long long rows, long long columns, Accumulate epsilon, const Input* X, const Input* W,
        const Input* B, Output* Y) {
    __shared__ Accumulate partials[2][THREADS / WARP];
    const Input zero = narrow(0);
    const Share<VECTORS, true> share(columns);
    uint4 weights[VECTORS], biases[VECTORS];
    const auto load_weights = [&](int k) {
        weights[k] = share.load_kept(W, k, zero);
        biases[k] = share.load_kept(B, k, zero);
    };

    // 1. The row; what does not depend on it is computed while it comes.
    uint4 kept[VECTORS];
    for (int k = 0; k < VECTORS; ++k) kept[k] = share.load_once_kept(X + blockIdx.x * columns, k, zero);
    const Moments<VECTORS, THREADS / WARP> moments(share);

    // 2. Its mean and variance.
    Accumulate centered[VECTORS * WIDTH];
    for (int k = 0; k < VECTORS; ++k) widen(kept[k], centered + k * WIDTH);
    const auto own = moments.center(centered);
    for (int k = 0; k < (EARLY ? VECTORS : 0); ++k) load_weights(k);
    const Scaling scaling = moments.exchange(own, epsilon, partials);

    // 3. The result.
    for (int k = 0; k < VECTORS; ++k) {
        if (!EARLY) load_weights(k);
        const Vector vector = normalised(centered + k * WIDTH, scaling, weights[k], biases[k]);
        share.store(Y + blockIdx.x * columns, k, vector);
    }
}
