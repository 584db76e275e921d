/*
title = "One element per thread, coalesced loads"
entry = "coalesced"
rung = 2
precisions = ["fp32", "fp64"]
layouts = ["nn", "nt", "tn", "tt"]
block = [32, 32]
tile = [32, 32]
batched = true
teaches = "the same work with neighbouring threads on neighbouring addresses"
*/

/*
`naive` with one change: x, which differs between the threads of a warp, now selects the column, and
y, which is the same for the whole warp, selects the row.

If B is not transposed (layouts nn and tn), a warp reads B[k][column...column + 31]: 128 consecutive
bytes in FP32, served as 4 full sectors. Such a load is called coalesced. A[row][k] is one address
for the whole warp, read once and broadcast, and C is written in full sectors. The wasted traffic of
`naive` is gone, at no cost in registers or occupancy.

A load still takes hundreds of clocks, so many must be in flight at once. By default the compiler
uses 32 registers, so that two blocks of 1024 threads share a multiprocessor, and issues the loads
of only two or three steps at a time. The 1 in __launch_bounds__(threads, 1) allows one block per
multiprocessor. With up to 64 registers the loads of 16 steps are in flight together. This is much
faster, at half the occupancy. (`naive` gains nothing from it: its L1 cache is busy already.)

What limits it now is the number of loads. Each multiply-add needs two. A multiprocessor starts one
warp-wide load per clock, but four warp-wide FP32 multiply-adds: at most one eighth of the FP32
peak, 8.4 TFLOP/s of 67, at any cache hit rate. To be faster, a kernel must use an element more than
once per load: see `tiled`.

If B is stored transposed (nt and tt), neighbouring columns are K elements apart and each load of B
touches 32 sectors again.
*/

#include "gemm.cuh"

extern "C" __global__ void __launch_bounds__(32 * 32, 1)
coalesced(int M, int N, int K, Accumulate alpha, const Input* A, const Input* B,
      Accumulate beta, Output* C) {
    select_batch(A, B, C, M, N, K);

    // A warp is 32 consecutive values of threadIdx.x. Here they are 32 columns of one row.
    const int row = blockIdx.y * 32 + threadIdx.y;
    const int column = blockIdx.x * 32 + threadIdx.x;
    if (row >= M || column >= N) return;

    Accumulate sum = 0;
    for (int k = 0; k < K; ++k) {
        sum += widen(element_a(A, row, k, M, K)) * widen(element_b(B, k, column, K, N));
    }

    store(C, row, column, N, sum, alpha, beta);
}
