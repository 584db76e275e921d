/*
title = "The next row under way while one is computed"
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
teaches = "persistent blocks that fetch ahead with the copy engine and take rows from a queue"
*/

/*
Blocks that stay, and the next rows on their way while one is computed.

- As many blocks as fit are launched once (blocks_per_sm), and each works on row after row.
- One thread asks the copy engine (TMA) for a whole row. It arrives in shared memory without
  registers or instructions of other threads, and completes a barrier that all wait for.
- The threads move the row from shared memory to registers, and as soon as all have, the next copy
  into that stage begins. Reduction, exponentials and stores overlap with it. So a row of 128 KB can
  be in registers while another one is in shared memory.
- Rows come from a queue: a counter in device memory, asked one batch ahead.
- LAST loads with the policy of `priority`.

Limits: rows that start at multiples of 16 bytes and fit into registers and shared memory; others
take softmax_any_row. The header adds 4 KB to shared memory above 44 KB, because CUDA wants to be
asked before a block's static and dynamic shared memory pass 48 KB together.

Expect 4.1 to 4.2 TB/s for every row length, the best of all kernels here: loads never stop.

Learned, without LAST:
- The prediction was wrong for most rows. Where several blocks share a multiprocessor, one loads
  while another computes without any of this, and the hardware hands out blocks for nothing:
  `registers` is simpler and faster. This kernel wins where one row fills a multiprocessor and has
  much to compute: FP16 rows of 16,384 columns and more.
- Rows handed out by number (row += gridDim.x) lose several percent. Multiprocessors do not advance
  at one pace, and the slowest decides. Several times as many blocks as fit recover half of that,
  the queue all.
- One atomic per row is too slow for short rows: they all go to one address. Hence batches of at
  least 16 KB.
- Deeper is not better: one or two rows ahead are enough, and more lose a little.
- A ring per warp, refilled by the warp itself, makes no difference. evict_first on the copies
  loses.
*/

#include "bulk_copy.cuh"
#include "l2_priority.cuh"
#include "row_queue.cuh"
#include "softmax.cuh"

// REGISTERS: 32-bit registers in which a thread keeps its columns, widened. RESIDENT: threads per
// multiprocessor. STAGES: rows per block that are fetched ahead. LAST: whether L2 gives up the row's
// lines last.
constexpr int VECTORS = REGISTERS * 4 / (WIDTH * sizeof(Accumulate));

extern "C" __global__ void __launch_bounds__(RESIDENT, 1)
pipelined(long long rows, long long columns, const Input* X, Output* Y) {
    extern __shared__ __align__(128) Input staged[];  // [STAGES][columns]
    __shared__ Barrier full[STAGES];                  // a stage's row has arrived
    __shared__ long long row_in[STAGES];              // which row that is
    __shared__ RowQueue queue;                        // thread 0's
    __shared__ Accumulate maxima[WARP], sums[WARP];

    const long long row_bytes = columns * sizeof(Input);
    const Share<VECTORS, true> share(columns);
    if (columns % WIDTH != 0 || columns > share.held()
        || STAGES * row_bytes > dynamic_shared_bytes()) {
        for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
            softmax_any_row(columns, X + row * columns, Y + row * columns);
        }
        return;
    }

    // Thread 0 starts the copies. A row past the matrix is passed on too: it ends the loop below.
    const auto fetch = [&](int stage) {
        const long long row = queue.take();
        row_in[stage] = row;
        announce(&full[stage], row < rows ? row_bytes : 0);
        if (row >= rows) return;
        const Input* x = X + row * columns;
        if (LAST) {
            copy_bulk(staged + stage * columns, x, row_bytes, &full[stage], evict_last());
        } else {
            copy_bulk(staged + stage * columns, x, row_bytes, &full[stage]);
        }
    };
    if (threadIdx.x == 0) {
        queue.start(row_bytes, 16384);
        for (int stage = 0; stage < STAGES; ++stage) initialize(&full[stage]);
        for (int stage = 0; stage < STAGES; ++stage) fetch(stage);
    }
    __syncthreads();

    int stage = 0;
    unsigned phase = 0;
    while (true) {
        // 1. Move the row from shared memory to registers.
        wait(&full[stage], phase);
        const long long row = row_in[stage];
        if (row >= rows) break;
        Accumulate kept[VECTORS][WIDTH];
        Accumulate largest = Maximum::nothing();
        for (int k = 0; k < VECTORS; ++k) {
            const Input* x = staged + stage * columns;
            const Vector vector = unpack(share.load(x, k, narrow(minus_infinity())));
            for (int i = 0; i < WIDTH; ++i) {
                kept[k][i] = widen(vector.element[i]);
                largest = max(largest, kept[k][i]);
            }
        }
        largest = reduce_block<Maximum>(largest, maxima);

        // 2. All threads have read the stage: fetch another row into it. It arrives meanwhile. The
        //    reduction was a barrier, except in a block of one warp.
        __syncwarp();
        if (threadIdx.x == 0) fetch(stage);

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

        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
    if (threadIdx.x == 0) queue.finish();
}
