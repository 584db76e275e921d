/*
title = "All rows of A, few columns of C"
entry = "skinny"
rung = 51
precisions = ["bf16", "fp16", "fp16_fp32", "tf32", "fp8"]
layouts = ["nt"]
compute_capability = "9.0"
block = ["128 * CONSUMERS + 32"]
tile = ["64 * CONSUMERS", "TILE_N"]
flat = true
blocks_per_tile = "SPLITS"
cluster = ["SPLITS"]
shared_bytes = """STAGES * DEPTH * 128 * (64 * CONSUMERS + TILE_N) + 16 * STAGES \
    + CONSUMERS * (256 * TILE_N * min(1, SPLITS - 1) + 24)"""
tensor_maps = [
  { operand = "a", box = ["64 * CONSUMERS", "128 // input_bytes"], swizzle = 128 },
  { operand = "b", box = ["TILE_N", "128 // input_bytes"], swizzle = 128 },
]
variants = [
  { name = "64x48x128, 7 stages", CONSUMERS = 1, TILE_N = 48, DEPTH = 2, STAGES = 7, SPLITS = 1 },
  { name = "64x48x128, 5 stages", CONSUMERS = 1, TILE_N = 48, DEPTH = 2, STAGES = 5, SPLITS = 1 },
  { name = "64x48x128, 3 stages", CONSUMERS = 1, TILE_N = 48, DEPTH = 2, STAGES = 3, SPLITS = 1 },
  { name = "64x32x128, 9 stages", CONSUMERS = 1, TILE_N = 32, DEPTH = 2, STAGES = 9, SPLITS = 1 },
  { name = "64x32x128, 4 stages", CONSUMERS = 1, TILE_N = 32, DEPTH = 2, STAGES = 4, SPLITS = 1 },
  { name = "64x224x128, 3 stages", CONSUMERS = 1, TILE_N = 224, DEPTH = 2, STAGES = 3, SPLITS = 1 },
  { name = "64x224x64, 6 stages", CONSUMERS = 1, TILE_N = 224, DEPTH = 1, STAGES = 6, SPLITS = 1 },
  { name = "64x224x64, 3 stages", CONSUMERS = 1, TILE_N = 224, DEPTH = 1, STAGES = 3, SPLITS = 1 },
  { name = "64x112x64, 5 stages", CONSUMERS = 1, TILE_N = 112, DEPTH = 1, STAGES = 5, SPLITS = 1 },
  { name = "64x112x64, 3 stages", CONSUMERS = 1, TILE_N = 112, DEPTH = 1, STAGES = 3, SPLITS = 1 },
  { name = "64x64x128, 3 stages", CONSUMERS = 1, TILE_N = 64, DEPTH = 2, STAGES = 3, SPLITS = 1 },
  { name = "64x96x64, 4 stages", CONSUMERS = 1, TILE_N = 96, DEPTH = 1, STAGES = 4, SPLITS = 1 },
  { name = "64x64x128, 6 stages, split 2", CONSUMERS = 1, TILE_N = 64, DEPTH = 2, STAGES = 6, SPLITS = 2 },
  { name = "64x32x128, 4 stages, split 4", CONSUMERS = 1, TILE_N = 32, DEPTH = 2, STAGES = 4, SPLITS = 4 },
  { name = "128x48x128, 3 stages", CONSUMERS = 2, TILE_N = 48, DEPTH = 2, STAGES = 3, SPLITS = 1 },
  { name = "128x96x64, 5 stages", CONSUMERS = 2, TILE_N = 96, DEPTH = 1, STAGES = 5, SPLITS = 1 },
  { name = "128x224x64, 4 stages", CONSUMERS = 2, TILE_N = 224, DEPTH = 1, STAGES = 4, SPLITS = 1 },
  { name = "128x64x128, 3 stages, split 2", CONSUMERS = 2, TILE_N = 64, DEPTH = 2, STAGES = 3, SPLITS = 2 },
]
teaches = "the width of a tile follows from the number of multiprocessors, not from the arithmetic"
*/

/*
Up to a hundred rows or so, the product is as fast as B can be read (see `few_rows`), but ordinary
cores cannot multiply that fast any more. Tensor cores can, with three quarters of their time to
spare: so rows of A that do not exist may be multiplied too, and a tile always has 64 or 128 rows.

What counts is that every multiprocessor reads B all the time, and that all end together. A block has
as few columns as it takes for 128 blocks: 48 for N = 6144, 32 for 4096, 224 for 28672. wgmma takes
any multiple of 8 as its second width, so B stays on that side; with the operands swapped only
multiples of 64 columns would do. One warp fills a ring of up to 200 KB by TMA, four multiply.

Where N is so short that narrow tiles are not enough, the blocks of a cluster split K: each adds up
its part, and in the end sends the others their columns of its partial sums, into their shared
memory. All add in the same order, in FP32, so the result is always the same.

Traffic: B once from memory; A once per block from L2, which is 64 rows for every 48 of B. L2 delivers
that, but not much more: with 32 columns and 64 rows it is the limit.

Learned:
- Telling L2 to drop B first and A last shows at all sizes; most of it is due to B.
- Splitting K where there are enough columns was predicted to win, as wide tiles read A less often:
  it loses. Blocks of a cluster start later, and the exchange comes when nothing is left to read.
- Stages of 128 elements of K are better than of 64, more so for long rows: neighbouring bytes of a row
  are read soon after each other. 256 are not better again. Boxes of 16 rows, so that a row's bytes
  follow each other more closely still, are much slower where tiles are narrow: TMA has too many
  boxes to copy. A 256-byte granularity of L2 for TMA changes nothing.
- Blocks that start at different places of K, so that not all read the same rows of A at once: no gain.
- A ring of one stage never ends: a stage is given back when the next one has come.
*/

#include "hopper.cuh"
#include "l2_priority.cuh"

constexpr int SUMS = TILE_N / 2;     // of a thread
constexpr int KEPT = SUMS / SPLITS;  // of them, after the exchange
constexpr int STEP_K = DEPTH * TILE_K;
static_assert(STAGES > 1, "a stage is freed after the next one has come");
static_assert(KEPT % 4 == 0, "sums are sent four at a time");

struct Shared {
    Input a[STAGES][DEPTH][CONSUMERS * 64 * TILE_K];
    Input b[STAGES][DEPTH][TILE_N * TILE_K];
    float4 partial[SPLITS > 1 ? CONSUMERS * SPLITS * KEPT / 4 * WARPGROUP : 1];
    Barrier full[STAGES], empty[STAGES], received[CONSUMERS];
};

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
skinny(int M, int N, int K, Accumulate alpha, const __grid_constant__ TensorMap A,
       const __grid_constant__ TensorMap B, Accumulate beta, Output* C) {
    extern __shared__ __align__(1024) unsigned char dynamic[];
    Shared& shared = *reinterpret_cast<Shared*>(dynamic);

    const int warpgroup = threadIdx.x / WARPGROUP;
    if (threadIdx.x == CONSUMERS * WARPGROUP) {
        prefetch(A);
        prefetch(B);
        initialize_ring(shared.full, shared.empty, CONSUMERS);
        for (Barrier& received : shared.received) initialize(&received);
    }
    begin_roles<1, CONSUMERS * WARPGROUP + 32>(warpgroup == CONSUMERS);
    if (SPLITS > 1) arrive_in_cluster();  // no one waits before the end

    const int rank = SPLITS > 1 ? rank_in_cluster() : 0;
    const int tile = blockIdx.x / SPLITS;
    const int rows = tiles_along(M, CONSUMERS * 64);
    const int row = tile % rows * (CONSUMERS * 64);  // blocks with the same columns are neighbours
    const int column = tile / rows * TILE_N;
    const int steps = tiles_along(K, STEP_K);
    const int begin = steps * rank / SPLITS;
    const int end = steps * (rank + 1) / SPLITS;
    Ring<STAGES> ring;

    if (warpgroup == CONSUMERS) {  // the producer, one warp
        if (threadIdx.x % 32 > 0) return;
        for (int step = begin; step < end; ++step, ring.advance()) {
            Barrier* full = &shared.full[ring.stage];
            wait(&shared.empty[ring.stage], ring.phase ^ 1);
            announce(full, sizeof(shared.a[0]) + sizeof(shared.b[0]));
            for (int i = 0; i < DEPTH; ++i) {
                const int k = step * STEP_K + i * TILE_K;
                copy_box(shared.b[ring.stage][i], B, column, k, full, evict_first());
                copy_box(shared.a[ring.stage][i], A, row, k, full, evict_last());
            }
        }
        return;
    }

    float sums[SUMS];
    if (begin == end) {
        for (float& sum : sums) sum = 0;
    }
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
        store_sums(sums, C, first_row, column, M, N, alpha, beta);
    } else {
        float kept[KEPT];
        exchange(sums, kept, shared, warpgroup, rank);
        store_sums(kept, C, first_row, column + rank * (TILE_N / SPLITS), M, N, alpha, beta);
    }
}
