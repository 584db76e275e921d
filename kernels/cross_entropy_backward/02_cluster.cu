/*
title = "The row kept in registers of a cluster of blocks"
entry = "cluster"
workload = "cross_entropy_backward"
rung = 2
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = ["min(1024, 32 * ceildiv(columns * input_bytes, 2048 * CLUSTER))"]
tile = [1]
blocks_per_tile = "CLUSTER"
cluster = ["CLUSTER"]
min_compute_capability = "9.0"
variants = [{ CLUSTER = 1 }, { CLUSTER = 4 }, { CLUSTER = 8 }]
teaches = "a row that no multiprocessor can hold stays on the chip if several share it"
*/

/*
Each row is read once: its vectors of 16 bytes stay in registers, 4 of each thread, from the sum until the
gradients are written. A row of 128,256 in BF16 has 256 KB, as much as all registers of a multiprocessor.
Here 8 blocks of 512 threads, a cluster, have 32 KB of it each, and two blocks fit on a multiprocessor: one
loads while the other adds or stores. The price is one exchange per row, of maxima and sums.

Each exponential is computed twice: kept ones would take twice the registers. Loads are predicated and
evict-last, stores evict-first, so that L2 writes gradients first (see the `priority` of softmax).

Rows begin anywhere: a thread each takes the few columns before the first whole vector and after the last.

Traffic: each row is read once and written once, the least possible. Of rows above CLUSTER * 64 KB, such as
128,256 in FP64, a thread reads what it cannot keep again.

Occupancy: 64 registers allow 1,024 threads, with 64 KB of loads in flight per multiprocessor. At the roof
BF16 needs half of the special-function unit, and two thirds of the instructions that can be issued.

Expect 3.3 to 3.8 TB/s on an H200, of 4.8, for 8192 rows of 128,256 in BF16, with CLUSTER = 8. In FP32 a block
of 1,024 threads is alone on its multiprocessor, and loads nothing while it adds: expect 3.0 to 3.5. Expect 3.8
to 4.1 for rows of 4,096, with CLUSTER = 1.
*/

#include "cluster.cuh"
#include "online.cuh"

constexpr int VECTORS = 4;  // that a thread keeps

extern "C" __global__ void __launch_bounds__(1024, 1)
cluster(long long rows, long long columns, Accumulate scale, const Input* X, const int* targets, Output* DX) {
    __shared__ Accumulate maxima[WARP], sums[WARP];
    __shared__ Accumulate maximum_of[CLUSTER], sum_of[CLUSTER];  // of each block
    // A block must run before others may write into its shared memory.
    if (CLUSTER > 1) arrive_in_cluster();

    const long long row = blockIdx.x / CLUSTER;
    const unsigned rank = blockIdx.x % CLUSTER;
    const long long threads = CLUSTER * blockDim.x, thread = rank * blockDim.x + threadIdx.x;
    const Input* x = X + row * columns;
    Output* dx = DX + row * columns;
    const int target = targets[row];
    const Vectors vectors(row, columns);
    const auto load = [&](long long v) {
        return load_evict_last(x + vectors.column(v), v < vectors.count, filled(narrow(minus_infinity())));
    };

    // 1. Each thread: its vectors, which it keeps, others if they are too many, and one column outside of
    //    vectors, if there is one for it.
    uint4 kept[VECTORS];
    for (int k = 0; k < VECTORS; ++k) kept[k] = load(thread + k * threads);
    Online own;
    own.add(kept);
    for (long long v = thread + VECTORS * threads; v < vectors.count; v += threads) {
        const uint4 one[] = {load(v)};
        own.add(one);
    }
    const long long edge = vectors.edge(thread);
    if (edge < columns) own.add(widen(x[edge]));

    // 2. The block, then the cluster.
    own.combine(maxima, sums);
    if (CLUSTER > 1) {
        wait_for_cluster();
        if (threadIdx.x < CLUSTER) {
            write_to_block(&maximum_of[rank], threadIdx.x, own.largest);
            write_to_block(&sum_of[rank], threadIdx.x, own.sum);
        }
        arrive_in_cluster();
        wait_for_cluster();
        own.combine_blocks(maximum_of, sum_of);
    }

    // 3. Write the gradients.
    const Accumulate share = scale / own.sum;
    const auto gradient = [&](Input number, bool chosen) {
        return narrow(exponential(widen(number) - own.largest) * share - (chosen ? scale : 0));
    };
    const auto store = [&](long long v, const uint4& packed) {
        if (v >= vectors.count) return;
        const long long first = vectors.column(v);
        const int place = target >= first && target < first + WIDTH ? static_cast<int>(target - first) : -1;
        Vector vector = unpack(packed);
        for (int i = 0; i < WIDTH; ++i) vector.element[i] = gradient(vector.element[i], i == place);
        __stcs(reinterpret_cast<uint4*>(dx + first), pack(vector));
    };
    for (int k = 0; k < VECTORS; ++k) {
        keep_packed(kept[k]);  // not widened since step 1
        store(thread + k * threads, kept[k]);
    }
    for (long long v = thread + VECTORS * threads; v < vectors.count; v += threads) store(v, load(v));
    if (edge < columns) dx[edge] = gradient(x[edge], edge == target);
}
