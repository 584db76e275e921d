// Blocks that go through K together. Compute capability 9.0.
//
// Multiprocessors of a GPC that ask for the same line within about 100 cycles get it by one read of L2,
// and what any of them has just asked for needs no DRAM. So 128 blocks compute 16 x 8 tiles of C at a
// time, a wave, and meet every few steps; four multiprocessors of 132 idle. In squares, 16 neighbours
// compute 4 x 4 tiles.
#pragma once

#include "grid_flags.cuh"

constexpr int WAVE = 128;       // blocks
constexpr int WAVE_ROWS = 16;   // of tiles
constexpr int PACE = 8;         // steps of K from a meeting to the next one
constexpr int PATIENCE = 32;    // looks at the others, before a block goes on alone

__device__ unsigned arrivals;  // of all launches: between two of them a multiple of WAVE

// The tiles of a block: the first one, then each that is `apart` further on. Blocks beyond `apart` have none.
struct Turns {
    int first, apart;
};

// The order of tiles is down WAVE_ROWS rows, then one column to the right.
__device__ inline Turns turns_of_block(bool squares) {
    const unsigned square = blockIdx.x / 16, i = blockIdx.x % 16;
    const unsigned tile = square % 2 * 64 + i / 4 * WAVE_ROWS + square / 2 * 4 + i % 4;
    const bool wave = squares && gridDim.x >= WAVE;
    return {static_cast<int>(wave ? tile : blockIdx.x), static_cast<int>(wave ? WAVE : gridDim.x)};
}

// The tiles of a block of a wave, in the same order but without squares.
__device__ inline Turns turns_in_columns() {
    return {static_cast<int>(blockIdx.x), min(static_cast<int>(gridDim.x), WAVE)};
}

// Whether all blocks of the wave have a tile, and so come to its meetings.
__device__ inline bool wave_is_whole(const Turns& turns, int tile, int tiles) {
    return turns.apart == WAVE && (tile / WAVE + 1) * WAVE <= tiles;
}

// Whether the blocks of a whole wave meet before a step of a tile. Not before the first one of all, since
// a launch begins all blocks at the same time.
__device__ inline bool meets_before(int step, int tile) {
    return step % PACE == 0 && (step > 0 || tile >= WAVE);
}

// By one thread of each block. Only timing depends on it: a block whose partners do not come, because there
// is no room for all at once, goes on after PATIENCE looks.
__device__ inline void meet() {
    const unsigned all = (atomicAdd(&arrivals, 1u) / WAVE + 1) * WAVE;
#pragma unroll 1
    for (int i = 0; i < PATIENCE; ++i) {
        if (static_cast<int>(read_now(&arrivals) - all) >= 0) return;
    }
}
