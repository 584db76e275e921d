// Attention by tensor cores: what a warp does with 16 queries and a tile of keys and values. FP16, BF16
// and FP8, heads whose size is a multiple of 16.
//
// Rows of heads in shared memory are PITCH bytes apart: 16 more than the steps of a product have, so
// that the 8 rows that ldmatrix reads at once lie in different banks. In FP8 a head may fill half of
// its last step; zeros follow.
//
// A lane l has, of every 16 x 8 scores, weights or results, with g = l / 4 and t = l % 4: elements 0
// and 1 of row g, columns 2 t and 2 t + 1; elements 2 and 3 of row g + 8. In FP8 two neighbouring
// 16 x 8 results have the even and the odd columns of 16.
#pragma once

#include "attention.cuh"
#include "mma.cuh"

constexpr bool FP8 = sizeof(Input) == 1;
constexpr int CHUNKS = HEAD_SIZE / 8;  // of columns
constexpr int HEAD_BYTES = HEAD_SIZE * sizeof(Input);
constexpr int STEPS = (HEAD_BYTES + 31) / 32;  // of 32 bytes, of the product of queries and keys
constexpr int PITCH = STEPS * 32 + 16;
constexpr bool KEPT = HEAD_SIZE <= 128;  // whether registers hold the queries

using Address = decltype(shared_address(nullptr));

// Copies HEIGHT rows of a head to shared memory, and zeros for those that are past the end.
// `thread` is one of THREADS.
template <int HEIGHT, int THREADS>
__device__ inline void load(Address tile, const Input* from, int present, int thread) {
    constexpr int COPIES = STEPS * 2;  // of 16 bytes, of a row
    for (int i = thread; i < HEIGHT * COPIES; i += THREADS) {
        const int row = i / COPIES, byte = i % COPIES * 16;
        const bool inside = row < present && byte < HEAD_BYTES;
        const Input* source = from + row * HEAD_SIZE + byte / int(sizeof(Input));
        copy_async<16>(tile + row * PITCH + byte, inside ? source : from, inside);
    }
}

// 16 queries. `tile` has them in shared memory.
struct Queries {
    Address row;  // of which this lane gives the address
    unsigned kept[KEPT ? STEPS : 1][4];

    __device__ explicit Queries(Address tile)
        : row(tile + threadIdx.x % 16 * PITCH + threadIdx.x % 32 / 16 * 16) {}

    __device__ void keep() {
        if constexpr (KEPT) {
            #pragma unroll
            for (int step = 0; step < STEPS; ++step) load_matrices(kept[step], row + step * 32);
        }
    }

    // Products with the keys of a tile, in pieces of 8 keys.
    template <int PIECES>
    __device__ void score(float (&score)[PIECES][4], Address tile) {
        const int lane = threadIdx.x % 32;
        const Address key_row = tile + (lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 16;
        #pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            if (!KEPT) load_matrices(kept[0], row + step * 32);
            #pragma unroll
            for (int piece = 0; piece < PIECES; piece += 2) {
                unsigned key[4];
                load_matrices(key, key_row + piece * 8 * PITCH + step * 32);
                multiply_add(score[piece], kept[KEPT ? step : 0], key);
                multiply_add(score[piece + 1], kept[KEPT ? step : 0], key + 2);
            }
        }
    }
};

// Removes the scores of keys that rows do not see: `seen` is for rows g and g + 8.
template <int PIECES>
__device__ inline void mask(float (&score)[PIECES][4], int first_key, const int (&seen)[2]) {
    for (int piece = 0; piece < PIECES; ++piece) {
        for (int i = 0; i < 4; ++i) {
            const int key = first_key + piece * 8 + threadIdx.x % 4 * 2 + i % 2;
            if (key >= seen[i / 2]) score[piece][i] = LOWEST;
        }
    }
}

// The column of a lane's first result of a chunk. The second one is `NEXT` columns further.
__device__ inline int column_of(int chunk) {
    const int place = threadIdx.x % 4;
    return FP8 ? chunk / 2 * 16 + place * 4 + chunk % 2 : chunk * 8 + place * 2;
}
constexpr int NEXT = FP8 ? 2 : 1;

// Weights in FP8 are 256 times as large, up to 256: E4M3 ends at 448, and has but few small numbers.
// So are their sums, by which results are divided.
constexpr float RAISED = FP8 ? 8 : 0;

// What 16 queries have found so far: for rows g and g + 8 the largest exponent, the sum of this
// lane's weights relative to it, and weights times values.
struct Found {
    float largest[2] = {LOWEST, LOWEST};
    float sum[2] = {};
    float values[CHUNKS][4] = {};

    // Scores become weights, and what was found before becomes relative to the new maxima.
    template <int PIECES>
    __device__ void weigh(float (&score)[PIECES][4], float scale) {
        float kept[2];
        for (int half = 0; half < 2; ++half) {
            float higher = LOWEST;
            for (int piece = 0; piece < PIECES; ++piece) {
                higher = max(higher, max(score[piece][2 * half], score[piece][2 * half + 1]));
            }
            higher = max(higher, __shfl_xor_sync(0xffffffff, higher, 1));
            higher = max(higher, __shfl_xor_sync(0xffffffff, higher, 2));
            higher = max(largest[half], higher * scale);
            kept[half] = power_of_two(largest[half] - higher);
            largest[half] = higher;
            sum[half] *= kept[half];
        }
        const float base[2] = {largest[0] - RAISED, largest[1] - RAISED};
        for (int piece = 0; piece < PIECES; ++piece) {
            for (int i = 0; i < 4; ++i) {
                const float weight = power_of_two(score[piece][i] * scale - base[i / 2]);
                sum[i / 2] += weight;
                score[piece][i] = weight;
            }
        }
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            for (int i = 0; i < 4; ++i) values[chunk][i] *= kept[i / 2];
        }
    }

    // Adds weights times the values of a tile.
    template <int PIECES>
    __device__ void add(const float (&weight)[PIECES][4], Address tile) {
#if defined(ROOFLAB_PRECISION_FP8)
        add_quads(weight, tile);
#else
        add_pairs(weight, tile);
#endif
    }

#if defined(ROOFLAB_PRECISION_FP8)
    // Four pieces of weights are one operand. Of 32 keys the first four terms of a lane are keys 2 t,
    // 2 t + 1, 2 t + 8 and 2 t + 9, as its weights lie: a sum has any order, if both operands agree.
    // ldmatrix transposes pairs of bytes, which are two columns of a key. Permutes sort these.
    template <int PIECES>
    __device__ void add_quads(const float (&weight)[PIECES][4], Address tile) {
        static_assert(PIECES % 4 == 0, "a product in FP8 has 32 keys");
        const Address value_row = tile + threadIdx.x % 32 * PITCH;
        #pragma unroll
        for (int step = 0; step < PIECES / 4; ++step) {
            unsigned quads[4];
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int piece = step * 4 + i / 2 * 2, below = i % 2 * 2;
                quads[i] = pack_quad(weight[piece][below], weight[piece][below + 1],
                                     weight[piece + 1][below], weight[piece + 1][below + 1]);
            }
            #pragma unroll
            for (int chunk = 0; chunk < CHUNKS; chunk += 2) {
                unsigned value[4];
                load_transposed(value, value_row + step * 32 * PITCH + chunk * 8);
                const unsigned even[2] = {__byte_perm(value[0], value[1], 0x6420),
                                          __byte_perm(value[2], value[3], 0x6420)};
                const unsigned odd[2] = {__byte_perm(value[0], value[1], 0x7531),
                                         __byte_perm(value[2], value[3], 0x7531)};
                multiply_add(values[chunk], quads, even);
                multiply_add(values[chunk + 1], quads, odd);
            }
        }
    }
#else
    // Two pieces of weights are one operand.
    template <int PIECES>
    __device__ void add_pairs(const float (&weight)[PIECES][4], Address tile) {
        const Address value_row = tile + threadIdx.x % 16 * PITCH + threadIdx.x % 32 / 16 * 16;
        #pragma unroll
        for (int step = 0; step < PIECES / 2; ++step) {
            const float(&left)[4] = weight[2 * step], (&right)[4] = weight[2 * step + 1];
            const unsigned pairs[4] = {pack_pair(left[0], left[1]), pack_pair(left[2], left[3]),
                                       pack_pair(right[0], right[1]), pack_pair(right[2], right[3])};
            #pragma unroll
            for (int chunk = 0; chunk < CHUNKS; chunk += 2) {
                unsigned value[4];
                load_transposed(value, value_row + step * 16 * PITCH + chunk * 16);
                multiply_add(values[chunk], pairs, value);
                multiply_add(values[chunk + 1], pairs, value + 2);
            }
        }
    }
#endif

    // The sums of the weights of all lanes.
    __device__ void add_lanes() {
        for (int half = 0; half < 2; ++half) {
            sum[half] += __shfl_xor_sync(0xffffffff, sum[half], 1);
            sum[half] += __shfl_xor_sync(0xffffffff, sum[half], 2);
        }
    }
};
