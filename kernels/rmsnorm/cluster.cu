/*
title = "A row spread over a cluster of blocks, the next one on its way"
entry = "cluster"
workload = "rmsnorm"
rung = 6
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = ["min(1024, 32 * ceildiv(columns * input_bytes, 512 * VECTORS * CLUSTER))"]
tile = [1]
blocks_per_tile = "CLUSTER"
blocks_per_sm = "1024 // min(1024, 32 * ceildiv(columns * input_bytes, 512 * VECTORS * CLUSTER))"
min_compute_capability = "9.0"
variants = [
    { CLUSTER = 1, VECTORS = 2 },
    { CLUSTER = 1, VECTORS = 4 },
    { CLUSTER = 2, VECTORS = 2 },
    { CLUSTER = 2, VECTORS = 4 },
    { CLUSTER = 4, VECTORS = 2 },
    { CLUSTER = 4, VECTORS = 4 },
    { CLUSTER = 8, VECTORS = 2 },
    { CLUSTER = 8, VECTORS = 4 },
]
teaches = "blocks of a cluster exchange their sums through distributed shared memory"
*/

/*
Each row is spread over the CLUSTER blocks of a thread block cluster, and persistent clusters load
the next row while they finish one.

In `priority`, a row of 128 KB needs half the registers of a multiprocessor and 1,024 threads: only
one block is resident, and nothing is loaded while it adds and stores. A block of a cluster has only
a part of the row. That leaves registers for the same part of the next row, which is loaded before
the block waits for anything.

The price is one exchange per row. Each block writes its sum of squares into the shared memory of
every block of its cluster; a barrier of the cluster makes all sums visible.

Limits: rows that start at multiples of 16 bytes and fit into the registers of the cluster; others
use rmsnorm_any_row.

Predicted: 4.2 TB/s for FP32 rows of 32,768, 5 % above `priority`.

Learned from a first version, with one cluster per row and no load ahead: starting a cluster costs
much more than starting a block. It was slower than `priority` up to 32,768 columns.
*/

#include "cluster.cuh"
#include "rmsnorm.cuh"

extern "C" __global__ void __cluster_dims__(CLUSTER) __launch_bounds__(1024, 1)
cluster(long long rows, long long columns, Accumulate epsilon, const Input* X,
        const Input* W, Output* Y) {
    __shared__ Accumulate partials[2][WARP];
    __shared__ Accumulate sums[2][CLUSTER];  // one from each block of the cluster
    const unsigned rank = rank_in_cluster();
    const long long stride = gridDim.x / CLUSTER;
    long long row = blockIdx.x / CLUSTER;
    if (columns % WIDTH != 0 || columns > CLUSTER * Share<VECTORS, true>::held()) {
        for (; rank == 0 && row < rows; row += stride) {
            rmsnorm_any_row(columns, epsilon, X + row * columns, W, Y + row * columns);
        }
        return;
    }
    arrive_in_cluster();  // a block must run before others may write into its shared memory

    // This block's columns are blockDim.x * VECTORS vectors, fewer at the row's end.
    const long long first = min(columns, rank * Share<VECTORS, true>::held());
    const Share<VECTORS, true> share(columns - first);
    const Input zero = narrow(0);
    uint4 kept[VECTORS], next[VECTORS];
    for (int k = 0; k < VECTORS; ++k) {
        kept[k] = share.load_once_kept(X + row * columns + first, k, zero);
    }
    wait_for_cluster();
    for (int turn = 0; row < rows; row += stride, turn ^= 1) {
        // 1. Start to load the next row; the last one loads its own again.
        const long long after = row + stride < rows ? row + stride : row;
        for (int k = 0; k < VECTORS; ++k) {
            next[k] = share.load_once_kept(X + after * columns + first, k, zero);
        }

        // 2. Add the squares of this block, then of the cluster. While some blocks still read one of
        //    the two places, others may write the next row's sum to the other place.
        Accumulate squares = 0;
        for (int k = 0; k < VECTORS; ++k) {
            const Vector vector = unpack(kept[k]);
            for (int i = 0; i < WIDTH; ++i) {
                squares += widen(vector.element[i]) * widen(vector.element[i]);
            }
        }
        squares = reduce_block<Sum>(squares, partials[turn]);
        if (threadIdx.x < CLUSTER) write_to_block(&sums[turn][rank], threadIdx.x, squares);
        arrive_in_cluster();
        wait_for_cluster();
        squares = 0;
        for (int block = 0; block < CLUSTER; ++block) squares += sums[turn][block];

        // 3. Write the results.
        const Accumulate scale = inverse_root(squares / columns + epsilon);
        for (int k = 0; k < VECTORS; ++k) {
            Vector vector = unpack(kept[k]);
            const Vector weight = unpack(share.load_kept(W + first, k, zero));
            for (int i = 0; i < WIDTH; ++i) {
                const Accumulate normed = widen(vector.element[i]) * scale;
                vector.element[i] = narrow(normed * widen(weight.element[i]));
            }
            share.store(Y + row * columns + first, k, vector);
            kept[k] = next[k];
        }
    }
}
