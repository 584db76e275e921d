/*
title = "Products in FP8: bytes that no instruction transposes"
entry = "mma_fp8"
workload = "attention"
rung = 5
precisions = ["fp8"]
min_compute_capability = "8.9"
block = ["32 * WARPS"]
tile = [1, "16 * WARPS"]
flat = true
shared_bytes = "(16 * WARPS + 4 * KEYS) * (ceildiv(ROOFLAB_HEAD_SIZE, 32) * 32 + 16)"
constraints = { head_size = 16 }
limits = { head_size = 256 }
variants = [
    { WARPS = 4, KEYS = 32 },
    { WARPS = 8, KEYS = 32 },
    { WARPS = 4, KEYS = 64 },
    { WARPS = 1, KEYS = 32 },
    { WARPS = 2, KEYS = 64 },
]
teaches = "a sum may take its terms in any order: the one in which they already lie"
*/

/*
`mma` in E4M3. A product has 32 terms instead of 16, and a register four of them.

  - ldmatrix transposes elements of 2 bytes only, but the second product wants four keys of one column
    in a register. A transposed pair of bytes has two columns of one key: two registers, and two
    permutes of their bytes, are four keys of an even column and of the odd one beside it.
  - These are keys 2 t, 2 t + 1, 2 t + 8 and 2 t + 9, not neighbours. A sum may take its terms in any
    order, and mma.sync left the weights of just these keys in this lane: nothing moves to another lane.
    wgmma reads values from shared memory, so that FlashAttention-3 (Shah et al., 2024) has to transpose
    them there.
  - Of a pair of 16 x 8 results one has the even, one the odd columns: a lane has four neighbours, which
    are one store.
  - Weights are rounded to E4M3, up to 6 % off, and raised by 2^8 before. Else those below 1/64 of the
    largest would be rounded worse, and those below 1/1024 be zero.
  - Tiles have half the bytes, so that two stages of keys and values fit, and one barrier for a tile.

Occupancy: 28 KB and 4 warps for heads of 128 and tiles of 32 keys, queries in 16 registers instead of
32. ptxas needs registers for the widened operands: with 64 keys some spill on Hopper, on Blackwell none.

Expect 150 to 250 TFLOP/s on an H200 in prefill, not more than `mma` in BF16: wgmma alone has FP8 there.
mma.sync in E4M3 is widened to FP16 by ptxas, which costs conversions. Where it is not, from Ada on,
products take half the time, and exponentials are the limit.
*/

#include "attention_mma.cuh"
#include "dynamic_shared.cuh"

constexpr int THREADS = 32 * WARPS;
constexpr int ROWS = 16 * WARPS;
constexpr int PIECES = KEYS / 8;  // of 16 x 8 scores
constexpr int STAGE_BYTES = 2 * KEYS * PITCH;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
mma_fp8(int batch, int heads, int kv_heads, int queries, int keys, int head_size, const Input* Q,
        const Input* K, const Input* V, Output* O) {
    const Address asked = shared_address(dynamic_shared_memory()), stages = asked + ROWS * PITCH;

    const Tile of(heads, kv_heads, queries, keys, ROWS);
    const int thread = threadIdx.x, warp = thread / 32, group = thread % 32 / 4, place = thread % 4;
    // Backwards: the last queries of a head see the most keys.
    const int first = (of.rows - 1) / ROWS * ROWS - of.first, present = min(ROWS, of.rows - first);
    const Input* k = K + of.first_key * HEAD_SIZE;
    const Input* v = V + of.first_key * HEAD_SIZE;
    const Seen tile(first, present, queries, keys);
    const int row = warp * 16 + group;
    const int seen[2] = {keys_seen(first + row, queries, keys), keys_seen(first + row + 8, queries, keys)};

    const auto fetch = [&](int start) {
        const Address to = stages + start / KEYS % 2 * STAGE_BYTES;
        const long long skipped = static_cast<long long>(start) * HEAD_SIZE;
        load<KEYS, THREADS>(to, k + skipped, keys - start, thread);
        load<KEYS, THREADS>(to + KEYS * PITCH, v + skipped, keys - start, thread);
    };
    load<ROWS, THREADS>(asked, Q + (of.first_query + first) * HEAD_SIZE, present, thread);
    fetch(0);
    copy_commit();

    Queries query(asked + warp * 16 * PITCH);
    Found found;
    for (int start = 0; start < tile.needed; start += KEYS) {
        copy_wait<0>();
        __syncthreads();  // the tile has come, and the one before it has been used
        if (start == 0) query.keep();
        if (start + KEYS < tile.needed) fetch(start + KEYS);
        copy_commit();

        const Address of_keys = stages + start / KEYS % 2 * STAGE_BYTES;
        float score[PIECES][4] = {};
        query.score(score, of_keys);
        if (start + KEYS > tile.common) mask(score, start, seen);
        found.weigh(score, exponent_scale());
        found.add(score, of_keys + KEYS * PITCH);
    }

    found.add_lanes();
    for (int half = 0; half < 2; ++half) {
        if (row + half * 8 >= present) continue;
        const float inverse = 1 / found.sum[half];
        Output* o = O + (of.first_query + first + row + half * 8) * HEAD_SIZE + place * 4;
        for (int chunk = 0; chunk < CHUNKS; chunk += 2) {
            const float *even = found.values[chunk] + 2 * half, *odd = found.values[chunk + 1] + 2 * half;
            const uint2 four = {pack_pair(even[0] * inverse, odd[0] * inverse),
                                pack_pair(even[1] * inverse, odd[1] * inverse)};
            *reinterpret_cast<uint2*>(o + chunk * 8) = four;
        }
    }
}
