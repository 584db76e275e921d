// kernels/include/w4_pair.cuh on the CPU.
#pragma once

#include "types.cuh"
#include "w4.cuh"

inline unsigned as_pair(Input low, Input high) {
    const Input both[2] = {low, high};
    unsigned pair;
    std::memcpy(&pair, both, sizeof(pair));
    return pair;
}

inline unsigned weight_pair(unsigned word, int i) {
    return as_pair(Input(weight(word, i)), Input(weight(word, i + 4)));
}

inline unsigned weights_of(unsigned byte) {
    return as_pair(Input(weight(byte, 0)), Input(weight(byte, 1)));
}

inline unsigned scale_pair(unsigned short bits) { return bits | unsigned(bits) << 16; }

inline unsigned scaled(unsigned pair, unsigned scales) {
    Input weights[2], scale[2];
    std::memcpy(weights, &pair, sizeof(weights));
    std::memcpy(scale, &scales, sizeof(scale));
    return as_pair(weights[0] * scale[0], weights[1] * scale[1]);
}

inline void pair_up(unsigned (&pairs)[4], uint4 eight) {
    Input numbers[8];
    std::memcpy(numbers, &eight, sizeof(numbers));
    for (int i = 0; i < 4; ++i) pairs[i] = as_pair(numbers[i], numbers[i + 4]);
}
