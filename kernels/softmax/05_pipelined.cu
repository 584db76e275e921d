/*
title = "The next row is loaded while one is computed"
entry = "pipelined"
workload = "softmax"
rung = 5
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = ["min(RESIDENT, 32 * ceildiv(columns * max(4, input_bytes), 128 * REGISTERS))"]
tile = [1]
blocks_per_sm = "min(32, RESIDENT // min(RESIDENT, 32 * ceildiv(columns * max(4, input_bytes), 128 * REGISTERS)))"
shared_bytes = "min(225280, STAGES * columns * input_bytes)"
min_compute_capability = "9.0"
variants = [
    { REGISTERS = 16, RESIDENT = 1024, STAGES = 2, LAST = 0 },
    { REGISTERS = 32, RESIDENT = 1024, STAGES = 1, LAST = 0 },
    { REGISTERS = 64, RESIDENT = 512, STAGES = 1, LAST = 0 },
    { REGISTERS = 16, RESIDENT = 1024, STAGES = 2, LAST = 1 },
    { REGISTERS = 32, RESIDENT = 1024, STAGES = 1, LAST = 1 },
    { REGISTERS = 64, RESIDENT = 512, STAGES = 1, LAST = 1 },
]
teaches = "persistent blocks that load ahead with the copy engine and take rows from a queue"
*/

/*
Persistent blocks that load the next rows while they compute one.

- The grid has only the blocks that are resident at a time (blocks_per_sm); each works on row after
  row.
- One thread starts a copy of a whole row by the copy engine (TMA). It needs no registers and no
  instructions of other threads, and completes a barrier that all threads wait for.
- The threads move the row from shared memory to registers; then the next copy into that stage
  starts. Reduction, exponentials and stores overlap with it. So one row of 128 KB can be in
  registers while another one is in shared memory.
- Rows come from a queue: a counter in device memory, incremented one batch ahead.
- LAST loads with the policy of `priority`.

Limits: rows that start at multiples of 16 bytes and fit into registers and shared memory; others
use softmax_any_row.

Expect 4.1 to 4.2 TB/s for every row length, the fastest kernel of this ladder: loads never stop.

Learned, without LAST:
- The prediction was wrong for most rows. If several blocks share a multiprocessor, one loads while
  another computes anyway, and the hardware's scheduling of blocks costs nothing: `registers` is
  simpler and faster. This kernel is faster if one row fills a multiprocessor and needs much
  computation: FP16 rows of 16,384 columns and more.
- A fixed assignment of rows (row += gridDim.x) is several percent slower. Multiprocessors do not
  advance at the same pace, and the slowest decides. A grid several times as large recovers half of
  the loss, the queue all of it.
- One atomic per row is too slow for short rows: all atomics use one address. So a batch has at
  least 16 KB.
- A deeper pipeline is not faster: one or two rows ahead are enough, more are slightly slower.
- A ring per warp, refilled by the warp, makes no difference. evict_first on the copies is slower.
*/

#include "rows_ahead.cuh"
#include "softmax.cuh"

// REGISTERS: 32-bit registers in which a thread keeps its columns, widened. RESIDENT: threads per
// multiprocessor. STAGES: rows per block that are loaded ahead. LAST: whether L2 evicts the row's
// lines last.
constexpr int VECTORS = REGISTERS * 4 / (WIDTH * sizeof(Accumulate));

extern "C" __global__ void __launch_bounds__(RESIDENT, 1)
pipelined(long long rows, long long columns, const Input* X, Output* Y) {
    extern __shared__ __align__(128) Input staged[];
    __shared__ Ahead ahead;
    __shared__ Accumulate maxima[WARP], sums[WARP];

    const Share<VECTORS, true> share(columns);
    if (columns % WIDTH != 0 || columns > share.held()
        || STAGES * columns * sizeof(Input) > dynamic_shared_bytes()) {
        for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
            softmax_any_row(columns, X + row * columns, Y + row * columns);
        }
        return;
    }

    RowsAhead next(ahead, staged, X, rows, columns, 16384);
    while (true) {
        // 1. Move the row from shared memory to registers.
        const long long row = next.wait_for_row();
        if (row >= rows) break;
        Accumulate kept[VECTORS][WIDTH];
        Accumulate largest = Maximum::nothing();
        for (int k = 0; k < VECTORS; ++k) {
            const Vector vector = unpack(share.load(next.values(), k, narrow(minus_infinity())));
            for (int i = 0; i < WIDTH; ++i) {
                kept[k][i] = widen(vector.element[i]);
                largest = max(largest, kept[k][i]);
            }
        }
        largest = reduce_block<Maximum>(largest, maxima);

        // 2. The reduction was a barrier.
        next.taken_by_all();

        // 3. As in `registers`.
        Accumulate sum = 0;
        for (int k = 0; k < VECTORS; ++k) {
            for (int i = 0; i < WIDTH; ++i) {
                kept[k][i] = exponential(kept[k][i] - largest);
                sum += kept[k][i];
            }
        }
        const Accumulate scale = 1 / reduce_block<Sum>(sum, sums);
        for (int k = 0; k < VECTORS; ++k) {
            Vector vector;
            for (int i = 0; i < WIDTH; ++i) vector.element[i] = narrow(kept[k][i] * scale);
            share.store(Y + row * columns, k, vector);
        }
    }
    next.finish();
}
