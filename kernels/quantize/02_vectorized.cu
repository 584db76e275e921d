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

Traffic: that of `warps`, the least possible.

Expect 3.4 to 3.9 TB/s in BF16 on an H200, of 4.8, and as much in FP32. The divisions take half of the time
of the memory in BF16, beside it.
*/

#include <cuda_fp8.h>

#include "row_kernels.cuh"

constexpr int BLOCK = 128;
static_assert(LANES * WIDTH == BLOCK, "a lane has one vector of a block");

struct alignas(WIDTH) Quotients {
    __nv_fp8_e4m3 element[WIDTH];
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
    const Accumulate divisor = largest / 448;
    if (threadIdx.x % LANES == 0 && c < columns) *scale = divisor;

    Quotients quotients;
    for (int i = 0; i < WIDTH; ++i) {
        quotients.element[i] = __nv_fp8_e4m3(widen(vector.element[i]) / divisor);
    }
    if (aligned && c < columns) *reinterpret_cast<Quotients*>(q + c) = quotients;
    for (int i = 0; i < (aligned ? 0 : WIDTH); ++i) {
        if (c + i < columns) q[c + i] = quotients.element[i];
    }
}

extern "C" __global__ void __launch_bounds__(256)
vectorized(long long rows, long long columns, Accumulate least, const Input* X, float* scales,
        __nv_fp8_e4m3* Q) {
    constexpr int GROUPS = 256 / LANES;
    const long long of_row = (columns + BLOCK - 1) / BLOCK, blocks = rows * of_row;
    const long long first = blockIdx.x * static_cast<long long>(GROUPS * BLOCKS) + threadIdx.x / LANES;
    const bool aligned = columns % WIDTH == 0;
    const auto column = [&](long long block) {
        return block % of_row * BLOCK + threadIdx.x % LANES * WIDTH;
    };
    uint4 kept[BLOCKS];
    #pragma unroll
    for (int k = 0; k < BLOCKS; ++k) {
        const long long block = first + k * GROUPS;
        const long long end = block < blocks ? columns : 0;
        kept[k] = load(X + block / of_row * columns, column(block), end, aligned);
    }
    #pragma unroll
    for (int k = 0; k < BLOCKS; ++k) {
        const long long block = first + k * GROUPS, row = block / of_row;
        const long long end = block < blocks ? columns : 0;
        quantize(unpack(kept[k]), column(block), end, aligned, least, scales + block,
                 Q + row * columns);
    }
}
