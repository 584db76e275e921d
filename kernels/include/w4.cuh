// Weights of 4 bits: two in a byte, the first one in the low half, and a scale for 128 of them.
#pragma once

#include "types.cuh"

constexpr int GROUP = 128;

// The weights in bits 0 to 3, 4 to 7, and so on of a word, without their scale. A number from 0 to 15
// in the lowest bits of 2^23 is added to it, which spares the slow conversion of integers.
__device__ inline float weight(unsigned word, int i) {
    return __uint_as_float(0x4b000000 | (word >> 4 * i & 15)) - (8388608.0f + 8);
}
