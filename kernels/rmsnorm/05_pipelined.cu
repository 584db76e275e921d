/*
title = "The next row is loaded while one is computed"
entry = "pipelined"
workload = "rmsnorm"
rung = 5
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = ["min(RESIDENT, 32 * ceildiv(columns * input_bytes, 512 * VECTORS))"]
tile = [1]
blocks_per_sm = "min(32, RESIDENT // min(RESIDENT, 32 * ceildiv(columns * input_bytes, 512 * VECTORS)))"
shared_bytes = "min(225280, STAGES * columns * input_bytes)"
min_compute_capability = "9.0"
variants = [
    { VECTORS = 2, RESIDENT = 1024, STAGES = 2, KEEP = 1, LAST = 0 },
    { VECTORS = 8, RESIDENT = 512, STAGES = 2, KEEP = 1, LAST = 0 },
    { VECTORS = 2, RESIDENT = 1024, STAGES = 2, KEEP = 1, LAST = 1 },
    { VECTORS = 8, RESIDENT = 512, STAGES = 2, KEEP = 1, LAST = 1 },
    { VECTORS = 8, RESIDENT = 1024, STAGES = 1, KEEP = 0, LAST = 1, precisions = ["fp64", "fp32"] },
]
teaches = "persistent blocks that load ahead with the copy engine and take rows from a queue"
*/

/*
Persistent blocks that load the next rows while they compute one.

- The grid has only the blocks that are resident at a time (blocks_per_sm); each works on row after
  row. Its threads hold the same columns of every row, so the weights stay in registers, too (KEEP).
- One thread starts a copy of a whole row by the copy engine (TMA). It needs no registers and no
  instructions of other threads, and completes a barrier that all threads wait for.
- The threads move the row from shared memory to registers; then the next copy into that stage
  starts. Reduction and stores overlap with it.
- Rows come from a queue: a counter in device memory, incremented one batch ahead.
- LAST loads with the policy of `priority`.

Limits: rows that start at multiples of 16 bytes and fit into registers and shared memory; others
use rmsnorm_any_row.

Expect 4.1 to 4.2 TB/s for every row length, the fastest kernel of this ladder: loads never stop,
and the weights are read once per block instead of once per row.

Learned, without LAST:
- Slightly slower than `registers` for nearly all rows. If several blocks share a multiprocessor,
  one loads while another computes anyway, and rmsnorm has little computation to overlap.
- Weights read again for every row cost nothing while the ring leaves room for them in the L1 cache.
  If the ring fills shared memory, they cost more than the pipeline gains.
- A fixed assignment of rows (row += gridDim.x) is several percent slower, see softmax's
  `pipelined`.
- A deeper pipeline is not faster: one or two rows ahead are enough.
*/

#include "rmsnorm.cuh"
#include "rows_ahead.cuh"

// RESIDENT: threads per multiprocessor. STAGES: rows per block that are loaded ahead. KEEP: whether
// the weights stay in registers, too. LAST: whether L2 evicts the row's lines last.
extern "C" __global__ void __launch_bounds__(RESIDENT, 1)
pipelined(long long rows, long long columns, Accumulate epsilon, const Input* X,
          const Input* W, Output* Y) {
    extern __shared__ __align__(128) Input staged[];
    __shared__ Ahead ahead;
    __shared__ Accumulate partials[2][WARP];
    const Input zero = narrow(0);

    const Share<VECTORS, true> share(columns);
    if (columns % WIDTH != 0 || columns > share.held()
        || STAGES * columns * sizeof(Input) > dynamic_shared_bytes()) {
        for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
            rmsnorm_any_row(columns, epsilon, X + row * columns, W, Y + row * columns);
        }
        return;
    }

    RowsAhead next(ahead, staged, X, rows, columns, 16384);
    uint4 weights[VECTORS];
    if (KEEP) {
        for (int k = 0; k < VECTORS; ++k) weights[k] = share.load(W, k, zero);
    }

    const Accumulate inverse_columns = Accumulate(1) / columns;
    int turn = 0;
    while (true) {
        // 1. Move the row from shared memory to registers.
        const long long row = next.wait_for_row();
        if (row >= rows) break;
        uint4 kept[VECTORS];
        Accumulate squares = 0;
        for (int k = 0; k < VECTORS; ++k) {
            kept[k] = share.load(next.values(), k, zero);
            const Vector vector = unpack(kept[k]);
            for (int i = 0; i < WIDTH; ++i) {
                squares += widen(vector.element[i]) * widen(vector.element[i]);
            }
            if (KEEP) keep_packed(weights[k]);
        }
        squares = reduce_block<Sum>(squares, partials[turn]);
        turn ^= 1;

        // 2. The reduction was a barrier.
        next.taken_by_all();

        // 3. As in `registers`.
        const Accumulate scale = inverse_root(squares * inverse_columns + epsilon);
        for (int k = 0; k < VECTORS; ++k) {
            if (!KEEP) weights[k] = share.load(W, k, zero);
            Vector vector = unpack(kept[k]);
            const Vector weight = unpack(weights[k]);
            for (int i = 0; i < WIDTH; ++i) {
                const Accumulate normed = widen(vector.element[i]) * scale;
                vector.element[i] = narrow(normed * widen(weight.element[i]));
            }
            share.store(Y + row * columns, k, vector);
        }
    }
    next.finish();
}
