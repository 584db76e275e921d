/*
title = "The copy engine feeds the warps that multiply"
entry = "fed"
rung = 11
precisions = ["fp32"]
layouts = ["nn"]
block = ["32 * WARPS_M * WARPS_N * SLICES + 128"]
tile = ["64 * WARPS_M", "64 * WARPS_N"]
flat = true
blocks_per_sm = "EVEN"
blocks_per_tile = "1 + 3 * EVEN"
shared_bytes = """max(STAGES * 128 * (64 * WARPS_M + 64 * WARPS_N), \
    SLICES * 16384 * WARPS_M * WARPS_N * min(1, SLICES - 1)) + 16 * STAGES"""
compute_capability = "9.0"
options = ["--ptxas-options=-O1"]
tensor_maps = [
    { operand = "a", box = ["64 * WARPS_M", 32], swizzle = 128 },
    { operand = "b", box = [32, "64 * WARPS_N"] },
]
variants = [
    { name = "256x128", WARPS_M = 4, WARPS_N = 2, SLICES = 1, STAGES = 4, EVEN = 0, STEPS = 16, EARLY = 4 },
    { name = "256x128 even", WARPS_M = 4, WARPS_N = 2, SLICES = 1, STAGES = 4, EVEN = 1, STEPS = 4, EARLY = 2 },
    { name = "128x64, 4 slices", WARPS_M = 2, WARPS_N = 1, SLICES = 4, STAGES = 8, EVEN = 0, STEPS = 8, EARLY = 4 },
]
teaches = "small things between multiply-adds: who copies, how large the loop is, who computes the rest"
*/

/*
`producers` with four changes. What is left of its loop beside multiply-adds is fought one by one.

1. One thread copies. TMA takes a box of A and one of B as they are, without an address per element;
   the other copying threads only give their registers away (24 of theirs, 240 for the others). Its
   price: A's tile is not transposed. A thread reads four steps of K at once for each of its rows, as
   many instructions as for a transposed tile. TMA permutes the quads of A's rows, so that those of 8
   rows are in different banks. Rows must be multiples of 16 bytes, and B must not be transposed:
   the header's boxes are those of layout nn. `producers` computes the others.

2. The order of the products, and a compiler that keeps it. All four values of a quad along K are in
   an even register, or all in an odd one, for all rows at once. So a factor of A stays for a row of
   16 products, each with another factor of B and a sum in the other bank, and the row ends in a
   column whose factor is in the bank of A's next one: see `column_of`. No product needs to read two
   registers of one bank. But ptxas reorders the instructions, and half of that is lost; with -O1 it
   reorders little: 4 % of conflicts instead of 33 %. All other instructions of the loop are 6 to 7 %.

3. A small loop. All 32 steps of a tile unrolled are 69 kB of instructions, and the multiprocessor
   waits for them, some longer than others; 16 steps are 35 kB and 4 steps 9 kB. The compiler moves
   the reads for the next round to the end of the loop, where they come in a burst and nothing hides
   their latency. So at least half of the fourth step stands behind a branch, after the reads.

4. With EVEN, work for all multiprocessors. 2048 x 2048 has 128 tiles for 132 multiprocessors, and
   8192 x 8192 has 15.5 for each: 3 % of the time many have nothing to do. So a block stays, as in
   `persistent`, and the tiles that are left over are cut along K in equal parts. The part that
   begins at K = 0 writes C; the others add to it, one after the other, so that results do not
   depend on chance. A block computes the end of its part first, since its neighbour waits for that.

Learned:
  - Counting conflicts, as in `serpentine`, ranks orders, but not loops: the count was as good for
    those that waited for instructions or for shared memory.
  - A loop that unrolls later, without `#pragma unroll` at the store of C, has its sums in the banks
    that the store wants. Every product is then a conflict.
  - If bits 0 and 2 of a lane's number are its column, each operand is the same for one of its two
    neighbours. That should have read shared memory in fewer cycles. Plain lanes, lane % 4 across and
    lane / 4 down, are 2 to 3 % faster at all sizes. Why is open: a quarter of a warp reads the same
    quads either way.
  - One copying warp beside 8 others cannot give its registers to all of them: each quarter of a
    multiprocessor has its own, and it is the third warp of one. Hence 4 warps for one copying thread.

Tiles: 256 x 128, or 128 x 64 with 4 slices that take turns at the tiles of K, the faster at 1024.

Expect 0.88 of the FP32 peak where there is work for all: 6 % other instructions, 4 % conflicts, and
what waits. More waits than expected: with two warps per scheduler both often stand still, for shared
memory, for instructions or for a branch.
*/

#include "setmaxnreg.cuh"
#include "simt_pipeline.cuh"
#include "stream_k.cuh"
#include "tma.cuh"

constexpr int TILE_K = 32;  // a row of A's tile has 128 bytes, the most that the copy engine permutes
constexpr unsigned THREADS = 128;  // of which one copies
// Registers per thread. A block begins with 65536 / 384 each, a multiple of 8: 168.
constexpr unsigned GIVEN = 24;
constexpr unsigned TAKEN = 240;
static_assert(THREADS * GIVEN + MULTIPLIERS * TAKEN <= 168 * (THREADS + MULTIPLIERS), "or it hangs");
static_assert(STAGES % SLICES == 0, "slices take turns");
static_assert(TILE_K % STEPS == 0 && STEPS % 4 == 0, "quads of K");

constexpr unsigned PITCH_A = 4 * TILE_K;
constexpr unsigned PITCH_B = 4 * TILE_N;
constexpr unsigned A_BYTES = TILE_M * PITCH_A;
constexpr unsigned STAGE_BYTES = A_BYTES + TILE_K * PITCH_B;
constexpr unsigned SUMS_BYTES = SLICES > 1 ? 4 * TILE_M * TILE_N * SLICES : 0;
constexpr unsigned RING_BYTES = STAGES * STAGE_BYTES > SUMS_BYTES ? STAGES * STAGE_BYTES : SUMS_BYTES;

// Which product of a row comes `nth`. Every other row goes back, so that its first product shares a
// factor with the last of the row before. The four factors of a quad of K are in the banks of even,
// odd, even and odd registers, for all rows; rows turn where the factor of B is in the same bank,
// and so the sum in the other.
__device__ constexpr int column_of(int row, int nth, int k) {
    const int at = row % 2 ? COLUMNS - 1 - nth : nth;
    const int exchanged = k % 2 ? 0 : COLUMNS / 2 - 1;  // pair
    return at / 2 == exchanged ? at ^ 1 : at;
}

extern "C" __global__ void __launch_bounds__(MULTIPLIERS + THREADS, 1)
fed(int M, int N, int K, float alpha, const __grid_constant__ TensorMap A,
    const __grid_constant__ TensorMap B, float beta, float* C) {
    unsigned char* const tiles = dynamic_shared_tiles();
    Barrier* const full = reinterpret_cast<Barrier*>(tiles + RING_BYTES);
    Barrier* const empty = full + STAGES;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            initialize(&full[stage]);
            initialize(&empty[stage], WARPS);
        }
    }
    const Work<TILE_K> work(M, N, K);
    __syncthreads();

    if (threadIdx.x >= MULTIPLIERS) {
        shrink_registers<GIVEN>();
        if (threadIdx.x > MULTIPLIERS) return;
        unsigned stage = 0;
        unsigned phase = 1;
#pragma unroll 1
        for (int nth = 0; nth < work.pieces(); ++nth) {
            const Piece piece = work.get(nth);
#pragma unroll 1
            for (int step = piece.begin; step < piece.end; ++step) {
                unsigned char* const to = tiles + stage * STAGE_BYTES;
                wait(&empty[stage], phase);
                announce(&full[stage], STAGE_BYTES);
                copy_box(to, A, piece.corner.row, step * TILE_K, &full[stage]);
                copy_box(to + A_BYTES, B, step * TILE_K, piece.corner.column, &full[stage]);
                if (++stage == STAGES) {
                    stage = 0;
                    phase ^= 1;
                }
            }
        }
        return;
    }

    grow_registers<TAKEN>();
    const unsigned slice = threadIdx.x / 32 / WARPS;
    const unsigned warp = threadIdx.x / 32 % WARPS;
    const unsigned lane = threadIdx.x % 32;
    const unsigned lane_n = lane % LANES_N;
    const unsigned lane_m = lane / LANES_N;
    const unsigned thread_m = warp / WARPS_N * WARP_TILE + lane_m;
    const unsigned thread_n = warp % WARPS_N * WARP_TILE + lane_n * 4;
    const SharedAddress ring = address_of(tiles);
    // The quads of a row of A's tile are permuted: quad q of row r is at q ^ r % 8.
    const SharedAddress own_a = ring + thread_m * PITCH_A + lane_m * 16;
    const SharedAddress own_b = ring + A_BYTES + thread_n * 4;
    const bool aligned = in_quads(C, N);

    float a[ROWS][4];     // a quad of K for each row
    float b[2][COLUMNS];  // this step, and the next one
    float sum[ROWS][COLUMNS];
    unsigned stage = slice;
    unsigned phase = 0;
    int left = work.all_steps() - slice;
    SharedAddress stage_a = own_a + stage * STAGE_BYTES;
    SharedAddress from_a = stage_a;
    SharedAddress from_b = own_b + stage * STAGE_BYTES;
    const auto read_a = [&](int k, int begin, int end) {
        const SharedAddress quad = from_a ^ k * 4;
#pragma unroll
        for (int i = begin; i < end; ++i) fetch(a[i], quad + i * LANES_M * PITCH_A);
    };
    const auto read_b = [&](int k) {
        fetch(b[k % 2], from_b + k * PITCH_B, LANES_N * 16);
    };
    const auto multiply = [&](int k, int begin, int end) {
#pragma unroll
        for (int i = begin; i < end; ++i) {
#pragma unroll
            for (int nth = 0; nth < COLUMNS; ++nth) {
                const int j = column_of(i, nth, k);
                sum[i][j] += a[i][k % 4] * b[k % 2][j];
            }
        }
    };

    if (left > 0) {
        wait(&full[stage], phase);
        read_b(0);
        read_a(0, 0, EARLY);
    }
#pragma unroll 1
    for (int nth = 0; nth < work.pieces(); ++nth) {
        const Piece piece = work.get(nth);
        if (EVEN && piece.begin == piece.end) continue;
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) sum[i][j] = 0;
        }
        int step = piece.begin + slice;
        int k_bytes = 0;  // in the tile
#pragma unroll 1
        do {
#pragma unroll
            for (int k = 0; k < STEPS; ++k) {
                const int next = (k + 1) % STEPS;
                if (k == 0) read_a(0, EARLY, ROWS);
                if (k % 4 < 3) {
                    read_b(next);
                    multiply(k, 0, ROWS);
                    continue;
                }
                bool emptied = false;
                if (next == 0) {
                    k_bytes += 4 * STEPS;
                    from_a = stage_a ^ k_bytes;
                    from_b += STEPS * PITCH_B;
                    emptied = k_bytes == PITCH_A;
                    if (emptied) {
                        k_bytes = 0;
                        step += SLICES;
                        left -= SLICES;
                        stage += SLICES;
                        if (stage >= STAGES) {
                            stage -= STAGES;
                            phase ^= 1;
                        }
                        if (left > 0) wait(&full[stage], phase);
                        from_a = stage_a = own_a + stage * STAGE_BYTES;
                        from_b = own_b + stage * STAGE_BYTES;
                    }
                }
                // Rows whose last product is done are read anew, the others in the next round. The
                // branch keeps the compiler from moving these reads to the end.
                multiply(k, 0, EARLY);
                read_b(next);
                read_a(next, 0, EARLY);
                if (emptied) {
                    __syncwarp();
                    if (lane == 0) {
                        arrive(shared_address(&empty[(stage + STAGES - SLICES) % STAGES]));
                    }
                }
                multiply(k, EARLY, ROWS);
                if (next != 0) read_a(next, EARLY, ROWS);
            }
        } while (step < piece.end);

        const int first_row = piece.corner.row + thread_m;
        const int first_column = piece.corner.column + thread_n;
        if (SLICES == 1) {
            const bool adds = EVEN && piece.begin > 0;
            if (adds) wait_for_steps(piece);
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                const int row = first_row + i * LANES_M;
                if (row >= M) continue;
#pragma unroll
                for (int j = 0; j < COLUMNS; j += 4) {
                    const int column = first_column + j * LANES_N;
                    if (adds) {
                        add_to(C, row, column, N, &sum[i][j], alpha, aligned);
                    } else {
                        store_quad(C, row, column, N, &sum[i][j], alpha, beta, aligned);
                    }
                }
            }
            if (EVEN && (adds || piece.end < work.steps)) report_steps(piece, work.steps);
            continue;
        }

        // Each slice has summed a part of K. Each adds up and stores a part of the rows.
        const Exchange exchange(ring);
        constexpr int QUADS = Exchange::QUADS;
        sync_part<MULTIPLIERS>();
#pragma unroll
        for (int quad = 0; quad < QUADS; ++quad) exchange.give(slice, quad, sum, alpha);
        sync_part<MULTIPLIERS>();
        for (int quad = slice * QUADS / SLICES; quad < (slice + 1) * QUADS / SLICES; ++quad) {
            float total[4] = {};
#pragma unroll
            for (int other = 0; other < SLICES; ++other) exchange.take(other, quad, total);
            const int row = first_row + quad / 4 * LANES_M;
            const int column = first_column + quad % 4 * 4 * LANES_N;
            if (row < M) store_quad(C, row, column, N, total, 1, beta, aligned);
        }
    }
}
