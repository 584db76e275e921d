// What the FP32 rungs from `serpentine` on share: the tile of a block and of a thread, its place in C,
// copies of tiles into shared memory, and the way of the sums to C.
//
// WARPS_M x WARPS_N warps compute a tile of C. With SLICES there are as many such groups, and each sums a
// part of K.
#pragma once

#include "async_copy.cuh"
#include "vec4.cuh"

constexpr unsigned WARP_TILE = 64;  // a warp computes 64 x 64, a thread 8 x 16
constexpr unsigned LANES_M = 8;
constexpr unsigned LANES_N = 4;
constexpr int ROWS = WARP_TILE / LANES_M;
constexpr int COLUMNS = WARP_TILE / LANES_N;
constexpr unsigned TILE_M = WARP_TILE * WARPS_M;
constexpr unsigned TILE_N = WARP_TILE * WARPS_N;
constexpr unsigned WARPS = WARPS_M * WARPS_N;          // of a slice
constexpr unsigned MULTIPLIERS = 32 * WARPS * SLICES;  // threads that multiply
constexpr int GROUP = 8;  // rows of tiles that are computed together, for L2

// The place of a tile: its first row and column of C.
struct Corner {
    int row, column;
};

// Tiles that are computed at the same time share rows and columns: GROUP rows of tiles, column by column.
template <typename Number>
__device__ inline Corner corner_of(Number tile, Number rows, Number columns) {
    const Number first = tile / (GROUP * columns) * GROUP;
    const Number height = min(rows - first, Number(GROUP));
    const Number nth = tile % (GROUP * columns);
    return {static_cast<int>((first + nth % height) * TILE_M), static_cast<int>(nth / height * TILE_N)};
}

// Copies ------------------------------------------------------------------------------------------

// Copies tiles of one operand, from K = 0 on, by THREADS threads from FIRST_THREAD on. In shared memory
// rows are contiguous for each k, as in vec4.cuh. Between two tiles a thread only moves its pointers.
template <bool ALONG_K, unsigned ROWS, int TILE_K, unsigned THREADS, unsigned FIRST_THREAD = 0>
struct Feed {
    static constexpr unsigned ALONG = ALONG_K ? 8 : ROWS / 4;     // threads along memory
    static constexpr unsigned DOWN = THREADS / ALONG;
    static constexpr unsigned PITCH = 4 * (ROWS + PAD);           // 4 is sizeof(float)
    static constexpr unsigned POINTERS = ALONG_K ? ROWS / DOWN : 1;

    const Matrix<ALONG_K> matrix;
    const int first_row;
    unsigned own;  // this thread's first element in the tile, in bytes
    const float* from[POINTERS];

    __device__ Feed(const float* data, int rows, int K, int first_row)
        : matrix(data, rows, K), first_row(first_row) {
        const unsigned across = copier() % ALONG;
        const unsigned down = copier() / ALONG;
        own = ALONG_K ? across * PITCH + down * 4 : down * PITCH + across * 16;
        for (unsigned i = 0; i < POINTERS; ++i) {
            from[i] = ALONG_K ? matrix.template at<1>(first_row + down + i * DOWN, across)
                              : matrix.template at<4>(first_row + across * 4, down);
        }
    }

    static __device__ unsigned copier() { return threadIdx.x - FIRST_THREAD; }

    // A whole tile of rows that consist of quads.
    __device__ void copy(SharedAddress to) {
        if (ALONG_K) {
#pragma unroll
            for (unsigned i = 0; i < POINTERS; ++i) {
#pragma unroll
                for (unsigned k = 0; k < TILE_K; k += ALONG) {
                    copy_async<4>(to + own + k * PITCH + i * DOWN * 4, from[i] + k);
                }
                from[i] += TILE_K;
            }
        } else {
#pragma unroll
            for (unsigned k = 0; k < TILE_K; k += DOWN) {
                copy_async<16>(to + own + k * PITCH, from[0]);
                from[0] += size_t(DOWN) * matrix.rows;
            }
        }
    }

    // Any tile, one element at a time. Beyond K it is zero.
    __device__ void copy_rest(SharedAddress to, int first_k) const {
#pragma unroll 1
        for (unsigned i = copier(); i < ROWS * TILE_K; i += THREADS) {
            const int row = ALONG_K ? i / TILE_K : i % ROWS;
            const int k = ALONG_K ? i % TILE_K : i / ROWS;
            const float* element = matrix.template at<1>(first_row + row, first_k + k);
            copy_async<4>(to + k * PITCH + row * 4, element, first_k + k < matrix.K ? 4 : 0);
        }
    }
};

// Reads COUNT elements from shared memory: quads that begin `step` bytes apart.
template <int COUNT>
__device__ inline void fetch(float (&to)[COUNT], SharedAddress from, unsigned step = 16) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) {
        const float4 quad = load_shared(from + i / 4 * step);
        to[i] = quad.x;
        to[i + 1] = quad.y;
        to[i + 2] = quad.z;
        to[i + 3] = quad.w;
    }
}

// Sums --------------------------------------------------------------------------------------------

// Where slices, each of which has summed a part of K, meet in shared memory. Each adds up and stores a part
// of a thread's quads.
struct Exchange {
    static constexpr int QUADS = ROWS * COLUMNS / 4;  // of a thread
    const SharedAddress own;

    __device__ explicit Exchange(SharedAddress ring) : own(ring + threadIdx.x % (32 * WARPS) * 16) {}

    __device__ SharedAddress place(unsigned slice, int quad) const {
        return own + (slice * QUADS + quad) * 32 * WARPS * 16;
    }

    // A slice's part of four elements, times alpha.
    __device__ void give(unsigned slice, int quad, const float (&sum)[ROWS][COLUMNS], float alpha) const {
        const float* part = &sum[quad / 4][quad % 4 * 4];
        store_shared(place(slice, quad), make_float4(alpha * part[0], alpha * part[1],
                                                     alpha * part[2], alpha * part[3]));
    }

    // Adds a slice's part.
    __device__ void take(unsigned slice, int quad, float (&total)[4]) const {
        const float4 part = load_shared(place(slice, quad));
        total[0] += part.x;
        total[1] += part.y;
        total[2] += part.z;
        total[3] += part.w;
    }
};
