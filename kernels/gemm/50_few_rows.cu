/*
title = "A small block per row of B"
entry = "few_rows"
rung = 50
precisions = ["bf16", "fp16", "fp16_fp32", "fp32"]
layouts = ["nt"]
limits = { M = 8 }
block = ["THREADS"]
tile = ["FEW", "ROWS"]
batched = true
variants = [
  { FEW = 1, THREADS = 128, ROWS = 1, UNROLL = 4 },
  { FEW = 1, THREADS = 64, ROWS = 1, UNROLL = 4 },
  { FEW = 1, THREADS = 64, ROWS = 1, UNROLL = 8 },
  { FEW = 1, THREADS = 128, ROWS = 2, UNROLL = 2 },
  { FEW = 1, THREADS = 128, ROWS = 2, UNROLL = 4 },
  { FEW = 1, THREADS = 256, ROWS = 2, UNROLL = 2 },
  { FEW = 2, THREADS = 128, ROWS = 1, UNROLL = 4 },
  { FEW = 2, THREADS = 128, ROWS = 2, UNROLL = 2 },
  { FEW = 4, THREADS = 128, ROWS = 2, UNROLL = 2 },
  { FEW = 4, THREADS = 64, ROWS = 4, UNROLL = 2 },
  { FEW = 8, THREADS = 64, ROWS = 4, UNROLL = 1 },
  { FEW = 8, THREADS = 128, ROWS = 2, UNROLL = 1 },
]
teaches = "blocks that ask for all that they need at once, multiply, and leave"
*/

/*
With few rows of A each element of B is used once or a few times: the product is as fast as B can be
read. So there are no tiles. A block takes one, two or four rows of B. Each of its threads asks for UNROLL
pieces of 16 bytes of them, and for the same pieces of A, before it multiplies the first. Shuffles and
shared memory add the threads' sums, and the block leaves. All blocks read A, from the L1 cache,
where B gets no place.

Traffic: B once, 1 FLOP per byte and row of A in 16 bits. With more rows of A, several rows of B share
each load of A and its conversion to FP32; from M = 8 on the conversions and multiply-adds, which run
on ordinary cores, are the limit, and tensor cores (`skinny`) are better.

Occupancy: 56 to 64 registers with 4 loads of B in flight, so 64 to 72 KB per multiprocessor. If a
load takes a microsecond, 36 KB would do for 4.8 TB/s.

Expect 4.6 TB/s for large matrices. A launch and the first and last loads cost three microseconds
more, which is what the small ones are about.

Learned:
- More in flight is not better: with 100 KB and more per multiprocessor it is slower again, because
  all that the memory cannot deliver at once waits in queues.
- Persistent blocks with equal numbers of rows, each loading its next rows while it multiplies, were
  to save the start of blocks. They are slower: multiprocessors do not get equal shares of the
  bandwidth, and all wait for the slowest. Small blocks go wherever there is room.
- The same rows through a ring in shared memory that the copy engine fills, 200 KB deep: no better,
  for the same reasons.
- Evict-first policies for B in L2 change nothing here; in `skinny` they do.
- Without the 1 in __launch_bounds__ the compiler saves registers, by loading one piece at a time.
*/

#include "gemm.cuh"
#include "vector.cuh"

constexpr int WARPS = THREADS / 32;
constexpr int STEP = THREADS * WIDTH;  // elements of K between two loads of a thread

using Quad = Vector<WIDTH>;  // 16 bytes

// 16 bytes, or zeros. The predicate is part of the assembly, so that the compiler sees no branch: all
// loads of a thread are in flight together.
#define LOAD(name, kind)                                                        \
    __device__ inline Quad name(const Input* from, bool inside) {               \
        uint4 word = {0, 0, 0, 0};                                              \
        asm volatile(                                                           \
            "{\n"                                                               \
            ".reg .pred inside;\n"                                              \
            "setp.ne.u32 inside, %5, 0;\n"                                      \
            "@inside ld.global.nc" kind ".v4.u32 {%0, %1, %2, %3}, [%4];\n"     \
            "}"                                                                 \
            : "+r"(word.x), "+r"(word.y), "+r"(word.z), "+r"(word.w)            \
            : "l"(from), "r"(unsigned(inside)));                                \
        return reinterpret_cast<const Quad&>(word);                             \
    }
LOAD(load_kept, "")
LOAD(load_once, ".L1::no_allocate")  // leaves the L1 cache to A

__device__ inline Accumulate dot(const Quad& a, const Quad& b) {
    Accumulate sum = 0;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) sum += widen(a.element[i]) * widen(b.element[i]);
    return sum;
}

// This thread's share of FEW rows of A times ROWS rows of B, which all begin at multiples of 16 bytes.
__device__ inline void multiply(Accumulate (&sums)[FEW][ROWS], const Input* const (&a_row)[FEW],
                                const Input* const (&b_row)[ROWS], int K) {
#pragma unroll 1
    for (int k = threadIdx.x * WIDTH; k < K; k += STEP * UNROLL) {
        // All loads come before the first product.
        Quad a[UNROLL][FEW], b[UNROLL][ROWS];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int at = k + u * STEP;
#pragma unroll
            for (int j = 0; j < ROWS; ++j) b[u][j] = load_once(b_row[j] + at, at < K);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int at = k + u * STEP;
#pragma unroll
            for (int i = 0; i < FEW; ++i) a[u][i] = load_kept(a_row[i] + at, at < K);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
#pragma unroll
            for (int i = 0; i < FEW; ++i) {
#pragma unroll
                for (int j = 0; j < ROWS; ++j) sums[i][j] += dot(a[u][i], b[u][j]);
            }
        }
    }
}

// The same for any rows, one element at a time.
__device__ inline void multiply_elements(Accumulate (&sums)[FEW][ROWS],
                                         const Input* const (&a_row)[FEW],
                                         const Input* const (&b_row)[ROWS], int K) {
#pragma unroll 1
    for (int k = threadIdx.x; k < K; k += THREADS) {
#pragma unroll
        for (int i = 0; i < FEW; ++i) {
#pragma unroll
            for (int j = 0; j < ROWS; ++j) sums[i][j] += widen(a_row[i][k]) * widen(b_row[j][k]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
few_rows(int M, int N, int K, Accumulate alpha, const Input* A, const Input* B, Accumulate beta,
         Output* C) {
    select_batch(A, B, C, M, N, K);
    const int m = blockIdx.y * FEW;
    const int n = blockIdx.x * ROWS;

    // Beyond the last row the last one is read again.
    const Input *a_row[FEW], *b_row[ROWS];
    for (int i = 0; i < FEW; ++i) a_row[i] = A + size_t(min(m + i, M - 1)) * K;
    for (int j = 0; j < ROWS; ++j) b_row[j] = B + size_t(min(n + j, N - 1)) * K;

    // 1. Each thread's share.
    Accumulate sums[FEW][ROWS] = {};
    if (K % WIDTH == 0) {
        multiply(sums, a_row, b_row, K);
    } else {
        multiply_elements(sums, a_row, b_row, K);
    }

    // 2. The sums over the lanes of a warp.
    __shared__ Accumulate partial[FEW * ROWS][WARPS];
#pragma unroll
    for (int i = 0; i < FEW * ROWS; ++i) {
        Accumulate sum = sums[i / ROWS][i % ROWS];
        for (int distance = 16; distance > 0; distance /= 2) {
            sum += __shfl_down_sync(0xffffffff, sum, distance);
        }
        if (threadIdx.x % 32 == 0) partial[i][threadIdx.x / 32] = sum;
    }
    __syncthreads();

    // 3. The sums over the warps.
    const int i = threadIdx.x;
    if (i >= FEW * ROWS || m + i / ROWS >= M || n + i % ROWS >= N) return;
    Accumulate sum = 0;
    for (int warp = 0; warp < WARPS; ++warp) sum += partial[i][warp];
    store(C, m + i / ROWS, n + i % ROWS, N, sum, alpha, beta);
}
