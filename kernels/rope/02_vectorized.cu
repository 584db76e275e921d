/*
title = "16 bytes per access, angles shared by several heads"
entry = "vectorized"
workload = "rope"
rung = 2
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = [256]
blocks = "ceildiv(tokens * head_size // 2 * ceildiv(batch * heads, HEADS), 256 * 16 // input_bytes)"
variants = [{ HEADS = 1 }, { HEADS = 2 }, { HEADS = 4 }]
teaches = "what many rows share is loaded once for several of them"
*/

/*
A thread turns a vector of neighbouring pairs, 16 bytes of each half, of HEADS heads with the same token. It
loads their angles once. The divisions that find the place are two for all of them, no longer two per pair.

Traffic: X and Y cross the memory bus once, the least possible. The angles come from L2, with half as many
bytes as X and Y together if each head loads them: then L2 delivers as much again as memory reads. With
HEADS = 4 it is a quarter of that.

Limits: none. Half a head that is no multiple of 16 bytes takes the widest accesses that divide it, in
several passes. If HEADS does not divide the heads, a thread of the last ones loads the first one again.

In flight: 2 loads of 16 bytes per head and thread. 36 to 92 registers allow 512 to 1,536 threads, 48 KB or
more per multiprocessor; 11 KB hide the latency.

Expect 3.9 to 4.1 TB/s on an H200, of 4.8, in all precisions, with HEADS = 2 or 4; with 1 slightly less. In
`copy` more vectors per thread are slower; here the loads of angles that they save should outweigh that.
*/

#include "vector.cuh"

// Turns COUNT neighbouring pairs by the same angles, of HEADS heads or as many as there are.
template <int COUNT>
__device__ inline void turn(int heads, long long stride, long long half, const Input* x,
                            const Input* cosines, const Input* sines, Output* y) {
    // All loads come before the first product, so that all are in flight together.
    Vector<COUNT> first[HEADS], second[HEADS];
    for (int h = 0; h < HEADS; ++h) {
        const Input* from = x + (h < heads ? h * stride : 0);
        first[h] = load_streaming<COUNT>(from);
        second[h] = load_streaming<COUNT>(from + half);
    }
    const Vector<COUNT> cosine = load<COUNT>(cosines), sine = load<COUNT>(sines);
    for (int h = 0; h < HEADS; ++h) {
        for (int i = 0; i < COUNT; ++i) {
            const Accumulate a = widen(first[h].element[i]), b = widen(second[h].element[i]);
            const Accumulate c = widen(cosine.element[i]), s = widen(sine.element[i]);
            first[h].element[i] = narrow(a * c - b * s);
            second[h].element[i] = narrow(b * c + a * s);
        }
    }
    for (int h = 0; h < HEADS; ++h) {
        if (h < heads) {
            store_streaming<COUNT>(y + h * stride, first[h]);
            store_streaming<COUNT>(y + h * stride + half, second[h]);
        }
    }
}

// All heads, in accesses of COUNT elements, or of fewer if COUNT does not divide half a head.
template <int COUNT>
__device__ inline void turn_all(long long heads, long long tokens, long long half, const Input* X,
                                const Input* cosines, const Input* sines, Output* Y) {
    if constexpr (COUNT > 1) {
        if (half % COUNT != 0) return turn_all<COUNT / 2>(heads, tokens, half, X, cosines, sines, Y);
    }
    const long long stride = tokens * 2 * half;          // from a head to the next
    const long long vectors = tokens * (half / COUNT);   // of the tables
    const long long all = vectors * ((heads + HEADS - 1) / HEADS);
    const long long step = gridDim.x * 256LL;            // narrow accesses need several passes
#pragma unroll 1
    for (long long i = blockIdx.x * 256LL + threadIdx.x; i < all; i += step) {
        const long long group = i / vectors, angle = (i - group * vectors) * COUNT;
        const long long token = angle / half, head = group * HEADS;
        const long long place = head * stride + token * half + angle;  // token * 2 * half + the pair
        const int present = static_cast<int>(min(heads - head, static_cast<long long>(HEADS)));
        turn<COUNT>(present, stride, half, X + place, cosines + angle, sines + angle, Y + place);
    }
}

extern "C" __global__ void __launch_bounds__(256)
vectorized(long long pairs, long long tokens, long long half, const Input* X, const Input* cosines,
           const Input* sines, Output* Y) {
    turn_all<WIDTH>(pairs / (tokens * half), tokens, half, X, cosines, sines, Y);
}
