// FP32 as the sum of two TF32 numbers, for wgmma with A in registers. Compute capability 9.0.
//
// Tensor cores ignore the last 13 of a number's 24 bits. So FP32 as it is serves as the first of the
// two, and only the rest has to be computed.
#pragma once

#include "hopper.cuh"

// What the tensor cores ignore, as a TF32 number: the difference is exact, and adding half of the
// last bit that they keep rounds it. The rest of an infinity is 0: NaN plus that half is -0.
__device__ inline unsigned rest(unsigned bits) {
    const float whole = __uint_as_float(bits & 0xffffe000);
    return __float_as_uint(__uint_as_float(bits) - whole) + 0x1000;
}

// A warpgroup's 64 rows of a tile of A: for each product of the row a thread has rows l / 4 and
// l / 4 + 8 of its warp at place l % 4 of K, then both at place l % 4 + 4.
struct Rows {
    unsigned whole[PRODUCTS_PER_STAGE][4], rest[PRODUCTS_PER_STAGE][4];
};

__device__ inline void load_rows(Rows& rows, const Input* tile) {
    const int lane = threadIdx.x % 32;
    const int row = threadIdx.x % WARPGROUP / 32 * 16 + lane % 16;
    const auto start = shared_address(tile) + row * ROW_BYTES;
#pragma unroll
    for (int i = 0; i < PRODUCTS_PER_STAGE; ++i) {
        load_matrices(rows.whole[i], start + ((2 * i + lane / 16) ^ (lane % 8)) * 16);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            rows.rest[i][j] = rest(rows.whole[i][j]);
            asm volatile("" : "+r"(rows.rest[i][j]));
        }
    }
}

// sums = the products of one stage: `b` is a tile of B, `b_rest` its rests. The small products come
// first, while the sums are small.
template <int registers>
__device__ inline void multiply_split(float (&sums)[registers], const Rows& a, const Input* b,
                                      const uint4* b_rest) {
    const unsigned long long from_b = descriptor(b);
    const unsigned long long from_rest = descriptor(b_rest);
#pragma unroll
    for (int i = 0; i < PRODUCTS_PER_STAGE; ++i) multiply(sums, a.whole[i], from_rest + 2 * i, i > 0);
#pragma unroll
    for (int i = 0; i < PRODUCTS_PER_STAGE; ++i) multiply(sums, a.rest[i], from_b + 2 * i, true);
#pragma unroll
    for (int i = 0; i < PRODUCTS_PER_STAGE; ++i) multiply(sums, a.whole[i], from_b + 2 * i, true);
}
