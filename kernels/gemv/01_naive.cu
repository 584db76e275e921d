/*
title = "One row per thread"
entry = "naive"
workload = "gemv"
rung = 1
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = [64]
tile = [64]
teaches = "the definition, and the cost of scattered rows"
*/

/*
y = A x, written as its definition: a thread multiplies one row of A by x.

Traffic: A should be read once, and only A matters: x and y are small. But the 32 threads of a warp
read 32 rows, n elements apart: each load touches 32 sectors and uses one element of each. The next
steps use the rest of a sector, if the L1 cache still holds it.

Parallelism: m threads in all. At m = 8192 that is 62 per multiprocessor of an H200, each with about
one sector of 32 bytes in flight: 2 KB, while the roof needs 23. Expect 0.3 TB/s in any precision.

Learned: FP32 is slightly faster than that, FP64 clearly faster and FP16 slower. The compiler issues
4 loads together, which is a whole sector in FP64 and a quarter of one in FP16. More rows help,
because they are the only parallelism.
*/

#include "types.cuh"

extern "C" __global__ void __launch_bounds__(64)
naive(long long m, long long n, const Input* A, const Input* X, Output* Y) {
    const long long row = blockIdx.x * 64LL + threadIdx.x;
    if (row >= m) return;

    Accumulate sum = 0;
    for (long long k = 0; k < n; ++k) sum += widen(A[row * n + k]) * widen(X[k]);
    Y[row] = narrow(sum);
}
