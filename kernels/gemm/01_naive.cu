/*
title = "One element per thread, uncoalesced loads"
entry = "naive"
rung = 1
precisions = ["fp32", "fp64"]
layouts = ["nn", "nt", "tn", "tt"]
block = [32, 32]
tile = [32, 32]
batched = true
teaches = "the cost of neighbouring threads that read distant addresses"
*/

/*
The definition of a matrix product: thread (x, y) computes one element of C as the inner product of
a row of A and a column of B.

The 32 threads of a warp execute each load together, and the memory system serves it in sectors of
32 bytes. Here x, which differs between the threads of a warp, selects the row. If A is not
transposed (layouts nn and nt), the threads read A[row][k] K elements apart: 32 sectors for 128
useful bytes in FP32, although 4 are enough. B[k][column] is one address for the whole warp. Each
thread also writes its element of C to a separate sector.

Occupancy does not help. The block's 1024 threads use at most 32 registers on sm_80 and sm_90 in
layout nn, so two blocks fill the 2048 threads of a multiprocessor. All of them wait for the L1
cache, which looks up 32 sectors for each load of A. Expect less than 1 % of the FP32 peak: about
0.5 TFLOP/s on an H200.

If A is stored transposed (tn and tt), the same mapping is coalesced. The best mapping of threads to
elements depends on the operand's layout; the next rung changes it.

The numbers of the files are the order of reading; docs/kernels.md has the results. The keys of the table
above are in CONTRIBUTING.md.
*/

#include "gemm.cuh"

extern "C" __global__ void __launch_bounds__(32 * 32)
naive(int M, int N, int K, Accumulate alpha, const Input* A, const Input* B,
      Accumulate beta, Output* C) {
    select_batch(A, B, C, M, N, K);

    // A warp is 32 consecutive values of threadIdx.x. Here they are 32 rows of one column.
    const int row = blockIdx.y * 32 + threadIdx.x;
    const int column = blockIdx.x * 32 + threadIdx.y;
    if (row >= M || column >= N) return;

    Accumulate sum = 0;
    for (int k = 0; k < K; ++k) {
        sum += widen(element_a(A, row, k, M, K)) * widen(element_b(B, k, column, K, N));
    }

    store(C, row, column, N, sum, alpha, beta);
}
