/*
title = "One block per row, three passes"
entry = "block"
workload = "cross_entropy_backward"
rung = 1
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = [256]
tile = [1]
teaches = "the gradient of cross entropy is softmax, less one at the target"
*/

/*
The definition, with a block for each row: the largest number, the sum of the exponentials relative to it,
then each exponential's share of the sum, less one at the target.

Neighbouring threads take neighbouring columns, so that accesses are coalesced.

Traffic: the row is read three times and written once. A row of 128,256 in BF16 has 256 KB: of the blocks of
a whole chip, eight on each multiprocessor, such rows are 270 MB. They do not fit in L2 together, so every
pass reads from memory: four passes for the two that must be, half of the roof at most.

Expect 1.0 to 1.4 TB/s of operands on an H200, of 4.8, for such rows: each thread loads one element at a time,
and computes each exponential twice. Of rows of 4,096 expect 1.5 to 2: the second and third pass come from L2.
*/

#include "softmax.cuh"

extern "C" __global__ void __launch_bounds__(256)
block(long long rows, long long columns, Accumulate scale, const Input* X, const int* targets, Output* DX) {
    __shared__ Accumulate maxima[WARP], sums[WARP];
    const Input* x = X + blockIdx.x * columns;
    Output* dx = DX + blockIdx.x * columns;

    Accumulate largest = Maximum::nothing();
    for (long long c = threadIdx.x; c < columns; c += 256) largest = max(largest, widen(x[c]));
    largest = reduce_block<Maximum>(largest, maxima);

    Accumulate sum = 0;
    for (long long c = threadIdx.x; c < columns; c += 256) sum += exponential(widen(x[c]) - largest);
    const Accumulate share = 1 / reduce_block<Sum>(sum, sums);

    const int target = targets[blockIdx.x];
    for (long long c = threadIdx.x; c < columns; c += 256) {
        const Accumulate probability = exponential(widen(x[c]) - largest) * share;
        dx[c] = narrow(scale * (probability - (c == target)));
    }
}
