/*
title = "Tensor cores by warp: mma.sync"
entry = "mma"
rung = 20
precisions = ["fp64", "tf32", "fp16", "bf16", "fp16_fp32"]
layouts = ["nn", "nt", "tn", "tt"]
block = ["32 * WARPS_M * WARPS_N"]
tile = ["TILE_M", "TILE_N"]
shared_bytes = "STAGES * (TILE_M + TILE_N) * 128"
batched = true
min_compute_capability = "8.0"
teaches = "tensor cores multiply what the lanes of a warp hold together; swizzles keep them fed"
variants = [
  { TILE_M = 128, TILE_N = 128, WARPS_M = 2, WARPS_N = 4, STAGES = 3, BLOCKS = 1 },
]
*/

#include "gemm.cuh"
#include "mma.cuh"

#ifndef DEPTH
#define DEPTH 1
#endif
#ifndef NARROW
#define NARROW 0
#endif

constexpr int THREADS = 32 * WARPS_M * WARPS_N;
constexpr int SIZE = sizeof(Input);
constexpr int CHUNK = 16 / SIZE;   // elements of 16 bytes, the unit of copies and swizzles
constexpr int TILE_K = 8 * CHUNK;  // 128 bytes of K: 32 banks, once
constexpr int STEPS = SIZE == 8 ? 2 : 4;  // of 8 places of K each: see multiply_add
constexpr int GROUP = 8;           // rows of tiles that are worked on together

// What one warp computes: MS x NS products of 16 x 8.
constexpr int WARP_M = TILE_M / WARPS_M;
constexpr int WARP_N = TILE_N / WARPS_N;
constexpr int MS = WARP_M / 16;
constexpr int NS = WARP_N / 8;

// A lane's part of an operand: pairs of 2-byte elements, FP32 bits, or FP64.
template <int BYTES> struct RegisterOf { using type = unsigned; };
template <> struct RegisterOf<8> { using type = double; };
using Register = typename RegisterOf<SIZE>::type;

// The tile of an operand in one stage: LINES rows of A or columns of B, by TILE_K. Shared memory
// holds it as it lies in global memory, in rows along K or in rows along the lines.
template <bool along_k, int LINES>
struct Tile {
    static constexpr bool ALONG_K = along_k;
    static constexpr int ROWS = along_k ? LINES : TILE_K;
    static constexpr int CHUNKS = along_k ? 8 : LINES / CHUNK;
    static constexpr int BYTES = ROWS * CHUNKS * 16;
    static constexpr bool BY_MATRIX = SIZE == 2 || (SIZE == 4 && along_k);

    // Neighbouring lines that one load gives a lane. They belong to different products, so that
    // sums and results are of lines g, g + 1 ... instead of g, g + 8 ...
    static constexpr int TOGETHER = along_k || SIZE == 2 ? 1 : CHUNK;

    // Bits of the row, to be XORed to the chunk. ldmatrix reads 8 rows at one chunk; other loads
    // read 4 rows at 2 chunks.
    __device__ static constexpr int turn(int row) { return BY_MATRIX ? row & 7 : 2 * (row & 3); }
    __device__ static unsigned offset(int row, int chunk) {
        return (row * CHUNKS + (chunk ^ turn(row))) * 16;
    }

    // The line of a fragment's row g, where fragments hold 8 lines each.
    __device__ static int line(int fragment, int g) {
        return fragment / TOGETHER * (8 * TOGETHER) + g * TOGETHER + fragment % TOGETHER;
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
        for (int i = 0; i < T::ROWS / STEP; ++i) {
            // row + i * STEP has the bits of both: STEP is a power of two.
            const unsigned turned = to ^ T::turn(i * STEP) * 16;
            chunk(stage + turned + i * STEP * T::CHUNKS * 16, from + i * pitch,
                  rows_inside > i * STEP ? inside : 0);
        }
        from += T::ALONG_K ? TILE_K : pitch * (T::ROWS / STEP);
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

// A warp's part of an operand for 8 places of K: PAIRS times 16 lines, 4 registers each. Of a line
// in half h, at place t + 4 i, register 2 i + h of A and 2 h + i of B: see multiply_add.
template <bool of_a>
__device__ constexpr int place(int h, int i) { return of_a ? 2 * i + h : 2 * h + i; }

template <class T, bool of_a, int PAIRS>
__device__ void load_fragments(Register (&to)[PAIRS][4], unsigned tile, int first, int step) {
    const int lane = threadIdx.x % 32;
    const int g = lane / 4;
    const int t = lane % 4;
    if constexpr (T::BY_MATRIX) {
        // The lane's row of its matrix, which becomes register lane / 8.
        const int h = of_a ? lane / 8 % 2 : lane / 16;
        const int i = of_a ? lane / 16 : lane / 8 % 2;
        for (int pair = 0; pair < PAIRS; ++pair) {
            const int line = first + 16 * pair + 8 * h;
            if constexpr (T::ALONG_K) {
                load_matrices(to[pair], tile + T::offset(line + lane % 8, 2 * step ^ i));
            } else {
                const int k = 16 * step + 8 * i + lane % 8;
                load_transposed(to[pair], tile + T::offset(k, line / 8));
            }
        }
    } else if constexpr (T::ALONG_K) {
        for (int pair = 0; pair < PAIRS; ++pair) {
            for (int h = 0; h < 2; ++h) {
                for (int i = 0; i < 2; ++i) {
                    const int line = first + 16 * pair + 8 * h + g;
                    const int chunk = (4 * step + 2 * i) ^ t / 2;
                    to[pair][place<of_a>(h, i)] =
                        load_shared(tile + T::offset(line, chunk) + t % 2 * 8);
                }
            }
        }
    } else {
        for (int some = 0; some < 2 * PAIRS / CHUNK; ++some) {
            for (int i = 0; i < 2; ++i) {
                Register lines[CHUNK];
                const int k = 8 * step + 4 * i + t;
                load_vector(lines, tile + T::offset(k, first / CHUNK + 8 * some + g));
                for (int j = 0; j < CHUNK; ++j) {
                    const int fragment = some * CHUNK + j;
                    to[fragment / 2][place<of_a>(fragment % 2, i)] = lines[j];
                }
            }
        }
    }
#if defined(ROOFLAB_PRECISION_TF32)
    for (int pair = 0; pair < PAIRS; ++pair) {
        for (int i = 0; i < 4; ++i) to[pair][i] = round_to_tf32(to[pair][i]);
    }
#endif
}

// Adds the products of one stage to the warp's sums.
__device__ void multiply(Accumulate (&sum)[MS][NS][4], unsigned stage, int row, int column) {
    for (int step = 0; step < STEPS; step += DEPTH) {
        Register a[DEPTH][MS][4];
        Register b[DEPTH][NS / 2][4];
        for (int i = 0; i < DEPTH; ++i) {
            load_fragments<TileA, true>(a[i], stage, row, step + i);
            load_fragments<TileB, false>(b[i], stage + TileA::BYTES, column, step + i);
        }
        for (int m = 0; m < MS; ++m) {
            for (int n = 0; n < NS; ++n) {
                if constexpr (DEPTH == 1) {
                    multiply_add(sum[m][n], a[0][m], b[0][n / 2] + n % 2 * 2);
                } else {
                    multiply_add(sum[m][n], a[0][m], b[0][n / 2] + n % 2 * 2, a[1][m],
                                 b[1][n / 2] + n % 2 * 2);
                }
            }
        }
    }
}

// Neighbouring elements of C that a lane holds: columns of one product, or of products whose
// columns were loaded together. If rows of C are multiples of 16 bytes, they are stored at once.
constexpr int RUN = TileB::TOGETHER == 1 ? 2 : TileB::TOGETHER;
struct alignas(NARROW ? sizeof(Output) : RUN * sizeof(Output)) Run {
    Output element[RUN];
};

__device__ void store_run(Output* C, int m, int n, int M, int N, const Accumulate (&sum)[RUN],
                          Accumulate alpha, Accumulate beta) {
    if (m >= M || n >= N) return;
    if constexpr (NARROW) {
        for (int i = 0; i < RUN; ++i) {
            if (n + i < N) store(C, m, n + i, N, sum[i], alpha, beta);
        }
    } else {
        Run* const run = reinterpret_cast<Run*>(C + size_t(m) * N + n);
        Run result;
        if (beta != 0) result = *run;
        for (int i = 0; i < RUN; ++i) {
            Accumulate value = alpha * sum[i];
            if (beta != 0) value += beta * widen(result.element[i]);
            result.element[i] = narrow(value);
        }
        *run = result;
    }
}

__device__ void store_sums(const Accumulate (&sum)[MS][NS][4], Output* C, int first_row,
                           int first_column, int M, int N, Accumulate alpha, Accumulate beta) {
    const int g = threadIdx.x % 32 / 4;
    const int t = threadIdx.x % 4;
    for (int eight = 0; eight < 2 * MS; ++eight) {
        const int m = first_row + TileA::line(eight, g);
        for (int run = 0; run < 2 * NS / RUN; ++run) {
            Accumulate some[RUN];
            for (int i = 0; i < RUN; ++i) {
                const int product = TileB::TOGETHER == 1 ? run : run / 2 * RUN + i;
                const int column = TileB::TOGETHER == 1 ? i : run % 2;
                some[i] = sum[eight / 2][product][eight % 2 * 2 + column];
            }
            const int n = TileB::TOGETHER == 1 ? 8 * run + 2 * t
                                               : run / 2 * 8 * RUN + (2 * t + run % 2) * RUN;
            store_run(C, m, first_column + n, M, N, some, alpha, beta);
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

    // 2. Start the first STAGES - 1 tiles. Each is a group of copies, even if it is empty.
    const unsigned stages = shared_address(shared);
    Copies<TileA> copies_a(A, first_row, M, K, stages);
    Copies<TileB> copies_b(B, first_column, N, K, stages + TileA::BYTES);
    const int tiles = (K + TILE_K - 1) / TILE_K;
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (stage < tiles) {
            copies_a.next(stage * STAGE_BYTES);
            copies_b.next(stage * STAGE_BYTES);
        }
        copy_commit();
    }

    // 3. Wait for the oldest tile, start the copy of a new one where the last was read, multiply.
    const int warp = threadIdx.x / 32;
    const int row = warp / WARPS_N * WARP_M;
    const int column = warp % WARPS_N * WARP_N;
    Accumulate sum[MS][NS][4] = {};
    unsigned reading = 0;
    unsigned writing = (STAGES - 1) * STAGE_BYTES;
    for (int tile = 0; tile < tiles; ++tile) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        if (tile + STAGES - 1 < tiles) {
            copies_a.next(writing);
            copies_b.next(writing);
        }
        copy_commit();
        multiply(sum, stages + reading, row, column);
        writing = reading;
        reading = reading + STAGE_BYTES == STAGES * STAGE_BYTES ? 0 : reading + STAGE_BYTES;
    }

    store_sums(sum, C, first_row + row, first_column + column, M, N, alpha, beta);
}
