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
  { name = "128x256", CONSUMERS = 2, PRODUCER = 128, TILE_N = 256, STAGES = 4, SQUARES = 0, IN_STEP = 0 },
  { name = "128x256 in step", CONSUMERS = 2, PRODUCER = 128, TILE_N = 256, STAGES = 4, SQUARES = 1, IN_STEP = 1 },
  { name = "64x128", CONSUMERS = 1, PRODUCER = 32, TILE_N = 128, STAGES = 8, SQUARES = 1, IN_STEP = 0 },
]
teaches = "the tile that fits the problem, C behind the next tile's products, blocks that read in step"
*/

/*
`overlapped` without clusters, and with its numbers as macros, so that a search finds the best for each
problem:

- The tile: 128 x 256 reads few bytes for a product, and so needs little power. At 1024 there are only 64
  tiles of 128 x 128 for 132 multiprocessors, so 64 x 128, with one consumer.
- SQUARES: 128 blocks compute 16 x 8 tiles at a time, 16 neighbours a square of 4 x 4. IN_STEP: every 8
  steps the producers wait for each other, they meet (lockstep.cuh). If several multiprocessors of a GPC
  request the same line within about 100 cycles, L2 gets one request; and DRAM is read once for all.
  Multicasts would prevent that, so there are no clusters. The four multiprocessors that are left out are
  no loss where tiles come in whole waves, as at 2048, 4096, 8192, and 16384. At 1024 squares are enough:
  a block has one tile, and all begin at the same time.
- KEPT: from a tile to the next one consumers do not wait until C is written. They pack it, keep in
  registers as many chunks of it as fit beside their sums, and begin to multiply; some steps later,
  when both are busy again, they store two chunks at a time. Of a tile of 128 x 256 that is all of C in
  16 bits and half of it in 32.
- Few instructions: if the compiler knows that something is the same for all threads of a warp, it is
  computed once, in uniform registers, where wgmma and TMA want their operands. Therefore the number of
  the warpgroup comes from the first lane, descriptors are computed once for all steps, and one elected
  lane copies and stores: for any other choice of a thread the compiler makes a loop over lanes around each
  TMA instruction. A step of a consumer takes 60 instructions instead of 96, one of the producer 39 instead
  of 57.
- PRODUCER: with two consumers a warpgroup, of which one thread works, because only a whole warpgroup can
  give its registers to others. With one consumer a warp.
- LATE: the second consumer lets the first one finish. Before its last steps it waits until the other's
  last products have begun. Then the two do not write C at the same time. The ring allows three steps,
  a good half of that time.

A block begins with cold code, which costs 4 to 5 cycles for each instruction in a row and more behind a
jump, a division of integers 350, and a barrier 30 to 70. Therefore the first copy comes before all else
but its own barrier. Its place needs no division in the first group of tiles; in others there is no first
copy. It begins 50 instructions after the start, instead of 105 with a division and all barriers before it.

After a block's last tile the ring is free. Then C is staged in the rows of A that only this consumer has
read, in all stages: twice as many chunks, or more, without a wait for the store of an older one.

B may also be stored as it is multiplied (layout nn), with rows across K, in 16-bit types. TMA copies
boxes of 64 columns, and the descriptor of a product says that rows lie across.

Lessons, few instructions: instructions need energy too. Expected to gain 0.5 % at the power limit, they
gain 1 to 2 % in BF16 and FP8 at 4096 and 8192 (in a second race -1 to 3 %), nothing in TF32 at 4096; 1 % at
2048, and at 1024 1 % in BF16, 4 % in TF32, nothing in FP8. Cycles fall by 0.2 to 0.4 % in BF16, by 1 % in FP8.
That was with 69 instructions; stages counted in 32 bits leave 60, and gain nothing more.
Steps unrolled by the stages of the ring, 25 instructions each: nothing more. Steps of 64 bytes of K, so that
the first products begin earlier: 5 to 22 % more time, since copies of rows of 64 bytes take about four fifths of
the time of rows of 128.

Lessons, small problems (1024 in BF16: 6.8 us). Kernels that do nothing follow each other in 1.6 us. In
this one, 1.8 us pass from the start of a block until its first stage is there, 2.5 until the products are
done, and 0.45 until C has been read from shared memory. 64 x 128 tiles need 384 KB, which arrive at about
64 bytes per cycle. A kernel that only stores C takes 0.8 us longer than one that does nothing, 1.3 if the
lines of C are not in L2. If they always were, the kernel would take 6 % less time at 1024 in BF16, 8 % in FP8,
and 2 and 4 % at 2048. But to prefetch them into L2 before C is written, or to write them once before, makes
nothing faster. The place of C is computed before the products, and there is code for beta only if C is read. The
first copies before all else were expected to gain 3 % at 1024, and gain 2 %, in FP8 2.5 %, and 1 % at
2048; the first one before most barriers too, another 0.5 to 1 % at 2048, 1 % at 1024 in FP8, and nothing
in BF16. Squares instead of columns of 16 tiles gain 1 % at 1024 in BF16, in TF32 3 %, and cost 1 % in FP8.
C staged in the ring gains 1 % at 1024. A fence for each chunk of C, so that its store begins at once,
instead of one for two chunks: 1 % at 1024, 0.3 to 0.5 % at 2048. Buffers of C that the compiler knows, so
that fewer instructions follow the last product: nothing. What remains is C on its way: from the end of a
block at least 2.1 to 2.9 us pass until the next launch begins on its multiprocessor, while launches that do
nothing follow each other in 1.6. At 2048, where a block has one tile, the late consumer gains 1 %.

Lessons, C of a tile and the next tile: shared memory has 128 bytes for each cycle. Of them wgmma reads
79, and copies write 47. So C on its way through shared memory takes time from products wherever it
does so, and while products run a store takes 1000 to 2000 cycles: its fence waits for writes to
shared memory, and TMA reads it behind up to four stages of copies. Between two tiles that cost 2100
cycles of 66,000 in BF16 and 4200 of 131,000 in TF32. Kept in registers it costs 600, hidden by the other
consumer: 3 % more speed at 4096 in BF16, 4 to 5 % in FP8, 1 to 3 % in TF32, 1 to 2 % at 16384 (expected
2 to 4). Stored in the first steps of the next tile, where both consumers wait for each other anyway,
it gained half of that. Stored straight from registers, without shared memory, in pieces of 16 or 32
bytes, it is 4 to 14 % slower than before. With six chunks of 32-bit results of 128 x 256 there are
spills, and no gain. Staged without bank conflicts, 32-bit results gain 0.7 % at 1024. All of this was
measured at the clock of other kernels. At its own, with few instructions, it gains 1 to 2 % in BF16 and 3 %
in FP8 at 4096 and 8192.

Lessons, large problems: at 4096 and above the chip runs at its power limit, cycles are near what the
tensor cores need, and what decides is energy. The clock follows a kernel in some tenths of a second. A
race in which kernels take turns after 50 ms each measures every kernel at the clock of the one before,
so that only cycles count; it misled this search for a long time. At its own clock, a copy of this
kernel that copies nothing, and multiplies what is in shared memory, takes 15 % less time at 8192 in BF16, and
one whose steps all find their lines in L2 5 %; at 16384 17 and 7 %. So a sixth of the energy moves
operands, and that is where there is something to win:
- Blocks in step, in squares, read 20 to 30 % less from L2 and up to half as much from DRAM: 1 to 3 % faster
  in 16-bit types, 0 to 3 % in FP8, 2 to 5 % in TF32. Each part alone, squares, meetings, or 128 blocks, gains
  less than 1 % in BF16. To meet every 4, 8, 16 or 32 steps is the same. A producer must wait as soon as it
  has come to a meeting: to copy two more steps before costs a part of the gain. If it comes only when its
  next stage is empty, L2 is read as much as without meetings. They keep the 16 blocks of a square together
  within 250 ns or so, and L2 is read for 37 % of what arrives, where 25 % were possible. Closer together is
  no faster. If each producer starts a copy every 1016 to 1036 cycles from a meeting on, the 16 blocks begin
  within 80 ns, for some steps, and there are 3 % more cycles. If consumers drain the tensor cores once per
  tile or every 64 steps, and start again when the last one does, blocks stay within 130 ns and L2 is read
  another 10 to 15 % less, but the clock falls as well: 5 % slower to 1 % faster.
- A tile of 192 x 256 reads another fifth less, and leaves no registers for a producer or for C: 0 to 4 %
  faster at 16384 in FP16 and TF32, as fast or slower below. That is `large`.
- Every second tile backward along K, to reuse what is in L2: up to 40 % fewer reads of DRAM, and 0 to 0.5 %
  faster. Operands or C that L2 is told to evict last or first: nothing. Only as much of A evicted last as
  fits, 8, 16 or 24 MB: 1 to 6 % fewer reads of DRAM, and no less time. The middle of K evicted last, and
  every second tile backward: 11 % fewer reads at 4096 and 17 % at 8192; with B evicted first as well 14 and
  20 to 24 %, and 16 % at 16384. Predicted to gain 1 % at 8192; in five races of 10 to 20 rounds 0.3 % slower
  to 0.9 % faster at 4096 and 8192, 0 to 0.5 % faster at 16384. DRAM hardly matters.
- L2 fetches 256 bytes of a row at a time, the next step's 128 too, so that DRAM may open a page once for
  both. Predicted to gain 0.5 %: 0.9 and 0.7 % at 8192, and 0.9 % at 16384, in FP16 and layout nt; at 4096 0.4
  %, within the noise, where 64 bytes lose as much. At 1024 and 2048, and for `large`, nothing. L2 asked for
  512 bytes to 2 KB of a row ahead, each row by one block: predicted to gain as much again, 2 to 10 % slower
  at 8192 in layout nt, 4 to 15 % in nn.
- A from registers instead of shared memory: a kernel that only multiplies is as fast as before within 1 %, so
  that reading operands from shared memory needs hardly any energy.
- Rows of A that only one half of L2 reads, since what both halves read takes room in both. Predicted to save a
  third of the reads of DRAM at 8192, and 2 to 3 % of the time. Alone it saves nothing; with backward tiles and
  priorities 20 %, as those do without it. In three races such a copy was 0.8 to 1.1 % faster at 8192, perhaps half
  of that by the halves; 0 to 0.2 % at 16384, and at 4096 between 0.2 % slower and 1.6 % faster. To know the
  halves, a kernel or its host would have to measure latencies.
- Two tiles of 128 x 128 whose consumers take turns, one writing C while the other multiplies, read a
  third more than one of 128 x 256: 2 % fewer cycles at 4096, and 5 to 8 % slower. In turns with 192
  columns, in clusters of two, 1 to 4 % slower.
- Leftover tiles cut along K, as in `fed`: 1.5 to 3 % fewer cycles at 8192 and 16384, as predicted, and
  3 and 6 % slower in BF16. Blocks drift apart and share fewer reads. With all 132 multiprocessors in step
  as well: 2 to 3 % fewer cycles, 1.2 % faster at 16384, equal at 8192, where the clock falls as much, and 2 to
  4 % slower at 4096. The 132 in step alone: nothing.
- Squares that lie in one GPC, of 16 or 18 multiprocessors: the first eight blocks run elsewhere than those
  behind them, so that most squares lie in two GPCs. Moved by four or eight blocks, or cut into halves of eight,
  they read from L2 between 18 % more and 7 % less, and take the same time within 1 %. Which block runs where
  differs from launch to launch.
- Tiles in groups of 8 or 32 rows, not in step: 0 to 1 % slower than 16. Of 4: 3 %.
- Clusters of two that share B: 0.5 % slower.

At 1024 what bounds it is what a multiprocessor can take: 64 bytes per cycle, 127 per ns. 384 KB in BF16 are 3.1 us
from the first arrival on, products alone 2.4. With the copies of later stages behind the barrier consumers are ready
at 0.6 us instead of 1.3, and multiply 0.4 us earlier; the last product ends when it did.

When all multiprocessors begin to multiply at once, the clock falls from 1980 to 1500 MHz, and is at 1750 only 2 us
later. Products for nothing until the first stage arrives, so that this happens before: expected to gain 2 to 5 %, and
lost 0 to 4 %, since set-up takes longer then, and data arrive no earlier.

What did not help, small problems: two blocks of a cluster that each compute half of the sums along K
and exchange them through shared memory (a third less traffic, but 32 KB need 2000 to 2400 cycles, by
stores or by bulk copies: 16 bytes per cycle pass from one multiprocessor to another; 12 to 16 %
slower); clusters of two that share B (each step takes longer); the last steps first of the left half of
the columns, then of the right, so that C is written earlier (expected 2 % at 2048, where 8 to 17 MB of C
leave in the end; nothing); divisions left out behind the first copies; first copies before all else in
one group of tiles only (1.5 to 2.5 % slower than none: blocks that do not begin together share fewer
reads of L2); the division before the first copies in all blocks, so that they begin together (0.4 to
0.9 % slower than only where it is needed); each barrier only before its own copy (2 % slower at 1024:
later copies begin later); descriptors fetched by another warp, later, or not ahead at all; operands that
L2 drops first; C stored by ordinary instructions, from registers or from shared memory; its code run
once without effect while the first copies are under way, as if it had to be fetched, by the consumer
(with one step of products the cycles fall by 2 %, and the clock as well) or by idle warps; the other first
copies 150 to 900 cycles after the first one, so that they do not compete with it; one line or box of C asked
for at the start, so that its address is translated; the second consumer two steps late instead of three (1
to 2 % slower at 2048); its last steps in halves of the columns (1 % slower in FP8; in BF16 ptxas has too few
registers); C stored in boxes of 64 rows instead of 16, a quarter of the TMA instructions. Predicted to gain
5 % at 1024, and lost 2 to 5 %: rows of A and B prefetched into L2 before anything else, all of them or only
what the first stage needs, also each line by one block only; barriers initialized by the lanes of a warp,
one each (the compiler makes a loop over lanes of it). Predicted to gain 3 to 5 % at 1024, and lost 4 to 11 %:
the first one, two or four stages copied by the consumers (cp.async), so that nothing waits for descriptors.
C that L2 drops first: nothing. Two steps of products in flight instead of one, at 1024: nothing. Copies that
ask DRAM for 256, 64 or 32 bytes instead of 128, at 1024 and 2048: nothing beyond what differs between two runs.
A producer of one warp instead of four: 0.3 % in FP16, nothing in FP8.

What did not help, large problems, measured at the clock of other kernels: a head start for one
consumer, which is soon lost because the ring is not deep enough; clusters of four or eight, with or
without multicast (only 120 of 132 multiprocessors can be in them: 12 to 25 % slower at 4096 and 8192);
256 x 192, which leaves no registers to hide the write of C.
*/

#include "hopper.cuh"
#include "lockstep.cuh"

constexpr int TILE_M = 64 * CONSUMERS;
constexpr int THREADS = CONSUMERS * WARPGROUP + PRODUCER;
// Only a whole warpgroup can give registers away. The sums of one consumer need none of them.
constexpr bool GIVES_REGISTERS = PRODUCER == WARPGROUP;
constexpr int SUMS = TILE_N / 2;           // of a thread
constexpr int CHUNKS = SUMS / CHUNK_SUMS;  // of a consumer's C
constexpr int LATE = CONSUMERS == 2 ? STAGES - 1 : 0;  // steps of the second consumer
// Chunks of C that a thread keeps. With its sums they take 192 registers, of 240.
constexpr int ROOM = CONSUMERS == 2 ? (192 - SUMS) / CHUNK_WORDS : 0;
constexpr int KEPT = CHUNKS < ROOM ? CHUNKS : ROOM;
constexpr int LEAVE = 4;  // the step in which the first two of them are stored
constexpr int LEFT = LEAVE + (KEPT + 1) / 2 * 4 - 2;  // and the last ones, by the second consumer
constexpr int SPARE = STAGES < 8 ? 4 : 8;  // stages that C may use at the end
static_assert(SPARE <= STAGES, "a chunk of C for each");
static_assert(SUMS % CHUNK_SUMS == 0, "whole chunks of C");
static_assert((CHUNKS - KEPT) % 2 == 0, "the two buffers of C are used in turn");
constexpr int GROUP = WAVE_ROWS;  // rows of tiles
static_assert(SQUARES || !IN_STEP, "blocks in step share what they read in squares");
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

// From a stage to the next one, in the units of descriptors. In 32 bits: 64 take twice the instructions.
constexpr unsigned STAGE_OF_A = sizeof(Shared::a[0]) / 16, STAGE_OF_B = sizeof(Shared::b[0]) / 16;

// The last chunks of a tile of C, packed, and its place; column -1 without one.
struct Kept {
    Word words[KEPT > 0 ? KEPT * CHUNK_WORDS : 1];
    int row, column;
};

// Stores what is to leave in this step of the next tile.
__device__ inline void store_some(const Kept& kept, int step, Buffers<2> buffers, const TensorMap& map) {
#pragma unroll
    for (int i = 0; i < KEPT; i += 2) {
        if (step != LEAVE + 2 * i) continue;
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

// By the producer: makes the barriers, and starts the first copies of a block, up to AHEAD steps of its
// first tile. Returns how many: none if that tile is not in a whole group at the top of C. The first copy
// begins as soon as its barrier is made.
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
    const Share share = share_of_block(SQUARES);
    if (blockIdx.x >= share.blocks) return;
    Shared& shared = reinterpret_cast<Shared&>(*dynamic_shared_tiles());

    int begun = 0;  // steps of the first tile whose copies are under way
    if (threadIdx.x == CONSUMERS * WARPGROUP) {
        begun = begin_copies(shared, A, B, share.first, M, N, K);
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
        for (int tile = share.first; tile < tiles; tile += share.blocks) {
            const Place place = grouped(tile, rows, columns, GROUP);
            const bool meets = IN_STEP && wave_is_whole(share, tile, tiles);
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
        // The step before which the second consumer waits, and the first one's after which it need not.
        const bool waits = LATE && steps > LATE;
        const int waits_at = waits && warpgroup == 1 ? steps - LATE : -1;
        const int leaves_at = waits && warpgroup == 0 ? steps - 1 : -1;
        const bool keeps = KEPT > 0 && steps > LEFT;  // long enough for all
        const auto place_now = [&](int tile) {  // not where the compiler would like to compute it
            Place place = grouped(tile, rows, columns, GROUP);
            asm volatile("" : "+r"(place.row), "+r"(place.column));
            return place;
        };
        Kept kept;
        kept.column = -1;
        for (int tile = share.first; tile < tiles; tile += share.blocks) {
            const bool first = tile == share.first, last = tile + share.blocks >= tiles;
            Place place;
            if (first) place = place_now(tile);  // before the first copies have arrived
            float sums[SUMS];
            int before = 0;
            const int stored_by = kept.column < 0 ? -1 : LEFT;
            for (int step = 0; step < steps; ++step, ring.advance()) {
                if (step == waits_at) wait_for_leave();
                wait(&shared.full[ring.stage], ring.phase);
                begin_products();
                multiply_tiles(sums, a_at_0 + ring.stage * STAGE_OF_A, b_at_0 + ring.stage * STAGE_OF_B,
                               step > 0);
                commit_products();
                if (step <= stored_by) {
                    store_some(kept, step - 2 * warpgroup, two_buffers(shared.c[warpgroup]), C_map);
                }
                if (step == leaves_at) give_leave();
                wait_for_products<1>();
                if (step > 0 && thread == 0) arrive(&shared.empty[before]);
                before = ring.stage;
            }
            if (!first) place = place_now(tile);  // behind the last products
            const int row = place.row * TILE_M + warpgroup * 64;
            const int column = place.column * TILE_N;
            wait_for_products<0>();
            if (thread == 0) arrive(&shared.empty[before]);

            kept.column = -1;
            if (keeps && !last) {
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
