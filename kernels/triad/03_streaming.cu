/*
title = "16 bytes per access, evict-first cache hints"
entry = "streaming"
workload = "triad"
rung = 3
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = [256]
tile = ["256 * 16 // input_bytes"]
teaches = "cache hints for data that is used once"
*/

/*
`vectorized` with hints: no element is used twice, so loads and stores mark their cache lines as
evict-first (ld.global.cs, st.global.cs). Expect 4.2 TB/s, 0 to 2 % above `vectorized`.

Learned:
- The gain is a constant fraction of a microsecond per launch. It shows at a few MiB and vanishes at
  1 GiB. We do not know the cause.
- Loads and stores both need the hint. Streaming loads with plain stores are clearly slower than no
  hints at all.
- An evict-first policy for L2 (createpolicy) is no better than .cs, and neither is a 256-byte
  prefetch into L2.
- Several vectors per thread, all loaded before the first store, gain nothing: 64 KB per
  multiprocessor are in flight already, and further loads only queue. Two or four vectors are
  slightly slower.
- A persistent grid, whose blocks step through the arrays, is even slower. Probably its blocks drift
  apart, while blocks that start in order keep the addresses in flight close together.
*/

#include "vector.cuh"

__device__ inline Vector<WIDTH> triad(Accumulate alpha, Vector<WIDTH> a, Vector<WIDTH> b) {
    Vector<WIDTH> c;
    for (int i = 0; i < WIDTH; ++i) {
        c.element[i] = narrow(widen(a.element[i]) + alpha * widen(b.element[i]));
    }
    return c;
}

extern "C" __global__ void __launch_bounds__(256)
streaming(long long elements, Accumulate alpha, const Input* A, const Input* B, Output* C) {
    const long long first = (blockIdx.x * 256LL + threadIdx.x) * WIDTH;
    if (first + WIDTH <= elements) {
        const Vector<WIDTH> a = load_streaming(A + first);
        const Vector<WIDTH> b = load_streaming(B + first);
        store_streaming(C + first, triad(alpha, a, b));
    } else {
        // The last elements, fewer than a vector holds.
        for (long long i = first; i < elements; ++i) {
            C[i] = narrow(widen(A[i]) + alpha * widen(B[i]));
        }
    }
}
