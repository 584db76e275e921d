// A queue of rows for persistent blocks: the next free block takes the next row.
#pragma once

// The batches of rows that blocks have taken, and the blocks that have finished. Both are zero
// between launches.
__device__ unsigned long long batches_taken, blocks_finished;

// Used by one thread of each block, and kept in shared memory so that it needs no registers of the
// other threads.
struct RowQueue {
    long long batch;    // neighbouring rows taken at once
    long long next;     // the current rows: from `next` to before `end`
    long long end;
    long long pending;  // the first row of the next batch

    // A batch has at least `least_bytes`, so that short rows do not wait for the counter.
    __device__ void start(long long row_bytes, long long least_bytes) {
        batch = (least_bytes + row_bytes - 1) / row_bytes;
        next = blockIdx.x * batch;
        end = next + batch;
        pending = request();
    }

    // The next row. If it is past the matrix, so are all later ones.
    __device__ long long take() {
        if (next == end) {
            next = pending;
            end = next + batch;
            pending = request();
        }
        return next++;
    }

    // Call it when the block takes no more rows.
    __device__ void finish() const {
        __threadfence();
        if (atomicAdd(&blocks_finished, 1ull) == gridDim.x - 1) {
            batches_taken = 0;
            blocks_finished = 0;
        }
    }

    // Called one batch ahead, to hide the latency of the atomic.
    __device__ long long request() const {
        return (gridDim.x + atomicAdd(&batches_taken, 1ull)) * batch;
    }
};
