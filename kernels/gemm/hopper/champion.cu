/*
title = "All of it, in the shape that the problem wants"
entry = "champion"
rung = 27
precisions = ["bf16", "fp16", "fp16_fp32", "tf32", "fp8"]
layouts = ["nt"]
compute_capability = "9.0"
block = ["128 * (CONSUMERS + 1)"]
tile = ["64 * HEIGHT * (CONSUMERS - TURNS)", "TILE_N"]
flat = true
blocks_per_sm = 1
blocks_per_tile = "SPLITS"
cluster = ["CLUSTER * SPLITS"]
shared_bytes = """STAGES * 128 * (64 * HEIGHT * (CONSUMERS - TURNS) + TILE_N) + CONSUMERS * 2 * 64 * 128 \
    + (SPLITS - 1) * CONSUMERS * 128 * TILE_N + 16 * (STAGES + CONSUMERS + 1)"""
tensor_maps = [
  { operand = "a", box = ["64 * HEIGHT * (CONSUMERS - TURNS)", "128 // input_bytes"], swizzle = 128 },
  { operand = "b", box = ["TILE_N // CLUSTER", "128 // input_bytes"], swizzle = 128 },
  { operand = "c", box = [16, "128 // output_bytes"], swizzle = 128, pointer = true },
]
variants = [
  { name = "128x256", CONSUMERS = 2, HEIGHT = 1, TILE_N = 256, STAGES = 4, CLUSTER = 1, GROUP = 16, SPLITS = 1, TURNS = 0 },
  { name = "128x256 2x1", CONSUMERS = 2, HEIGHT = 1, TILE_N = 256, STAGES = 4, CLUSTER = 2, GROUP = 8, SPLITS = 1, TURNS = 0 },
  { name = "128x192 2x1", CONSUMERS = 2, HEIGHT = 1, TILE_N = 192, STAGES = 4, CLUSTER = 2, GROUP = 8, SPLITS = 1, TURNS = 0 },
  { name = "128x128 2x1", CONSUMERS = 2, HEIGHT = 1, TILE_N = 128, STAGES = 6, CLUSTER = 2, GROUP = 8, SPLITS = 1, TURNS = 0 },
  { name = "128x192 turns", CONSUMERS = 2, HEIGHT = 2, TILE_N = 192, STAGES = 4, CLUSTER = 1, GROUP = 16, SPLITS = 1, TURNS = 1 },
  { name = "128x192 2x1 turns", CONSUMERS = 2, HEIGHT = 2, TILE_N = 192, STAGES = 4, CLUSTER = 2, GROUP = 8, SPLITS = 1, TURNS = 1 },
  { name = "128x128 turns", CONSUMERS = 2, HEIGHT = 2, TILE_N = 128, STAGES = 6, CLUSTER = 1, GROUP = 16, SPLITS = 1, TURNS = 1 },
  { name = "128x128 2x1 turns", CONSUMERS = 2, HEIGHT = 2, TILE_N = 128, STAGES = 6, CLUSTER = 2, GROUP = 8, SPLITS = 1, TURNS = 1 },
  { name = "64x256 2x1 turns", CONSUMERS = 2, HEIGHT = 1, TILE_N = 256, STAGES = 4, CLUSTER = 2, GROUP = 16, SPLITS = 1, TURNS = 1 },
  { name = "256x192", CONSUMERS = 2, HEIGHT = 2, TILE_N = 192, STAGES = 3, CLUSTER = 1, GROUP = 8, SPLITS = 1, TURNS = 0 },
  { name = "64x128", CONSUMERS = 1, HEIGHT = 1, TILE_N = 128, STAGES = 8, CLUSTER = 1, GROUP = 16, SPLITS = 1, TURNS = 0 },
  { name = "64x128 2x1", CONSUMERS = 1, HEIGHT = 1, TILE_N = 128, STAGES = 8, CLUSTER = 2, GROUP = 8, SPLITS = 1, TURNS = 0 },
  { name = "128x128 split", CONSUMERS = 2, HEIGHT = 1, TILE_N = 128, STAGES = 5, CLUSTER = 1, GROUP = 8, SPLITS = 2, TURNS = 0 },
]
teaches = "the tile that fills the chip, and K split in a cluster where tiles are few"
*/

/*
`overlapped` and `clusters` with their numbers as macros, so that a search finds the best for each
problem:

- TURNS: each consumer has its own tile, or both share one. Turns hide the write of C; a shared tile
  of 128 x 256 reads a quarter less.
- The tile: what matters most is how full the last wave of tiles is. 128 x 192 fills it at 8192 where
  128 x 256 wastes half a tile per multiprocessor.
- At 1024 there are only 32 tiles of 128 x 256, or 64 of 128 x 128, for 132 multiprocessors: so 64 x
  128, with one consumer. Or two blocks of a cluster compute halves of the sums of a 128 x 128 tile,
  along K. In the end each sends half of its partial sums to the other's shared memory and stores the
  other half. Nothing goes through global memory, and a third less is read from L2.
- GROUP is the height of the part of C that is computed at a time.

Sums are added in FP32, partial sums too.

Lessons: at 1024 the start of a block and the write of C cost as much as the products. So the
producer does not wait for the block: it initializes the barriers and begins to copy. In a cluster
all must wait for each other, which costs more than multicast saves there: the split is behind 64 x
128. At 4096 and above the chip runs at its power limit, all kernels at the same clock, and then
cycles alone decide. A head start for one consumer, instead of turns, is soon lost: the ring is not
deep enough for two consumers far apart. Clusters of four are slower everywhere.
*/

#include "hopper.cuh"

constexpr int ROWS = 64 * HEIGHT;  // of a consumer
constexpr int TILE_M = ROWS * (CONSUMERS - TURNS);
constexpr int PART = TILE_N / CLUSTER;
constexpr int SUMS = TILE_N / 2;       // of a thread
constexpr int KEPT = SUMS / SPLITS;    // of them, after the exchange
static_assert(CLUSTER == 1 || SPLITS == 1, "a cluster shares copies or sums");
static_assert(!TURNS || CONSUMERS == 2 && SPLITS == 1, "two take turns");
static_assert(HEIGHT == 1 || SPLITS == 1, "the exchange is that of one product");

struct Shared {
    Input a[STAGES][TILE_M * TILE_K];
    Input b[STAGES][TILE_N * TILE_K];
    Output c[CONSUMERS][2][64 * CHUNK];
    float4 partial[SPLITS > 1 ? CONSUMERS * KEPT / 4 * WARPGROUP : 1];  // from the other block
    Barrier full[STAGES], empty[STAGES];
    Barrier received[CONSUMERS], taken[CONSUMERS];  // of `partial`
};

// Adds the halves of two blocks: each keeps `KEPT` sums and sends the others.
__device__ inline void exchange(const float (&sums)[SUMS], float (&kept)[KEPT], Shared& shared,
                                int warpgroup, int rank, unsigned phase) {
    const int thread = threadIdx.x % WARPGROUP;
    float4* partial = shared.partial + warpgroup * KEPT / 4 * WARPGROUP + thread;
    Barrier* received = &shared.received[warpgroup];
    if (thread == 0) announce(received, WARPGROUP * KEPT * sizeof(float));
    wait(&shared.taken[warpgroup], phase ^ 1);
#pragma unroll
    for (int i = 0; i < KEPT; i += 4) {
        float other[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            kept[i + j] = rank ? sums[KEPT + i + j] : sums[i + j];
            other[j] = rank ? sums[i + j] : sums[KEPT + i + j];
        }
        send(partial + i / 4 * WARPGROUP, received, rank ^ 1, other);
    }
    wait(received, phase);
#pragma unroll
    for (int i = 0; i < KEPT; i += 4) {
        const float4 more = partial[i / 4 * WARPGROUP];
        kept[i] += more.x;
        kept[i + 1] += more.y;
        kept[i + 2] += more.z;
        kept[i + 3] += more.w;
    }
    arrive_at(rank ^ 1, &shared.taken[warpgroup]);
}

extern "C" __global__ void __launch_bounds__((1 + CONSUMERS) * WARPGROUP, 1)
champion(int M, int N, int K, Accumulate alpha, const __grid_constant__ TensorMap A,
         const __grid_constant__ TensorMap B, Accumulate beta, const Output* C,
         const __grid_constant__ TensorMap C_map) {
    extern __shared__ __align__(1024) unsigned char dynamic[];
    Shared& shared = *reinterpret_cast<Shared*>(dynamic);

    const int warpgroup = threadIdx.x / WARPGROUP;
    if (threadIdx.x == CONSUMERS * WARPGROUP) {
        prefetch(A);
        prefetch(B);
        initialize_ring(shared.full, shared.empty, CLUSTER * (CONSUMERS - TURNS));
        for (int i = 0; i < CONSUMERS; ++i) {
            initialize(&shared.received[i]);
            initialize(&shared.taken[i], WARPGROUP);
        }
    }
    begin_roles<CLUSTER * SPLITS, (1 + CONSUMERS) * WARPGROUP>(warpgroup == CONSUMERS);
#ifdef EARLY
    allow_next_launch();
    wait_for_launch_before();
#endif

    const int rank = rank_in_cluster();
    const int above = SPLITS == 1 ? rank : 0;  // this block's row of tiles in the cluster's
    const int half = SPLITS == 1 ? 0 : rank;   // this block's part of K
    const int rows = tiles_along(M, CLUSTER * TILE_M);
    const int columns = tiles_along(N, TILE_N);
    const int steps = tiles_along(K, TILE_K);
    const int begin = steps * half / SPLITS;
    const int end = steps * (half + 1) / SPLITS;
    const int first_tile = blockIdx.x / (CLUSTER * SPLITS);  // a tile of the whole cluster
    const int stride = gridDim.x / (CLUSTER * SPLITS);
    Ring<STAGES> ring;

    if (warpgroup == CONSUMERS) {  // the producer
        shrink_registers<24>();
        if (threadIdx.x % WARPGROUP > 0) return;
        for (int tile = first_tile; tile < rows * columns; tile += stride) {
            const Place place = grouped(tile, rows, columns, GROUP);
            const int row = (place.row * CLUSTER + above) * TILE_M;
            const int column = place.column * TILE_N;
            for (int step = begin; step < end; ++step, ring.advance()) {
                Barrier* full = &shared.full[ring.stage];
                wait(&shared.empty[ring.stage], ring.phase ^ 1);
                announce(full, sizeof(shared.a[0]) + sizeof(shared.b[0]));
                copy_box(shared.a[ring.stage], A, row, step * TILE_K, full);
                if constexpr (CLUSTER == 1) {
                    copy_box(shared.b[ring.stage], B, column, step * TILE_K, full);
                } else {
                    copy_box_to((1 << CLUSTER) - 1, shared.b[ring.stage] + rank * PART * TILE_K, B,
                                column + rank * PART, step * TILE_K, full);
                }
            }
        }
        wait_until_empty(ring, shared.empty);
    } else {
        grow_registers<240>();
        const int thread = threadIdx.x % WARPGROUP;
        unsigned phase = 0;  // of the exchange
        const int first_row = TURNS ? 0 : warpgroup * ROWS;  // in the tile
        const int own = TURNS * warpgroup;  // tiles of the other before this consumer's first
        const int next = stride * (1 + TURNS);
        ring.skip(own * (end - begin));
        for (int tile = first_tile + own * stride; tile < rows * columns; tile += next) {
            if (TURNS && tile > first_tile) wait_for_turn(warpgroup);
            const Place place = grouped(tile, rows, columns, GROUP);
            float sums[HEIGHT][SUMS];
            if (SPLITS > 1 && begin == end) {
                for (float& sum : sums[0]) sum = 0;
            }
            int before = 0;
            for (int step = begin; step < end; ++step, ring.advance()) {
                wait(&shared.full[ring.stage], ring.phase);
                begin_products();
                const Input* a = shared.a[ring.stage] + first_row * TILE_K;
#pragma unroll
                for (int i = 0; i < HEIGHT; ++i) {
                    multiply_tiles(sums[i], a + i * 64 * TILE_K, shared.b[ring.stage], step > begin);
                }
                commit_products();
                wait_for_products<1>();
                if (step > begin && thread < CLUSTER) {
                    release<CLUSTER>(thread, &shared.empty[before]);
                }
                before = ring.stage;
            }
            if (TURNS && tile + stride < rows * columns) give_turn(warpgroup ^ 1);
            wait_for_products<0>();
            if (begin < end && thread < CLUSTER) release<CLUSTER>(thread, &shared.empty[before]);
            ring.skip(TURNS * (end - begin));

            const int row = (place.row * CLUSTER + above) * TILE_M + first_row;
            const int column = place.column * TILE_N + half * (TILE_N / SPLITS);
            if constexpr (SPLITS == 1) {
#pragma unroll
                for (int i = 0; i < HEIGHT; ++i) {
                    scale_sums(sums[i], C, row + i * 64, column, M, N, alpha, beta);
                    store_chunks(sums[i], shared.c[warpgroup], C_map, row + i * 64, column);
                }
            } else {
                float kept[KEPT];
                exchange(sums[0], kept, shared, warpgroup, rank, phase);
                phase ^= 1;
                scale_sums(kept, C, row, column, M, N, alpha, beta);
                store_chunks(kept, shared.c[warpgroup], C_map, row, column);
            }
        }
        if (thread % 32 == 0) wait_until_stores_have_read();
        if (SPLITS > 1) wait(&shared.taken[warpgroup], phase ^ 1);  // the other block arrives there
    }
}
