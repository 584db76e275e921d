/*
title = "Tensor cores by warp: mma.sync"
entry = "mma"
rung = 20
precisions = ["fp64", "tf32", "fp32_3xtf32", "fp16", "bf16", "fp16_fp32"]
layouts = ["nn", "nt", "tn", "tt"]
block = ["32 * WARPS_M * WARPS_N"]
tile = ["TILE_M", "TILE_N"]
shared_bytes = "STAGES * ((TILE_M + TILE_N) * 128 + 2048)"
batched = true
min_compute_capability = "8.0"
teaches = "tensor cores multiply what the lanes of a warp hold together; swizzles keep them fed"
variants = [
  { name = "128x128", TILE_M = 128, TILE_N = 128, WARPS_M = 4, WARPS_N = 2, STAGES = 3, access_bytes = 16 },
  { name = "64x128 x2", TILE_M = 64, TILE_N = 128, WARPS_M = 2, WARPS_N = 2, STAGES = 3, BLOCKS = 2, access_bytes = 16 },
  { name = "64x64 x3", TILE_M = 64, TILE_N = 64, WARPS_M = 2, WARPS_N = 1, STAGES = 4, BLOCKS = 3, access_bytes = 16 },
  { name = "64x64 x3 4 warps", TILE_M = 64, TILE_N = 64, WARPS_M = 2, WARPS_N = 2, STAGES = 3, BLOCKS = 3, access_bytes = 16 },
  { name = "256x128", TILE_M = 256, TILE_N = 128, WARPS_M = 4, WARPS_N = 2, STAGES = 4, access_bytes = 16, precisions = ["tf32", "fp16", "bf16", "fp16_fp32"] },
  { name = "128x256", TILE_M = 128, TILE_N = 256, WARPS_M = 2, WARPS_N = 4, STAGES = 4, access_bytes = 16, precisions = ["tf32", "fp16", "bf16", "fp16_fp32"] },
  { name = "128x128 x2", TILE_M = 128, TILE_N = 128, WARPS_M = 2, WARPS_N = 2, STAGES = 3, BLOCKS = 2, access_bytes = 16, precisions = ["tf32", "fp16", "bf16", "fp16_fp32"] },
  { name = "128x64 x2", TILE_M = 128, TILE_N = 64, WARPS_M = 4, WARPS_N = 2, STAGES = 4, BLOCKS = 2, access_bytes = 16, precisions = ["tf32", "fp16", "bf16", "fp16_fp32"] },
  { name = "64x64 narrow", TILE_M = 64, TILE_N = 64, WARPS_M = 2, WARPS_N = 2, STAGES = 4, BLOCKS = 2, NARROW = 1 },
]
*/

/*
A tensor core multiplies a 16-row piece of A by an 8-column piece of B, in one instruction of a
warp: mma.sync. The pieces and the 16 x 8 sums are spread over the registers of its 32 lanes in a
fixed pattern (mma.cuh). All else here serves to have the right elements in the right lanes in time:

  - cp.async copies 16 bytes at a time from global to shared memory, past the registers. STAGES - 1
    tiles are on their way while the block multiplies one. Beyond the edges it writes zeros, so that
    M, N and K may have any value. It needs rows that are multiples of 16 bytes; for other rows
    there is a variant that copies elements one by one.
  - ldmatrix takes 8 rows of 16 bytes to the lanes that need them, transposed on the way for types
    of 2 bytes: all layouts are alike. It cannot transpose FP32 or split FP64; they are loaded by
    element.
  - Either reads from several rows at once, whose pitch is a multiple of 128 bytes: from the same
    banks. XORing the place of 16 bytes in a row with the row's number spreads them over all banks.
  - While a warp multiplies one part, 16 rows of A by all its columns, it loads the next one.

FP32 by 3xTF32: FP32 keeps 24 bits of a number, TF32 11. So tensor cores can multiply FP32 numbers
as sums of two TF32 numbers each, a + a' and b + b': three products, because a' b' is below FP32's
last bit. The roof is a third of TF32's. What remains is the error of sums: tensor cores cut bits
off where FP32 units round. So each tile's sums start at 0, and FP32 units add them to the total.
Infinity becomes NaN, since infinity minus infinity is the rest.

Arithmetic: a warp's 64 x 64 sums take 128 elements from shared memory for 4096 multiply-adds, for
FP64 32 x 64 sums take 96 for 2048. At the peak rate of FP64 the loads keep shared memory busy for
about a third of the time, so that the tensor cores can be the limit. A block of 64 x 128 reads
24 KB from L2 for 262144 FLOP in FP64: at an H200's peak that is 6.3 TB/s, near what L2 can give.
128 x 128 needs 4.2.

Occupancy: the sums and two sets of fragments fill the register file with 8 warps, two for each of
the four schedulers. In one block they all wait at the same barrier. As two blocks one computes
while the other waits, which pays except where L2 is short.

Prediction for an H200: mma.sync reaches the peak only in FP64, so that 0.95 to 1.0 of cuBLAS is
possible there. For the other types it takes operands from registers and gets to some 60 % of the
peak; cuBLAS uses wgmma, which reads them from shared memory. So about 0.55 of cuBLAS; on compute
capability 8.0 mma.sync is all there is.

Lessons:
  - Registers decide. In FP64 two full sets of fragments spill; with two sets of B but only one part
    of A ahead nothing does.
  - The 16-deep FP64 instruction has a slightly higher peak than the 8-deep one used here, but its
    fragments leave no room to load ahead, and the kernel becomes slower.
  - Wait for the next tile where products are left that need nothing of it: the loop begins with the
    barrier, and the first part is loaded while the last part of the tile before is multiplied.
    Written the other way round, the compiler moves those products before the barrier.
  - 16-byte loads of neighbouring lines cost more moves than they save loads: mma.sync takes its
    operands from neighbouring registers. With 2 chunks of padding, loads by element have no bank
    conflicts either.
  - Rounding to TF32 by cvt.rna takes two instructions on compute capability 9.0, cvt.rn one.
*/

#if defined(ROOFLAB_PRECISION_FP32_3XTF32)
#define ROOFLAB_PRECISION_FP32 1  // its types
#endif
#include "gemm.cuh"
#include "mma.cuh"

#ifndef BLOCKS
#define BLOCKS 1
#endif
#ifndef NARROW
#define NARROW 0
#endif

constexpr int THREADS = 32 * WARPS_M * WARPS_N;
constexpr int SIZE = sizeof(Input);
constexpr int CHUNK = 16 / SIZE;          // elements of 16 bytes, the unit of copies and swizzles
constexpr int TILE_K = 8 * CHUNK;         // 128 bytes of K: 32 banks, once
constexpr int STEPS = SIZE == 8 ? 2 : 4;  // of 8 places of K each: see multiply_add
constexpr int GROUP = 8;                  // rows of tiles that are worked on together

// What one warp computes: MS x NS products of 16 x 8.
constexpr int WARP_M = TILE_M / WARPS_M;
constexpr int WARP_N = TILE_N / WARPS_N;
constexpr int MS = WARP_M / 16;
constexpr int NS = WARP_N / 8;
constexpr int PARTS = STEPS * MS;  // of a tile: 16 rows of A, all columns, one step
static_assert(PARTS % 2 == 0 && NS % 2 == 0, "fragments alternate, those of B are in pairs");

// A lane's part of an operand: pairs of 2-byte elements, FP32 bits, or FP64.
template <int BYTES> struct RegisterOf { using type = unsigned; };
template <> struct RegisterOf<8> { using type = double; };
using Register = typename RegisterOf<SIZE>::type;

// FP32 as the sum of two TF32 numbers, of which three products are summed: SPLIT fragments.
#if defined(ROOFLAB_PRECISION_FP32_3XTF32)
constexpr int SPLIT = 2;
#else
constexpr int SPLIT = 1;
#endif

// The tile of an operand in one stage: LINES rows of A or columns of B, by TILE_K. Shared memory
// holds it as it lies in global memory, in rows along K or in rows along the lines.
template <bool along_k, int LINES>
struct Tile {
    static constexpr bool ALONG_K = along_k;
    static constexpr int ROWS = along_k ? LINES : TILE_K;
    static constexpr int CHUNKS = along_k ? 8 : LINES / CHUNK;

    // Fragments are loaded by ldmatrix, 8 rows at one chunk; those that it would tear apart by
    // element, 4 rows at 2 chunks. Either must be 8 chunks at different places modulo 128 bytes.
    // If the chunk depends on the step alone, it is XORed with bits of the row; along the lines
    // two chunks of padding per row leave the addresses of all lines linear.
    static constexpr bool BY_MATRIX = SIZE == 2 || (SIZE == 4 && along_k);
    static constexpr int PITCH = (CHUNKS + (BY_MATRIX || along_k ? 0 : 2)) * 16;
    static constexpr int BYTES = ROWS * PITCH;

    __device__ static constexpr int turn(int row) {
        return BY_MATRIX ? row & 7 : along_k ? 2 * (row & 3) : 0;
    }
    __device__ static unsigned offset(int row, int chunk) {
        return row * PITCH + (chunk ^ turn(row)) * 16;
    }
    __device__ static unsigned element(int line, int k) {
        const int row = along_k ? line : k;
        const int along = along_k ? k : line;
        return offset(row, along / CHUNK) + along % CHUNK * SIZE;
    }
};
using TileA = Tile<!transpose_a, TILE_M>;
using TileB = Tile<transpose_b, TILE_N>;
constexpr int STAGE_BYTES = TileA::BYTES + TileB::BYTES;

// A thread's copies of an operand's tiles to shared memory, stage by stage. It copies one chunk of
// every STEP-th row.
template <class T>
struct Copies {
    static constexpr int STEP = THREADS / T::CHUNKS;
    static constexpr int COUNT = T::ROWS / STEP;
    static_assert(THREADS % T::CHUNKS == 0 && T::ROWS % STEP == 0, "all threads take part");

    const Input* from;
    size_t pitch;     // elements between the rows of two copies
    int rows_inside;  // of the operand, from this thread's first row on
    int inside;       // elements, from this thread's chunk on
    unsigned to;

    __device__ Copies(const Input* operand, int first, int lines, int K, unsigned shared) {
        const int row = threadIdx.x / T::CHUNKS;
        const int element = threadIdx.x % T::CHUNKS * CHUNK;
        const int rows = T::ALONG_K ? lines : K;
        const int length = T::ALONG_K ? K : lines;
        const int first_row = row + (T::ALONG_K ? first : 0);
        const int first_element = element + (T::ALONG_K ? 0 : first);
        from = operand + size_t(first_row) * length + first_element;
        pitch = size_t(STEP) * length;
        rows_inside = rows - first_row;
        inside = length - first_element;
        to = shared + T::offset(row, element / CHUNK);
    }

    // Starts the copies of the tile at `stage` bytes, and moves on along K.
    __device__ void next(unsigned stage) {
        for (int i = 0; i < COUNT; ++i) {
            // row + i * STEP has the bits of both: STEP is a power of two.
            const unsigned turned = to ^ T::turn(i * STEP) * 16;
            chunk(stage + turned + i * STEP * T::PITCH, from, rows_inside > i * STEP ? inside : 0);
            from += T::ALONG_K && i == COUNT - 1 ? TILE_K - pitch * (COUNT - 1) : pitch;
        }
        (T::ALONG_K ? inside : rows_inside) -= TILE_K;
    }

    // One chunk, of which so many elements are inside the operand; the others are 0.
    __device__ static void chunk(unsigned to, const Input* from, int inside) {
        if constexpr (!NARROW) {
            copy_async<16>(to, from, inside > 0);
        } else {
            for (int i = 0; i < CHUNK; ++i) element(to + i * SIZE, from + i, i < inside);
        }
    }

    __device__ static void element(unsigned to, const Input* from, bool inside) {
        if constexpr (SIZE == 2) {
            store_shared(to, inside ? *reinterpret_cast<const unsigned short*>(from) : 0);
        } else {
            copy_async<SIZE>(to, from, inside);
        }
    }
};

// A warp's part of an operand for one step: PAIRS times 16 lines, 4 registers each. Of a line in
// half h, at place t + 4 i, it is register 2 i + h of A and 2 h + i of B: see multiply_add.
template <class T, bool of_a, int PAIRS>
__device__ void load_part(Register (&to)[SPLIT][PAIRS][4], unsigned tile, int first, int step) {
    const int lane = threadIdx.x % 32;
    if constexpr (T::BY_MATRIX) {
        // The lane's row of its matrix, which becomes register lane / 8.
        const int h = of_a ? lane / 8 % 2 : lane / 16;
        const int i = of_a ? lane / 16 : lane / 8 % 2;
        for (int pair = 0; pair < PAIRS; ++pair) {
            const int line = first + 16 * pair + 8 * h;
            if constexpr (T::ALONG_K) {
                load_matrices(to[0][pair], tile + T::offset(line + lane % 8, 2 * step ^ i));
            } else {
                const int k = 16 * step + 8 * i + lane % 8;
                load_transposed(to[0][pair], tile + T::offset(k, line / CHUNK));
            }
        }
    } else {
        for (int pair = 0; pair < PAIRS; ++pair) {
            for (int h = 0; h < 2; ++h) {
                for (int i = 0; i < 2; ++i) {
                    const int line = first + 16 * pair + 8 * h + lane / 4;
                    const int k = 8 * step + 4 * i + lane % 4;
                    const int place = of_a ? 2 * i + h : 2 * h + i;
                    load_shared(to[0][pair][place], tile + T::element(line, k));
                }
            }
        }
    }
#if defined(ROOFLAB_PRECISION_TF32) || defined(ROOFLAB_PRECISION_FP32_3XTF32)
    for (int pair = 0; pair < PAIRS; ++pair) {
        for (int i = 0; i < 4; ++i) {
            const unsigned bits = to[0][pair][i];
            to[0][pair][i] = round_to_tf32(bits);
            if constexpr (SPLIT == 2) {
                const float rest = __uint_as_float(bits) - __uint_as_float(to[0][pair][i]);
                to[1][pair][i] = round_to_tf32(__float_as_uint(rest));
            }
        }
    }
#endif
}

// The two neighbouring elements of C in a row that a lane holds.
struct alignas(NARROW ? sizeof(Output) : 2 * sizeof(Output)) Pair {
    Output element[2];
};

__device__ void store_pair(Output* C, int m, int n, int M, int N, const Accumulate* sum,
                           Accumulate alpha, Accumulate beta) {
    if (m >= M || n >= N) return;
    if constexpr (NARROW) {
        store(C, m, n, N, sum[0], alpha, beta);
        if (n + 1 < N) store(C, m, n + 1, N, sum[1], alpha, beta);
    } else {
        Pair* const pair = reinterpret_cast<Pair*>(C + size_t(m) * N + n);
        Accumulate value[2] = {alpha * sum[0], alpha * sum[1]};
        if (beta != 0) {
            const Pair old = *pair;
            for (int i = 0; i < 2; ++i) value[i] += beta * widen(old.element[i]);
        }
        *pair = {narrow(value[0]), narrow(value[1])};
    }
}

// Tensor cores cut bits off when they add to a sum. So only the sums of a tile stay in them. They
// are added to those of all tiles with FP32's rounding.
__device__ void move_sums(Accumulate (&to)[MS][NS][4], Accumulate (&from)[MS][NS][4]) {
    for (int m = 0; m < MS; ++m) {
        for (int n = 0; n < NS; ++n) {
            for (int i = 0; i < 4; ++i) {
                to[m][n][i] += from[m][n][i];
                from[m][n][i] = 0;
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
mma(int M, int N, int K, Accumulate alpha, const Input* A, const Input* B,
    Accumulate beta, Output* C) {
    extern __shared__ __align__(128) unsigned char shared[];
    select_batch(A, B, C, M, N, K);

    // 1. This block's tile of C, in groups of GROUP rows of tiles, column by column.
    const int number = blockIdx.y * gridDim.x + blockIdx.x;
    const int top = number / (GROUP * gridDim.x) * GROUP;
    const int height = min(GROUP, int(gridDim.y) - top);
    const int in_group = number - top * gridDim.x;
    const int first_row = (top + in_group % height) * TILE_M;
    const int first_column = in_group / height * TILE_N;

    // 2. Start the copies of STAGES - 1 tiles. Beyond the end of K tiles are 0.
    const unsigned stages = shared_address(shared);
    Copies<TileA> copies_a(A, first_row, M, K, stages);
    Copies<TileB> copies_b(B, first_column, N, K, stages + TileA::BYTES);
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        copies_a.next(stage * STAGE_BYTES);
        copies_b.next(stage * STAGE_BYTES);
        copy_commit();
    }

    // 3. Load the fragments of a part, and multiply those of the part before. The first part of a
    //    tile is loaded once all threads' copies of the tile have arrived. By then all have read
    //    the tile before, and its place takes a new one.
    const int warp = threadIdx.x / 32;
    const int row = warp / WARPS_N * WARP_M;
    const int column = warp % WARPS_N * WARP_N;
    Register a[2][SPLIT][1][4] = {};
    Register b[2][SPLIT][NS / 2][4] = {};
    Accumulate sum[MS][NS][4] = {};
    Accumulate total[MS][NS][4] = {};  // if SPLIT: see move_sums
    const auto multiply = [&](int part) {
        // The largest products come last. Those of two rests are too small to matter.
        #pragma unroll
        for (int product = 0; product < 2 * SPLIT - 1; ++product) {
            const int rest_of_a = product == 0 && SPLIT == 2;
            const int rest_of_b = product == 1;
            for (int n = 0; n < NS; ++n) {
                multiply_add(sum[part % MS][n], a[part % 2][rest_of_a][0],
                             b[part / MS % 2][rest_of_b][n / 2] + n % 2 * 2);
            }
        }
    };
    unsigned reading = 0;
    unsigned writing = (STAGES - 1) * STAGE_BYTES;
    for (int k = 0; k < K; k += TILE_K) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        #pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            const int step = part / MS;
            if (part % MS == 0) {
                load_part<TileB, false>(b[step % 2], stages + reading + TileA::BYTES, column, step);
            }
            load_part<TileA, true>(a[part % 2], stages + reading, row + part % MS * 16, step);
            if (part == 0) {
                copies_a.next(writing);
                copies_b.next(writing);
                copy_commit();
            }
            multiply((part + PARTS - 1) % PARTS);
            if (SPLIT == 2 && part == 0) move_sums(total, sum);
        }
        writing = reading;
        reading = reading == (STAGES - 1) * STAGE_BYTES ? 0 : reading + STAGE_BYTES;
    }
    multiply(PARTS - 1);
    if (SPLIT == 2) move_sums(sum, total);

    // 4. Each lane stores its sums.
    const int g = threadIdx.x % 32 / 4;
    const int t = threadIdx.x % 4;
    for (int m = 0; m < 2 * MS; ++m) {
        for (int n = 0; n < NS; ++n) {
            store_pair(C, first_row + row + 8 * m + g, first_column + column + 8 * n + 2 * t, M, N,
                       sum[m / 2][n] + m % 2 * 2, alpha, beta);
        }
    }
}
