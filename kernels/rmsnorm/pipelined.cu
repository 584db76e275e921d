/*
title = "The next row under way while one is computed"
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
teaches = "persistent blocks that fetch ahead with the copy engine and take rows from a queue"
*/

/*
Blocks that stay, and the next rows on their way while one is computed.

- As many blocks as fit are launched once (blocks_per_sm), and each works on row after row. Its
  threads hold the same columns of every row, so the weights stay in registers, too (KEEP).
- One thread asks the copy engine (TMA) for a whole row. It arrives in shared memory without
  registers or instructions of other threads, and completes a barrier that all wait for.
- The threads move the row from shared memory to registers, and as soon as all have, the next copy
  into that stage begins. Reduction and stores overlap with it.
- Rows come from a queue: a counter in device memory, asked one batch ahead.
- LAST loads with the policy of `priority`.

Limits: rows that start at multiples of 16 bytes and fit into registers and shared memory; others
take rmsnorm_any_row. The header adds 4 KB to shared memory above 44 KB, because CUDA wants to be
asked before a block's static and dynamic shared memory pass 48 KB together.

Expect 4.1 to 4.2 TB/s for every row length, the best of all kernels here: loads never stop, and the
weights are read once per block instead of once per row.

Learned, without LAST:
- Slightly below `registers` for nearly all rows. Where several blocks share a multiprocessor, one
  loads while another computes without any of this. There is too little to compute in rmsnorm to win
  more.
- Weights read again for every row cost nothing while the ring leaves room for them in the L1 cache,
  and more than the pipeline gains where it fills shared memory.
- Rows handed out by number (row += gridDim.x) lose several percent, see softmax's `pipelined`.
- Deeper is not better: one or two rows ahead are enough.
*/

#include "bulk_copy.cuh"
#include "l2_priority.cuh"
#include "row_queue.cuh"
#include "rmsnorm.cuh"

// RESIDENT: threads per multiprocessor. STAGES: rows per block that are fetched ahead. KEEP: whether the
// weights stay in registers, too. LAST: whether L2 gives up the row's lines last.
extern "C" __global__ void __launch_bounds__(RESIDENT, 1)
pipelined(long long rows, long long columns, Accumulate epsilon, const Input* X,
          const Input* W, Output* Y) {
    extern __shared__ __align__(128) Input staged[];  // [STAGES][columns]
    __shared__ Barrier full[STAGES];                  // a stage's row has arrived
    __shared__ long long row_in[STAGES];              // which row that is
    __shared__ RowQueue queue;                        // thread 0's
    __shared__ Accumulate partials[2][WARP];
    const Input zero = narrow(0);

    const long long row_bytes = columns * sizeof(Input);
    const Share<VECTORS, true> share(columns);
    if (columns % WIDTH != 0 || columns > share.held()
        || STAGES * row_bytes > dynamic_shared_bytes()) {
        for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
            rmsnorm_any_row(columns, epsilon, X + row * columns, W, Y + row * columns);
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

    uint4 weights[VECTORS];
    if (KEEP) {
        for (int k = 0; k < VECTORS; ++k) weights[k] = share.load(W, k, zero);
    }

    const Accumulate inverse_columns = Accumulate(1) / columns;
    int stage = 0;
    unsigned phase = 0;
    int turn = 0;
    while (true) {
        // 1. Move the row from shared memory to registers.
        wait(&full[stage], phase);
        const long long row = row_in[stage];
        if (row >= rows) break;
        uint4 kept[VECTORS];
        Accumulate squares = 0;
        for (int k = 0; k < VECTORS; ++k) {
            kept[k] = share.load(staged + stage * columns, k, zero);
            const Vector vector = unpack(kept[k]);
            for (int i = 0; i < WIDTH; ++i) {
                squares += widen(vector.element[i]) * widen(vector.element[i]);
            }
            if (KEEP) keep_packed(weights[k]);
        }
        squares = reduce_block<Sum>(squares, partials[turn]);
        turn ^= 1;

        // 2. All threads have read the stage: fetch another row into it. It arrives meanwhile. The
        //    reduction was a barrier, except in a block of one warp.
        __syncwarp();
        if (threadIdx.x == 0) fetch(stage);

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

        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
    if (threadIdx.x == 0) queue.finish();
}
