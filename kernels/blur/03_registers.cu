/*
title = "Three rows in registers, 16 bytes per access"
entry = "registers"
workload = "blur"
rung = 3
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = [32, 4]
tile = ["4 * ROWS", "32 * 16 // input_bytes"]
batched = true
variants = [{ ROWS = 8 }, { ROWS = 16 }, { ROWS = 32 }]
teaches = "the weights are a product: sum along the row once, and use each sum three times"
*/

/*
(1 2 1; 2 4 2; 1 2 1) is (1 2 1) down times (1 2 1) along. A thread has the pixels of one 16-byte
vector in ROWS neighbouring rows and walks down: it loads the next row, sums along it, and keeps the
sums of the last three rows in registers. Each sum along a row is used for three results, and no
pixel is loaded again except at the ends of the ROWS rows.

Loads: one of 16 bytes, and one pixel to the left and to the right, which L1 has because the
neighbouring threads load them. In FP32 3 loads for 4 pixels, in FP16 3 for 8.

Traffic: (ROWS + 2) / ROWS reads per pixel; with ROWS = 16 an eighth of them are reads of rows that
another warp reads too, mostly from L2. Instructions: about 15 per pixel in FP32 with 4 pixels that
share coordinates, 10 in FP16.

In flight: loads do not depend on stores, so the compiler loads the rows of four steps before it
stores the first. 95 registers per thread allow five blocks, 640 threads, with 41 KB of vectors per
multiprocessor; 20 to 30 KB hide the latency of device memory. Expect 3.8 TB/s of 4.1 in FP32 and
FP16: the reads of the rows between two threads are the rest.

Rows start at multiples of 16 bytes only if columns do. Otherwise the same walk goes pixel by pixel.
*/

#include "blur.cuh"
#include "vector.cuh"

// WIDTH sums along one row, from `column` on.
struct Sums {
    Accumulate of[WIDTH];
};

// ALIGNED: all WIDTH pixels are inside, and their address is a multiple of 16 bytes.
template <bool ALIGNED>
__device__ inline Sums along(const Input* line, long long column, long long columns) {
    Accumulate pixel[WIDTH + 2];
    pixel[0] = widen(__ldg(line + inside(column - 1, columns)));
    pixel[WIDTH + 1] = widen(__ldg(line + inside(column + WIDTH, columns)));
    if constexpr (ALIGNED) {
        const Vector<WIDTH> vector = load(line + column);
        for (int i = 0; i < WIDTH; ++i) pixel[i + 1] = widen(vector.element[i]);
    } else {
        for (int i = 0; i < WIDTH; ++i) {
            pixel[i + 1] = widen(__ldg(line + inside(column + i, columns)));
        }
    }
    Sums sums;
    for (int i = 0; i < WIDTH; ++i) sums.of[i] = smooth(pixel[i], pixel[i + 1], pixel[i + 2]);
    return sums;
}

template <bool ALIGNED>
__device__ inline void walk(long long rows, long long columns, long long row, long long column,
                            const Input* image, Output* result) {
    const long long end = row + ROWS < rows ? row + ROWS : rows;
    Sums above = along<ALIGNED>(image + inside(row - 1, rows) * columns, column, columns);
    Sums here = along<ALIGNED>(image + row * columns, column, columns);
#pragma unroll 4
    for (; row < end; ++row) {
        const Sums below = along<ALIGNED>(image + inside(row + 1, rows) * columns, column, columns);
        Vector<WIDTH> made;
        for (int i = 0; i < WIDTH; ++i) {
            const Accumulate sum = smooth(above.of[i], here.of[i], below.of[i]);
            made.element[i] = narrow(sum * Accumulate(0.0625));
        }
        Output* to = result + row * columns + column;
        if constexpr (ALIGNED) {
            store_streaming(to, made);
        } else {
            for (int i = 0; i < WIDTH && column + i < columns; ++i) to[i] = made.element[i];
        }
        above = here;
        here = below;
    }
}

extern "C" __global__ void __launch_bounds__(128, 1)
registers(long long batch, long long rows, long long columns, const Input* X, Output* Y) {
    const long long row = (blockIdx.y * 4LL + threadIdx.y) * ROWS;
    const long long column = (blockIdx.x * 32LL + threadIdx.x) * WIDTH;
    if (row >= rows || column >= columns) return;
    const Input* image = X + blockIdx.z * rows * columns;
    Output* result = Y + blockIdx.z * rows * columns;
    if (columns % WIDTH == 0) {
        walk<true>(rows, columns, row, column, image, result);
    } else {
        walk<false>(rows, columns, row, column, image, result);
    }
}
