/*
title = "One element per thread, uncoalesced loads"
entry = "naive"
rung = 1
precisions = ["fp32", "fp64"]
layouts = ["nn", "nt", "tn", "tt"]
block = [32, 32]
tile = [32, 32]
batched = true
teaches = "what it costs when neighbouring threads read distant addresses"
*/

/*
The definition of a matrix product, written down: thread (x, y) computes one element of C as the
inner product of a row of A and a column of B.

The 32 threads of a warp execute each load together, and the memory system serves it in sectors of
32 bytes. Here x, which differs between the threads of a warp, picks the row. With A as stored
(layouts nn and nt), the threads read A[row][k] K elements apart: 32 sectors for 128 useful bytes
in FP32, where 4 would do. B[k][column] is one address for the whole warp. C, too, is written one
sector per thread.

Occupancy is no help. The block's 1024 threads at no more than 32 registers, which is what sm_80
and sm_90 need for layout nn, fill all 2048 places of a multiprocessor, and all of them queue for
the L1 cache, which has 32 sectors to find for each load of A. Expect less than 1 % of the FP32
peak: about 0.5 TFLOP/s on an H200.

Where A is stored transposed (tn and tt) the same mapping happens to suit it. Which thread should
take which element is a question of how the operand lies in memory: the next file asks it.
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
