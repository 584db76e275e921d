// Attention by warpgroups, forward and its gradients: heads in parts of 128 bytes, and weights as operands.
// Compute capability 9.0. ROWS_TIMES_ACROSS must be defined, and layouts as for operands along K.
#pragma once

#include "attention.cuh"
#include "hopper.cuh"

constexpr int PARTS = HEAD_SIZE / TILE_K;  // of a head
constexpr int VALUES = HEAD_SIZE / 2;      // sums of a thread, of 64 rows of a head

using Part = Input[64 * TILE_K];  // 64 rows

// Numbers of 64 rows become the first operand of a product, where they are: 16 bits each.
template <int count>
__device__ inline void pack_weights(unsigned (&to)[count / 8][4], const float (&from)[count]) {
#pragma unroll
    for (int i = 0; i < count / 2; ++i) to[i / 4][i % 4] = pack(from[2 * i], from[2 * i + 1]);
}

// Of the four lanes that share a row.
__device__ inline float sum_of_four(float part) {
    part += __shfl_xor_sync(0xffffffff, part, 1);
    return part + __shfl_xor_sync(0xffffffff, part, 2);
}
