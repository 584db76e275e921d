/*
title = "One pixel per thread, nine loads"
entry = "naive"
workload = "blur"
rung = 1
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = [32, 8]
tile = [8, 32]
batched = true
teaches = "neighbouring threads share most of their inputs, and the L1 cache finds them"
*/

/*
y = the mean of 3 x 3 pixels with the weights (1 2 1; 2 4 2; 1 2 1) / 16. Outside the image the
nearest pixel counts, so each coordinate is limited to the image. blockIdx.z is the image.

Traffic: a thread loads nine pixels, eight of which its neighbours load too. A block of 32 x 8 needs
34 x 10 pixels, so 1.33 loads per pixel leave L1; most of the others are rows of the blocks above
and below, which are in L2. Device memory moves each pixel once in and once out.

What limits it is the number of instructions: nine loads with their limited coordinates in 64 bits
are 120 instructions for each pixel. A multiprocessor starts 4 x 32 of them per clock: at 132
multiprocessors and 1.7 GHz 240 G pixels/s, or 1.9 TB/s in FP32 and 1.0 in FP16, reads and writes
together. The loads alone take L1 9 to 13 clocks per 32 pixels, less than half of that time.
*/

#include "blur.cuh"

extern "C" __global__ void __launch_bounds__(256)
naive(long long batch, long long rows, long long columns, const Input* X, Output* Y) {
    const long long row = blockIdx.y * 8LL + threadIdx.y;
    const long long column = blockIdx.x * 32LL + threadIdx.x;
    if (row >= rows || column >= columns) return;
    const Input* image = X + blockIdx.z * rows * columns;

    Accumulate sum = 0;
    for (int i = -1; i <= 1; ++i) {
        const Input* line = image + inside(row + i, rows) * columns;
        const Accumulate along =
            smooth(widen(line[inside(column - 1, columns)]), widen(line[column]),
                   widen(line[inside(column + 1, columns)]));
        sum += i == 0 ? 2 * along : along;
    }
    Y[(blockIdx.z * rows + row) * columns + column] = narrow(sum * Accumulate(0.0625));
}
