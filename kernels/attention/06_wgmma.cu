/*
title = "Hopper: scores of the next keys while weights meet their values"
entry = "wgmma"
workload = "attention"
rung = 6
precisions = ["fp16", "bf16"]
compute_capability = "9.0"
block = [384]
tile = [1, 128]
flat = true
shared_bytes = "2 * ROOFLAB_HEAD_SIZE * (128 + 2 * STAGES * KEYS) + 1024 + 64 * STAGES"
constraints = { head_size = 64 }
limits = { head_size = 128 }
tensor_maps = [
  { operand = "q", box = [64, 64], swizzle = 128, rows = true },
  { operand = "k", box = ["KEYS", 64], swizzle = 128, promotion = 256, rows = true },
  { operand = "v", box = [64, 64], swizzle = 128, promotion = 256, rows = true },
]
variants = [
  { name = "128 in turns", KEYS = 128, STAGES = 2, TURNS = 1 },
  { name = "128", KEYS = 128, STAGES = 2, TURNS = 0 },
  { name = "64 in turns", KEYS = 64, STAGES = 4, TURNS = 1 },
]
teaches = "exponentials are as slow as products, so that both must run at the same time"
*/

/*
`mma` on Hopper, after FlashAttention-3 (Shah et al., 2024). A producer fills rings of keys and of values by
TMA; two warpgroups have 64 queries each, and multiply by wgmma, which runs in the background.

  - A warpgroup starts the scores of the next keys and, behind them, the products of the present weights with
    their values. When the scores are there it makes weights of them, while the values are still multiplied.
  - Weights stay in registers: scores lie there as the first operand of the next product wants them. The
    second one, values, lies across the sum, which wgmma reads as it is.
  - In turns: a warpgroup starts its products when the other one has, so that one makes weights while tensor
    cores multiply for the other.
  - Rows of TMA's boxes may belong to the next head: scores of its keys are masked, and its queries not stored.

Arithmetic: for 128 keys and heads of 128 a warpgroup multiplies for 1024 cycles, if the tensor cores are its
own, and computes 64 exponentials of a lane, 512 cycles of the special-function units for its four warps.

Registers: 64 sums of scores, 64 of values and 32 of weights, of 240.

Occupancy: one block for a multiprocessor with 160 KB of queries, keys and values.

Expect 450 to 600 TFLOP/s on an H200 for 8192 causal queries, where `mma` has 268 and cuDNN 588: blocks do not
overlap, so each begins and ends with idle tensor cores.
*/

#define ROOFLAB_TRANSPOSE_A 0  // rows of queries and of keys lie along the head
#define ROOFLAB_TRANSPOSE_B 1
#define ROWS_TIMES_ACROSS  // those of values lie across keys

#include "attention_wgmma.cuh"

constexpr int CONSUMERS = 2, THREADS = (CONSUMERS + 1) * WARPGROUP;
constexpr int ROWS = 64 * CONSUMERS;
constexpr int SCORES = KEYS / 2, STEPS = KEYS / 16;  // of a thread

struct Shared {
    Part q[CONSUMERS][PARTS];
    Input k[STAGES][PARTS][KEYS * TILE_K];
    Part v[STAGES][KEYS / 64][PARTS];
    float unused[CONSUMERS * WARPGROUP];
    Barrier asked, full_k[STAGES], empty_k[STAGES], full_v[STAGES], empty_v[STAGES];
};

// Of two rows of a thread the largest exponent, and the sum of its weights relative to it.
struct Found {
    float largest[2] = {LOWEST, LOWEST}, sum[2] = {};

    // Scores become weights. Older ones are to be multiplied by `kept`.
    __device__ void weigh(float (&score)[SCORES], float (&kept)[2], float scale) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float higher = LOWEST;
#pragma unroll
            for (int i = 2 * half; i < SCORES; i += 4) higher = max(higher, max(score[i], score[i + 1]));
            higher = max(higher, __shfl_xor_sync(0xffffffff, higher, 1));
            higher = max(higher, __shfl_xor_sync(0xffffffff, higher, 2));
            higher = max(largest[half], higher * scale);
            kept[half] = power_of_two(largest[half] - higher);
            largest[half] = higher;
            sum[half] *= kept[half];
        }
#pragma unroll
        for (int i = 0; i < SCORES; ++i) {
            score[i] = power_of_two(score[i] * scale - largest[i / 2 % 2]);
            sum[i / 2 % 2] += score[i];
        }
    }
};

// Removes the scores of keys that a thread's two rows do not see.
__device__ inline void mask(float (&score)[SCORES], int first_key, const int (&seen)[2]) {
#pragma unroll
    for (int i = 0; i < SCORES; ++i) {
        const int key = first_key + i / 4 * 8 + column_in_eight() + i % 2;
        if (key >= seen[i / 2 % 2]) score[i] = LOWEST;
    }
}

__device__ inline void produce(Shared& shared, const TensorMap& Q, const TensorMap& K, const TensorMap& V,
                               int first_query, int first_key, int count) {
    announce(&shared.asked, sizeof(shared.q));
#pragma unroll
    for (int i = 0; i < CONSUMERS * PARTS; ++i) {
        const int row = first_query + i / PARTS * 64;
        copy_box(shared.q[i / PARTS][i % PARTS], Q, row, i % PARTS * TILE_K, &shared.asked);
    }
    Ring<STAGES> ring;
    for (int i = 0; i < count; ++i, ring.advance()) {
        const int row = first_key + i * KEYS, stage = ring.stage;
        wait(&shared.empty_k[stage], ring.phase ^ 1);
        announce(&shared.full_k[stage], sizeof(shared.k[0]));
        for (int part = 0; part < PARTS; ++part) {
            copy_box(shared.k[stage][part], K, row, part * TILE_K, &shared.full_k[stage]);
        }
        wait(&shared.empty_v[stage], ring.phase ^ 1);
        announce(&shared.full_v[stage], sizeof(shared.v[0]));
        for (int j = 0; j < KEYS / 64 * PARTS; ++j) {
            const int below = j / PARTS, part = j % PARTS;
            copy_box(shared.v[stage][below][part], V, row + below * 64, part * TILE_K, &shared.full_v[stage]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
wgmma(int batch, int heads, int kv_heads, int queries, int keys, int head_size,
      const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K,
      const __grid_constant__ TensorMap V, Output* O) {
    Shared& shared = reinterpret_cast<Shared&>(*dynamic_shared_tiles());
    const int warpgroup = of_first_lane(threadIdx.x / WARPGROUP);
    if (threadIdx.x == CONSUMERS * WARPGROUP) {
        prefetch(Q);
        prefetch(K);
        prefetch(V);
        initialize(&shared.asked);
        initialize_ring(shared.full_k, shared.empty_k, CONSUMERS);
        initialize_ring(shared.full_v, shared.empty_v, CONSUMERS);
    }
    begin_roles<1, THREADS>(warpgroup == CONSUMERS);

    const Tile of(heads, kv_heads, queries, keys, ROWS);
    // Backwards: the last queries of a head see the most keys.
    const int first = (of.rows - 1) / ROWS * ROWS - of.first;
    const Seen tile(first, min(ROWS, of.rows - first), queries, keys);
    const int count = tiles_along(tile.needed, KEYS);

    if (warpgroup == CONSUMERS) {  // the producer
        shrink_registers<24>();
        if (threadIdx.x >= CONSUMERS * WARPGROUP + 32 || !elected()) return;
        produce(shared, Q, K, V, int(of.first_query) + first, int(of.first_key), count);
        return;
    }

    grow_registers<240>();
    const bool leader = threadIdx.x % WARPGROUP == 0;
    const int row = first + warpgroup * 64 + row_in_warpgroup();
    const int seen[2] = {keys_seen(row, queries, keys), keys_seen(row + 8, queries, keys)};
    const float scale = exponent_scale();

    float score[SCORES], values[VALUES], kept[2];
    unsigned weights[STEPS][4];
    Found found;
    Ring<STAGES> of_keys, of_values;
    const auto start_scores = [&] {
        wait(&shared.full_k[of_keys.stage], of_keys.phase);
        begin_products();
#pragma unroll
        for (int i = 0; i < HEAD_SIZE / 16; ++i) {
            const auto q = descriptor(shared.q[warpgroup][i / 4]) + i % 4 * 2;
            multiply(score, q, descriptor(shared.k[of_keys.stage][i / 4]) + i % 4 * 2, i > 0);
        }
        commit_products();
    };
    const auto start_values = [&](bool add) {
        wait(&shared.full_v[of_values.stage], of_values.phase);
        begin_products();
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
            const auto v = descriptor_across(shared.v[of_values.stage][i / 4][0]) + i % 4 * 128;
            multiply(values, weights[i], v, add || i > 0);
        }
        commit_products();
    };
    const auto end_scores = [&](int start) {
        if (leader) arrive(&shared.empty_k[of_keys.stage]);
        of_keys.advance();
        if (start + KEYS > tile.common) mask(score, start, seen);
        found.weigh(score, kept, scale);
    };
    const auto end_values = [&] {
        wait_for_products<0>();
        if (leader) arrive(&shared.empty_v[of_values.stage]);
        of_values.advance();
    };
    wait(&shared.asked, 0);
    const bool alternates = TURNS && count > 1;
    if (alternates && warpgroup == 1) arrive_threads(2, CONSUMERS * WARPGROUP);  // the other one is first
    start_scores();
    wait_for_products<0>();
    end_scores(0);
    pack_weights(weights, score);
    for (int i = 1; i < count; ++i) {
        if (TURNS) sync_threads(2 + warpgroup, CONSUMERS * WARPGROUP);
        start_scores();
        start_values(i > 1);
        const bool again = warpgroup == 0 || i + 1 < count;  // the other one comes as often
        if (TURNS && again) arrive_threads(3 - warpgroup, CONSUMERS * WARPGROUP);
        wait_for_products<1>();
        end_scores(i * KEYS);
        compute_before_waiting(found.sum[0] + found.sum[1], &shared.unused[threadIdx.x]);
        end_values();
#pragma unroll
        for (int j = 0; j < VALUES; ++j) values[j] *= kept[j / 2 % 2];
        pack_weights(weights, score);
    }
    start_values(count > 1);
    end_values();

    float inverse[2];
    for (int half = 0; half < 2; ++half) inverse[half] = 1 / sum_of_four(found.sum[half]);
    Output* o = O + (of.first_query + row) * HEAD_SIZE + column_in_eight();
#pragma unroll
    for (int i = 0; i < VALUES; i += 2) {
        const int half = i / 2 % 2;
        if (row + half * 8 >= of.rows) continue;
        *reinterpret_cast<unsigned*>(o + half * 8 * HEAD_SIZE + i / 4 * 8) =
            pack(values[i] * inverse[half], values[i + 1] * inverse[half]);
    }
}
