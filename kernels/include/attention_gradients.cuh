// Shared by the kernels of attention's gradients.
//
// dO and dQ have the shape of Q, dK and dV that of K; LSE is (batch, heads, queries). A kernel is
// launched as
//
//     extern "C" __global__ void entry(int batch, int heads, int kv_heads, int queries, int keys,
//                                      int head_size, const Input* Q, const Input* K,
//                                      const Input* V, const Input* O, const Input* dO,
//                                      const Accumulate* LSE, Output* dQ, Output* dK, Output* dV);
#pragma once

#include "attention.cuh"

struct Given {
    const Input *q, *k, *v, *o, *dout;
    const Accumulate* lse;
};

__device__ inline Accumulate score_scale() {
    return 1 / sqrt(static_cast<Accumulate>(HEAD_SIZE));
}

// A query's weight of a key, from their product. Score and lse may be large, and their difference
// small: it is taken before anything is rounded again.
__device__ inline Accumulate weight_of(Accumulate product, Accumulate lse) {
    const Accumulate exponent = product * score_scale() - lse;
    return power_of_two(exponent * static_cast<Accumulate>(1.4426950408889634));
}

// Queries and keys of the heads that a block has.
struct Heads {
    int rows, queries, keys;           // rows: queries of all heads that share the keys
    long long first_query, first_key;  // within Q, within K
};

// The tiles of OTHERS that a block of OWN goes through: of queries if it is a block of keys, otherwise of keys.
template <bool OF_KEYS, int OWN, int OTHERS>
struct Walk {
    Heads of;
    int first, present, end;

    __device__ Walk(const Heads& heads, int first) : of(heads), first(first) {
        present = min(OWN, (OF_KEYS ? of.keys : of.rows) - first);
        end = OF_KEYS ? of.rows : Seen(first, present, of.queries, of.keys).needed;
    }

    // The next tile of which a pair is seen, or `end`.
    __device__ int from(int start) const {
        if (OF_KEYS && CAUSAL) {
            while (start < end && Seen(start, width(start), of.queries, of.keys).needed <= first) {
                start += OTHERS;
            }
        }
        return start;
    }

    // Whether some pairs of the block and a tile are not seen.
    __device__ bool cut(int start) const {
        if (!OF_KEYS) return start + OTHERS > Seen(first, present, of.queries, of.keys).common;
        return CAUSAL && first + present > Seen(start, width(start), of.queries, of.keys).common;
    }

    __device__ bool sees(int own, int other) const {
        const int row = OF_KEYS ? other : own, key = OF_KEYS ? own : other;
        return key < keys_seen(row, of.queries, of.keys);
    }

    __device__ int width(int start) const { return min(OTHERS, end - start); }
};
