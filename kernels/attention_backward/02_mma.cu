/*
title = "FlashAttention-2's products on tensor cores, without atomics"
entry = "mma"
workload = "attention_backward"
rung = 2
precisions = ["fp16", "bf16"]
min_compute_capability = "8.0"
block = ["32 * WARPS"]
blocks = """
batch * kv_heads * (ceildiv(keys, 16 * WARPS) + ceildiv(heads // kv_heads * queries, 16 * WARPS))"""
shared_bytes = "(32 * WARPS + 4 * COLUMNS) * (2 * ROOFLAB_HEAD_SIZE + 16)"
constraints = { head_size = 16 }
limits = { head_size = 128 }
variants = [
    { WARPS = 4, COLUMNS = 32 },
    { WARPS = 8, COLUMNS = 32 },
    { WARPS = 4, COLUMNS = 64 },
]
teaches = "blocks of keys and blocks of queries do the same, with the operands exchanged"
*/

/*
`naive` on tensor cores, in the manner of FlashAttention-2 (Dao, 2023): tiles in shared memory,
scores that never leave the registers. The first blocks have keys, the others queries, 16 for each
warp.

    block of queries:  S = Q K',   dP = dO V',   and with dS = P (dP - D)   dQ += dS K
    block of keys:     S' = K Q',  dP' = V dO',  dV += P' dO,               dK += dS' Q

In both a warp multiplies the two tiles that it keeps with two tiles that the block goes through.
What results, rounded to 16 bits, is in the same registers the first operand of the next product.
Only lse and D belong to rows in one, and to columns in the other. Queries of different heads that
share keys are rows of one matrix, so that no other block has a part of dK and dV.

FlashAttention-2 has blocks of keys only, which add dQ to FP32 in memory by atomics. That is five
products instead of seven, but dQ depends on the order, has to be zero before, and is converted
after. Here every result has one writer and the same bits each time, in one launch.

  - Two stages of tiles: the next one is copied while one is multiplied.
  - A block computes D, the sum of dO times O, for the queries that it fetches: one more row of each
    to read, and a sum for 4 lanes. To save it would take a launch before this one.
  - A warp reads its own tiles from shared memory for each product: dK and dV of heads of 128 fill
    half of the registers.
  - Causal blocks skip tiles of which no pair is seen. Only tiles on the diagonal compare positions.

Occupancy: for heads of 128 two blocks of 4 warps on a multiprocessor, by registers.

Expect less of the peak than attention's `mma`: five of seven products count, all operands come
through shared memory, and neither exponentials nor D are hidden behind products of the same warp.
Libraries with wgmma, and with warps that only copy, should be far ahead.
*/

#include "attention_gradients.cuh"
#include "attention_mma.cuh"
#include "dynamic_shared.cuh"
#include "vector.cuh"

constexpr int THREADS = 32 * WARPS;
constexpr int ROWS = 16 * WARPS;
constexpr int PIECES = COLUMNS / 8;  // of 16 x 8 scores
constexpr int SIDE = ROWS > COLUMNS ? ROWS : COLUMNS;
constexpr int TILE_BYTES = COLUMNS * PITCH;

// lse and D of the queries of a tile.
struct Saved {
    float lse[SIDE], along[SIDE];
};

// Adds the products of 16 rows with those of a tile, in pieces of 8.
__device__ inline void add_products(float (&sums)[PIECES][4], Address rows, Address tile) {
    const int lane = threadIdx.x % 32;
    const Address own = rows + lane % 16 * PITCH + lane / 16 * 16;
    const Address other = tile + (lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 16;
    #pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        unsigned a[4], b[4];
        load_matrices(a, own + step * 32);
        #pragma unroll
        for (int piece = 0; piece < PIECES; piece += 2) {
            load_matrices(b, other + piece * 8 * PITCH + step * 32);
            multiply_add(sums[piece], a, b);
            multiply_add(sums[piece + 1], a, b + 2);
        }
    }
}

// lse and D of HEIGHT queries from number `first` on, with 4 lanes for each; zeros past the end.
template <int HEIGHT>
__device__ inline void save(Saved& to, const Given& given, long long first, int present) {
    const int lane = threadIdx.x % 4;
    for (int row = threadIdx.x / 4; row < HEIGHT; row += THREADS / 4) {
        const bool inside = row < present;
        const long long at = (first + row) * HEAD_SIZE;
        float sum = 0;
        for (int chunk = lane; inside && chunk < CHUNKS; chunk += 4) {
            const auto o = load(given.o + at + chunk * 8);
            const auto dout = load(given.dout + at + chunk * 8);
            for (int i = 0; i < 8; ++i) sum += widen(o.element[i]) * widen(dout.element[i]);
        }
        sum += __shfl_xor_sync(0xffffffff, sum, 1);
        sum += __shfl_xor_sync(0xffffffff, sum, 2);
        if (lane == 0) {
            to.lse[row] = inside ? given.lse[first + row] : 0;
            to.along[row] = sum;
        }
    }
}

// Writes 16 rows of a result, of which `present` exist.
__device__ inline void store(Output* rows, const Found& found, float factor, int present) {
    const int group = threadIdx.x % 32 / 4, place = threadIdx.x % 4;
    for (int half = 0; half < 2; ++half) {
        const int row = group + half * 8;
        if (row >= present) continue;
        Output* to = rows + row * HEAD_SIZE + place * 2;
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            const float* pair = found.values[chunk] + 2 * half;
            const unsigned both = pack_pair(pair[0] * factor, pair[1] * factor);
            *reinterpret_cast<unsigned*>(to + chunk * 8) = both;
        }
    }
}

// The gradients of ROWS queries or keys from `first` on.
template <bool OF_KEYS>
__device__ inline void compute(const Heads& of, int first, const Given& given, Output* result,
                               Output* dV) {
    __shared__ Saved saved[2];
    const Address own = shared_address(dynamic_shared_memory()), tiles = own + 2 * ROWS * PITCH;
    const Walk<OF_KEYS, ROWS, COLUMNS> walk(of, first);
    const int thread = threadIdx.x, warp = thread / 32, group = thread % 32 / 4, place = thread % 4;
    const long long at = OF_KEYS ? of.first_key + first : of.first_query + first;

    const Input* one = (OF_KEYS ? given.k : given.q) + at * HEAD_SIZE;
    const Input* two = (OF_KEYS ? given.v : given.dout) + at * HEAD_SIZE;
    load<ROWS, THREADS>(own, one, walk.present, thread);
    load<ROWS, THREADS>(own + ROWS * PITCH, two, walk.present, thread);
    if (!OF_KEYS) save<ROWS>(saved[0], given, at, walk.present);

    const auto fetch = [&](int stage, int start) {
        const Address to = tiles + stage * 2 * TILE_BYTES;
        const long long from = (OF_KEYS ? of.first_query : of.first_key) + start;
        const int left = (OF_KEYS ? of.rows : of.keys) - start;
        const Input* one = (OF_KEYS ? given.q : given.k) + from * HEAD_SIZE;
        const Input* two = (OF_KEYS ? given.dout : given.v) + from * HEAD_SIZE;
        load<COLUMNS, THREADS>(to, one, left, thread);
        load<COLUMNS, THREADS>(to + TILE_BYTES, two, left, thread);
        if (OF_KEYS) save<COLUMNS>(saved[stage], given, from, left);
    };

    Found changed, weighted;  // of weighted there is none for queries
    int start = walk.from(0), stage = 0;
    fetch(stage, start);
    copy_commit();
    while (start < walk.end) {
        const int next = walk.from(start + COLUMNS);
        if (next < walk.end) fetch(1 - stage, next);
        copy_commit();
        copy_wait<1>();  // for this tile
        __syncthreads();

        // 1. Scores, and products of dO and V.
        const Address tile = tiles + stage * 2 * TILE_BYTES;
        float weight[PIECES][4] = {}, change[PIECES][4] = {};
        add_products(weight, own + warp * 16 * PITCH, tile);
        add_products(change, own + (ROWS + warp * 16) * PITCH, tile + TILE_BYTES);

        // 2. P and dS.
        const bool cut = walk.cut(start);
        for (int piece = 0; piece < PIECES; ++piece) {
            for (int i = 0; i < 4; ++i) {
                const int row = warp * 16 + group + i / 2 * 8;
                const int column = piece * 8 + place * 2 + i % 2;
                const Saved& query = saved[OF_KEYS ? stage : 0];
                const int number = OF_KEYS ? column : row;
                const float p = weight_of(weight[piece][i], query.lse[number]);
                weight[piece][i] = cut && !walk.sees(first + row, start + column) ? 0 : p;
                change[piece][i] = weight[piece][i] * (change[piece][i] - query.along[number]);
            }
        }

        // 3. Their products with the tiles.
        changed.add(change, tile);
        if (OF_KEYS) weighted.add(weight, tile + TILE_BYTES);
        __syncthreads();  // the tile has been used
        start = next;
        stage = 1 - stage;
    }

    const long long to = (at + warp * 16) * HEAD_SIZE;
    store(result + to, changed, score_scale(), walk.present - warp * 16);
    if (OF_KEYS) store(dV + to, weighted, 1, walk.present - warp * 16);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
mma(int batch, int heads, int kv_heads, int queries, int keys, int head_size, const Input* Q,
    const Input* K, const Input* V, const Input* O, const Input* dO, const Accumulate* LSE,
    Output* dQ, Output* dK, Output* dV) {
    const Given given{Q, K, V, O, dO, LSE};
    const int rows = heads / kv_heads * queries;
    const int of_keys = (keys + ROWS - 1) / ROWS, of_queries = (rows + ROWS - 1) / ROWS;
    const int first_of_queries = batch * kv_heads * of_keys;
    const int block = blockIdx.x;
    // Early keys are seen by most queries, late queries see most keys: the longest of a head first.
    if (block < first_of_queries) {
        const long long head = block / of_keys;
        const Heads of{rows, queries, keys, head * rows, head * keys};
        compute<true>(of, block % of_keys * ROWS, given, dK, dV);
    } else {
        const int tile = block - first_of_queries;
        const long long head = tile / of_queries;
        const Heads of{rows, queries, keys, head * rows, head * keys};
        compute<false>(of, (of_queries - 1 - tile % of_queries) * ROWS, given, dQ, nullptr);
    }
}
