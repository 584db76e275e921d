// kernels/include/tma.cuh on the CPU, for one block. A box holds NaN from the copy's begin until its
// barrier is waited for. So a kernel that does not wait, or copies into a tile in use, is wrong.
#pragma once

#include <cmath>

#include "async_copy.cuh"

using Barrier = unsigned long long;

inline SharedAddress shared_address(void* shared) { return address_of(shared); }
inline unsigned char* dynamic_shared_tiles() { return dynamic; }

inline void initialize(Barrier* barrier, unsigned arrivals = 1) {
    initialize(address_of(barrier), arrivals);
}
inline void announce(Barrier* barrier, unsigned bytes) { arrive(address_of(barrier), bytes); }
inline void wait(Barrier* barrier, unsigned phase) { wait(address_of(barrier), phase); }

struct TensorMap {
    const float* data;
    int rows, columns;
    int box_rows, box_columns;
    int swizzle;  // in bytes, 0 or as long as a row of the box
};

// The place of an element of a tile, whose quads are permuted by the bits of its address.
inline float* element_of(void* tile, const TensorMap& map, int row, int column) {
    SharedAddress at = address_of(tile) + 4 * (size_t(row) * map.box_columns + column);
    if (map.swizzle) at ^= at / 128 % (map.swizzle / 16) * 16;
    return reinterpret_cast<float*>(at);
}

inline void copy_box(void* tile, const TensorMap& map, int row, int column, Barrier* barrier) {
    const size_t elements = size_t(map.box_rows) * map.box_columns;
    if (address_of(tile) % 128 || map.columns % 4 || size_t(map.data) % 16) std::abort();
    const std::lock_guard<std::mutex> guard(lock);
    std::fill_n(static_cast<float*>(tile), elements, NAN);
    Phases& phases = barriers_at.at(address_of(barrier));
    phases.boxes.push_back([=] {
        for (int i = 0; i < map.box_rows; ++i) {
            for (int j = 0; j < map.box_columns; ++j) {
                const int m = row + i, n = column + j;
                const bool inside = m >= 0 && n >= 0 && m < map.rows && n < map.columns;
                *element_of(tile, map, i, j) = inside ? map.data[size_t(m) * map.columns + n] : 0;
            }
        }
    });
    phases.bytes -= 4 * elements;
    end_phase_if_complete(phases);
}
