/*
title = "FlashAttention-2: products by tensor cores, a warp for 16 queries"
entry = "mma"
workload = "attention"
rung = 3
precisions = ["fp16", "bf16"]
min_compute_capability = "8.0"
block = ["32 * WARPS"]
tile = [1, "16 * WARPS"]
flat = true
shared_bytes = "(16 * WARPS + 2 * KEYS) * (2 * ROOFLAB_HEAD_SIZE + 16)"
constraints = { head_size = 16 }
limits = { head_size = 256 }
variants = [
    { WARPS = 4, KEYS = 64 },
    { WARPS = 8, KEYS = 64 },
    { WARPS = 4, KEYS = 32 },
    { WARPS = 1, KEYS = 64 },
    { WARPS = 2, KEYS = 128 },
]
teaches = "the weights of one product are the operand of the next, in the same registers"
*/

/*
`flash` on tensor cores (Dao, "FlashAttention-2", 2023). Each warp has 16 queries and goes through
all keys alone, so that neither maxima nor sums leave it: a row is spread over 4 lanes.

  - mma.sync leaves 16 x 8 scores in the registers of a warp. The next product wants 16 x 16 weights
    as its first operand in nearly the same place: two such pieces, rounded to 16 bits, are it.
    So weights never go through shared memory, unlike in `flash`.
  - Keys lie in memory as the first product wants its second operand; values have to be transposed,
    which ldmatrix does on the way.
  - A copy of values is on its way while scores are computed, and one of the next keys while
    weights are multiplied by values.
  - Rows in shared memory are 16 bytes longer than a head, so that 8 rows lie in different banks.
  - Only tiles at the end of what a row sees compare the numbers of keys.

Arithmetic: for 64 keys a warp does 128 products of 16 x 8 x 16 for scores and as many for values
(heads of 128), with 64 loads by ldmatrix, and each lane 32 exponentials: 1024 cycles of the tensor
cores' share of a warp scheduler at their full rate, 256 of the special-function unit.

Occupancy: 52 KB and 4 warps of some 200 registers for heads of 128: 2 blocks on a multiprocessor.
One computes exponentials while the other one multiplies.

Expect 200 to 270 TFLOP/s on an H200 in prefill, a little less than PyTorch's FlashAttention-2: mma.sync gets to
60 % of the peak at best there, and exponentials are not hidden behind products of the same warp. In decode 12
of 16 rows are idle with 4 heads for each head of keys, which costs nothing as long as memory is the
limit; but nothing splits the keys of one head, so that few blocks read them.
*/

#include "attention_mma.cuh"
#include "dynamic_shared.cuh"

constexpr int THREADS = 32 * WARPS;
constexpr int ROWS = 16 * WARPS;
constexpr int PIECES = KEYS / 8;  // of 16 x 8 scores

extern "C" __global__ void __launch_bounds__(THREADS, 1)
mma(int batch, int heads, int kv_heads, int queries, int keys, int head_size, const Input* Q,
    const Input* K, const Input* V, Output* O) {
    const Address asked = shared_address(dynamic_shared_memory());
    const Address of_keys = asked + ROWS * PITCH, of_values = of_keys + KEYS * PITCH;

    const Tile of(heads, kv_heads, queries, keys, ROWS);
    const int thread = threadIdx.x, warp = thread / 32, group = thread % 32 / 4, place = thread % 4;
    // Backwards: the last queries of a head see the most keys.
    const int first = (of.rows - 1) / ROWS * ROWS - of.first, present = min(ROWS, of.rows - first);
    const Input* k = K + of.first_key * HEAD_SIZE;
    const Input* v = V + of.first_key * HEAD_SIZE;
    const Seen tile(first, present, queries, keys);
    const int row = warp * 16 + group;
    const int seen[2] = {keys_seen(first + row, queries, keys), keys_seen(first + row + 8, queries, keys)};

    load<ROWS, THREADS>(asked, Q + (of.first_query + first) * HEAD_SIZE, present, thread);
    load<KEYS, THREADS>(of_keys, k, keys, thread);
    copy_commit();

    Queries query(asked + warp * 16 * PITCH);
    Found found;
    for (int start = 0; start < tile.needed; start += KEYS) {
        // 1. Scores, while values are copied.
        const int left = keys - start;
        load<KEYS, THREADS>(of_values, v + static_cast<long long>(start) * HEAD_SIZE, left, thread);
        copy_commit();
        copy_wait<1>();  // for the keys
        __syncthreads();
        if (start == 0) query.keep();
        float score[PIECES][4] = {};
        query.score(score, of_keys);
        __syncthreads();  // the keys have been used

        // 2. Weights, while the next keys are copied.
        if (start + KEYS < tile.needed) {
            const Input* next = k + static_cast<long long>(start + KEYS) * HEAD_SIZE;
            load<KEYS, THREADS>(of_keys, next, left - KEYS, thread);
        }
        copy_commit();
        if (start + KEYS > tile.common) mask(score, start, seen);
        found.weigh(score, exponent_scale());

        // 3. Weights times values.
        copy_wait<1>();  // for the values
        __syncthreads();
        found.add(score, of_values);
        __syncthreads();  // the values have been used
    }

    found.add_lanes();
    for (int half = 0; half < 2; ++half) {
        if (row + half * 8 >= present) continue;
        const float inverse = 1 / found.sum[half];
        Output* o = O + (of.first_query + first + row + half * 8) * HEAD_SIZE + place * 2;
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            const float* pair = found.values[chunk] + 2 * half;
            *reinterpret_cast<unsigned*>(o + chunk * 8) = pack_pair(pair[0] * inverse, pair[1] * inverse);
        }
    }
}
