/*
title = "The row in registers, with cache policies"
entry = "priority"
workload = "rmsnorm"
rung = 4
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = ["min(1024, 32 * ceildiv(columns * input_bytes, 512 * VECTORS))"]
tile = [1]
min_compute_capability = "8.0"
variants = [{ VECTORS = 2 }, { VECTORS = 4 }, { VECTORS = 8 }]
teaches = "cache policies: L2 writes results first, L1 keeps the weights"
*/

/*
`registers` with two policies of the caches.

1. Row and weights are loaded with the L2 policy evict_last.

No element of X is read twice, so its lines in L2 are useless once they are loaded. But L2 is a
write-back cache: it writes a result to device memory when it evicts the line. Between a line of X
and a finished line of Y, the cache now evicts Y. The writes start earlier, and probably in longer
runs of neighbouring addresses.

2. The row is loaded without a place in the L1 cache (no_allocate). The weights are the same for all
rows, and 128 KB of them stay in L1 if nothing else takes their place. Long rows need that: there is
no register left to load the weights early, and with one block per multiprocessor nothing else runs
while it waits for L2.

Expect 4.1 to 4.3 TB/s, 0 to 4 % above `registers`. The idea comes from code that PyTorch's compiler
generates; there the hint has another purpose, because that code reads the row twice.

Learned:
- The second policy brought rows of 32,768 columns from the rate of `registers` to that of short rows,
  as predicted: softmax, which has no weights, had that rate already. It makes no difference to
  shorter rows.
- The kernel is faster, for nearly all rows faster than a device-to-device copy.
- The cause is not data that stays in L2 from one launch to the next: two alternating copies of the
  operands give the same rate as one.
- The opposite hint, evict_first, is slower by about the same amount. Streaming stores (st.cs) and
  write-through stores (st.wt) of Y, which should free the same lines, help only the longest rows:
  the explanation above is plausible and not proven.

A cost: when the kernel ends, L2 is full of X. A kernel that reads Y next finds less of it there.
*/

#include "rmsnorm.cuh"

// Vectors of weights that are loaded with the row: as many as there are registers for.
constexpr int EARLY = VECTORS < 8 ? VECTORS : sizeof(Input) < 8 ? 2 : 0;

template <bool ALIGNED>
__device__ void rmsnorm(const Share<VECTORS, ALIGNED>& share, Accumulate epsilon, const Input* x,
                        const Input* W, Output* y) {
    __shared__ Accumulate partials[WARP];
    const Input zero = narrow(0);

    // 1. Read the row and keep it packed: widening it twice costs less than registers.
    uint4 kept[VECTORS], weights[VECTORS];
    for (int k = 0; k < VECTORS; ++k) kept[k] = share.load_once_kept(x, k, zero);
    constexpr int AHEAD = ALIGNED ? EARLY : 0;
    for (int k = 0; k < AHEAD; ++k) weights[k] = share.load_kept(W, k, zero);
    Accumulate squares = 0;
    for (int k = 0; k < VECTORS; ++k) {
        const Vector vector = unpack(kept[k]);
        for (int i = 0; i < WIDTH; ++i) {
            squares += widen(vector.element[i]) * widen(vector.element[i]);
        }
    }
    squares = reduce_block<Sum>(squares, partials);
    const Accumulate scale = inverse_root(squares / share.columns + epsilon);

    // 2. Write it.
    for (int k = 0; k < VECTORS; ++k) {
        if (k >= AHEAD) weights[k] = share.load_kept(W, k, zero);
        Vector vector = unpack(kept[k]);
        const Vector weight = unpack(weights[k]);
        for (int i = 0; i < WIDTH; ++i) {
            vector.element[i] = narrow(widen(vector.element[i]) * scale * widen(weight.element[i]));
        }
        share.store(y, k, vector);
    }
}

extern "C" __global__ void __launch_bounds__(1024, 1)
priority(long long rows, long long columns, Accumulate epsilon, const Input* X,
         const Input* W, Output* Y) {
    const Input* x = X + blockIdx.x * columns;
    Output* y = Y + blockIdx.x * columns;
    const bool fits = columns <= Share<VECTORS, true>::held();
    if (fits && columns % WIDTH == 0) {
        rmsnorm(Share<VECTORS, true>(columns), epsilon, x, W, y);
    } else if (fits && VECTORS * WIDTH <= 32) {
        rmsnorm(Share<VECTORS, false>(columns), epsilon, x, W, y);
    } else {
        rmsnorm_any_row(columns, epsilon, x, W, y);
    }
}
