/*
title = "A row spread over a cluster of blocks"
entry = "cluster"
workload = "rmsnorm"
rung = 6
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = ["min(1024, 32 * ceildiv(columns * input_bytes, 512 * VECTORS * CLUSTER))"]
tile = [1]
blocks_per_tile = "CLUSTER"
min_compute_capability = "9.0"
variants = [
    { CLUSTER = 2, VECTORS = 4 },
    { CLUSTER = 2, VECTORS = 8 },
    { CLUSTER = 4, VECTORS = 4 },
    { CLUSTER = 4, VECTORS = 8 },
]
teaches = "blocks of a cluster exchange their sums through distributed shared memory"
*/

/*
`priority` with each row spread over the CLUSTER blocks of a thread block cluster.

A block holds a row of at most 32,768 FP32 columns in its registers, and then it is alone on its
multiprocessor: nothing is loaded while it adds and stores. A block of a cluster has only a part of
the row. Longer rows fit, and several blocks, of different rows, are resident on each multiprocessor.

The price is one exchange per row. Each block writes its sum of squares into the shared memory of
every block of its cluster; a barrier of the cluster makes all sums visible.

Limits: rows that start at multiples of 16 bytes and fit into the registers of the cluster; others
use rmsnorm_any_row.

Predicted: 4.25 TB/s for FP32 rows of 32,768, the rate of `priority` for rows of 8,192.

Learned:
- The prediction was wrong: starting a cluster costs much more than starting a block. Up to 32,768
  columns the kernel is slower than `priority`. For rows that one block cannot hold it is three times
  as fast, because it reads them once.
- Persistent clusters that load the next row's part into registers before they exchange sums are no
  faster at 32,768, and much slower for short rows.
*/

#include "cluster.cuh"
#include "rmsnorm.cuh"

extern "C" __global__ void __cluster_dims__(CLUSTER) __launch_bounds__(1024, 1)
cluster(long long rows, long long columns, Accumulate epsilon, const Input* X,
        const Input* W, Output* Y) {
    __shared__ Accumulate partials[WARP];
    __shared__ Accumulate sums[CLUSTER];  // one from each block of the cluster
    const unsigned rank = rank_in_cluster();
    const long long row = blockIdx.x / CLUSTER;
    const Input* x = X + row * columns;
    Output* y = Y + row * columns;
    if (columns % WIDTH != 0 || columns > CLUSTER * Share<VECTORS, true>::held()) {
        if (rank == 0) rmsnorm_any_row(columns, epsilon, x, W, y);
        return;
    }
    arrive_in_cluster();  // a block must run before others may write into its shared memory

    // 1. Read this block's columns. They are blockDim.x * VECTORS vectors, fewer at the row's end.
    const long long first = min(columns, rank * Share<VECTORS, true>::held());
    const Share<VECTORS, true> share(columns - first);
    const Input zero = narrow(0);
    uint4 kept[VECTORS];
    for (int k = 0; k < VECTORS; ++k) kept[k] = share.load_kept(x + first, k, zero);
    Accumulate squares = 0;
    for (int k = 0; k < VECTORS; ++k) {
        const Vector vector = unpack(kept[k]);
        for (int i = 0; i < WIDTH; ++i) {
            squares += widen(vector.element[i]) * widen(vector.element[i]);
        }
    }
    squares = reduce_block<Sum>(squares, partials);

    // 2. Exchange the sums.
    wait_for_cluster();
    if (threadIdx.x < CLUSTER) write_to_block(&sums[rank], threadIdx.x, squares);
    arrive_in_cluster();
    wait_for_cluster();
    squares = 0;
    for (int block = 0; block < CLUSTER; ++block) squares += sums[block];

    // 3. Write them.
    const Accumulate scale = inverse_root(squares / columns + epsilon);
    for (int k = 0; k < VECTORS; ++k) {
        Vector vector = unpack(kept[k]);
        const Vector weight = unpack(share.load_kept(W + first, k, zero));
        for (int i = 0; i < WIDTH; ++i) {
            vector.element[i] = narrow(widen(vector.element[i]) * scale * widen(weight.element[i]));
        }
        share.store(y + first, k, vector);
    }
}
