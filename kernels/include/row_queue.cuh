// Rows handed out to blocks that stay: whichever block is free first takes the next.
#pragma once

// How many batches of rows have been handed out, and how many blocks have finished. Both are zero
// between launches.
__device__ unsigned long long batches_taken, blocks_finished;

// Used by one thread of each block, and kept in shared memory to spare the others' registers.
struct RowQueue {
    long long batch;    // rows taken at once: neighbours
    long long next;     // the rows at hand
    long long end;
    long long pending;  // the batch after these

    // A batch is at least `least_bytes`, so that short rows do not wait for the counter.
    __device__ void start(long long row_bytes, long long least_bytes) {
        batch = (least_bytes + row_bytes - 1) / row_bytes;
        next = blockIdx.x * batch;
        end = next + batch;
        pending = request();
    }

    // The next row. It may lie past the matrix, as all that follow then do.
    __device__ long long take() {
        if (next == end) {
            next = pending;
            end = next + batch;
            pending = request();
        }
        return next++;
    }

    // To call when the block takes no more.
    __device__ void finish() const {
        __threadfence();
        if (atomicAdd(&blocks_finished, 1ull) == gridDim.x - 1) {
            batches_taken = 0;
            blocks_finished = 0;
        }
    }

    // Asked for one batch early: the answer takes about a microsecond.
    __device__ long long request() const {
        return (gridDim.x + atomicAdd(&batches_taken, 1ull)) * batch;
    }
};
