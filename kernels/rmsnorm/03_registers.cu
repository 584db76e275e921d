/*
title = "The row kept in registers"
entry = "registers"
workload = "rmsnorm"
rung = 3
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = ["min(1024, 32 * ceildiv(columns * input_bytes, 512 * VECTORS))"]
tile = [1]
variants = [{ VECTORS = 2 }, { VECTORS = 4 }, { VECTORS = 8, precisions = ["fp64", "fp32"] }]
teaches = "read each element once, in vectors of 16 bytes, and keep it until it is written"
*/

/*
`block` without the second read: the row stays in registers. A thread holds up to 8 vectors of 16
bytes, a block of 1,024 threads 128 KB, half of the register file.

- Loads are 16 bytes wide, and all of a thread's loads start before the first is used. The loads of
  the weights start at the same time, so that the reduction hides their latency.
- The block fits the row: the header chooses the number of warps.
- Rows that do not start at a multiple of 16 bytes are loaded element by element, still coalesced.
  Rows that do not fit use the two passes of rmsnorm_any_row.

Traffic: X and Y move once. The weights come from L1 or L2, with as many bytes as X: this costs
little while L1 holds them, but not for the longest rows.

Occupancy: 29 to 64 registers per thread allow 1,024 threads and more, and 64 to 128 KB of loads in
flight, per multiprocessor; 20 to 30 KB hide the latency.

Expect 4.0 TB/s, 95 % of a device-to-device copy; 3.6 if one row fills a multiprocessor.

Learned:
- Rows of 2 to 4 KB reach the copy's rate, longer ones stay slightly below. The longest are faster
  than predicted: there is little computation while nothing is loaded.
- Loading the weights early gains a little, unless their registers reduce the number of blocks, as
  with eight vectors of each; then they are loaded later.
- The slowest case is the row of 32,768 in FP32: one block per multiprocessor, and 128 KB of weights
  from L2 for every row.
*/

#include "rmsnorm.cuh"

// Whether the weights are loaded with the row. Eight vectors of each need too many registers.
constexpr bool EARLY = VECTORS <= 4;

template <bool ALIGNED>
__device__ void rmsnorm(const Share<VECTORS, ALIGNED>& share, Accumulate epsilon, const Input* x,
                        const Input* W, Output* y) {
    __shared__ Accumulate partials[WARP];
    const Input zero = narrow(0);

    // 1. Read the row and keep it packed: widening it twice costs less than registers.
    uint4 kept[VECTORS], weights[VECTORS];
    for (int k = 0; k < VECTORS; ++k) kept[k] = share.load(x, k, zero);
    if (EARLY && ALIGNED) {
        for (int k = 0; k < VECTORS; ++k) weights[k] = share.load(W, k, zero);
    }
    Accumulate squares = 0;
    for (int k = 0; k < VECTORS; ++k) {
        const Vector vector = unpack(kept[k]);
        for (int i = 0; i < WIDTH; ++i) {
            squares += widen(vector.element[i]) * widen(vector.element[i]);
        }
    }
    squares = reduce_block<Sum>(squares, partials);
    const Accumulate scale = inverse_root(squares / share.columns + epsilon);

    // 2. Write it.
    for (int k = 0; k < VECTORS; ++k) {
        if (!(EARLY && ALIGNED)) weights[k] = share.load(W, k, zero);
        Vector vector = unpack(kept[k]);
        const Vector weight = unpack(weights[k]);
        for (int i = 0; i < WIDTH; ++i) {
            vector.element[i] = narrow(widen(vector.element[i]) * scale * widen(weight.element[i]));
        }
        share.store(y, k, vector);
    }
}

extern "C" __global__ void __launch_bounds__(1024, 1)
registers(long long rows, long long columns, Accumulate epsilon, const Input* X,
          const Input* W, Output* Y) {
    const Input* x = X + blockIdx.x * columns;
    Output* y = Y + blockIdx.x * columns;
    const bool fits = columns <= Share<VECTORS, true>::held();
    if (fits && columns % WIDTH == 0) {
        rmsnorm(Share<VECTORS, true>(columns), epsilon, x, W, y);
    } else if (fits && VECTORS * WIDTH <= 32) {
        rmsnorm(Share<VECTORS, false>(columns), epsilon, x, W, y);
    } else {
        rmsnorm_any_row(columns, epsilon, x, W, y);
    }
}
