/*
title = "16 bytes per load"
entry = "vectorized"
workload = "quantize"
rung = 2
precisions = ["fp32", "fp16", "bf16"]
block = [256]
tile = ["256 // LANES * BLOCKS"]
variants = [
    { LANES = 16, BLOCKS = 1, precisions = ["fp16", "bf16"] },
    { LANES = 16, BLOCKS = 2, precisions = ["fp16", "bf16"] },
    { LANES = 16, BLOCKS = 4, precisions = ["fp16", "bf16"] },
    { LANES = 32, BLOCKS = 1, precisions = ["fp32"] },
    { LANES = 32, BLOCKS = 2, precisions = ["fp32"] },
    { LANES = 32, BLOCKS = 4, precisions = ["fp32"] },
]
teaches = "half a warp has a block of 128 if each lane loads eight numbers at once"
*/

/*
`warps` with loads of 16 bytes: a block of 128 columns is one load of 16 lanes, or of 32 in FP32, and one
store of 8 or 4 bytes each. Lanes load BLOCKS blocks before the first is needed. Rows that do not begin at
multiples of 16 bytes are loaded and stored element by element.

It also computes less. Each number is multiplied by 448 / largest, where `warps` divides by the scale; two are
converted at a time. Rows of whole blocks follow one another like one long row, which spares a division of
indices for each block.

Traffic: that of `warps`, the least possible.

Expect 3.4 to 3.9 TB/s in BF16 on an H200, of 4.8, and as much in FP32.

Learned: with divisions of numbers and indices it moved a quarter less than that, although memory alone
should have hidden them.
*/

#include <cuda_fp8.h>

#include "row_kernels.cuh"

constexpr int BLOCK = 128;
static_assert(LANES * WIDTH == BLOCK, "a lane has one vector of a block");

struct alignas(WIDTH) Quotients {
    __nv_fp8x2_e4m3 pair[WIDTH / 2];
};

// Vector of the columns from c on; past the end it is zero.
__device__ uint4 load(const Input* x, long long c, long long columns, bool aligned) {
    if (aligned) return c < columns ? *reinterpret_cast<const uint4*>(x + c) : filled(narrow(0));
    Vector vector = unpack(filled(narrow(0)));
    for (int i = 0; i < WIDTH; ++i) {
        if (c + i < columns) vector.element[i] = x[c + i];
    }
    return pack(vector);
}

__device__ void quantize(const Vector& vector, long long c, long long columns, bool aligned,
                         Accumulate least, float* scale, __nv_fp8_e4m3* q) {
    Accumulate largest = least;
    for (int i = 0; i < WIDTH; ++i) {
        const Accumulate number = widen(vector.element[i]);
        largest = max(largest, max(number, -number));
    }
    for (int distance = LANES / 2; distance > 0; distance /= 2) {
        largest = max(largest, __shfl_xor_sync(0xffffffff, largest, distance));
    }
    if (threadIdx.x % LANES == 0 && c < columns) *scale = largest / 448;

    const Accumulate up = largest < 0x1p-100f ? 0x1p64f : 1;  // or the factor would be infinite
    const Accumulate factor = 448 / (largest * up);
    const auto quotient = [&](Input number) { return widen(number) * up * factor; };
    Quotients quotients;
    for (int i = 0; i < WIDTH; i += 2) {
        const float2 two = {quotient(vector.element[i]), quotient(vector.element[i + 1])};
        quotients.pair[i / 2] = __nv_fp8x2_e4m3(two);
    }
    if (aligned && c < columns) *reinterpret_cast<Quotients*>(q + c) = quotients;
    for (int i = 0; i < (aligned ? 0 : WIDTH); ++i) {
        if (c + i < columns) q[c + i] = reinterpret_cast<const __nv_fp8_e4m3*>(&quotients)[i];
    }
}

extern "C" __global__ void __launch_bounds__(256)
vectorized(long long rows, long long columns, Accumulate least, const Input* X, float* scales,
        __nv_fp8_e4m3* Q) {
    constexpr int GROUPS = 256 / LANES;
    const long long of_row = (columns + BLOCK - 1) / BLOCK, blocks = rows * of_row;
    const long long first = blockIdx.x * static_cast<long long>(GROUPS * BLOCKS) + threadIdx.x / LANES;
    const bool aligned = columns % WIDTH == 0, whole = columns % BLOCK == 0;
    const auto row_of = [&](long long block) { return whole ? 0 : block / of_row; };
    const auto column = [&](long long block) {
        return (block - row_of(block) * of_row) * BLOCK + threadIdx.x % LANES * WIDTH;
    };
    const auto end_of = [&](long long block) {
        return block < blocks ? whole ? rows * columns : columns : 0;
    };
    uint4 kept[BLOCKS];
    #pragma unroll
    for (int k = 0; k < BLOCKS; ++k) {
        const long long block = first + k * GROUPS;
        kept[k] = load(X + row_of(block) * columns, column(block), end_of(block), aligned);
    }
    #pragma unroll
    for (int k = 0; k < BLOCKS; ++k) {
        const long long block = first + k * GROUPS;
        quantize(unpack(kept[k]), column(block), end_of(block), aligned, least, scales + block,
                 Q + row_of(block) * columns);
    }
}
