/*
title = "The row kept in registers, its lines kept in L2"
entry = "priority"
workload = "softmax"
rung = 4
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = ["min(LARGEST, 32 * ceildiv(columns * max(4, input_bytes), 128 * REGISTERS))"]
tile = [1]
min_compute_capability = "8.0"
variants = [
    { REGISTERS = 16, LARGEST = 1024 },
    { REGISTERS = 32, LARGEST = 1024 },
    { REGISTERS = 64, LARGEST = 512 },
]
teaches = "loads whose lines the L2 cache evicts last, so that it writes results first"
*/

/*
`registers` with one change: the row is loaded with the L2 policy evict_last.

No element is read twice, so the row's lines in L2 are useless once they are loaded. But L2 is a
write-back cache: it writes a result to device memory when it evicts the line. Between a line of X
and a finished line of Y, the cache now evicts Y. The writes start earlier, and probably in longer
runs of neighbouring addresses.

Expect 4.1 to 4.3 TB/s, 0 to 4 % above `registers`. The idea comes from code that PyTorch's compiler
generates; there the hint has another purpose, because that code reads the row twice.

Learned, in FP32:
- The kernel is faster at every row length, and faster than a device-to-device copy.
- The opposite hint, evict_first, is slower by about the same amount. Streaming stores of Y (st.cs),
  which should free the same lines, gain nothing: the explanation above is plausible and not proven.
- The load must be a predicated instruction without a branch around it. With a branch, FP16 was much
  slower than without the hint: each load waited for the one before.

A cost: when the kernel ends, L2 is full of X. A kernel that reads Y next finds less of it there.
*/

#include "softmax.cuh"

// REGISTERS: 32-bit registers in which a thread keeps its columns, widened.
constexpr int VECTORS = REGISTERS * 4 / (WIDTH * sizeof(Accumulate));

template <bool ALIGNED>
__device__ void softmax(const Share<VECTORS, ALIGNED>& share, const Input* x, Output* y) {
    __shared__ Accumulate maxima[WARP], sums[WARP];

    // 1. Read the row. Columns past its end are minus infinity, which changes neither maximum nor
    //    sum.
    Accumulate kept[VECTORS][WIDTH];
    Accumulate largest = Maximum::nothing();
    for (int k = 0; k < VECTORS; ++k) {
        const Vector vector = unpack(share.load_kept(x, k, narrow(minus_infinity())));
        for (int i = 0; i < WIDTH; ++i) {
            kept[k][i] = widen(vector.element[i]);
            largest = max(largest, kept[k][i]);
        }
    }
    largest = reduce_block<Maximum>(largest, maxima);

    // 2. The second pass is over registers, so an online sum would save nothing.
    Accumulate sum = 0;
    for (int k = 0; k < VECTORS; ++k) {
        for (int i = 0; i < WIDTH; ++i) {
            kept[k][i] = exponential(kept[k][i] - largest);
            sum += kept[k][i];
        }
    }
    const Accumulate scale = 1 / reduce_block<Sum>(sum, sums);

    // 3. Write the row.
    for (int k = 0; k < VECTORS; ++k) {
        Vector vector;
        for (int i = 0; i < WIDTH; ++i) vector.element[i] = narrow(kept[k][i] * scale);
        share.store(y, k, vector);
    }
}

extern "C" __global__ void __launch_bounds__(LARGEST, 1)
priority(long long rows, long long columns, const Input* X, Output* Y) {
    const Input* x = X + blockIdx.x * columns;
    Output* y = Y + blockIdx.x * columns;
    if (columns > Share<VECTORS, true>::held()) {
        softmax_any_row(columns, x, y);
    } else if (columns % WIDTH == 0) {
        softmax(Share<VECTORS, true>(columns), x, y);
    } else {
        softmax(Share<VECTORS, false>(columns), x, y);
    }
}
