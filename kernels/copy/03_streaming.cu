/*
title = "16 bytes per access, evict-first cache hints"
entry = "streaming"
workload = "copy"
rung = 3
precisions = ["fp64", "fp32", "fp16", "bf16", "int32", "int64"]
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
- Several vectors per thread, all loaded before the first store, are slower at large sizes: four are
  slower than two. Enough bytes are in flight already, and further loads only queue.
- A persistent grid, whose blocks step through the arrays, is even slower. Probably its blocks drift
  apart, while blocks that start in order keep the addresses in flight close together.
*/

#include "vector.cuh"

extern "C" __global__ void __launch_bounds__(256)
streaming(long long elements, const Input* A, Output* C) {
    const long long first = (blockIdx.x * 256LL + threadIdx.x) * WIDTH;
    if (first + WIDTH <= elements) {
        store_streaming(C + first, load_streaming(A + first));
    } else {
        // The last elements, fewer than a vector holds.
        for (long long i = first; i < elements; ++i) C[i] = A[i];
    }
}
