// Weights of 4 bits two at a time, as tensor cores take them. Compute capability 8.0.
#pragma once

#include "w4.cuh"

// x * y + z of both halves, rounded once.
__device__ inline unsigned fused(unsigned x, unsigned y, unsigned z) {
    unsigned pair;
#if defined(ROOFLAB_PRECISION_BF16)
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(x), "r"(y), "r"(z));
#else
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(x), "r"(y), "r"(z));
#endif
    return pair;
}

// The weights in bits 4 i to 4 i + 3 of both halves of a word, without their scale: i and i + 4 in the
// order of K. Behind the leading bits of a power of two, four bits count from it on: one logical operation
// makes both numbers, and one subtraction of the power and of 8 both weights.
__device__ inline unsigned weight_pair(unsigned word, int i) {
#if defined(ROOFLAB_PRECISION_BF16)
    constexpr unsigned power = 0x43004300, one = 0x3f803f80, less = 0xc308c308;  // 128, 1, -136
#else
    constexpr unsigned power = 0x64006400, one = 0x3c003c00, less = 0xe408e408;  // 1024, 1, -1032
#endif
    unsigned pair;  // (word & mask) | power takes two operations if the compiler chooses them
    asm("lop3.b32 %0, %1, 0x000f000f, %2, 0xea;" : "=r"(pair) : "r"(word >> 4 * i), "r"(power));
    return fused(pair, one, less);
}

// A scale, by its bits, for both halves.
__device__ inline unsigned scale_pair(unsigned short bits) { return __byte_perm(bits, bits, 0x1010); }

__device__ inline unsigned scaled(unsigned pair, unsigned scales) {
    return fused(pair, scales, 0x80008000);  // -0, which changes no product
}

// The two weights of a byte, neighbours in the order of K.
__device__ inline unsigned weights_of(unsigned byte) { return weight_pair(byte | byte << 12, 0); }

// 8 numbers in the order of K, as pairs i and i + 4.
__device__ inline void pair_up(unsigned (&pairs)[4], uint4 eight) {
    pairs[0] = __byte_perm(eight.x, eight.z, 0x5410);
    pairs[1] = __byte_perm(eight.x, eight.z, 0x7632);
    pairs[2] = __byte_perm(eight.y, eight.w, 0x5410);
    pairs[3] = __byte_perm(eight.y, eight.w, 0x7632);
}
