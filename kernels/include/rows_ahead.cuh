// Rows that the copy engine loads ahead of persistent blocks: the next free block takes the next row.
// Compute capability 9.0.
//
// Macros: STAGES, the rows of a block that are in shared memory or on the way. LAST: whether L2 evicts their
// lines last.
#pragma once

#include "bulk_copy.cuh"
#include "l2_priority.cuh"
#include "types.cuh"

// The batches of rows that blocks have taken beside their first ones, and the blocks that have finished. Both
// are zero between launches.
__device__ unsigned batches_taken, blocks_finished;

// In shared memory, so that it needs no registers of other threads than the first.
struct Ahead {
    Barrier full[STAGES];      // a stage's row has arrived
    long long row_in[STAGES];  // which row that is
    long long batch;           // neighbouring rows taken at once
    long long next, end;       // the current rows: from `next` to before `end`
};

// Rows begin at multiples of 16 bytes.
struct RowsAhead {
    Ahead& ahead;
    Input* staged;  // [STAGES][columns], in shared memory
    const Input* X;
    long long rows, columns;
    unsigned pending = 0;  // the batch after this one; in a register, so that only its use waits for it
    int stage = 0;
    unsigned phase = 0;

    // A batch has at least `least_bytes`, so that short rows do not wait for the counter.
    __device__ RowsAhead(Ahead& ahead, Input* staged, const Input* X, long long rows, long long columns,
                         long long least_bytes)
        : ahead(ahead), staged(staged), X(X), rows(rows), columns(columns) {
        if (threadIdx.x == 0) {
            const long long bytes = columns * sizeof(Input);
            ahead.batch = (least_bytes + bytes - 1) / bytes;
            ahead.next = blockIdx.x * ahead.batch;
            ahead.end = ahead.next + ahead.batch;
            request();
            for (int s = 0; s < STAGES; ++s) initialize(&ahead.full[s]);
            for (int s = 0; s < STAGES; ++s) fetch(s);
        }
        __syncthreads();
    }

    // Waits for the next row and returns its number. If it is past the matrix, so are all later ones.
    __device__ long long wait_for_row() const {
        wait(&ahead.full[stage], phase);
        return ahead.row_in[stage];
    }

    // The elements of that row.
    __device__ const Input* values() const { return staged + stage * columns; }

    // After a barrier: all threads have read the row, and another one is copied in its place.
    __device__ void taken_by_all() {
        __syncwarp();  // a block of one warp has no other barrier
        if (threadIdx.x == 0) fetch(stage);
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }

    __device__ void finish() const {
        if (threadIdx.x != 0) return;
        __threadfence();
        if (atomicAdd(&blocks_finished, 1u) == gridDim.x - 1) {
            batches_taken = 0;
            blocks_finished = 0;
        }
    }

private:
    // One batch ahead, to hide the latency of the atomic.
    __device__ void request() { pending = atomicAdd(&batches_taken, 1u); }

    __device__ void fetch(int s) {
        if (ahead.next == ahead.end) {
            ahead.next = (gridDim.x + static_cast<long long>(pending)) * ahead.batch;
            ahead.end = ahead.next + ahead.batch;
            request();
        }
        const long long row = ahead.next++;
        const unsigned bytes = columns * sizeof(Input);
        ahead.row_in[s] = row;
        announce(&ahead.full[s], row < rows ? bytes : 0);
        if (row >= rows) return;
        if (LAST) {
            copy_bulk(staged + s * columns, X + row * columns, bytes, &ahead.full[s], evict_last());
        } else {
            copy_bulk(staged + s * columns, X + row * columns, bytes, &ahead.full[s]);
        }
    }
};
