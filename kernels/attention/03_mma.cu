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

Expect 300 to 350 TFLOP/s on an H200 in prefill, near PyTorch's FlashAttention-2: mma.sync gets to 60 % of the
peak at best there, and exponentials are not hidden behind products of the same warp. In decode 12
of 16 rows are idle with 4 heads for each head of keys, which costs nothing as long as memory is the
limit; but nothing splits the keys of one head, so that few blocks read them.
*/

#include "attention.cuh"
#include "dynamic_shared.cuh"
#include "mma.cuh"

constexpr int THREADS = 32 * WARPS;
constexpr int ROWS = 16 * WARPS;
constexpr int PITCH = 2 * HEAD_SIZE + 16;  // bytes between rows in shared memory
constexpr int CHUNKS = HEAD_SIZE / 8;      // of 16 bytes
constexpr int STEPS = HEAD_SIZE / 16;      // of the first product
constexpr int PIECES = KEYS / 8;           // of 16 x 8 scores
constexpr bool KEPT = HEAD_SIZE <= 128;    // whether registers hold the queries

using Address = decltype(shared_address(nullptr));

// Copies rows of a head to shared memory, and zeros for those that are past the end.
template <int HEIGHT>
__device__ inline void load(Address tile, const Input* from, int present) {
    for (int i = threadIdx.x; i < HEIGHT * CHUNKS; i += THREADS) {
        const int row = i / CHUNKS;
        const bool inside = row < present;
        copy_async<16>(tile + row * PITCH + i % CHUNKS * 16, inside ? from + i * 8 : from, inside);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
mma(int batch, int heads, int kv_heads, int queries, int keys, int head_size, const Input* Q,
    const Input* K, const Input* V, Output* O) {
    const Address asked = shared_address(dynamic_shared_memory());
    const Address of_keys = asked + ROWS * PITCH, of_values = of_keys + KEYS * PITCH;

    const Tile of(heads, kv_heads, queries, keys, ROWS);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, place = lane % 4;
    // Backwards: the last queries of a head see the most keys.
    const int first = (of.rows - 1) / ROWS * ROWS - of.first, present = min(ROWS, of.rows - first);
    const Input* k = K + of.first_key * HEAD_SIZE;
    const Input* v = V + of.first_key * HEAD_SIZE;

    // Keys that some row sees, and keys that all rows see. A tile may end one head and begin another.
    const int last = first + present - 1;
    const bool whole = first / queries == last / queries;
    const int needed = whole ? keys_seen(last, queries, keys) : keys;
    const int common = keys_seen(whole ? first : 0, queries, keys);
    const int seen[2] = {keys_seen(first + warp * 16 + group, queries, keys),
                         keys_seen(first + warp * 16 + group + 8, queries, keys)};

    load<ROWS>(asked, Q + (of.first_query + first) * HEAD_SIZE, present);
    load<KEYS>(of_keys, k, keys);
    copy_commit();

    // Where this lane points ldmatrix: for queries and values the second matrix is 8 rows below the
    // first and the third 8 elements to the right, for keys the other way round.
    const Address query_row = asked + (warp * 16 + lane % 16) * PITCH + lane / 16 * 16;
    const Address key_row = of_keys + (lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 16;
    const Address value_row = of_values + lane % 16 * PITCH + lane / 16 * 16;

    const float scale = exponent_scale();
    float largest[2] = {LOWEST, LOWEST}, sum[2] = {}, found[CHUNKS][4] = {};
    unsigned query[KEPT ? STEPS : 1][4];
    for (int start = 0; start < needed; start += KEYS) {
        load<KEYS>(of_values, v + static_cast<long long>(start) * HEAD_SIZE, keys - start);
        copy_commit();
        copy_wait<1>();  // for the keys
        __syncthreads();
        if (KEPT && start == 0) {
            #pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                load_matrices(query[KEPT ? step : 0], query_row + step * 32);
            }
        }

        // 1. Scores.
        float score[PIECES][4] = {};
        #pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            if (!KEPT) load_matrices(query[0], query_row + step * 32);
            #pragma unroll
            for (int piece = 0; piece < PIECES; piece += 2) {
                unsigned key[4];
                load_matrices(key, key_row + piece * 8 * PITCH + step * 32);
                multiply_add(score[piece], query[KEPT ? step : 0], key);
                multiply_add(score[piece + 1], query[KEPT ? step : 0], key + 2);
            }
        }
        __syncthreads();  // the keys have been used
        if (start + KEYS < needed) {
            load<KEYS>(of_keys, k + static_cast<long long>(start + KEYS) * HEAD_SIZE,
                       keys - start - KEYS);
        }
        copy_commit();

        // 2. Weights, relative to the largest score so far. Elements 0 and 1 of a piece are of row
        //    `group`, 2 and 3 of the row 8 below.
        if (start + KEYS > common) {
            for (int piece = 0; piece < PIECES; ++piece) {
                for (int i = 0; i < 4; ++i) {
                    const int key = start + piece * 8 + place * 2 + i % 2;
                    if (key >= seen[i / 2]) score[piece][i] = LOWEST;
                }
            }
        }
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
        for (int piece = 0; piece < PIECES; ++piece) {
            for (int i = 0; i < 4; ++i) {
                const float weight = power_of_two(score[piece][i] * scale - largest[i / 2]);
                sum[i / 2] += weight;
                score[piece][i] = weight;
            }
        }
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            for (int i = 0; i < 4; ++i) found[chunk][i] *= kept[i / 2];
        }

        // 3. Weights times values.
        copy_wait<1>();
        __syncthreads();
        #pragma unroll
        for (int step = 0; step < KEYS / 16; ++step) {
            const float(&left)[4] = score[2 * step], (&right)[4] = score[2 * step + 1];
            const unsigned weight[4] = {pack_pair(left[0], left[1]), pack_pair(left[2], left[3]),
                                        pack_pair(right[0], right[1]), pack_pair(right[2], right[3])};
            #pragma unroll
            for (int chunk = 0; chunk < CHUNKS; chunk += 2) {
                unsigned value[4];
                load_transposed(value, value_row + step * 16 * PITCH + chunk * 16);
                multiply_add(found[chunk], weight, value);
                multiply_add(found[chunk + 1], weight, value + 2);
            }
        }
        __syncthreads();  // the values have been used
    }

    for (int half = 0; half < 2; ++half) {
        sum[half] += __shfl_xor_sync(0xffffffff, sum[half], 1);
        sum[half] += __shfl_xor_sync(0xffffffff, sum[half], 2);
        const int row = warp * 16 + group + half * 8;
        if (row >= present) continue;
        const float inverse = 1 / sum[half];
        Output* o = O + (of.first_query + first + row) * HEAD_SIZE + place * 2;
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            const float* pair = found[chunk] + 2 * half;
            const unsigned packed = pack_pair(pair[0] * inverse, pair[1] * inverse);
            *reinterpret_cast<unsigned*>(o + chunk * 8) = packed;
        }
    }
}
