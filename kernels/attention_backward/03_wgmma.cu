/*
title = "Hopper: two warpgroups multiply, the third one copies and sums"
entry = "wgmma"
workload = "attention_backward"
rung = 3
precisions = ["fp16", "bf16"]
compute_capability = "9.0"
block = [384]
blocks = "batch * kv_heads * (ceildiv(keys, 128) + ceildiv(heads // kv_heads * queries, 128))"
shared_bytes = "2 * ROOFLAB_HEAD_SIZE * (256 + 192 * STAGES) + 1024 * (STAGES + 1)"
constraints = { head_size = 64 }
limits = { head_size = 128 }
tensor_maps = [
  { operand = "q", box = [64, 64], swizzle = 128, promotion = 256, rows = true },
  { operand = "k", box = [64, 64], swizzle = 128, promotion = 256, rows = true },
  { operand = "v", box = [64, 64], swizzle = 128, promotion = 256, rows = true },
  { operand = "o", box = [64, 64], swizzle = 128, promotion = 256, rows = true, pointer = true },
  { operand = "dout", box = [64, 64], swizzle = 128, promotion = 256, rows = true, pointer = true },
]
variants = [{ STAGES = 3 }, { STAGES = 2 }]
teaches = "what a few warps can do beside tensor cores, they should not do in turn with them"
*/

/*
`mma` with TMA and wgmma. Blocks are of 128 keys or of 128 queries, two warpgroups with 64 each, which go through
tiles of 64 of the others:

    block of queries:  S = Q K',   dP = dO V',   and with dS = P (dP - D)   dQ += dS K
    block of keys:     S' = K Q',  dP' = V dO',  dV += P' dO,               dK += dS' Q

The first two products take both operands from shared memory. P and dS, rounded to 16 bits, stay in registers as
first operands of the others, whose second ones, tiles of 64 rows, lie across the sum.

  - A thread of the third warpgroup copies tiles by TMA, STAGES of them ahead.
  - Its other warps compute D, the sums of dO times O, of the tiles of a block of keys, from shared memory. A block of
    queries needs those of its own rows only, once.
  - Sums of a tile are multiplied together with the scores of the next one. P is computed while dO is multiplied by V.
    So a warpgroup leaves tensor cores to the other one only while it makes dS.
  - Rows of a tile that belong to the next head are masked like those that are not seen: P is 0. If one holds an
    infinity or NaN, this head's gradients are NaN too.

Arithmetic: seven products of which five count. A tile and a warpgroup of a block of keys are four products of 256
cycles, and 64 x 64 exponentials, 256 cycles of the special-function units.

Registers: 128 sums of dK and dV, and either S and dP, 64, or P, dS and S of the next tile, 64 too, of 232.

Occupancy: one block for a multiprocessor with 210 KB for heads of 128.

Expect 350 to 450 TFLOP/s on an H200 for 8192 causal queries, where `mma` has 155 and cuDNN 469: as attention's
`wgmma`, times five sevenths.
*/

#define ROOFLAB_TRANSPOSE_A 0  // rows of the first two products lie along the head
#define ROOFLAB_TRANSPOSE_B 1
#define ROWS_TIMES_ACROSS  // the others' second operands lie across the sum

#include "attention_gradients.cuh"
#include "attention_wgmma.cuh"

constexpr int CONSUMERS = 2, THREADS = (CONSUMERS + 1) * WARPGROUP;
constexpr int ROWS = 64 * CONSUMERS, COLUMNS = 64;
constexpr int SCORES = COLUMNS / 2;      // of a thread
constexpr int HELPERS = WARPGROUP - 32;  // threads that compute D

using Rows = Part[PARTS];  // 64 rows of a head

struct Shared {
    Rows own[2][CONSUMERS];  // K and V, or Q and dO
    Rows tiles[STAGES][3];   // Q, dO and O, or K and V
    float lse[STAGES][COLUMNS], along[STAGES][COLUMNS];  // of the queries of a tile: lse and D
    float unused[CONSUMERS * WARPGROUP];
    Barrier asked, full[STAGES], empty[STAGES], saved[STAGES];
};

struct Maps {
    const TensorMap &q, &k, &v, &o, &dout;
};

template <bool OF_KEYS>
using Way = Walk<OF_KEYS, ROWS, COLUMNS>;

__device__ inline void copy_rows(Rows& to, const TensorMap& map, long long row, Barrier* barrier) {
#pragma unroll
    for (int i = 0; i < PARTS; ++i) copy_box(to[i], map, int(row), i * TILE_K, barrier);
}

// By one thread: the block's own rows, then tile after tile.
template <bool OF_KEYS>
__device__ inline void produce(Shared& shared, const Way<OF_KEYS>& walk, const Maps& maps) {
    const Heads& of = walk.of;
    announce(&shared.asked, sizeof(shared.own));
    for (int i = 0; i < CONSUMERS; ++i) {
        const long long row = (OF_KEYS ? of.first_key : of.first_query) + walk.first + i * 64;
        copy_rows(shared.own[0][i], OF_KEYS ? maps.k : maps.q, row, &shared.asked);
        copy_rows(shared.own[1][i], OF_KEYS ? maps.v : maps.dout, row, &shared.asked);
    }
    Ring<STAGES> ring;
    for (int start = walk.from(0); start < walk.end; start = walk.from(start + COLUMNS), ring.advance()) {
        const long long row = (OF_KEYS ? of.first_query : of.first_key) + start;
        Barrier* full = &shared.full[ring.stage];
        Rows(&tiles)[3] = shared.tiles[ring.stage];
        wait(&shared.empty[ring.stage], ring.phase ^ 1);
        announce(full, (OF_KEYS ? 3 : 2) * sizeof(Rows));
        copy_rows(tiles[0], OF_KEYS ? maps.q : maps.k, row, full);
        copy_rows(tiles[1], OF_KEYS ? maps.dout : maps.v, row, full);
        if (OF_KEYS) copy_rows(tiles[2], maps.o, row, full);
    }
}

// Eight numbers, which one instruction loads.
struct alignas(16) Eight {
    Input element[8];
};
__device__ inline Eight load_eight(const Input* from) {
    const uint4 words = *reinterpret_cast<const uint4*>(from);
    return reinterpret_cast<const Eight&>(words);
}

// Those of a row in shared memory, where TMA has put them.
__device__ inline Eight eight_of(const Rows& rows, unsigned row, unsigned chunk) {
    return load_eight(rows[chunk / 8] + row * TILE_K + (chunk % 8 ^ row % 8) * 8);
}

__device__ inline float dot(const Eight& a, const Eight& b) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += widen(a.element[i]) * widen(b.element[i]);
    return sum;
}

// By HELPERS threads of a block of keys: lse and D of the queries of each tile. Four lanes sum the same rows, and each
// of the first ones saves one. All rows of a lane are read at once.
__device__ inline void save(Shared& shared, const Way<true>& walk, const Accumulate* lse) {
    constexpr int AT_ONCE = HELPERS / 4, TURNS = (COLUMNS + AT_ONCE - 1) / AT_ONCE;
    static_assert(TURNS <= 4 && COLUMNS % 8 == 0, "a lane saves one row at most, and a warp has eight at once");
    const unsigned first = (threadIdx.x % WARPGROUP - 32) / 4, lane = threadIdx.x % 4;
    const int own = first + lane * AT_ONCE, exist = own < COLUMNS ? walk.of.rows - own : 0;
    lse += walk.of.first_query + own;
    Ring<STAGES> ring;
    for (int start = walk.from(0); start < walk.end; start = walk.from(start + COLUMNS), ring.advance()) {
        const Rows(&tiles)[3] = shared.tiles[ring.stage];
        const float of_own = start < exist ? lse[start] : 0;
        float sums[TURNS] = {};
        wait(&shared.full[ring.stage], ring.phase);
#pragma unroll
        for (int i = 0; i < HEAD_SIZE / 32; ++i) {
#pragma unroll
            for (int turn = 0; turn < TURNS; ++turn) {
                const unsigned row = first + turn * AT_ONCE, chunk = lane + 4 * i;
                if ((turn + 1) * AT_ONCE > COLUMNS && row >= COLUMNS) continue;  // all rows of its warp
                sums[turn] += dot(eight_of(tiles[1], row, chunk), eight_of(tiles[2], row, chunk));
            }
        }
        if (own < COLUMNS) shared.lse[ring.stage][own] = of_own;
#pragma unroll
        for (int turn = 0; turn < TURNS; ++turn) {
            const float along = sum_of_four(sums[turn]);
            if (turn == lane && own < COLUMNS) shared.along[ring.stage][own] = along;
        }
        publish_to_tma();  // these reads come before the next copy
        arrive(&shared.saved[ring.stage]);
    }
}

// lse and D of a query, of which four lanes have the row.
struct Query {
    float lse = 0, along = 0;

    __device__ Query() {}
    __device__ Query(const Given& given, long long row) {
        const int lane = threadIdx.x % 4;
        for (int chunk = lane; chunk < HEAD_SIZE / 8; chunk += 4) {
            const long long at = row * HEAD_SIZE + chunk * 8;
            along += dot(load_eight(given.o + at), load_eight(given.dout + at));
        }
        along = sum_of_four(along);
        lse = given.lse[row];
    }
};

__device__ inline void multiply_rows(float (&sums)[SCORES], const Rows& a, const Rows& b) {
#pragma unroll
    for (int i = 0; i < HEAD_SIZE / 16; ++i) {
        multiply(sums, descriptor(a[i / 4]) + i % 4 * 2, descriptor(b[i / 4]) + i % 4 * 2, i > 0);
    }
}

using Weights = unsigned[COLUMNS / 16][4];  // 16 bits each, as the first operand

__device__ inline void multiply_weights(float (&sums)[VALUES], const Weights& weights, const Rows& b) {
#pragma unroll
    for (int i = 0; i < COLUMNS / 16; ++i) {
        multiply(sums, weights[i], descriptor_across(b[0]) + i * 128, true);
    }
}

// The column of a thread's sum in a tile.
__device__ inline int column_of(int sum) { return sum / 4 * 8 + column_in_eight() + sum % 2; }

// A thread's part of two rows of a result, `left` of which exist from its first one on.
__device__ inline void store_rows(Output* to, const float (&values)[VALUES], float factor, int left) {
#pragma unroll
    for (int i = 0; i < VALUES; i += 2) {
        const int below = i / 2 % 2 * 8;
        if (below >= left) continue;
        *reinterpret_cast<unsigned*>(to + below * HEAD_SIZE + i / 4 * 8 + column_in_eight()) =
            pack(values[i] * factor, values[i + 1] * factor);
    }
}

// The gradients of a warpgroup's 64 keys or queries.
template <bool OF_KEYS>
__device__ inline void consume(Shared& shared, const Way<OF_KEYS>& walk, const Given& given, Output* result,
                               Output* dV) {
    const Heads& of = walk.of;
    const int warpgroup = of_first_lane(threadIdx.x / WARPGROUP), own = warpgroup * 64 + row_in_warpgroup();
    const bool leader = threadIdx.x % WARPGROUP == 0;
    const long long at = (OF_KEYS ? of.first_key : of.first_query) + walk.first + own;
    Query query[2];
    if constexpr (!OF_KEYS) {
        for (int i = 0; i < 2; ++i) {
            const int row = min(walk.first + own + 8 * i, of.rows - 1);
            query[i] = Query(given, of.first_query + row);
        }
    }

    float changed[VALUES] = {}, weighted[VALUES] = {};  // of weighted there is none for queries
    float score[SCORES];
    Weights weights, changes;
    Ring<STAGES> ring;
    const auto start_scores = [&] {
        wait(&shared.full[ring.stage], ring.phase);
        begin_products();
        multiply_rows(score, shared.own[0][warpgroup], shared.tiles[ring.stage][0]);
        commit_products();
    };
    // P of a tile whose scores are there, while dO is multiplied by V; then dS.
    const auto weigh = [&](int start) {
        const int stage = ring.stage;
        float change[SCORES], sum = 0;
        begin_products();
        multiply_rows(change, shared.own[1][warpgroup], shared.tiles[stage][1]);
        commit_products();
        if (walk.cut(start) || (OF_KEYS && start + COLUMNS > of.rows)) {
#pragma unroll
            for (int i = 0; i < SCORES; ++i) {
                const int other = start + column_of(i);
                const bool exists = !OF_KEYS || other < of.rows;
                if (!exists || !walk.sees(walk.first + own + i / 2 % 2 * 8, other)) score[i] = LOWEST;
            }
        }
        if (OF_KEYS) wait(&shared.saved[stage], ring.phase);
#pragma unroll
        for (int i = 0; i < SCORES; ++i) {
            score[i] = weight_of(score[i], OF_KEYS ? shared.lse[stage][column_of(i)] : query[i / 2 % 2].lse);
            sum += score[i];
        }
        compute_before_waiting(sum, &shared.unused[threadIdx.x]);
        wait_for_products<0>();
#pragma unroll
        for (int i = 0; i < SCORES; ++i) {
            const float along = OF_KEYS ? shared.along[stage][column_of(i)] : query[i / 2 % 2].along;
            change[i] = score[i] * (change[i] - along);
        }
        pack_weights(weights, score);
        pack_weights(changes, change);
    };
    const auto start_sums = [&] {
        const Rows(&tiles)[3] = shared.tiles[ring.stage];
        begin_products();
        multiply_weights(changed, changes, tiles[0]);
        if constexpr (OF_KEYS) multiply_weights(weighted, weights, tiles[1]);
        commit_products();
    };
    wait(&shared.asked, 0);
    start_scores();
    wait_for_products<0>();
    int start = walk.from(0);
    weigh(start);
    for (int next; (next = walk.from(start + COLUMNS)) < walk.end; start = next) {
        const int stage = ring.stage;
        start_sums();
        ring.advance();
        start_scores();
        wait_for_products<0>();
        if (leader) arrive(&shared.empty[stage]);
        weigh(next);
    }
    start_sums();
    wait_for_products<0>();

    const int left = walk.present - own;
    store_rows(result + at * HEAD_SIZE, changed, score_scale(), left);
    if constexpr (OF_KEYS) store_rows(dV + at * HEAD_SIZE, weighted, 1, left);
}

template <bool OF_KEYS>
__device__ inline void compute(Shared& shared, const Heads& of, int first, const Maps& maps, const Given& given,
                               Output* result, Output* dV) {
    const Way<OF_KEYS> walk(of, first);
    if (threadIdx.x < CONSUMERS * WARPGROUP) {
        grow_registers<232>();
        consume<OF_KEYS>(shared, walk, given, result, dV);
        return;
    }
    shrink_registers<40>();
    if (threadIdx.x < CONSUMERS * WARPGROUP + 32) {
        if (elected()) produce<OF_KEYS>(shared, walk, maps);
    } else if constexpr (OF_KEYS) {
        save(shared, walk, given.lse);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
wgmma(int batch, int heads, int kv_heads, int queries, int keys, int head_size,
      const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K,
      const __grid_constant__ TensorMap V, const Input* O, const __grid_constant__ TensorMap O_map,
      const Input* dO, const __grid_constant__ TensorMap dO_map, const Accumulate* LSE, Output* dQ, Output* dK,
      Output* dV) {
    Shared& shared = reinterpret_cast<Shared&>(*dynamic_shared_tiles());
    const Maps maps{Q, K, V, O_map, dO_map};
    if (threadIdx.x == CONSUMERS * WARPGROUP) {
        initialize(&shared.asked);
        initialize_ring(shared.full, shared.empty, CONSUMERS);
        for (Barrier& saved : shared.saved) initialize(&saved, HELPERS);
    }
    __syncthreads();  // helpers, too, use the barriers

    const Given given{nullptr, nullptr, nullptr, O, dO, LSE};
    const int rows = heads / kv_heads * queries;
    const int of_keys = tiles_along(keys, ROWS), of_queries = tiles_along(rows, ROWS);
    const int first_of_queries = batch * kv_heads * of_keys, block = blockIdx.x;
    // Early keys are seen by most queries, late queries see most keys: the longest of a head first.
    if (block < first_of_queries) {
        const long long head = block / of_keys;
        const Heads of{rows, queries, keys, head * rows, head * keys};
        compute<true>(shared, of, block % of_keys * ROWS, maps, given, dK, dV);
    } else {
        const int tile = block - first_of_queries;
        const long long head = tile / of_queries;
        const Heads of{rows, queries, keys, head * rows, head * keys};
        compute<false>(shared, of, (of_queries - 1 - tile % of_queries) * ROWS, maps, given, dQ, nullptr);
    }
}
