// Shared by the attention kernels: which queries a block has, and which keys they see.
//
// Q and O are (batch, heads, queries, HEAD_SIZE), K and V (batch, kv_heads, keys, HEAD_SIZE), all of
// them tightly packed. A kernel is launched as
//
//     extern "C" __global__ void entry(int batch, int heads, int kv_heads, int queries, int keys,
//                                      int head_size, const Input* Q, const Input* K,
//                                      const Input* V, Output* O);
//
// and compiled for one HEAD_SIZE. heads / kv_heads heads share keys and values. Their queries follow
// each other in Q: together they are a matrix of "rows" that has its own K and V.
#pragma once

#include "exponential.cuh"
#include "types.cuh"

constexpr int HEAD_SIZE = ROOFLAB_HEAD_SIZE;
constexpr bool CAUSAL = ROOFLAB_CAUSAL;

// Below every score. Unlike minus infinity, it can be subtracted from itself.
constexpr Accumulate LOWEST =
    static_cast<Accumulate>(sizeof(Accumulate) == 8 ? -0x1.fffffffffffffp1023 : -0x1.fffffep127);

// 1 / sqrt(HEAD_SIZE) / log(2): with it scores are exponents of two.
__device__ inline Accumulate exponent_scale() {
    return static_cast<Accumulate>(1.4426950408889634) / sqrt(static_cast<Accumulate>(HEAD_SIZE));
}

// The tile of rows of a block, in a grid whose tiles are all along x.
struct Tile {
    int rows;               // that share keys and values
    int first;              // the tile's first row
    long long first_query;  // the first row of the heads that share, within Q
    long long first_key;    // their first key, within K

    __device__ Tile(int heads, int kv_heads, int queries, int keys, int height,
                    unsigned block = blockIdx.x) {
        rows = heads / kv_heads * queries;
        const int tiles = (rows + height - 1) / height;
        const long long shared = block / tiles;
        first = block % tiles * height;
        first_query = shared * rows;
        first_key = shared * keys;
    }
};

// How many keys a row sees: causal queries are the last tokens.
__device__ inline int keys_seen(int row, int queries, int keys) {
    return CAUSAL ? keys - queries + row % queries + 1 : keys;
}

// Keys that some row of a tile sees, and keys that all of its rows see. It may end one head and begin
// another one.
struct Seen {
    int needed, common;

    __device__ Seen(int first, int present, int queries, int keys) {
        const int last = first + present - 1;
        const bool whole = first / queries == last / queries;
        needed = whole ? keys_seen(last, queries, keys) : keys;
        common = keys_seen(whole ? first : 0, queries, keys);
    }
};
