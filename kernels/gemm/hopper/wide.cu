/*
title = "The largest tile that registers allow"
entry = "wide"
rung = 26
precisions = ["bf16", "fp16", "fp16_fp32", "tf32", "fp8"]
layouts = ["nn", "nt"]
k_major = ["tf32", "fp8"]
compute_capability = "9.0"
block = [384]
tile = [192, 256]
flat = true
blocks_per_sm = 1
shared_bytes = "3 * 128 * (192 + 256) + 3 * 2 * 64 * 128 + 64 + 16 * 3"
tensor_maps = [
  { operand = "a", box = [192, "128 // input_bytes"], swizzle = 128 },
  { operand = "b", box = ["""ROOFLAB_TRANSPOSE_B * 256 \
    + (1 - ROOFLAB_TRANSPOSE_B) * 128 // input_bytes""", "128 // input_bytes"], swizzle = 128 },
  { operand = "c", box = [16, "128 // output_bytes"], swizzle = 128, pointer = true },
]
teaches = "a tile of 192 x 256, which reads a fifth less, without a producer; blocks in step"
*/

/*
At the power limit energy decides, and a sixth of it moves operands (see `champion`). A tile of 192 x 256
reads 22 % less for a product than one of 128 x 256. Three consumers with 64 rows each have the registers
for it, 168 per thread, if there are no other threads: with a fourth warpgroup, or only a warp, ptxas
has 128 or 152 for each, and a product of 256 columns needs 154. So there is no producer. A consumer
that has finished a step says so, and goes on; the first thread of the first one waits until all three
have said it, and starts the copies that take the place of that step. They run at about the same pace,
so that it hardly waits.

Blocks are in step, as in `champion`.

Lessons: predicted 3 to 4 % over 128 x 256 at 16384 from the bytes that are saved. A copy of `champion`
without a producer, whose C is written between products, is 1 % slower at 16384 and 2 % at 8192; with
the larger tile it is 1 % faster than `champion`, with blocks in step 3 % in BF16, 6 % in TF32. At 8192
43 x 32 tiles are 10.75 waves, so 3 % of the chip's time is lost in the last one: equal to `champion`
in step in TF32, slower in 16-bit types and FP8. Blocks in step read 2.7 times as much as L2 gives: the
ideal for squares of 4 x 2, the halves of a GPC that get neighbouring blocks.

What did not help: consumers that end one after the other, so that one writes C while the others
multiply (0.3 % faster in TF32, 1 % slower in BF16, where registers spill). There are none left for C, so
it is packed chunk by chunk. The cursor of the copies is in shared memory for the same reason.
*/

#include "hopper.cuh"
#include "in_step.cuh"

constexpr int CONSUMERS = 3, STAGES = 3;
constexpr int TILE_M = 64 * CONSUMERS, TILE_N = 256;
constexpr int SUMS = TILE_N / 2;  // of a thread
constexpr int GROUP = 16;  // rows of tiles that are computed together
constexpr int PACE = 16;   // steps from a meeting of blocks to the next one

// The next step to copy: of which tile, and where that is.
struct Cursor {
    int tile, step, row, column;
    bool meets;

    __device__ void begin(int next, const Share& share, int rows, int columns) {
        const Place place = grouped(next, rows, columns, GROUP);
        tile = next;
        step = 0;
        row = place.row * TILE_M;
        column = place.column * TILE_N;
        meets = wave_is_whole(share, tile, rows * columns);
    }
};

struct Shared {
    Input a[STAGES][TILE_M * TILE_K];
    Input b[STAGES][TILE_N * TILE_K];
    Output c[CONSUMERS][2][64 * CHUNK];
    Cursor next;  // of one thread, but registers are full
    Barrier full[STAGES], empty[STAGES];
};

// Starts the copies of the next step, if there is one: a tile of A and a tile of B.
__device__ inline void fill(Shared& shared, int stage, const TensorMap& A, const TensorMap& B,
                            const Share& share, int M, int N, int K) {
    const int rows = tiles_along(M, TILE_M);
    const int columns = tiles_along(N, TILE_N);
    Cursor& next = shared.next;
    if (next.tile >= rows * columns) return;
    if (next.meets && next.step % PACE == 0 && (next.step > 0 || next.tile >= WAVE)) meet();
    const int k = next.step * TILE_K;
    Barrier* full = &shared.full[stage];
    announce(full, sizeof(shared.a[0]) + sizeof(shared.b[0]));
    copy_box(shared.a[stage], A, next.row, k, full);
    if constexpr (transpose_b) {
        copy_box(shared.b[stage], B, next.column, k, full);
    } else {
#pragma unroll
        for (int i = 0; i < TILE_N; i += 64) {
            copy_box(shared.b[stage] + i * TILE_K, B, k, next.column + i, full);
        }
    }
    if (++next.step == tiles_along(K, TILE_K)) next.begin(next.tile + share.blocks, share, rows, columns);
}

extern "C" __global__ void __launch_bounds__(CONSUMERS * WARPGROUP, 1)
wide(int M, int N, int K, Accumulate alpha, const __grid_constant__ TensorMap A,
     const __grid_constant__ TensorMap B, Accumulate beta, const Output* C,
     const __grid_constant__ TensorMap C_map) {
    const Share share = share_of_wave();
    if (blockIdx.x >= share.blocks) return;
    Shared& shared = reinterpret_cast<Shared&>(*dynamic_shared_tiles());

    const int warpgroup = threadIdx.x / WARPGROUP;
    const int thread = threadIdx.x % WARPGROUP;
    const int rows = tiles_along(M, TILE_M);
    const int columns = tiles_along(N, TILE_N);
    const int steps = tiles_along(K, TILE_K);
    const bool copies = threadIdx.x == 0;
    if (copies) {
        prefetch(A);
        prefetch(B);
        initialize_ring(shared.full, shared.empty, CONSUMERS);
        shared.next.begin(share.first, share, rows, columns);
#pragma unroll 1
        for (int stage = 0; stage < STAGES; ++stage) fill(shared, stage, A, B, share, M, N, K);
        prefetch(C_map);
    }
    __syncthreads();

    // Products that read a stage have ended. When all consumers have said so, it is filled again.
    const auto give_back = [&](int stage, unsigned phase) {
        if (thread == 0) arrive(&shared.empty[stage]);
        if (copies) {
            wait(&shared.empty[stage], phase);
            fill(shared, stage, A, B, share, M, N, K);
        }
        __syncwarp();
    };

    Ring<STAGES> ring, before;
    for (int tile = share.first; tile < rows * columns; tile += share.blocks) {
        float sums[SUMS];
        for (int step = 0; step < steps; ++step) {
            wait(&shared.full[ring.stage], ring.phase);
            begin_products();
            multiply_tiles(sums, shared.a[ring.stage] + warpgroup * 64 * TILE_K, shared.b[ring.stage],
                           step > 0);
            commit_products();
            wait_for_products<1>();
            if (step > 0) give_back(before.stage, before.phase);
            before = ring;
            ring.advance();
        }
        Place place = grouped(tile, rows, columns, GROUP);  // behind the last products
        asm volatile("" : "+r"(place.row), "+r"(place.column));
        const int row = place.row * TILE_M + warpgroup * 64;
        const int column = place.column * TILE_N;
        wait_for_products<0>();
        give_back(before.stage, before.phase);

        scale_sums(sums, C, row, column, M, N, alpha, beta);
#pragma unroll
        for (int i = 0; i < SUMS / CHUNK_SUMS; ++i) {  // one by one: for two there are no registers
            Word words[CHUNK_WORDS];
            pack_chunks(sums + i * CHUNK_SUMS, words, 1);
            store_packed(words, 1, i, two_buffers(shared.c[warpgroup]), C_map, row, column);
        }
    }
    if (thread % 32 == 0) wait_until_stores_have_read();
}
