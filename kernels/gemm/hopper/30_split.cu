/*
title = "FP32 from TF32 tensor cores"
entry = "split"
rung = 30
precisions = ["fp32_3xtf32"]
layouts = ["nt"]
compute_capability = "9.0"
block = [512]
tile = [128, "TILE_N"]
flat = true
blocks_per_sm = 1
blocks_per_tile = "SPLITS"
cluster = ["SPLITS"]
shared_bytes = "STAGES * 128 * (128 + 2 * TILE_N) + 2 * 2 * 64 * 128 + 8 * (3 * STAGES + 2 * 2)"
tensor_maps = [
  { operand = "a", box = [128, 32], swizzle = 128 },
  { operand = "b", box = ["TILE_N", 32], swizzle = 128 },
  { operand = "c", box = [16, 32], swizzle = 128, pointer = true },
]
variants = [
  { name = "128x128", TILE_N = 128, STAGES = 4, GROUP = 8, SPLITS = 1, AHEAD = 1 },
  { name = "128x64", TILE_N = 64, STAGES = 6, GROUP = 8, SPLITS = 1, AHEAD = 0 },
  { name = "128x128 split", TILE_N = 128, STAGES = 4, GROUP = 8, SPLITS = 2, AHEAD = 0 },
]
teaches = "numbers split in two on their way to the tensor cores, and sums that FP32 units add"
*/

/*
TF32 keeps 11 of FP32's 24 bits, so a number is nearly the sum of two TF32 numbers, and a product of
two numbers nearly three products: a b + a' b + a b', with a' and b' the rests. Tensor cores do that
at a third of their TF32 rate, which is 2.5 times that of the FP32 units.

Tensor cores ignore the bits that TF32 lacks. So a tile as TMA copies it is already the first half, and
only the rests have to be computed: a difference for each element, wherever it lies.

- B must lie in shared memory. A warpgroup writes the rests of its tile beside it, in the same order.
- A may come from registers. Each consumer loads its 64 rows once for three products, and splits them
  there. That saves two thirds of the reads of A and all writes of its rests.
- Tensor cores cut bits off where FP32 units round, always towards zero: a long sum drifts. So they sum
  a stage at a time, small products first, and the consumers add that to their totals.

Traffic in shared memory, for a block of 128 x 128 and 32 of K: wgmma reads 96 KB of B, consumers 16 KB
of A, TMA writes 32 KB, the split reads and writes 32 KB. That is 117 bytes per clock of the products,
of 128 possible. From L2 only 21 bytes per clock come, less than half of what plain TF32 needs: no need
for larger tiles, or for clusters.

Occupancy: one block, 192 KB of stages. 64 sums, 64 totals and 64 registers for two steps of A leave
room for nothing larger than 128 x 128.

Expect two thirds of a third of `champion` in TF32, because so much else wants to run beside the
products. It is more than that, about a third, once A is loaded ahead; then power is the limit.

At 1024 there are 64 tiles: two blocks of a cluster divide K. The other's sums arrive
in the buffers of C, so that the ring keeps its four stages.

Lessons:
- Without the totals the error grows in proportion to K, far above SGEMM's. With them it stays below
  SGEMM's in long sums, because SGEMM adds one product at a time.
- Rests are better rounded than cut off, for one integer addition. It also makes the rest of an
  infinity 0, which would be NaN: so an infinity stays one, unless the other number's rest is 0.
- Where A is loaded and split between two stages of products, both consumers come to wait at the same
  moments. Strict turns, one multiplies while the other adds, are slower still. With the next rows of A
  loaded behind the products, only the additions are between them, and the other consumer's products
  fill the gap. Then even leaving the additions out gains next to nothing.
- That does not hold at 1024: there the first stages arrive late, and a consumer that waits for the
  next one holds back the last. So AHEAD is a choice.
- Two consumers that divide K of one 64 x 128 tile split twice as much of B per product, and 128 x 64
  loads twice as much of A: shared memory is the limit of both.
- A cluster of two that share the split of B halves it, and is slower: each stage waits for writes to
  the other block. If they share only the copies of B the gain is within the noise.
- Splitting in two or four parts of the warpgroup, stage by stage in parallel, is not faster.
*/

#define ROOFLAB_PRECISION_FP32 1  // its types
#include "tf32_split.cuh"

constexpr int CONSUMERS = 2;  // warpgroups; then come one that splits and one that copies
constexpr int SPLITTER = CONSUMERS, PRODUCER = CONSUMERS + 1;
constexpr int THREADS = (CONSUMERS + 2) * WARPGROUP;
constexpr int WARPS = WARPGROUP / 32;
constexpr int TILE_M = 64 * CONSUMERS;
constexpr int SUMS = TILE_N / 2;     // of a thread
constexpr int KEPT = SUMS / SPLITS;  // of them, after the exchange
constexpr int PIECES = TILE_N * ROW_BYTES / sizeof(uint4);  // of a tile of B
static_assert(!AHEAD || SPLITS == 1, "a block without steps loads nothing");

struct Shared {
    Input a[STAGES][TILE_M * TILE_K];
    Input b[STAGES][TILE_N * TILE_K];
    uint4 b_rest[STAGES][PIECES];
    Output c[CONSUMERS][2][64 * CHUNK];                  // also sums from the other block
    Barrier full[STAGES], ready[STAGES], empty[STAGES];  // ready: with rests
    Barrier received[CONSUMERS], taken[CONSUMERS];       // of the other block's sums
};

// The rests of a tile of B, piece by piece: where a piece lies in the tile does not matter.
__device__ inline void split_tile(uint4* rests, const Input* tile, int thread) {
    const uint4* pieces = reinterpret_cast<const uint4*>(tile);
#pragma unroll 4
    for (int i = thread; i < PIECES; i += WARPGROUP) {
        const uint4 piece = pieces[i];
        rests[i] = {rest(piece.x), rest(piece.y), rest(piece.z), rest(piece.w)};
    }
}

// Where a thread's `i`-th four sums from the other block arrive: in the buffers of C, in the rows
// that its warp will write.
__device__ inline float4* partial(Output (&c)[2][64 * CHUNK], int i) {
    const int warp = threadIdx.x % WARPGROUP / 32, lane = threadIdx.x % 32;
    return reinterpret_cast<float4*>(c[i / 4] + warp * 16 * CHUNK) + i % 4 * 32 + lane;
}

// Each of two blocks keeps `KEPT` sums and sends the others.
__device__ inline void exchange(const float (&sums)[SUMS], float (&kept)[KEPT], Shared& shared,
                                int warpgroup, int rank, unsigned phase) {
    Barrier* received = &shared.received[warpgroup];
    if (threadIdx.x % WARPGROUP == 0) announce(received, WARPGROUP * KEPT * sizeof(float));
    wait(&shared.taken[warpgroup], phase ^ 1);
#pragma unroll
    for (int i = 0; i < KEPT; i += 4) {
        float other[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            kept[i + j] = rank ? sums[KEPT + i + j] : sums[i + j];
            other[j] = rank ? sums[i + j] : sums[KEPT + i + j];
        }
        send(partial(shared.c[warpgroup], i / 4), received, rank ^ 1, other);
    }
    wait(received, phase);
#pragma unroll
    for (int i = 0; i < KEPT; i += 4) {
        const float4 more = *partial(shared.c[warpgroup], i / 4);
        kept[i] += more.x;
        kept[i + 1] += more.y;
        kept[i + 2] += more.z;
        kept[i + 3] += more.w;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
split(int M, int N, int K, Accumulate alpha, const __grid_constant__ TensorMap A,
      const __grid_constant__ TensorMap B, Accumulate beta, const Output* C,
      const __grid_constant__ TensorMap C_map) {
    Shared& shared = reinterpret_cast<Shared&>(*dynamic_shared_tiles());

    const int warpgroup = threadIdx.x / WARPGROUP;
    const int thread = threadIdx.x % WARPGROUP;
    const bool first = thread % 32 == 0;  // of a warp
    if (warpgroup == PRODUCER && thread == 0) {
        prefetch(A);
        prefetch(B);
        for (Barrier& ready : shared.ready) initialize(&ready, WARPS);
        for (Barrier& received : shared.received) initialize(&received);
        for (Barrier& taken : shared.taken) initialize(&taken, WARPS);
        initialize_ring(shared.full, shared.empty, CONSUMERS * WARPS);
    }
    begin_roles<SPLITS, THREADS>(warpgroup == PRODUCER);

    const int rank = SPLITS == 1 ? 0 : rank_in_cluster();
    const int rows = tiles_along(M, TILE_M);
    const int columns = tiles_along(N, TILE_N);
    const int steps = tiles_along(K, TILE_K);
    const int begin = steps * rank / SPLITS;
    const int end = steps * (rank + 1) / SPLITS;
    const int first_tile = blockIdx.x / SPLITS;
    const int stride = gridDim.x / SPLITS;
    Ring<STAGES> ring;

    if (warpgroup == PRODUCER) {
        shrink_registers<24>();
        if (thread > 0) return;
        for (int tile = first_tile; tile < rows * columns; tile += stride) {
            const Place place = grouped(tile, rows, columns, GROUP);
            for (int step = begin; step < end; ++step, ring.advance()) {
                Barrier* full = &shared.full[ring.stage];
                wait(&shared.empty[ring.stage], ring.phase ^ 1);
                announce(full, sizeof(shared.a[0]) + sizeof(shared.b[0]));
                copy_box(shared.a[ring.stage], A, place.row * TILE_M, step * TILE_K, full);
                copy_box(shared.b[ring.stage], B, place.column * TILE_N, step * TILE_K, full);
            }
        }
    } else if (warpgroup == SPLITTER) {
        shrink_registers<40>();
        for (int tile = first_tile; tile < rows * columns; tile += stride) {
            for (int step = begin; step < end; ++step, ring.advance()) {
                wait(&shared.full[ring.stage], ring.phase);
                split_tile(shared.b_rest[ring.stage], shared.b[ring.stage], thread);
                publish_to_tma();  // and to wgmma
                __syncwarp();
                if (first) arrive(&shared.ready[ring.stage]);
            }
        }
    } else {
        grow_registers<224>();
        unsigned phase = 0;  // of the exchange
        for (int tile = first_tile; tile < rows * columns; tile += stride) {
            float totals[SUMS] = {};
            Rows even, odd;  // of A: those that are multiplied, and if AHEAD the next
            const auto load = [&](Rows& a) {
                wait(&shared.full[ring.stage], ring.phase);
                load_rows(a, shared.a[ring.stage] + warpgroup * 64 * TILE_K);
            };
            const auto multiply_step = [&](Rows& a, Rows& next, bool more) {
                // 1. Begin to multiply.
                const int stage = ring.stage;
                float sums[SUMS];
                if (!AHEAD) load(a);
                wait(&shared.ready[stage], ring.phase);
                begin_products();
                multiply_split(sums, a, shared.b[stage], shared.b_rest[stage]);
                commit_products();

                // 2. Meanwhile load and split the next rows of A.
                ring.advance();
                if (AHEAD && more) load(next);

                // 3. Add, with FP32's rounding. Meanwhile the other consumer multiplies.
                wait_for_products<0>();
                if (first) arrive(&shared.empty[stage]);
#pragma unroll
                for (int i = 0; i < SUMS; ++i) totals[i] += sums[i];
            };
            if (AHEAD) load(even);
            for (int step = begin; step < end; step += 2) {
                multiply_step(even, odd, step + 1 < end);
                if (step + 1 < end) multiply_step(odd, even, step + 2 < end);
            }

            const Place place = grouped(tile, rows, columns, GROUP);
            const int row = place.row * TILE_M + warpgroup * 64;
            const int column = place.column * TILE_N + rank * (TILE_N / SPLITS);
            if constexpr (SPLITS == 1) {
                scale_sums(totals, C, row, column, M, N, alpha, beta);
                store_chunks(totals, two_buffers(shared.c[warpgroup]), C_map, row, column);
            } else {
                float kept[KEPT];
                exchange(totals, kept, shared, warpgroup, rank, phase);
                phase ^= 1;
                scale_sums(kept, C, row, column, M, N, alpha, beta);
                store_chunks(kept, two_buffers(shared.c[warpgroup]), C_map, row, column);
                if (elected()) {
                    wait_until_stores_have_read();
                    arrive_at(rank ^ 1, &shared.taken[warpgroup]);
                }
            }
        }
        if (elected()) wait_until_stores_have_read();
        if (SPLITS > 1) wait(&shared.taken[warpgroup], phase ^ 1);  // the other block arrives there
    }
}
