/*
title = "The row kept in registers"
entry = "registers"
workload = "softmax"
rung = 3
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = ["min(LARGEST, 32 * ceildiv(columns * max(4, input_bytes), 128 * REGISTERS))"]
tile = [1]
variants = [
    { REGISTERS = 8, LARGEST = 1024 },
    { REGISTERS = 16, LARGEST = 1024 },
    { REGISTERS = 32, LARGEST = 1024 },
    { REGISTERS = 64, LARGEST = 512 },
]
teaches = "read each element once, in vectors of 16 bytes, and keep it until it is written"
*/

/*
`block` without the second read: the row stays in registers between the passes. A thread holds up to
64 registers of it, a block of 1,024 threads 128 KB, half of the register file.

- Loads are 16 bytes wide, and all of a thread's loads start before the first is used.
- The block fits the row: the header chooses the number of warps. A row of 1,024 FP16 elements needs
  one or two warps, and 16 to 32 rows share a multiprocessor.
- Passes over registers cause no traffic, so an online sum would save nothing. The passes are: the
  maximum; the exponentials and their sum; one multiplication per element. Each exponential is
  computed once.
- Rows that do not start at a multiple of 16 bytes are loaded element by element, still coalesced.
  Rows longer than the block's registers use the three passes of softmax_any_row.

Traffic: each byte moves once. Occupancy: 26 to 96 registers per thread (64 at most up to 1,024
threads) allow 512 to 1,600 threads and 64 to 128 KB of loads in flight per multiprocessor; 20 to
30 KB hide the latency.

Expect 4.0 TB/s, 95 % of a device-to-device copy, if several rows share a multiprocessor. If one row
fills it, it loads nothing during the reduction: expect 3.3.

Learned:
- Rows of 2 to 4 KB reach the copy's rate, longer ones stay slightly below it in every variant. The
  assignment of columns to threads makes no difference there; the efficiency of the device memory
  does.
- The row of 32,768 is faster than predicted in FP32, but not in FP16, which has twice the
  exponentials per byte. With FP16 kept packed and each exponential computed twice, two blocks share
  the multiprocessor; that was as fast as `pipelined`.
- A branch around each load makes the kernel slow: the compiler moves the conversion into the
  branch, and every load waits for the one before.
- ex2.approx.ftz in place of expf() saves three instructions per element; the error does not change.
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
        const Vector vector = unpack(share.load(x, k, narrow(minus_infinity())));
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
registers(long long rows, long long columns, const Input* X, Output* Y) {
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
