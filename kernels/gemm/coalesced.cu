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
`naive` with one change: x, which differs between the threads of a warp, now picks the column, and
y, which does not, the row.

With B as stored (layouts nn and tn), a warp reads B[k][column...column + 31]: 128 consecutive bytes
in FP32, served as 4 full sectors. Such a load is called coalesced. A[row][k] is one address for
the whole warp, read once and broadcast, and C is written in full sectors. The traffic that
`naive` wasted is gone, at no cost in registers or occupancy.

A load still takes hundreds of clocks to answer, so that many must be under way at once. Left to
itself the compiler stays at 32 registers, which lets two blocks of 1024 threads share a
multiprocessor, and has room for two or three steps' loads at a time: 1.8 TFLOP/s at 4096 on an
H200. The 1 in __launch_bounds__(threads, 1) says that one block is enough. With up to 64 registers the
loads of 16 steps go out together: half the occupancy, and 5.2 TFLOP/s. (`naive` gains nothing by
this: there the L1 cache is busy already.)

What remains is the number of loads. Each multiply-add asks for two, and a multiprocessor starts
one warp-wide load per clock where it could start four warp-wide FP32 multiply-adds: at most one
eighth of the FP32 peak, 8.4 TFLOP/s of 67, whatever the cache hit rate. To do better, an element
must be used more than once per load: see `tiled`.

Where B is stored transposed (nt and tt), neighbouring columns lie K elements apart and the loads
of B fall into 32 sectors again.
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
