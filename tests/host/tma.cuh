// kernels/include/tma.cuh on the CPU. A box holds no number from the copy's begin until its barrier is
// waited for. So a kernel that does not wait, or copies into a tile in use, is wrong.
#pragma once

#define HAS_TENSOR_MAPS

#include "bulk_copy.cuh"
#include "cluster.cuh"

inline unsigned char* dynamic_shared_tiles() { return running->dynamic; }

struct TensorMap {
    unsigned char* data;
    int rows, columns;
    int element;  // bytes
    int box_rows, box_columns;
    int swizzle;  // in bytes, 0 or as long as a row of the box
    int matrices = 1;  // one behind the other, of which a box takes a part of one

    size_t box_bytes() const { return size_t(box_rows) * box_columns * element; }
};

inline void prefetch(const TensorMap&) {}

// Calls `with` the place of each element of a box in the tile and in the operand, null outside of it.
// The pieces of 16 bytes of a tile are permuted by the bits of their address.
template <typename With>
void for_box(SharedAddress tile, const TensorMap& map, int matrix, int row, int column, With with) {
    for (int i = 0; i < map.box_rows; ++i) {
        for (int j = 0; j < map.box_columns; ++j) {
            SharedAddress at = tile + map.element * (size_t(i) * map.box_columns + j);
            if (map.swizzle) at ^= at / 128 % (map.swizzle / 16) * 16;
            const int m = row + i, n = column + j;
            const bool inside = m >= 0 && n >= 0 && m < map.rows && n < map.columns && matrix < map.matrices;
            const size_t number = (size_t(matrix) * map.rows + m) * map.columns + n;
            with(reinterpret_cast<void*>(at), inside ? map.data + map.element * number : nullptr);
        }
    }
}

inline void check(const TensorMap& map, const void* shared) {
    const bool rows_fit = size_t(map.columns) * map.element % 16 == 0;
    if (!rows_fit || size_t(map.data) % 16 || address_of(shared) % 128) std::abort();
    const bool repeats = map.swizzle && map.box_rows % 8 == 0;
    if (repeats && address_of(shared) % 1024) std::abort();
}

inline void copy_box_to(unsigned short blocks, void* shared, const TensorMap& map, int row, int column,
                        Barrier* barrier, int matrix = 0) {
    check(map, shared);
    for (unsigned rank = 0; rank < blocks_of_cluster; ++rank) {
        if (!(blocks >> rank & 1)) continue;
        const SharedAddress tile = in_block(rank, shared);
        std::memset(reinterpret_cast<void*>(tile), 0xff, map.box_bytes());  // NaN
        copy_before(in_block(rank, barrier), map.box_bytes(), [=] {
            for_box(tile, map, matrix, row, column, [&](void* to, const void* from) {
                from ? std::memcpy(to, from, map.element) : std::memset(to, 0, map.element);
            });
        });
    }
}

inline void copy_box(void* shared, const TensorMap& map, int row, int column, Barrier* barrier) {
    copy_box_to(1 << rank_in_cluster(), shared, map, row, column, barrier);
}
inline void copy_box(void* shared, const TensorMap& map, int matrix, int row, int column,
                     Barrier* barrier) {
    copy_box_to(1 << rank_in_cluster(), shared, map, row, column, barrier, matrix);
}
inline void copy_box(void* shared, const TensorMap& map, int row, int column, Barrier* barrier,
                     unsigned long long) {
    copy_box(shared, map, row, column, barrier);
}

inline void store_box(const TensorMap& map, int row, int column, const void* shared) {
    check(map, shared);
    stores->push_back([=] {
        for_box(address_of(shared), map, 0, row, column, [&](const void* from, void* to) {
            if (to) std::memcpy(to, from, map.element);
        });
    });
}

inline void publish_to_tma() {}
