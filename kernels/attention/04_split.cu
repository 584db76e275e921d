/*
title = "Decode: warps and blocks of a cluster split the keys of a head"
entry = "split"
workload = "attention"
rung = 4
precisions = ["fp16", "bf16", "fp8"]
min_compute_capability = "9.0"
block = ["32 * WARPS"]
tile = [1, 16]
flat = true
blocks_per_tile = "CLUSTER"
cluster = ["CLUSTER"]
shared_bytes = "(16 + WARPS * STAGES * 2 * KEYS) * (ceildiv(input_bytes * ROOFLAB_HEAD_SIZE, 32) * 32 + 16) + 64 * ROOFLAB_HEAD_SIZE + 128 * CLUSTER"
constraints = { head_size = 16 }
limits = { head_size = 256 }
variants = [
    { CLUSTER = 8, WARPS = 4, KEYS = 32, STAGES = 2 },
    { CLUSTER = 4, WARPS = 4, KEYS = 32, STAGES = 2 },
    { CLUSTER = 2, WARPS = 4, KEYS = 32, STAGES = 2 },
    { CLUSTER = 1, WARPS = 4, KEYS = 32, STAGES = 2 },
    { CLUSTER = 8, WARPS = 4, KEYS = 16, STAGES = 2, precisions = ["fp16", "bf16"] },
    { CLUSTER = 2, WARPS = 4, KEYS = 16, STAGES = 2, precisions = ["fp16", "bf16"] },
    { CLUSTER = 8, WARPS = 4, KEYS = 64, STAGES = 2, precisions = ["fp8"] },
    { CLUSTER = 2, WARPS = 4, KEYS = 64, STAGES = 2, precisions = ["fp8"] },
]
teaches = "parts of a softmax can be added later: each has its own maximum and sum"
*/

/*
With one query there are only as many tiles of rows as heads of keys, 8 in an 8B model: `mma` reads
from 8 multiprocessors of 132. Here the keys of a head are split among CLUSTER blocks of WARPS warps
("Flash-Decoding", Dao et al., 2023). Each warp goes through its keys alone, as in `mma`, with tiles
of its own in shared memory, so that no warp waits for another one. What it found is relative to
its own largest score.

1. The warps of a block put what they found into shared memory, in the place of their tiles. The
   block makes it relative to the largest of their scores, and adds.
2. Each block of the cluster is to finish some columns: all others write theirs into its shared
   memory. After a barrier it does as in step 1, with blocks instead of warps.

Traffic: keys and values are read once for each 16 rows, queries times heads that share them: once
in all for 4 heads and up to 4 queries.

Bytes in flight: 4 warps x 2 stages x 32 keys with their values, heads of 128: 131 KB for each
multiprocessor. At 4.8 TB/s and a latency of 0.8 µs 29 KB are needed if all of them read, 60 KB
if only 64 do, as with 8 heads of keys and 8 blocks for each.

Expect 2 to 3 TB/s on an H200 for one sequence of 8192 tokens, where the launch, the first copies and
the exchange take as long as the reads (33 MB, 7 µs), and 4 for 32 of them.
*/

#include "attention_mma.cuh"
#include "cluster.cuh"
#include "dynamic_shared.cuh"

constexpr int WARP = 32;
constexpr int THREADS = WARP * WARPS;
constexpr int ROWS = 16;
constexpr int PIECES = KEYS / 8;            // of 16 x 8 scores
constexpr int SHARE = HEAD_SIZE / CLUSTER;  // columns that a block finishes
static_assert(STAGES * KEYS >= 32, "what warps found has room in the place of their tiles");

// What several workers found about a row: [worker][largest or sum][row].
struct Statistics {
    const float* of;
    int workers;

    __device__ float largest(int row) const {
        float found = LOWEST;
        for (int i = 0; i < workers; ++i) found = max(found, of[i * 2 * ROWS + row]);
        return found;
    }
    __device__ float weight(int worker, int row, float largest) const {
        return power_of_two(of[worker * 2 * ROWS + row] - largest);
    }
    __device__ float sum(int row, float largest) const {
        float found = 0;
        for (int i = 0; i < workers; ++i) {
            found += weight(i, row, largest) * of[i * 2 * ROWS + ROWS + row];
        }
        return found;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
split(int batch, int heads, int kv_heads, int queries, int keys, int head_size, const Input* Q,
      const Input* K, const Input* V, Output* O) {
    unsigned char* const memory = dynamic_shared_memory();
    unsigned char* const tiles = memory + ROWS * PITCH;
    float* const parts = reinterpret_cast<float*>(tiles + WARPS * STAGES * 2 * KEYS * PITCH);
    float* const statistics = parts + ROWS * HEAD_SIZE;  // of the blocks; parts: [block][row][SHARE]

    const int rank = CLUSTER > 1 ? rank_in_cluster() : 0;
    if (CLUSTER > 1) arrive_in_cluster();  // this block has started
    const Tile of(heads, kv_heads, queries, keys, ROWS, blockIdx.x / CLUSTER);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, group = lane / 4, place = lane % 4;
    const int first = of.first, present = min(ROWS, of.rows - first);
    const Input* k = K + of.first_key * HEAD_SIZE;
    const Input* v = V + of.first_key * HEAD_SIZE;
    const Seen tile(first, present, queries, keys);
    const int seen[2] = {keys_seen(first + group, queries, keys), keys_seen(first + group + 8, queries, keys)};

    // This warp's share of the tiles of keys.
    const long long count = (tile.needed + KEYS - 1) / KEYS;
    const int worker = rank * WARPS + warp;
    const int begin = count * worker / (CLUSTER * WARPS), end = count * (worker + 1) / (CLUSTER * WARPS);
    const Address own = shared_address(tiles) + warp * STAGES * 2 * KEYS * PITCH;
    const auto fetch = [&](int i) {  // always a group of copies
        if (i < end) {
            const Address to = own + (i - begin) % STAGES * 2 * KEYS * PITCH;
            const long long start = static_cast<long long>(i) * KEYS;
            const int left = keys - start;
            load<KEYS, WARP>(to, k + start * HEAD_SIZE, left, lane);
            load<KEYS, WARP>(to + KEYS * PITCH, v + start * HEAD_SIZE, left, lane);
        }
        copy_commit();
    };
    load<ROWS, THREADS>(shared_address(memory), Q + (of.first_query + first) * HEAD_SIZE, present,
                        threadIdx.x);
    copy_commit();
    for (int i = begin; i < begin + STAGES; ++i) fetch(i);
    copy_wait<STAGES>();
    __syncthreads();
    Queries query(shared_address(memory));
    query.keep();

    Found found;
    for (int i = begin; i < end; ++i) {
        copy_wait<STAGES - 1>();
        __syncwarp();
        const Address of_keys = own + (i - begin) % STAGES * 2 * KEYS * PITCH;
        float score[PIECES][4] = {};
        query.score(score, of_keys);
        if ((i + 1) * KEYS > tile.common) mask(score, i * KEYS, seen);
        found.weigh(score, exponent_scale());
        found.add(score, of_keys + KEYS * PITCH);
        __syncwarp();  // the tile has been used
        fetch(i + STAGES);
    }
    found.add_lanes();
    copy_wait<0>();
    __syncthreads();  // all tiles have been used

    // 1. What the warps found, to shared memory: [warp][row][column].
    float* const of_warps = reinterpret_cast<float*>(tiles);
    float* const statistics_of_warps = of_warps + WARPS * ROWS * HEAD_SIZE;
    for (int half = 0; half < 2; ++half) {
        const int row = group + half * 8;
        float* to = of_warps + (warp * ROWS + row) * HEAD_SIZE;
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            to[column_of(chunk)] = found.values[chunk][2 * half];
            to[column_of(chunk) + NEXT] = found.values[chunk][2 * half + 1];
        }
        if (place == 0) {
            statistics_of_warps[warp * 2 * ROWS + row] = found.largest[half];
            statistics_of_warps[warp * 2 * ROWS + ROWS + row] = found.sum[half];
        }
    }
    __syncthreads();
    if (CLUSTER > 1) wait_for_cluster();  // all blocks have started

    const auto tell = [](float* to, int block, float value) {
        if (CLUSTER > 1) {
            write_to_block(to, block, value);
        } else {
            *to = value;
        }
    };
    const Statistics warps = {statistics_of_warps, WARPS};
    for (int i = threadIdx.x; i < ROWS * HEAD_SIZE; i += THREADS) {
        const int row = i / HEAD_SIZE, column = i % HEAD_SIZE;
        const float largest = warps.largest(row);
        float sum = 0;
        for (int j = 0; j < WARPS; ++j) {
            sum += warps.weight(j, row, largest) * of_warps[j * ROWS * HEAD_SIZE + i];
        }
        tell(parts + (rank * ROWS + row) * SHARE + column % SHARE, column / SHARE, sum);
    }
    for (int i = threadIdx.x; i < ROWS * CLUSTER; i += THREADS) {
        const int row = i % ROWS, block = i / ROWS;
        const float largest = warps.largest(row);
        tell(statistics + rank * 2 * ROWS + row, block, largest);
        tell(statistics + rank * 2 * ROWS + ROWS + row, block, warps.sum(row, largest));
    }
    if (CLUSTER > 1) {
        arrive_in_cluster();
        wait_for_cluster();
    } else {
        __syncthreads();
    }

    // 2. This block's columns of what all blocks found.
    const Statistics blocks = {statistics, CLUSTER};
    for (int i = threadIdx.x; i < present * SHARE; i += THREADS) {
        const int row = i / SHARE;
        const float largest = blocks.largest(row);
        float sum = 0;
        for (int j = 0; j < CLUSTER; ++j) {
            sum += blocks.weight(j, row, largest) * parts[j * ROWS * SHARE + i];
        }
        Output* o = O + (of.first_query + first + row) * HEAD_SIZE + rank * SHARE;
        o[i % SHARE] = narrow(sum / blocks.sum(row, largest));
    }
}
