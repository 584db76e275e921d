/*
title = "The row kept in registers"
entry = "registers"
workload = "layernorm"
rung = 2
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = ["min(1024, 32 * ceildiv(columns * input_bytes, 512 * VECTORS))"]
tile = [1]
min_compute_capability = "8.0"
limits = { columns = 8192 }
variants = [
    { VECTORS = 1, precisions = ["fp16", "bf16"] },
    { VECTORS = 2, precisions = ["fp32", "fp16", "bf16"] },
    { VECTORS = 4 },
]
teaches = "mean and variance take no pass of their own over a row in registers"
*/

/*
`block` with one read: a thread holds up to four vectors of 16 bytes, as in rmsnorm's `priority`, and what is
computed of the row comes from there. The loads of weights and biases start with those of the row, so that
the two reductions hide their latency.

Traffic: X and Y once, the least possible. Weights and biases stay in L1.

Limits: rows that fit in the registers of one block.

Expect 3.8 to 4.1 TB/s on an H200, of 4.8, at 8192 rows of 4096: rmsnorm's rate, less what a second reduction
takes.
*/

#include "rmsnorm.cuh"

constexpr int THREADS = 8192 / WIDTH / VECTORS;  // at most

// Whether weights and biases are loaded with the row. Four vectors of each need too many registers.
constexpr bool EARLY = VECTORS <= 2;

template <bool ALIGNED>
__device__ void layernorm(const Share<VECTORS, ALIGNED>& share, Accumulate epsilon, const Input* x,
                          const Input* W, const Input* B, Output* y) {
    __shared__ Accumulate sums[WARP], squares[WARP];
    const Input zero = narrow(0);
    uint4 kept[VECTORS], weights[VECTORS], biases[VECTORS];
    const auto load_weights = [&] {
        for (int k = 0; k < VECTORS; ++k) weights[k] = share.load_kept(W, k, zero);
        for (int k = 0; k < VECTORS; ++k) biases[k] = share.load_kept(B, k, zero);
    };
    for (int k = 0; k < VECTORS; ++k) kept[k] = share.load_once_kept(x, k, zero);
    if (EARLY && ALIGNED) load_weights();

    Accumulate sum = 0;
    for (int k = 0; k < VECTORS; ++k) {
        for (int i = 0; i < WIDTH; ++i) sum += widen(unpack(kept[k]).element[i]);
    }
    const Accumulate mean = reduce_block<Sum>(sum, sums) / share.columns;

    Accumulate square = 0;
    for (int k = 0; k < VECTORS; ++k) {
        keep_packed(kept[k]);
        for (int i = 0; i < WIDTH; ++i) {
            const Accumulate distance = widen(unpack(kept[k]).element[i]) - mean;
            if (share.column(k, i) < share.columns) square += distance * distance;
        }
    }
    const Accumulate variance = reduce_block<Sum>(square, squares) / share.columns;
    const Accumulate scale = inverse_root(variance + epsilon);

    if (!(EARLY && ALIGNED)) load_weights();
    for (int k = 0; k < VECTORS; ++k) {
        keep_packed(kept[k]);
        Vector vector = unpack(kept[k]);
        const Vector weight = unpack(weights[k]), bias = unpack(biases[k]);
        for (int i = 0; i < WIDTH; ++i) {
            const Accumulate normed = (widen(vector.element[i]) - mean) * scale;
            vector.element[i] = narrow(normed * widen(weight.element[i]) + widen(bias.element[i]));
        }
        share.store(y, k, vector);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
registers(long long rows, long long columns, Accumulate epsilon, const Input* X, const Input* W,
          const Input* B, Output* Y) {
    const Input* x = X + blockIdx.x * columns;
    Output* y = Y + blockIdx.x * columns;
    if (columns % WIDTH == 0) {
        layernorm(Share<VECTORS, true>(columns), epsilon, x, W, B, y);
    } else {
        layernorm(Share<VECTORS, false>(columns), epsilon, x, W, B, y);
    }
}
