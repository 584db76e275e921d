/*
title = "One block per row, two passes"
entry = "block"
workload = "cross_entropy"
rung = 1
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = [256]
tile = [1]
teaches = "the loss needs the sum of softmax, and not its results"
*/

/*
The definition, with a block for each row: the largest number, then the sum of the exponentials
relative to it. The loss is the logarithm of that sum, less the target's own difference from the
largest number: both are small, so that nothing is lost where all numbers of a row are large.

Neighbouring threads take neighbouring columns, so that loads are coalesced.

Traffic: the row is read twice, and nothing is written but one number. A row of 128,256 in BF16 has
256 KB: of the blocks of a whole chip, eight on each multiprocessor, such rows are 270 MB. They do not
fit in L2 together, so the second pass reads from memory again.

Expect 2 TB/s of operands on an H200, of 4.8, for rows that fit in L2 together, and less for others:
they are read twice, and each thread loads one element at a time.
*/

#include "softmax.cuh"

extern "C" __global__ void __launch_bounds__(256)
block(long long rows, long long columns, const Input* X, const int* targets, Output* Y) {
    __shared__ Accumulate maxima[WARP], sums[WARP];
    const Input* x = X + blockIdx.x * columns;

    Accumulate largest = Maximum::nothing();
    for (long long c = threadIdx.x; c < columns; c += 256) largest = max(largest, widen(x[c]));
    largest = reduce_block<Maximum>(largest, maxima);

    Accumulate sum = 0;
    for (long long c = threadIdx.x; c < columns; c += 256) sum += exponential(widen(x[c]) - largest);
    sum = reduce_block<Sum>(sum, sums);

    if (threadIdx.x == 0) Y[blockIdx.x] = narrow(log(sum) - (widen(x[targets[blockIdx.x]]) - largest));
}
