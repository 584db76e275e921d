/*
title = "One warp per query and per key, one pair at a time"
entry = "naive"
workload = "attention_backward"
rung = 1
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = [128]
blocks = "ceildiv(batch * (heads * queries + kv_heads * keys), 4)"
limits = { head_size = 1024 }
teaches = "two sums over the same pairs: of keys for each query, of queries for each key"
*/

/*
The definition. With P = exp(score - lse), the weights of the forward pass, and D = sum of dO times
O,

    dS = P (dO V' - D) / sqrt(head_size),   dQ = dS K,   dK = dS' Q,   dV = P' dO

A warp has one row of a result: the first warps a query's row of dQ, the others a key's rows of dK
and dV. Each lane keeps a part of its numbers, and the same part of the result. For each pair the
lanes add two products by shuffles, the score and dO times the value, and for keys a third one, D.

So every pair is computed twice, once for its query and once for its key: seven products for the
five of the formula. In return every result has one writer, which adds in a fixed order: no atomics,
and the same bits each time.

Traffic: a query reads the keys and values that it sees. A key reads Q, dO and O of the queries that
see it, of all heads that share it. The four warps of a block read the same rows at about the same
time, the others find them in L2.

Expect about half of the FLOP rate of attention's `naive`: each pair costs two chains of shuffles,
or three, and an exponential that the next pair waits for. The tensor cores do nothing. A few keys
with many queries fill few warps, which then take long.
*/

#include "attention_gradients.cuh"

constexpr int WARP = 32;
constexpr int WARPS = 4;
constexpr int COUNT = (HEAD_SIZE + WARP - 1) / WARP;  // numbers of a lane

// What a lane has of a row: every 32nd number.
struct Part {
    Accumulate numbers[COUNT] = {};

    __device__ Part() {}
    __device__ explicit Part(const Input* row) {
        for (int i = 0; i < COUNT; ++i) {
            if (inside(i)) numbers[i] = widen(row[column(i)]);
        }
    }

    __device__ static int column(int i) { return threadIdx.x % WARP + i * WARP; }
    __device__ static bool inside(int i) { return HEAD_SIZE % WARP == 0 || column(i) < HEAD_SIZE; }

    __device__ void add(Accumulate factor, const Part& other) {
        for (int i = 0; i < COUNT; ++i) numbers[i] += factor * other.numbers[i];
    }

    __device__ void store(Output* row, Accumulate factor) const {
        for (int i = 0; i < COUNT; ++i) {
            if (inside(i)) row[column(i)] = narrow(numbers[i] * factor);
        }
    }
};

// The product of two rows, which all lanes get.
__device__ inline Accumulate dot(const Part& a, const Part& b) {
    Accumulate sum = 0;
    for (int i = 0; i < COUNT; ++i) sum += a.numbers[i] * b.numbers[i];
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(0xffffffff, sum, distance);
    }
    return sum;
}

// dQ of one query, whose number among all is `query`.
__device__ inline void of_query(long long query, int heads, int kv_heads, int queries, int keys,
                                const Given& given, Output* dQ) {
    const long long at = query * HEAD_SIZE, head = query / queries;
    const long long first_key = head / (heads / kv_heads) * keys;  // neighbours share
    const Part q(given.q + at), dout(given.dout + at);
    const Accumulate along = dot(dout, Part(given.o + at)), lse = given.lse[query];
    const int seen = keys_seen(query % queries, queries, keys);
    Part dq;
    for (int i = 0; i < seen; ++i) {
        const long long key = (first_key + i) * HEAD_SIZE;
        const Part k(given.k + key), v(given.v + key);
        const Accumulate weight = weight_of(dot(q, k), lse);
        dq.add(weight * (dot(dout, v) - along), k);
    }
    dq.store(dQ + at, score_scale());
}

// dK and dV of one key.
__device__ inline void of_key(long long key, int heads, int kv_heads, int queries, int keys,
                              const Given& given, Output* dK, Output* dV) {
    const int rows = heads / kv_heads * queries;  // that share the key
    const long long at = key * HEAD_SIZE, first_query = key / keys * rows;
    const Part k(given.k + at), v(given.v + at);
    Part dk, dv;
    for (int i = 0; i < rows; ++i) {
        if (key % keys >= keys_seen(i, queries, keys)) continue;
        const long long query = (first_query + i) * HEAD_SIZE;
        const Part q(given.q + query), dout(given.dout + query);
        const Accumulate along = dot(dout, Part(given.o + query));
        const Accumulate weight = weight_of(dot(q, k), given.lse[first_query + i]);
        dk.add(weight * (dot(dout, v) - along), q);
        dv.add(weight, dout);
    }
    dk.store(dK + at, score_scale());
    dv.store(dV + at, 1);
}

extern "C" __global__ void __launch_bounds__(WARP * WARPS, 1)
naive(int batch, int heads, int kv_heads, int queries, int keys, int head_size, const Input* Q,
      const Input* K, const Input* V, const Input* O, const Input* dO, const Accumulate* LSE,
      Output* dQ, Output* dK, Output* dV) {
    const Given given{Q, K, V, O, dO, LSE};
    const long long row = static_cast<long long>(blockIdx.x) * WARPS + threadIdx.x / WARP;
    const long long all_queries = static_cast<long long>(batch) * heads * queries;
    const long long all_keys = static_cast<long long>(batch) * kv_heads * keys;
    if (row < all_queries) {
        of_query(row, heads, kv_heads, queries, keys, given, dQ);
    } else if (row < all_queries + all_keys) {
        of_key(row - all_queries, heads, kv_heads, queries, keys, given, dK, dV);
    }
}
