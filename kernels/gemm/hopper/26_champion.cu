/*
title = "All of it, in the shape that the problem wants"
entry = "champion"
rung = 26
precisions = ["bf16", "fp16", "fp16_fp32", "tf32", "fp8"]
layouts = ["nn", "nt"]
k_major = ["tf32", "fp8"]
compute_capability = "9.0"
block = ["128 * CONSUMERS + PRODUCER"]
tile = ["64 * CONSUMERS", "TILE_N"]
flat = true
blocks_per_sm = 1
shared_bytes = "STAGES * 128 * (64 * CONSUMERS + TILE_N) + CONSUMERS * 2 * 64 * 128 + 16 * STAGES"
tensor_maps = [
  { operand = "a", box = ["64 * CONSUMERS", "128 // input_bytes"], swizzle = 128, promotion = 256 },
  { operand = "b", box = ["""ROOFLAB_TRANSPOSE_B * TILE_N \
    + (1 - ROOFLAB_TRANSPOSE_B) * 128 // input_bytes""", "128 // input_bytes"], swizzle = 128, promotion = 256 },
  { operand = "c", box = [16, "128 // output_bytes"], swizzle = 128, pointer = true },
]
variants = [
  { name = "128x256", CONSUMERS = 2, PRODUCER = 128, TILE_N = 256, STAGES = 4, SQUARES = 0, LOCKSTEP = 0 },
  { name = "128x256 in step", CONSUMERS = 2, PRODUCER = 128, TILE_N = 256, STAGES = 4, SQUARES = 1, LOCKSTEP = 1 },
  { name = "64x128", CONSUMERS = 1, PRODUCER = 32, TILE_N = 128, STAGES = 8, SQUARES = 1, LOCKSTEP = 0 },
]
teaches = "the tile that fits the problem, C behind the next tile's products, blocks that read in step"
*/

/*
`overlapped` without clusters, and with its numbers as macros, so that a search finds the best for each
problem. 128 x 256 reads few bytes for a product. At 1024 there are only 64 tiles of 128 x 128 for 132
multiprocessors, so 64 x 128, with one consumer.

Why energy decides: from 4096 on the chip is at its power limit and lowers its clock, so time is energy. A
copy of this kernel that copies no operands takes 15 % less time at 8192 in BF16: moving operands is a sixth
of the energy, the part to save.

1. Blocks in step, 1 to 3 % in 16-bit types, 2 to 5 % in TF32. SQUARES: 128 blocks compute 16 x 8 tiles at
   a time, 16 neighbours a square of 4 x 4. LOCKSTEP: every 8 steps the producers meet (lockstep.cuh).
   Multiprocessors of a GPC that request a line within about 100 cycles get it by one read of L2. Multicasts
   would prevent that, so there are no clusters. At 1024 squares suffice: all blocks begin together. The
   other 128 x 256 uses all 132 multiprocessors, without meetings.
2. KEPT, 1 to 2 % in BF16 and 3 % in FP8 at 4096 and 8192. Copies and products keep shared memory busy, so
   as little of C as possible passes through it between two tiles. Consumers pack C, keep in registers as
   many chunks of it as fit beside their sums, and store them two at a time some steps later. Of 128 x 256
   that is all of C in 16 bits, half of it in 32.
3. Few instructions, 1 to 2 % at 4096 and 8192: 69 instead of 96 for a step of a consumer (now 60, nothing
   more). What is the same for all threads of a warp is computed once, in uniform registers: the number of
   the warpgroup comes from the first lane, descriptors are computed once, and one elected lane copies and
   stores in the loop. For any other choice of a thread the compiler makes a loop over lanes around each TMA
   instruction.
4. First copies before all else, 2 % at 1024 and 1 % at 2048. A block begins with cold code, 4 to 5 cycles
   for each instruction, 350 for a division. So the first copy comes 50 instructions after the start, and
   needs no division. A block whose first tile is outside the first whole group has no such early copy.
5. The end of a tile, 1 % each. LAG, at 2048: the second consumer waits before its last steps until the
   other's last products have begun, so that they never write C together. At 1024, 32-bit results: C of a
   block's last tile is staged in the ring, which is free then, in the rows of A that only this consumer has
   read: twice as many chunks without a wait for the store of an older one.

PRODUCER: with two consumers the producer is a whole warpgroup, because only that can give registers away; one
of its threads works. With one consumer it is a warp. In layout nn B's rows run along N, in 16-bit types: TMA
copies boxes of 64 columns, and the descriptor tells wgmma to transpose. `promotion`: L2 fetches 256 bytes of
a row at a time, 0.9 % at 8192.

What else was tried, and what did not help: docs/lab/champion.md.
*/

#include "hopper.cuh"
#include "lockstep.cuh"

constexpr int TILE_M = 64 * CONSUMERS;
constexpr int THREADS = CONSUMERS * WARPGROUP + PRODUCER;
// Only a whole warpgroup can give registers away. The sums of one consumer need none of them.
constexpr bool GIVES_REGISTERS = PRODUCER == WARPGROUP;
constexpr int SUMS = TILE_N / 2;           // of a thread
constexpr int CHUNKS = SUMS / CHUNK_SUMS;  // of a consumer's C
// Steps that the second consumer stays behind. STAGES would be a deadlock: until its next step it holds the
// stage that the other one needs.
constexpr int LAG = CONSUMERS == 2 ? STAGES - 1 : 0;
// Chunks of C that a thread stores_later. With its sums they take 192 registers, of 240.
constexpr int KEPT_AT_MOST = CONSUMERS == 2 ? (192 - SUMS) / CHUNK_WORDS : 0;
constexpr int KEPT = CHUNKS < KEPT_AT_MOST ? CHUNKS : KEPT_AT_MOST;
constexpr int FIRST_STORE = 4;  // the step in which the first two of them are stored
constexpr int LAST_STORE = FIRST_STORE + (KEPT + 1) / 2 * 4 - 2;  // of the second consumer
constexpr int SPARE = STAGES < 8 ? 4 : 8;  // stages that C may use at the end
static_assert(SPARE <= STAGES, "a chunk of C for each");
static_assert(SUMS % CHUNK_SUMS == 0, "whole chunks of C");
static_assert((CHUNKS - KEPT) % 2 == 0, "the two buffers of C are used in turn");
constexpr int GROUP = WAVE_ROWS;  // rows of tiles
static_assert(SQUARES || !LOCKSTEP, "blocks in step share what they read in squares");
#ifdef EARLY  // the launch before may still write the operands
constexpr int AHEAD = 0;
#else
constexpr int AHEAD = STAGES;  // steps that are copied before all else
#endif

struct Shared {
    Input a[STAGES][TILE_M * TILE_K];
    Input b[STAGES][TILE_N * TILE_K];
    Output c[CONSUMERS][2][64 * CHUNK];
    Barrier full[STAGES], empty[STAGES];
};

// From a stage to the next one, in the units of descriptors; 64 bits would take twice the instructions.
constexpr unsigned STAGE_STRIDE_A = sizeof(Shared::a[0]) / 16, STAGE_STRIDE_B = sizeof(Shared::b[0]) / 16;

// The last chunks of a tile of C, packed, and its place; column -1 without one.
struct Kept {
    Word words[KEPT > 0 ? KEPT * CHUNK_WORDS : 1];
    int row, column;
};

// Stores those chunks whose turn is this step of the next tile.
__device__ inline void store_some(const Kept& kept, int step, Buffers<2> buffers, const TensorMap& map) {
#pragma unroll
    for (int i = 0; i < KEPT; i += 2) {
        if (step != FIRST_STORE + 2 * i) continue;
        store_packed(kept.words + i * CHUNK_WORDS, min(2, KEPT - i), CHUNKS - KEPT + i, buffers, map,
                     kept.row, kept.column);
    }
}

// What only this consumer reads of the ring. After the last products it is free.
using OwnRows = Buffers<SPARE, TILE_M * ROW_BYTES / sizeof(Output)>;
__device__ inline OwnRows own_rows(Shared& shared, int warpgroup) {
    return {reinterpret_cast<Output*>(shared.a[0] + warpgroup * 64 * TILE_K)};
}

// Starts the copies of one step: a tile of A and a tile of B.
__device__ inline void fill(Shared& shared, int stage, const TensorMap& A, const TensorMap& B, int row,
                            int column, int k) {
    Barrier* full = &shared.full[stage];
    announce(full, sizeof(shared.a[0]) + sizeof(shared.b[0]));
    copy_box(shared.a[stage], A, row, k, full);
    copy_tile_of_b<TILE_N>(shared.b[stage], B, column, k, full);
}

// Call with the producer's first thread: makes the barriers, and starts the first copies of a block, up to
// AHEAD steps of its first tile. Returns how many: 0 unless that tile is in the first group and the group has
// all its rows, since then constants give its place. The first copy begins as soon as its barrier is made.
__device__ inline int begin_copies(Shared& shared, const TensorMap& A, const TensorMap& B, unsigned tile,
                                   int M, int N, int K) {
    const int row = tile % GROUP * TILE_M, column = tile / GROUP * TILE_N;
    const bool whole = M > (GROUP - 1) * TILE_M && column < N;
    const int length = whole ? min(K, AHEAD * TILE_K) : 0;
    initialize(&shared.full[0]);
    if (length > 0) fill(shared, 0, A, B, row, column, 0);
    for (int i = 1; i < STAGES; ++i) initialize(&shared.full[i]);
#pragma unroll 1
    for (int k = TILE_K; k < length; k += TILE_K) fill(shared, k / TILE_K, A, B, row, column, k);
    for (Barrier& empty : shared.empty) initialize(&empty, CONSUMERS);
    return (length + TILE_K - 1) / TILE_K;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
champion(int M, int N, int K, Accumulate alpha, const __grid_constant__ TensorMap A,
         const __grid_constant__ TensorMap B, Accumulate beta, const Output* C,
         const __grid_constant__ TensorMap C_map) {
    const Turns turns = turns_of_block(SQUARES);
    if (blockIdx.x >= turns.apart) return;
    Shared& shared = reinterpret_cast<Shared&>(*dynamic_shared_tiles());

    int begun = 0;  // steps of the first tile whose copies are under way
    if (threadIdx.x == CONSUMERS * WARPGROUP) {
        begun = begin_copies(shared, A, B, turns.first, M, N, K);
        prefetch(C_map);
    }
    const int warpgroup = of_first_lane(threadIdx.x / WARPGROUP);
    begin_roles<1, THREADS>(warpgroup == CONSUMERS);
#ifdef EARLY
    allow_next_launch();
    wait_for_launch_before();
#endif

    const int rows = tiles_along(M, TILE_M);
    const int columns = tiles_along(N, TILE_N);
    const int tiles = rows * columns;
    const int steps = tiles_along(K, TILE_K);
    Ring<STAGES> ring;

    if (warpgroup == CONSUMERS) {  // the producer
        if constexpr (GIVES_REGISTERS) shrink_registers<24>();
        if (threadIdx.x >= CONSUMERS * WARPGROUP + 32) return;
        begun = of_first_lane(begun);
        if (!elected()) return;
        ring.skip(begun);
        for (int tile = turns.first; tile < tiles; tile += turns.apart) {
            const Place place = grouped(tile, rows, columns, GROUP);
            const bool meets = LOCKSTEP && wave_is_whole(turns, tile, tiles);
            for (int step = begun; step < steps; ++step, ring.advance()) {
                if (meets && meets_before(step, tile)) meet();
                wait(&shared.empty[ring.stage], ring.phase ^ 1);
                fill(shared, ring.stage, A, B, place.row * TILE_M, place.column * TILE_N,
                     step * TILE_K);
            }
            begun = 0;
        }
    } else {
        if constexpr (GIVES_REGISTERS) grow_registers<240>();
        const int thread = threadIdx.x % WARPGROUP;
        const auto a_at_0 = descriptor(shared.a[0] + warpgroup * 64 * TILE_K);
        const auto b_at_0 = descriptor_of_b(shared.b[0]);
        // The second consumer waits before step `waits_at`; the first one releases it in step `signals_at`.
        const bool waits = LAG && steps > LAG;
        const int waits_at = waits && warpgroup == 1 ? steps - LAG : -1;
        const int signals_at = waits && warpgroup == 0 ? steps - 1 : -1;
        const bool stores_later = KEPT > 0 && steps > LAST_STORE;  // long enough for all
        const auto place_now = [&](int tile) {  // here: the compiler would move its divisions
            Place place = grouped(tile, rows, columns, GROUP);
            asm volatile("" : "+r"(place.row), "+r"(place.column));
            return place;
        };
        Kept kept;
        kept.column = -1;
        for (int tile = turns.first; tile < tiles; tile += turns.apart) {
            const bool first = tile == turns.first, last = tile + turns.apart >= tiles;
            Place place;
            if (first) place = place_now(tile);  // before the first copies have arrived
            float sums[SUMS];
            int before = 0;
            const int last_store = kept.column < 0 ? -1 : LAST_STORE;
            for (int step = 0; step < steps; ++step, ring.advance()) {
                if (step == waits_at) wait_for_other();
                wait(&shared.full[ring.stage], ring.phase);
                begin_products();
                multiply_tiles(sums, a_at_0 + ring.stage * STAGE_STRIDE_A,
                               b_at_0 + ring.stage * STAGE_STRIDE_B, step > 0);
                commit_products();
                if (step <= last_store) {
                    store_some(kept, step - 2 * warpgroup, two_buffers(shared.c[warpgroup]), C_map);
                }
                if (step == signals_at) signal_other();
                wait_for_products<1>();
                if (step > 0 && thread == 0) arrive(&shared.empty[before]);
                before = ring.stage;
            }
            if (!first) place = place_now(tile);  // under the last products
            const int row = place.row * TILE_M + warpgroup * 64;
            const int column = place.column * TILE_N;
            wait_for_products<0>();
            if (thread == 0) arrive(&shared.empty[before]);

            kept.column = -1;
            if (stores_later && !last) {
                scale_sums(sums, C, row, column, M, N, alpha, beta);
                store_first_chunks<CHUNKS - KEPT>(sums, two_buffers(shared.c[warpgroup]), C_map, row,
                                                  column);
                pack_chunks(sums + (CHUNKS - KEPT) * CHUNK_SUMS, kept.words, KEPT);
                kept.row = row;
                kept.column = column;
                continue;
            }
            scale_sums(sums, C, row, column, M, N, alpha, beta);
            if (last) {  // in its own rows of A, of several stages
                store_chunks(sums, own_rows(shared, warpgroup), C_map, row, column);
            } else {
                store_chunks(sums, two_buffers(shared.c[warpgroup]), C_map, row, column);
            }
        }
        if (elected()) wait_until_stores_have_read();
    }
}
