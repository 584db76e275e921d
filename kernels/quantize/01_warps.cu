/*
title = "One warp per block of 128"
entry = "warps"
workload = "quantize"
rung = 1
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = [256]
tile = [8]
teaches = "a block of 128 is four numbers per lane: it is read once, and its scale needs no barrier"
*/

/*
A warp has a block of 128 columns: each lane keeps four numbers, the warp finds the largest by shuffles, and
each lane divides its own. Neighbouring lanes take neighbouring columns, so that accesses are coalesced. The
conversion saturates: a quotient that is rounded above 448 becomes 448.

Traffic: X is read once, Q and scales are written once, the least possible: 3 bytes per element in BF16, and
4 for 128 elements.

Expect 1.8 to 2.4 TB/s in BF16 on an H200, of 4.8, and 3.3 in FP32: a lane has four loads of 2 or 4 bytes in
flight, and stores single bytes. The divisions are some ten instructions each, below what memory takes.
*/

#include <cuda_fp8.h>

#include "row_kernels.cuh"

constexpr int BLOCK = 128, EACH = BLOCK / WARP;

extern "C" __global__ void __launch_bounds__(256)
warps(long long rows, long long columns, Accumulate least, const Input* X, float* scales,
      __nv_fp8_e4m3* Q) {
    const long long blocks = (columns + BLOCK - 1) / BLOCK;
    const long long i = blockIdx.x * 8LL + threadIdx.x / WARP;  // of the blocks of all rows
    if (i >= rows * blocks) return;
    const long long row = i / blocks, lane = threadIdx.x % WARP;
    const long long first = (i - row * blocks) * BLOCK + lane;  // column of the lane
    const Input* x = X + row * columns;

    Accumulate kept[EACH], largest = least;
    for (int k = 0; k < EACH; ++k) {
        const long long c = first + k * WARP;
        kept[k] = c < columns ? widen(x[c]) : Accumulate(0);
        largest = max(largest, max(kept[k], -kept[k]));
    }
    const Accumulate scale = reduce_warp<Maximum>(largest) / 448;
    if (lane == 0) scales[i] = static_cast<float>(scale);

    for (int k = 0; k < EACH; ++k) {
        const long long c = first + k * WARP;
        if (c < columns) Q[row * columns + c] = __nv_fp8_e4m3(kept[k] / scale);
    }
}
