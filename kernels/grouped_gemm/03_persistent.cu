/*
title = "Hopper: blocks that walk through all experts"
entry = "persistent"
workload = "grouped_gemm"
rung = 3
precisions = ["fp16", "bf16"]
compute_capability = "9.0"
block = ["128 * CONSUMERS + PRODUCER"]
blocks = "min(multiprocessors, (tokens // (64 * CONSUMERS) + min(experts, tokens)) * ceildiv(n, TILE_N))"
shared_bytes = "STAGES * 128 * (64 * CONSUMERS + TILE_N) + CONSUMERS * 2 * 64 * 128 + 16 * STAGES"
constraints = { n = 8, k = 8 }
tensor_maps = [
  { operand = "x", box = ["64 * CONSUMERS", 64], swizzle = 128, promotion = 256 },
  { operand = "w", box = [1, 64, 64], swizzle = 128, promotion = 256 },
  { operand = "y", box = [16, 64], swizzle = 128, pointer = true },
]
variants = [
  { name = "128x256", CONSUMERS = 2, PRODUCER = 128, TILE_N = 256, STAGES = 4 },
  { name = "128x128", CONSUMERS = 2, PRODUCER = 128, TILE_N = 128, STAGES = 6 },
  { name = "64x256", CONSUMERS = 1, PRODUCER = 32, TILE_N = 256, STAGES = 5 },
  { name = "64x128", CONSUMERS = 1, PRODUCER = 32, TILE_N = 128, STAGES = 8 },
]
teaches = "a tile may read what belongs to others: only what it writes must end with its expert"
*/

/*
mma.sync gets to 60 % of the peak of tensor cores. Here are `persistent` and `champion` of GEMM for experts:
TMA fills a ring of stages, one or two warpgroups multiply by wgmma, and a block stays and takes tile after
tile, of all experts in their order. It knows the expert of its last tile, so that it seldom reads `ends`.

An expert's rows end inside of a tile, and TMA knows no experts:

  - A tile of X may have rows of the next expert. They are multiplied too: a row of Y depends on one of X.
  - W is an operand of three dimensions, so that what is beyond K is zero, and not the next expert's.
  - Only Y must be right: 16 rows of a warp that belong to the expert are stored by TMA, of others its
    lanes store those that do, 16 bytes each.

Y goes behind the products: a consumer packs its sums, 64 registers of 128 x 256, and stores them two chunks
of 64 columns at a time during the next tile, if that has steps enough.

Tiles of an expert are computed in columns of up to 16, so that blocks share W and X in L2.

Traffic: as in GEMM, 384 rows of 128 bytes for 128 x 256 x 64 multiply-adds. For decode there is 64 x 256: W
once from memory, and a quarter as many bytes of X from L2.

Occupancy: one block for a multiprocessor with 192 to 200 KB of stages, more of W than has to be in flight.

Expect more than 700 TFLOP/s on an H200 for 8 experts of 1024 tokens each, N = 28672, K = 4096: `champion`
in layout nn less 3 to 7 %, since blocks do not meet, and less what is empty of each expert's last tile. For
4 tokens each of 128 experts 3.8 TB/s of weights.

Learned: few tokens go faster than that, near the roof of memory; many a little slower, at the power limit,
which lowers the clock.
*/

#define ROOFLAB_TRANSPOSE_A 0  // the layouts of GEMM: rows of X lie along K, those of W across
#define ROOFLAB_TRANSPOSE_B 0

#include "experts.cuh"
#include "tile_ring.cuh"

constexpr int SUMS = TILE_N / 2;           // of a thread
constexpr int CHUNKS = SUMS / CHUNK_SUMS;  // of a consumer's part of Y
constexpr int FIRST_STORE = 4;             // the step of the next tile in which the first two are stored
constexpr int LAST_STORE = FIRST_STORE + (CHUNKS / 2 - 1) * 4 + 2;  // of the second consumer
constexpr int GROUP = 16;  // rows of tiles that are computed together

using Tiles = ExpertTiles<TILE_M, TILE_N>;

// A consumer's part of Y, packed, and its place. Rows from `end` on are another expert's.
struct Kept {
    Word words[CHUNKS * CHUNK_WORDS];
    int row, column, end;
};

// Two chunks from `first` on, through the buffers of a warpgroup. A warp stores its 16 rows by TMA, or if some
// of them are another expert's, its lanes store pieces of 16 bytes of the others.
__device__ inline void store_two_chunks(const Kept& kept, int first, Output (&buffers)[2][64 * CHUNK],
                                        Output* Y, const TensorMap& map, int N) {
    const int lane = threadIdx.x % 32, first_row = threadIdx.x % WARPGROUP / 32 * 16;
    const int row = kept.row + first_row;
    if (row >= kept.end) return;
    if (elected()) wait_until_stores_have_read();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; ++i) stage_chunk(kept.words + (first + i) * CHUNK_WORDS, buffers[i]);
    publish_to_tma();
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
        const int column = kept.column + (first + i) * CHUNK;
        const Output* staged = buffers[i] + first_row * CHUNK;
        if (row + 16 <= kept.end) {
            if (elected()) store_box(map, row, column, staged);
            continue;
        }
        constexpr int pieces = ROW_BYTES / 16, each = CHUNK / pieces;
#pragma unroll 1
        for (int j = lane; j < 16 * pieces; j += 32) {
            const int m = j / pieces, piece = j % pieces;
            if (row + m >= kept.end || column + piece * each >= N) continue;
            *reinterpret_cast<uint4*>(Y + size_t(row + m) * N + column + piece * each) =
                *reinterpret_cast<const uint4*>(staged + m * CHUNK + (piece ^ m % 8) * each);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
persistent(int tokens, int N, int K, int experts, const __grid_constant__ TensorMap X,
           const __grid_constant__ TensorMap W, const int* ends, Output* Y,
           const __grid_constant__ TensorMap Y_map) {
    Shared& shared = reinterpret_cast<Shared&>(*dynamic_shared_tiles());
    const int warpgroup = of_first_lane(threadIdx.x / WARPGROUP);
    if (threadIdx.x == CONSUMERS * WARPGROUP) {
        prefetch(X);
        prefetch(W);
        prefetch(Y_map);
        initialize_ring(shared.full, shared.empty, CONSUMERS);
    }
    begin_roles<1, THREADS>(warpgroup == CONSUMERS);

    const int steps = tiles_along(K, TILE_K);
    Tiles tiles(ends, experts, N);
    Ring<STAGES> ring;

    if (warpgroup == CONSUMERS) {  // the producer
        if constexpr (GIVES_REGISTERS) shrink_registers<40>();
        if (threadIdx.x >= CONSUMERS * WARPGROUP + 32 || !elected()) return;
        for (int tile = blockIdx.x; tiles.reach(tile); tile += gridDim.x) {
            const Place place = grouped(tile - tiles.before, tiles.rows, tiles.columns, GROUP);
            const int row = tiles.start + place.row * TILE_M, column = place.column * TILE_N;
            for (int k = 0; k < steps * TILE_K; k += TILE_K, ring.advance()) {
                Barrier* full = &shared.full[ring.stage];
                wait(&shared.empty[ring.stage], ring.phase ^ 1);
                announce(full, sizeof(shared.x[0]) + sizeof(shared.w[0]));
                copy_box(shared.x[ring.stage], X, row, k, full);
#pragma unroll
                for (int i = 0; i < TILE_N; i += 64) {
                    copy_box(shared.w[ring.stage] + i * TILE_K, W, tiles.expert, k, column + i, full);
                }
            }
        }
        return;
    }

    if constexpr (GIVES_REGISTERS) grow_registers<232>();
    const bool first = threadIdx.x % WARPGROUP == 0;
    const auto x_at_0 = descriptor(shared.x[0] + warpgroup * 64 * TILE_K);
    const auto w_at_0 = descriptor_of_b(shared.w[0]);
    Kept kept;
    kept.row = kept.end = 0;  // nothing
    const auto store = [&](int chunk) { store_two_chunks(kept, chunk, shared.y[warpgroup], Y, Y_map, N); };
    const auto store_all = [&] {
#pragma unroll
        for (int i = 0; i < CHUNKS; i += 2) store(i);
        kept.end = 0;
    };
    for (int tile = blockIdx.x; tiles.reach(tile); tile += gridDim.x) {
        float sums[SUMS];
        int before = 0;
        for (int step = 0; step < steps; ++step, ring.advance()) {
            wait(&shared.full[ring.stage], ring.phase);
            begin_products();
            multiply_tiles(sums, x_at_0 + ring.stage * STAGE_STRIDE_X, w_at_0 + ring.stage * STAGE_STRIDE_W,
                           step > 0);
            commit_products();
#pragma unroll
            for (int i = 0; i < CHUNKS; i += 2) {
                if (step == FIRST_STORE + 2 * i + 2 * warpgroup) store(i);
            }
            wait_for_products<1>();
            if (step > 0 && first) arrive(&shared.empty[before]);
            before = ring.stage;
        }
        const Place place = grouped(tile - tiles.before, tiles.rows, tiles.columns, GROUP);
        wait_for_products<0>();
        if (first) arrive(&shared.empty[before]);

        pack_chunks(sums, kept.words, CHUNKS);
        kept.row = tiles.start + place.row * TILE_M + warpgroup * 64;
        kept.column = place.column * TILE_N;
        kept.end = tiles.end;
        if (steps <= LAST_STORE) store_all();
    }
    store_all();
    if (elected()) wait_until_stores_have_read();
}
