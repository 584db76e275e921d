/*
title = "All rows of A, few columns of C"
entry = "skinny"
rung = 51
precisions = ["bf16", "fp16", "fp16_fp32", "tf32", "fp8"]
layouts = ["nt"]
limits = { M = 512 }
compute_capability = "9.0"
block = ["128 * CONSUMERS + 32"]
tile = ["64 * CONSUMERS", "TILE_N"]
flat = true
blocks_per_tile = "SPLITS"
cluster = ["SPLITS"]
shared_bytes = """STAGES * DEPTH * 128 * (64 * CONSUMERS + TILE_N) + 16 * STAGES \
    + CONSUMERS * (256 * TILE_N * min(1, SPLITS - 1) + 24)"""
tensor_maps = [
  { operand = "a", box = ["64 * CONSUMERS", "128 // input_bytes"], swizzle = 128, pointer = true },
  { operand = "b", box = ["TILE_N // PARTS", "128 // input_bytes"], swizzle = 128, pointer = true },
]
variants = [
  { name = "64x48x128, 7 stages", CONSUMERS = 1, TILE_N = 48, DEPTH = 2, STAGES = 7, SPLITS = 1, PARTS = 1, AHEAD = 1024 },
  { name = "64x48x128, 5 stages", CONSUMERS = 1, TILE_N = 48, DEPTH = 2, STAGES = 5, SPLITS = 1, PARTS = 1, AHEAD = 1024 },
  { name = "64x48x128, 3 stages", CONSUMERS = 1, TILE_N = 48, DEPTH = 2, STAGES = 3, SPLITS = 1, PARTS = 1, AHEAD = 1024 },
  { name = "64x32x128, 9 stages", CONSUMERS = 1, TILE_N = 32, DEPTH = 2, STAGES = 9, SPLITS = 1, PARTS = 1, AHEAD = 2048 },
  { name = "64x32x128, 4 stages", CONSUMERS = 1, TILE_N = 32, DEPTH = 2, STAGES = 4, SPLITS = 1, PARTS = 1, AHEAD = 1024 },
  { name = "64x224x128, 3 stages", CONSUMERS = 1, TILE_N = 224, DEPTH = 2, STAGES = 3, SPLITS = 1, PARTS = 4, AHEAD = 512 },
  { name = "64x224x128, 3 stages, ahead 1024", CONSUMERS = 1, TILE_N = 224, DEPTH = 2, STAGES = 3, SPLITS = 1, PARTS = 4, AHEAD = 1024 },
  { name = "64x224x64, 6 stages", CONSUMERS = 1, TILE_N = 224, DEPTH = 1, STAGES = 6, SPLITS = 1, PARTS = 4, AHEAD = 512 },
  { name = "64x112x64, 5 stages", CONSUMERS = 1, TILE_N = 112, DEPTH = 1, STAGES = 5, SPLITS = 1, PARTS = 2, AHEAD = 512 },
  { name = "64x112x64, 3 stages", CONSUMERS = 1, TILE_N = 112, DEPTH = 1, STAGES = 3, SPLITS = 1, PARTS = 2, AHEAD = 512 },
  { name = "64x64x128, 3 stages", CONSUMERS = 1, TILE_N = 64, DEPTH = 2, STAGES = 3, SPLITS = 1, PARTS = 1, AHEAD = 1024 },
  { name = "64x96x64, 4 stages", CONSUMERS = 1, TILE_N = 96, DEPTH = 1, STAGES = 4, SPLITS = 1, PARTS = 1, AHEAD = 512 },
  { name = "64x64x128, 6 stages, split 2", CONSUMERS = 1, TILE_N = 64, DEPTH = 2, STAGES = 6, SPLITS = 2, PARTS = 1, AHEAD = 0 },
  { name = "64x32x128, 4 stages, split 4", CONSUMERS = 1, TILE_N = 32, DEPTH = 2, STAGES = 4, SPLITS = 4, PARTS = 1, AHEAD = 0 },
  { name = "128x48x128, 3 stages", CONSUMERS = 2, TILE_N = 48, DEPTH = 2, STAGES = 3, SPLITS = 1, PARTS = 1, AHEAD = 1024 },
  { name = "128x96x64, 5 stages", CONSUMERS = 2, TILE_N = 96, DEPTH = 1, STAGES = 5, SPLITS = 1, PARTS = 1, AHEAD = 512 },
  { name = "128x224x64, 4 stages", CONSUMERS = 2, TILE_N = 224, DEPTH = 1, STAGES = 4, SPLITS = 1, PARTS = 4, AHEAD = 512 },
  { name = "128x64x128, 3 stages, split 2", CONSUMERS = 2, TILE_N = 64, DEPTH = 2, STAGES = 3, SPLITS = 2, PARTS = 1, AHEAD = 0 },
]
teaches = "the width of a tile follows from the number of multiprocessors, not from the arithmetic"
*/

/*
Up to a hundred rows or so, the product is as fast as B can be read (see `few_rows`), but CUDA
cores cannot multiply that fast any more. Tensor cores can, with three quarters of their time to spare: so rows
of A that do not exist may be multiplied too; a tile has 64 or 128 rows. Above 512 arithmetic is the limit.

What counts is that every multiprocessor reads B all the time, and that all end together. A block has
as few columns as it takes for 128 blocks: 48 for N = 6144, 32 for 4096, 224 for 28672. wgmma takes
any multiple of 8 as its second width, so B stays on that side; with the operands swapped only
multiples of 64 columns would do. One warp fills a ring of up to 216 KB by TMA, four or eight multiply.

Where N is so short that narrow tiles are not enough, the blocks of a cluster split K: each adds up
its part, and in the end sends the others their columns of its partial sums, into their shared
memory. All add in the same order, in FP32, so the result is always the same.

Traffic: B once from memory; A once per block from L2, which is 64 rows for every 48 of B. L2 delivers
that, but not much more: with 32 columns and 64 rows it is the limit.

The ends count as well, since they are the same for every block: nothing is read before the first
copies begin, nor while C is written. Between the start of a block and its first copy there are two
microseconds, for barriers and descriptors. Meanwhile every thread asks L2 for the beginning of one
row: 4 to 6 % at N = 6144 and 3 % at the others. And C is written in pieces of 16 bytes, through
shared memory, instead of 4 from each thread: 1 to 2 % at N = 28672.

Learned:
- Telling L2 to drop B first and A last shows at all sizes; most of it is due to B.
- Stages of 128 elements of K are better than of 64, more so for long rows: neighbouring bytes of a row
  are read soon after each other. 256 are not better again. Boxes of 56 rows, so that a row's bytes
  follow each other more closely still, gain 1 % with 224 columns; boxes of 16 are much slower: TMA has
  too many of them. A 256-byte granularity of L2 for TMA changes nothing.
- L2 asked for the next kilobyte of each row all the way, not only at the start: half as fast. TMA,
  which executes the prefetch too, takes it row by row.
- A for two blocks at a time by multicast (clusters), since L2 is the limit with 32 columns: 8 % slower
  there, 13 % with 48 columns, 2 % with 224. Blocks of a cluster wait for each other at every stage.
- Splitting K: wide tiles read A less often, but blocks of a cluster start later, and the exchange comes
  when nothing is left to read. It only pays with long rows and few columns (4096 x 14336), and not
  beyond what narrow tiles reach there. Sums that are zeroed for a block without steps make the
  compiler wait after each product (its log tells); a step of zeros beyond K does not.
- Blocks that start at different places of K, so that not all read the same rows of A at once: no gain.
- A ring of one stage deadlocks: a consumer releases a stage only after the next one has arrived.
*/

#include "hopper.cuh"
#include "l2_priority.cuh"

constexpr int SUMS = TILE_N / 2;     // of a thread
constexpr int KEPT = SUMS / SPLITS;  // of them, after the exchange
constexpr int STEP_K = DEPTH * TILE_K;
static_assert(STAGES > 1, "a stage is freed after the next one has come");
static_assert(KEPT % 4 == 0, "sums are sent four at a time");
constexpr int BOX = TILE_N / PARTS;  // rows of B
static_assert(BOX % 8 == 0, "the swizzle repeats every 8 rows");
constexpr int PIECE = 16 / sizeof(Output);

struct Shared {
    Input a[STAGES][DEPTH][CONSUMERS * 64 * TILE_K];
    Input b[STAGES][DEPTH][TILE_N * TILE_K];
    float4 partial[SPLITS > 1 ? CONSUMERS * SPLITS * KEPT / 4 * WARPGROUP : 1];
    Barrier full[STAGES], empty[STAGES], received[CONSUMERS];
};

// Asks L2 for up to `bytes` of a row, from `offset`. All are multiples of 16.
__device__ inline void ask(const Input* row, size_t row_bytes, size_t offset, size_t bytes,
                           unsigned long long policy) {
    if (offset >= row_bytes) return;
    prefetch_bulk(reinterpret_cast<const char*>(row) + offset,
                  static_cast<unsigned>(min(bytes, row_bytes - offset)), policy);
}

// By all threads of a block, first of all: what the block needs first of its columns of C, and its
// share of A, which all blocks read.
__device__ inline void ask_ahead(const Input* A, const Input* B, int row, int column, int M, int N,
                                 int K) {
    const size_t row_bytes = K * sizeof(Input);
    for (int i = threadIdx.x; i < min(TILE_N, N - column); i += blockDim.x) {
        ask(B + size_t(column + i) * K, row_bytes, 0, AHEAD, evict_first());
    }
    constexpr int share = 256;
    for (int i = threadIdx.x; i < min(CONSUMERS * 64, M - row); i += blockDim.x) {
        const size_t offset = blockIdx.x % tiles_along(row_bytes, share) * share;
        ask(A + size_t(row + i) * K, row_bytes, offset, share, evict_last());
    }
}

// The sums of a warpgroup through shared memory, where the ring was: each warp writes its 16 rows in
// pieces of 16 bytes. Without old C, and if rows of C begin at multiples of 16 bytes.
__device__ inline void store_pieces(const float (&sums)[SUMS], unsigned char* ring, Output* C, int row,
                                    int column, int M, int N, float alpha) {
    constexpr int PITCH = TILE_N + PIECE;  // eight rows in different banks
    sync_threads(2, CONSUMERS * WARPGROUP);  // the ring was read
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Output* rows = reinterpret_cast<Output*>(ring) + warp * 16 * PITCH;
#pragma unroll
    for (int i = 0; i < SUMS; i += 2) {
        Output* to = rows + (lane / 4 + i % 4 / 2 * 8) * PITCH + column_in_eight() + i / 4 * 8;
        *reinterpret_cast<Pair*>(to) = {narrow(alpha * sums[i]), narrow(alpha * sums[i + 1])};
    }
    __syncwarp();
    constexpr int pieces = TILE_N / PIECE;  // of a row
    row += warp % 4 * 16;
    for (int i = lane; i < 16 * pieces; i += 32) {
        const int m = i / pieces, n = i % pieces * PIECE;
        if (row + m >= M || column + n >= N) continue;
        *reinterpret_cast<uint4*>(C + size_t(row + m) * N + column + n) =
            *reinterpret_cast<const uint4*>(rows + m * PITCH + n);
    }
}

// Each block of the cluster gets its columns of all partial sums, and adds them in the same order.
__device__ inline void exchange(const float (&sums)[SUMS], float (&kept)[KEPT], Shared& shared,
                                int warpgroup, int rank) {
    constexpr int PART = KEPT / 4 * WARPGROUP;  // from one block
    Barrier* received = &shared.received[warpgroup];
    float4* partial = shared.partial + warpgroup * SPLITS * PART + threadIdx.x % WARPGROUP;
    if (threadIdx.x % WARPGROUP == 0) announce(received, SPLITS * PART * sizeof(float4));
    wait_for_cluster();  // all barriers are initialized
#pragma unroll
    for (int i = 0; i < SUMS; i += 4) {
        const float four[4] = {sums[i], sums[i + 1], sums[i + 2], sums[i + 3]};
        send(partial + rank * PART + i % KEPT / 4 * WARPGROUP, received, i / KEPT, four);
    }
    wait(received, 0);
#pragma unroll
    for (int i = 0; i < KEPT; i += 4) {
        float4 total = partial[i / 4 * WARPGROUP];
#pragma unroll
        for (int block = 1; block < SPLITS; ++block) {
            const float4 more = partial[block * PART + i / 4 * WARPGROUP];
            total = {total.x + more.x, total.y + more.y, total.z + more.z, total.w + more.w};
        }
        kept[i] = total.x;
        kept[i + 1] = total.y;
        kept[i + 2] = total.z;
        kept[i + 3] = total.w;
    }
}

extern "C" __global__ void __launch_bounds__(CONSUMERS * WARPGROUP + 32, 1)
skinny(int M, int N, int K, Accumulate alpha, const Input* A, const __grid_constant__ TensorMap A_map,
       const Input* B, const __grid_constant__ TensorMap B_map, Accumulate beta, Output* C) {
    Shared& shared = reinterpret_cast<Shared&>(*dynamic_shared_tiles());

    const int rank = SPLITS > 1 ? rank_in_cluster() : 0;
    const int tile = blockIdx.x / SPLITS;
    const int rows = tiles_along(M, CONSUMERS * 64);
    const int row = tile % rows * (CONSUMERS * 64);  // blocks with the same columns are neighbours
    const int column = tile / rows * TILE_N;
    if constexpr (AHEAD > 0) ask_ahead(A, B, row, column, M, N, K);

    const int warpgroup = threadIdx.x / WARPGROUP;
    if (threadIdx.x == CONSUMERS * WARPGROUP) {
        prefetch(A_map);
        prefetch(B_map);
        initialize_ring(shared.full, shared.empty, CONSUMERS);
        for (Barrier& received : shared.received) initialize(&received);
    }
    begin_roles<1, CONSUMERS * WARPGROUP + 32>(warpgroup == CONSUMERS);
    if (SPLITS > 1) arrive_in_cluster();  // no one waits before the end

    const int steps = tiles_along(K, STEP_K);
    const int first = steps * rank / SPLITS, last = steps * (rank + 1) / SPLITS;
    const int begin = first < last ? first : steps;  // beyond K all is zero
    const int end = first < last ? last : steps + 1;
    Ring<STAGES> ring;

    if (warpgroup == CONSUMERS) {  // the producer, one warp
        if (threadIdx.x % 32 > 0) return;
        for (int step = begin; step < end; ++step, ring.advance()) {
            Barrier* full = &shared.full[ring.stage];
            wait(&shared.empty[ring.stage], ring.phase ^ 1);
            announce(full, sizeof(shared.a[0]) + sizeof(shared.b[0]));
            for (int part = 0; part < PARTS; ++part) {  // B first: it comes from memory
                for (int i = 0; i < DEPTH; ++i) {
                    copy_box(shared.b[ring.stage][i] + part * BOX * TILE_K, B_map, column + part * BOX,
                             step * STEP_K + i * TILE_K, full, evict_first());
                }
            }
            for (int i = 0; i < DEPTH; ++i) {
                copy_box(shared.a[ring.stage][i], A_map, row, step * STEP_K + i * TILE_K, full,
                         evict_last());
            }
        }
        return;
    }

    float sums[SUMS];
    int before = 0;
    for (int step = begin; step < end; ++step, ring.advance()) {
        wait(&shared.full[ring.stage], ring.phase);
        begin_products();
#pragma unroll
        for (int i = 0; i < DEPTH; ++i) {
            multiply_tiles(sums, shared.a[ring.stage][i] + warpgroup * 64 * TILE_K,
                           shared.b[ring.stage][i], step > begin || i > 0);
        }
        commit_products();
        wait_for_products<1>();
        if (step > begin && threadIdx.x % WARPGROUP == 0) arrive(&shared.empty[before]);
        before = ring.stage;
    }
    wait_for_products<0>();

    const int first_row = row + warpgroup * 64;
    if constexpr (SPLITS == 1) {
        if (beta == 0 && N % PIECE == 0) {
            store_pieces(sums, dynamic_shared_tiles(), C, first_row, column, M, N, alpha);
        } else {
            store_sums(sums, C, first_row, column, M, N, alpha, beta);
        }
    } else {
        float kept[KEPT];
        exchange(sums, kept, shared, warpgroup, rank);
        store_sums(kept, C, first_row, column + rank * (TILE_N / SPLITS), M, N, alpha, beta);
    }
}
