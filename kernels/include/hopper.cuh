// What Hopper's kernels share: roles and their barriers, a ring of stages, the products of a stage, the
// way of C out of the registers, the order of tiles. Compute capability 9.0, compiled for sm_90a.
//
// There is no assembly here: that is in the headers below, which tests replace to run the kernels on a
// CPU.
#pragma once

#include "cluster.cuh"
#include "gemm.cuh"
#include "pdl.cuh"
#include "tma.cuh"
#include "warpgroup.cuh"

// Whether beta is not 0. Without it there is no code that reads C.
#ifndef ROOFLAB_READS_C
#define ROOFLAB_READS_C 1
#endif

constexpr bool reads_c = ROOFLAB_READS_C;

// Barriers ----------------------------------------------------------------------------------------

// Call with all threads, once a producer thread has made its block's barriers: all see them afterwards.
// Without a cluster only consumers wait, since the producer made them itself.
template <int blocks, int threads>
__device__ inline void begin_roles(bool producer) {
    __syncwarp();
    if constexpr (blocks > 1) {
        arrive_in_cluster_relaxed();
        wait_for_cluster();
    } else if (producer) {
        arrive_threads(1, threads);
    } else {
        sync_threads(1, threads);
    }
}

// Of two warpgroups one waits for a signal of the other.
__device__ inline void wait_for_other() { sync_threads(2, 2 * WARPGROUP); }
__device__ inline void signal_other() { arrive_threads(2, 2 * WARPGROUP); }

// A place in a ring of stages. The phase flips when it wraps around.
template <int stages>
struct Ring {
    int stage = 0;
    unsigned phase = 0;

    __device__ void advance() {
        if (++stage < stages) return;
        stage = 0;
        phase ^= 1;
    }

    __device__ void skip(int count) {
        stage += count;
        phase ^= stage / stages & 1;
        stage %= stages;
    }
};

// By a producer at its end: all stages are empty. A block must not end before, because the consumers
// of its cluster arrive at its barriers.
template <int stages>
__device__ inline void wait_until_empty(Ring<stages> ring, Barrier (&empty)[stages]) {
    for (int i = 0; i < stages; ++i, ring.advance()) wait(&empty[ring.stage], ring.phase ^ 1);
}

// By one thread: `full` counts the bytes of one producer, `empty` the consumers that use a stage. The
// fence of `initialize` makes a barrier visible to TMA too; a general one costs 1 % at 1024.
template <int stages>
__device__ inline void initialize_ring(Barrier (&full)[stages], Barrier (&empty)[stages],
                                       int consumers) {
    for (int i = 0; i < stages; ++i) {
        initialize(&full[i]);
        initialize(&empty[i], consumers);
    }
}

// Products ----------------------------------------------------------------------------------------

#if !defined(ROOFLAB_PRECISION_FP64)  // which has no wgmma

// A tile of B in shared memory, as products read it.
__device__ inline unsigned long long descriptor_of_b(const Input* b) {
    return transpose_b ? descriptor(b) : descriptor_across(b);
}

// Starts the copies of a tile of B, of `columns` columns of C.
template <int columns>
__device__ inline void copy_tile_of_b(Input* b, const TensorMap& B, int column, int k, Barrier* full) {
    if constexpr (transpose_b) {
        copy_box(b, B, column, k, full);
    } else {
#pragma unroll
        for (int i = 0; i < columns; i += 64) copy_box(b + i * TILE_K, B, k, column + i, full);
    }
}

// All products of one stage: 64 rows of a tile of A, and a tile of B.
template <int registers>
__device__ inline void multiply_tiles(float (&sums)[registers], unsigned long long a,
                                      unsigned long long b, bool add) {
    constexpr int next = transpose_b ? 2 : 128;
#pragma unroll
    for (int i = 0; i < PRODUCTS_PER_STAGE; ++i) multiply(sums, a + 2 * i, b + next * i, add || i > 0);
}

template <int registers>
__device__ inline void multiply_tiles(float (&sums)[registers], const Input* a, const Input* b,
                                      bool add) {
    multiply_tiles(sums, descriptor(a), descriptor_of_b(b), add);
}

#endif

// Results -----------------------------------------------------------------------------------------

struct alignas(2 * sizeof(Output)) Pair {
    Output x, y;
};

__device__ inline int row_in_warpgroup() {
    return threadIdx.x % WARPGROUP / 32 * 16 + threadIdx.x % 32 / 4;
}
__device__ inline int column_in_eight() { return threadIdx.x % 4 * 2; }

// C at (row, column) and at the next column, or nothing outside of C.
__device__ inline void store_two(Output* C, int row, int column, int M, int N, float x, float y,
                                 float alpha, float beta) {
    if (row >= M || column >= N) return;
    if (N % 2) {
        store(C, row, column, N, x, alpha, beta);
        if (column + 1 < N) store(C, row, column + 1, N, y, alpha, beta);
        return;
    }
    Pair& place = *reinterpret_cast<Pair*>(C + size_t(row) * N + column);
    x *= alpha;
    y *= alpha;
    if (beta != 0) {
        const Pair old = place;
        x += beta * widen(old.x);
        y += beta * widen(old.y);
    }
    place = {narrow(x), narrow(y)};
}

// The sums of a warpgroup, whose first is at (row, column), straight from registers.
template <int registers>
__device__ inline void store_sums(const float (&sums)[registers], Output* C, int row, int column,
                                  int M, int N, float alpha, float beta) {
    row += row_in_warpgroup();
    column += column_in_eight();
#pragma unroll
    for (int i = 0; i < registers; i += 4) {
        store_two(C, row, column + 2 * i, M, N, sums[i], sums[i + 1], alpha, beta);
        store_two(C, row + 8, column + 2 * i, M, N, sums[i + 2], sums[i + 3], alpha, beta);
    }
}

constexpr int CHUNK = ROW_BYTES / sizeof(Output);  // columns of C in a row of 128 bytes
constexpr int CHUNK_SUMS = CHUNK / 2;              // registers per thread for 64 rows of them

__device__ inline unsigned pack(float x, float y) {
    const Pair pair = {narrow(x), narrow(y)};
    return reinterpret_cast<const unsigned&>(pair);
}

// A result of 32 bits, or two of 16, as they will be stored.
template <int bytes>
struct Packed {
    using Word = float;
};
template <>
struct Packed<2> {
    using Word = unsigned;
};
using Word = Packed<sizeof(Output)>::Word;
constexpr int CHUNK_WORDS = CHUNK_SUMS * sizeof(Output) / 4;  // per thread

// `count` must be a compile-time constant, here and below: registers have no addresses to index.
__device__ inline void pack_chunks(const float* sums, Word* words, int count) {
#pragma unroll
    for (int i = 0; i < count * CHUNK_WORDS; ++i) {
        if constexpr (sizeof(Output) == 2) {
            words[i] = pack(sums[2 * i], sums[2 * i + 1]);
        } else {
            words[i] = sums[i];
        }
    }
}

__device__ inline void swap_if(bool swapped, float (&x)[2], float (&y)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float old = x[i];
        x[i] = swapped ? y[i] : x[i];
        y[i] = swapped ? old : y[i];
    }
}

// A chunk of 64 rows x CHUNK columns into shared memory, swizzled for TMA. With 16-bit results a warp
// writes four 8 x 8 matrices per instruction, rows of 16 bytes; lane l gives the address of row l % 8
// of matrix l / 8.
__device__ inline void stage_chunk(const unsigned* words, Output* chunk) {
    const int warp = threadIdx.x % WARPGROUP / 32, lane = threadIdx.x % 32;
    const auto row = shared_address(chunk) + (warp * 16 + lane % 16) * ROW_BYTES;
#pragma unroll
    for (int i = 0; i < CHUNK_WORDS; i += 4) {
        const unsigned piece = (i / 2 + lane / 16) ^ (lane % 8);
        store_matrices(row + piece * 16, {words[i], words[i + 1], words[i + 2], words[i + 3]});
    }
}

// With 32-bit results 16 lanes, of four rows, write at a time. Each row begins with another eight
// columns, so that they reach all banks.
__device__ inline void stage_chunk(const float* words, Output* chunk) {
    const int lane = threadIdx.x % 32, turn = lane / 4 % 4;
    const unsigned piece = (turn * 2 + lane % 4 / 2) ^ (lane / 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // of 16 rows
        const auto row =
            shared_address(chunk) + (row_in_warpgroup() + half * 8) * ROW_BYTES + lane % 2 * 8;
        float turned[4][2];
#pragma unroll
        for (int i = 0; i < 8; ++i) turned[i / 2][i % 2] = words[i / 2 * 4 + half * 2 + i % 2];
        swap_if(turn & 1, turned[0], turned[1]);
        swap_if(turn & 1, turned[2], turned[3]);
        swap_if(turn & 2, turned[0], turned[2]);
        swap_if(turn & 2, turned[1], turned[3]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            store_pair(row + (piece ^ 2 * i) * 16, turned[i][0], turned[i][1]);
        }
    }
}

// Where a warpgroup stages C: `number` buffers of 64 x CHUNK, `apart` elements from each other.
template <int number, int apart = 64 * CHUNK>
struct Buffers {
    static constexpr int count = number;
    Output* first;
    __device__ Output* in_turn(int i) const { return first + i % count * apart; }
};

__device__ inline Buffers<2> two_buffers(Output (&c)[2][64 * CHUNK]) { return {c[0]}; }

// `count` chunks, packed, through the buffers of a warpgroup: those from chunk `first` on of its part
// of C, which begins at (row, column). `map` has boxes of 16 rows. Each warp writes its own rows, so
// that no warp waits for another. The last stores may still read the buffers when this returns: the
// elected lane of a warp waits for them.
template <class Staged>
__device__ inline void store_packed(const Word* words, int count, int first, Staged buffers,
                                    const TensorMap& map, int row, int column) {
    const int first_row = threadIdx.x % WARPGROUP / 32 * 16;
#pragma unroll
    for (int i = 0; i < count; ++i) {
        const int chunk = first + i;
        if (chunk % buffers.count == 0 && elected()) wait_until_stores_have_read();
        __syncwarp();
        stage_chunk(words + i * CHUNK_WORDS, buffers.in_turn(chunk));
        publish_to_tma();
        __syncwarp();
        if (!elected()) continue;
        store_box(map, row + first_row, column + chunk * CHUNK, buffers.in_turn(chunk) + first_row * CHUNK);
    }
}

// The first `count` chunks of a warpgroup's sums through its buffers.
template <int count, int registers, class Staged>
__device__ inline void store_first_chunks(const float (&sums)[registers], Staged buffers,
                                          const TensorMap& map, int row, int column) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
        Word words[CHUNK_WORDS];
        pack_chunks(sums + i * CHUNK_SUMS, words, 1);
        store_packed(words, 1, i, buffers, map, row, column);
    }
}

template <int registers, class Staged>
__device__ inline void store_chunks(const float (&sums)[registers], Staged buffers,
                                    const TensorMap& map, int row, int column) {
    store_first_chunks<registers / CHUNK_SUMS>(sums, buffers, map, row, column);
}

// alpha * sums + beta * C in place, for results that TMA stores: C has an even number of columns.
template <int registers>
__device__ inline void scale_sums(float (&sums)[registers], const Output* C, int row, int column,
                                  int M, int N, float alpha, float beta) {
    row += row_in_warpgroup();
    column += column_in_eight();
    if (alpha != 1) {
#pragma unroll
        for (int i = 0; i < registers; ++i) sums[i] *= alpha;
    }
    if constexpr (reads_c) {
        if (beta == 0) return;
#pragma unroll
        for (int i = 0; i < registers; i += 2) {
            const int m = row + i % 4 / 2 * 8, n = column + i / 4 * 8;
            if (m >= M || n >= N) continue;
            const Output* old = C + size_t(m) * N + n;
            sums[i] += beta * widen(old[0]);
            sums[i + 1] += beta * widen(old[1]);
        }
    }
}

// The order of tiles -------------------------------------------------------------------------------

struct Place {
    int row, column;  // in tiles
};

// Down `group` rows of tiles, then one column to the right: tiles computed at the same time are a
// compact part of C, which needs the fewest rows of A and B. A division takes 350 cycles, so the first
// group needs only one.
__device__ inline Place grouped(int tile, int rows, int columns, int group) {
    const int per_group = group * columns;
    const int first = tile < per_group ? 0 : tile / per_group * group;
    tile -= first * columns;
    const int height = min(rows - first, group);
    return {first + tile % height, tile / height};
}

__device__ inline int tiles_along(int extent, int tile) { return (extent - 1) / tile + 1; }
