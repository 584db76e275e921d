// Rows of X and DY that the copy engine loads ahead of the gradients of a norm. Compute capability 9.0.
//
// Macro: STAGES, the rows of each that are in shared memory.
#pragma once

#include "bulk_copy.cuh"
#include "norm_gradients.cuh"

// The next STAGES rows are in shared memory, or on the way; rows begin at multiples of 16 bytes.
struct AheadInShared {
    const Share<VECTORS, true>& share;
    const Norm& norm;
    Input* staged;  // [STAGES][2][columns]
    Barrier* full;  // [STAGES]: both rows have arrived
    int stage = 0;
    unsigned phase = 0;

    __device__ AheadInShared(const Share<VECTORS, true>& share, const Norm& norm, Input* staged, Barrier* full)
        : share(share), norm(norm), staged(staged), full(full) {
        if (threadIdx.x == 0) {
            for (int s = 0; s < STAGES; ++s) initialize(&full[s]);
            for (int s = 0; s < STAGES; ++s) fetch(s, blockIdx.x + s * static_cast<long long>(gridDim.x));
        }
        __syncthreads();
    }

    __device__ Input* rows_in(int s) const { return staged + s * 2 * norm.columns; }

    // By one thread.
    __device__ void fetch(int s, long long row) const {
        if (row >= norm.rows) return;
        const unsigned bytes = norm.columns * sizeof(Input);
        announce(&full[s], 2 * bytes);
        copy_bulk(rows_in(s), norm.X + row * norm.columns, bytes, &full[s]);
        copy_bulk(rows_in(s) + norm.columns, norm.DY + row * norm.columns, bytes, &full[s]);
    }

    __device__ void take(long long, uint4 (&xs)[VECTORS], uint4 (&dys)[VECTORS]) {
        wait(&full[stage], phase);
        for (int k = 0; k < VECTORS; ++k) {
            xs[k] = share.load(rows_in(stage), k, narrow(0));
            dys[k] = share.load(rows_in(stage) + norm.columns, k, narrow(0));
        }
    }

    // The stage has room for another row.
    __device__ void taken_by_all(long long row) {
        __syncwarp();  // a block of one warp has no other barrier
        if (threadIdx.x == 0) fetch(stage, row + STAGES * static_cast<long long>(gridDim.x));
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
};
