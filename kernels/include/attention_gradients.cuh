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
