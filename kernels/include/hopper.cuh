// Hopper's own instructions: products by wgmma, registers that move between warpgroups, barriers of a
// cluster. Compute capability 9.0, compiled for sm_90a.
//
// All tiles in shared memory have rows of 128 bytes with TMA's 128-byte swizzle: the 16-byte pieces
// of row r are permuted by an exclusive or with r % 8, so that eight rows of one column are in
// different banks. A tile begins at a multiple of 1024 bytes, where the pattern repeats.
#pragma once

#include "cluster.cuh"
#include "gemm.cuh"
#include "tma.cuh"

// Whether beta is not 0. Without it there is no code that reads C.
#ifndef ROOFLAB_READS_C
#define ROOFLAB_READS_C 1
#endif

constexpr bool reads_c = ROOFLAB_READS_C;
constexpr int ROW_BYTES = 128;
constexpr int TILE_K = ROW_BYTES / sizeof(Input);   // elements of K in a row of a tile
constexpr int WARPGROUP = 128;                      // threads

// Barriers ----------------------------------------------------------------------------------------

__device__ inline void arrive(Barrier* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// On the barrier at the same place in block `rank` of the cluster.
__device__ inline void arrive_at(unsigned rank, Barrier* barrier) {
    asm volatile(
        "{\n"
        ".reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
        "}" ::"r"(shared_address(barrier)),
        "r"(rank)
        : "memory");
}

// One of `blocks` threads of a consumer calls this for each block that filled the stage.
template <int blocks>
__device__ inline void release(int thread, Barrier* empty) {
    if constexpr (blocks == 1) {
        arrive(empty);
    } else {
        arrive_at(thread, empty);
    }
}

// Write to the place of *local in the shared memory of block `rank`. The barrier at the place of
// *barrier there counts the bytes, and whoever waits for it sees them.
__device__ inline void send(float4* local, Barrier* barrier, unsigned rank, const float (&value)[4]) {
    asm volatile(
        "{\n"
        ".reg .b32 remote, remote_barrier;\n"
        "mapa.shared::cluster.u32 remote, %0, %2;\n"
        "mapa.shared::cluster.u32 remote_barrier, %1, %2;\n"
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
        "[remote], {%3, %4, %5, %6}, [remote_barrier];\n"
        "}" ::"r"(shared_address(local)),
        "r"(shared_address(barrier)), "r"(rank), "f"(value[0]), "f"(value[1]), "f"(value[2]),
        "f"(value[3])
        : "memory");
}

// By all threads of all `blocks` of a cluster, after one thread of the producer has initialized the
// barriers of its block. Without a cluster the producer needs nobody and goes on at once.
template <int blocks, int threads>
__device__ inline void begin_roles(bool producer) {
    __syncwarp();
    if constexpr (blocks > 1) {
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
        wait_for_cluster();
    } else if (producer) {
        asm volatile("bar.arrive 1, %0;" ::"n"(threads) : "memory");
    } else {
        asm volatile("bar.sync 1, %0;" ::"n"(threads) : "memory");
    }
}

// Two warpgroups that take turns: one waits for its turn, and the other gives it.
__device__ inline void wait_for_turn(int warpgroup) {
    asm volatile("bar.sync %0, %1;" ::"r"(2 + warpgroup), "n"(2 * WARPGROUP) : "memory");
}

__device__ inline void give_turn(int warpgroup) {
    asm volatile("bar.arrive %0, %1;" ::"r"(2 + warpgroup), "n"(2 * WARPGROUP) : "memory");
}

// A place in a ring of stages. The phase flips when it wraps around.
template <int stages>
struct Ring {
    int stage = 0;
    unsigned phase = 0;

    __device__ void advance() {
        if (++stage < stages) return;
        stage = 0;
        phase ^= 1;
    }

    __device__ void skip(int count) {
        stage += count;
        phase ^= stage / stages & 1;
        stage %= stages;
    }
};

// By a producer at its end: all stages are empty. A block must not end before, because the consumers
// of its cluster arrive at its barriers.
template <int stages>
__device__ inline void wait_until_empty(Ring<stages> ring, Barrier (&empty)[stages]) {
    for (int i = 0; i < stages; ++i, ring.advance()) wait(&empty[ring.stage], ring.phase ^ 1);
}

// By one thread: `full` counts the bytes of one producer, `empty` the consumers that use a stage. The
// fence of `initialize` makes a barrier visible to TMA too; a general one costs 1 % at 1024.
template <int stages>
__device__ inline void initialize_ring(Barrier (&full)[stages], Barrier (&empty)[stages],
                                       int consumers) {
    for (int i = 0; i < stages; ++i) {
        initialize(&full[i]);
        initialize(&empty[i], consumers);
    }
}

// Registers ---------------------------------------------------------------------------------------

// By all threads of a warpgroup. Needs __launch_bounds__(threads, 1).
template <int count>
__device__ inline void shrink_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

template <int count>
__device__ inline void grow_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

// Products ----------------------------------------------------------------------------------------

// A tile in shared memory whose rows lie along K (PTX ISA, "Matrix Descriptor Format"): 128-byte
// swizzle, 1024 bytes from each 8 rows to the next. Adding 2 moves 32 bytes along K, one product.
__device__ inline unsigned long long descriptor(const void* tile) {
    return (shared_address(tile) & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
constexpr int PRODUCTS = ROW_BYTES / 32;  // in a row

// A tile of B as it is stored in layout nn, rows across K: parts of 64 columns, each TILE_K rows of 128
// bytes. From one part to the next there are 128 * TILE_K bytes. Adding 128 moves 16 rows along K.
__device__ inline unsigned long long descriptor_across(const void* tile) {
    return (shared_address(tile) & 0x3ffff) >> 4 | 8ull * TILE_K << 16 | 64ull << 32 | 1ull << 62;
}

// Before the first product, and after registers of sums were touched.
__device__ inline void begin_products() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ inline void commit_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// At most `pending` committed groups are still computed.
template <int pending>
__device__ inline void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

#if !defined(ROOFLAB_PRECISION_FP64)  // which has no wgmma

#if defined(ROOFLAB_PRECISION_BF16)
#define PRODUCT "k16.f32.bf16.bf16"
#elif defined(ROOFLAB_PRECISION_FP16) || defined(ROOFLAB_PRECISION_FP16_FP32)
#define PRODUCT "k16.f32.f16.f16"
#elif defined(ROOFLAB_PRECISION_TF32) || defined(ROOFLAB_PRECISION_FP32_3XTF32)
#define PRODUCT "k8.f32.tf32.tf32"
#elif defined(ROOFLAB_PRECISION_FP8)
#define PRODUCT "k32.f32.e4m3.e4m3"
#else
#error "wgmma multiplies bf16, fp16, fp16_fp32, tf32, fp32_3xtf32 and fp8"
#endif

// Signs of both operands; then whether each lies across K, which only 16-bit types may.
#if defined(ROOFLAB_PRECISION_TF32) || defined(ROOFLAB_PRECISION_FP32_3XTF32) || \
    defined(ROOFLAB_PRECISION_FP8)
#define SIGNS "1, 1"
#elif ROOFLAB_TRANSPOSE_B
#define SIGNS "1, 1, 0, 0"
#else
#define SIGNS "1, 1, 0, 1"
#endif

#define FOUR(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define EIGHT(i) FOUR(i), FOUR(i + 4)
#define SIXTEEN(i) EIGHT(i), EIGHT(i + 8)
#define THIRTY_TWO(i) SIXTEEN(i), SIXTEEN(i + 16)
#define SIXTY_FOUR(i) THIRTY_TWO(i), THIRTY_TWO(i + 32)

#define REGISTERS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define REGISTERS_24 REGISTERS_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define REGISTERS_32 REGISTERS_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_48 \
    REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define REGISTERS_56 REGISTERS_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define REGISTERS_64 REGISTERS_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define REGISTERS_96 \
    REGISTERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define REGISTERS_112 \
    REGISTERS_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, " \
                 "%109, %110, %111"
#define REGISTERS_128 \
    REGISTERS_112 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, " \
                  "%124, %125, %126, %127"

// sums (+)= A * B^T for 64 rows of A and `columns` rows of B, by one warpgroup. Without `add` the old
// sums are overwritten. Thread t has row 16 (t / 32) + t % 32 / 4 and columns 2 (t % 4) and the
// next, then the same of row + 8, and so on every 8 columns.
#define MULTIPLY(columns, registers, list, a_place, b_place, add_place, ...)                       \
    __device__ inline void multiply(float (&sums)[registers], unsigned long long a,                \
                                    unsigned long long b, bool add) {                              \
        asm volatile(                                                                              \
            "{\n"                                                                                  \
            ".reg .pred add;\n"                                                                    \
            "setp.ne.u32 add, " add_place ", 0;\n"                                                 \
            "wgmma.mma_async.sync.aligned.m64n" columns PRODUCT " {" list "}, " a_place ", "       \
            b_place ", add, " SIGNS "; \n"                                                         \
            "}"                                                                                    \
            : __VA_ARGS__                                                                          \
            : "l"(a), "l"(b), "r"(unsigned(add)));                                                 \
    }

MULTIPLY("32", 16, REGISTERS_16, "%16", "%17", "%18", SIXTEEN(0))
MULTIPLY("48", 24, REGISTERS_24, "%24", "%25", "%26", SIXTEEN(0), EIGHT(16))
MULTIPLY("64", 32, REGISTERS_32, "%32", "%33", "%34", THIRTY_TWO(0))
MULTIPLY("96", 48, REGISTERS_48, "%48", "%49", "%50", THIRTY_TWO(0), SIXTEEN(32))
MULTIPLY("112", 56, REGISTERS_56, "%56", "%57", "%58", THIRTY_TWO(0), SIXTEEN(32), EIGHT(48))
MULTIPLY("128", 64, REGISTERS_64, "%64", "%65", "%66", SIXTY_FOUR(0))
MULTIPLY("192", 96, REGISTERS_96, "%96", "%97", "%98", SIXTY_FOUR(0), THIRTY_TWO(64))
MULTIPLY("224", 112, REGISTERS_112, "%112", "%113", "%114", SIXTY_FOUR(0), THIRTY_TWO(64), SIXTEEN(96))
MULTIPLY("256", 128, REGISTERS_128, "%128", "%129", "%130", SIXTY_FOUR(0), SIXTY_FOUR(64))

// All products of one stage: 64 rows of a tile of A, and a tile of B.
template <int registers>
__device__ inline void multiply_tiles(float (&sums)[registers], const Input* a, const Input* b,
                                      bool add) {
    const unsigned long long from_a = descriptor(a);
    const unsigned long long from_b = transpose_b ? descriptor(b) : descriptor_across(b);
    constexpr int next = transpose_b ? 2 : 128;
#pragma unroll
    for (int i = 0; i < PRODUCTS; ++i) multiply(sums, from_a + 2 * i, from_b + next * i, add || i > 0);
}

#endif

// Results -----------------------------------------------------------------------------------------

struct alignas(2 * sizeof(Output)) Pair {
    Output x, y;
};

__device__ inline int row_in_warpgroup() {
    return threadIdx.x % WARPGROUP / 32 * 16 + threadIdx.x % 32 / 4;
}
__device__ inline int column_in_eight() { return threadIdx.x % 4 * 2; }

// C at (row, column) and at the next column, or nothing outside of C.
__device__ inline void store_two(Output* C, int row, int column, int M, int N, float x, float y,
                                 float alpha, float beta) {
    if (row >= M || column >= N) return;
    if (N % 2) {
        store(C, row, column, N, x, alpha, beta);
        if (column + 1 < N) store(C, row, column + 1, N, y, alpha, beta);
        return;
    }
    Pair& place = *reinterpret_cast<Pair*>(C + size_t(row) * N + column);
    x *= alpha;
    y *= alpha;
    if (beta != 0) {
        const Pair old = place;
        x += beta * widen(old.x);
        y += beta * widen(old.y);
    }
    place = {narrow(x), narrow(y)};
}

// The sums of a warpgroup, whose first is at (row, column), straight from registers.
template <int registers>
__device__ inline void store_sums(const float (&sums)[registers], Output* C, int row, int column,
                                  int M, int N, float alpha, float beta) {
    row += row_in_warpgroup();
    column += column_in_eight();
#pragma unroll
    for (int i = 0; i < registers; i += 4) {
        store_two(C, row, column + 2 * i, M, N, sums[i], sums[i + 1], alpha, beta);
        store_two(C, row + 8, column + 2 * i, M, N, sums[i + 2], sums[i + 3], alpha, beta);
    }
}

constexpr int CHUNK = ROW_BYTES / sizeof(Output);  // columns of C in a row of 128 bytes
constexpr int CHUNK_SUMS = CHUNK / 2;              // registers per thread for 64 rows of them

__device__ inline unsigned pack(float x, float y) {
    const Pair pair = {narrow(x), narrow(y)};
    return reinterpret_cast<const unsigned&>(pair);
}

// A chunk of 64 rows x CHUNK columns into shared memory, swizzled for TMA. With 16-bit results a warp
// writes four 8 x 8 matrices per instruction, rows of 16 bytes; lane l gives the address of row l % 8
// of matrix l / 8.
__device__ inline void stage_chunk(const float* sums, Output* chunk) {
    const unsigned start = shared_address(chunk);
    const int warp = threadIdx.x % WARPGROUP / 32, lane = threadIdx.x % 32;
    if constexpr (sizeof(Output) == 2) {
        const unsigned row = start + (warp * 16 + lane % 16) * ROW_BYTES;
#pragma unroll
        for (int i = 0; i < CHUNK_SUMS; i += 8) {
            const unsigned piece = (i / 4 + lane / 16) ^ (lane % 8);
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                             row + piece * 16),
                         "r"(pack(sums[i], sums[i + 1])), "r"(pack(sums[i + 2], sums[i + 3])),
                         "r"(pack(sums[i + 4], sums[i + 5])), "r"(pack(sums[i + 6], sums[i + 7]))
                         : "memory");
        }
    } else {
        const unsigned row = start + row_in_warpgroup() * ROW_BYTES + lane % 2 * 8;
#pragma unroll
        for (int i = 0; i < CHUNK_SUMS; i += 2) {
            const unsigned piece = (i / 4 * 2 + lane % 4 / 2) ^ (lane / 4);
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(row + i % 4 * 4 * ROW_BYTES + piece * 16),
                         "f"(sums[i]), "f"(sums[i + 1])
                         : "memory");
        }
    }
}

// All sums of a warpgroup through two buffers; `map` has boxes of 16 rows. Each warp writes its own
// rows, so that no warp waits for another. The last stores may still read the buffers when this
// returns: the first lane of a warp waits for them.
template <int registers>
__device__ inline void store_chunks(const float (&sums)[registers], Output (&buffers)[2][64 * CHUNK],
                                    const TensorMap& map, int row, int column) {
    constexpr int count = registers / CHUNK_SUMS;
    const int first_row = threadIdx.x % WARPGROUP / 32 * 16;
    const bool first = threadIdx.x % 32 == 0;
#pragma unroll
    for (int i = 0; i < count; i += 2) {  // two per fence
        const int some = min(2, count - i);
        if (first) wait_until_stores_have_read();
        __syncwarp();
        for (int j = 0; j < some; ++j) stage_chunk(sums + (i + j) * CHUNK_SUMS, buffers[j]);
        publish_to_tma();
        __syncwarp();
        for (int j = 0; first && j < some; ++j) {
            store_box(map, row + first_row, column + (i + j) * CHUNK,
                      buffers[j] + first_row * CHUNK);
        }
    }
}

// alpha * sums + beta * C in place, for results that TMA stores: C has an even number of columns.
template <int registers>
__device__ inline void scale_sums(float (&sums)[registers], const Output* C, int row, int column,
                                  int M, int N, float alpha, float beta) {
    row += row_in_warpgroup();
    column += column_in_eight();
    if (alpha != 1) {
#pragma unroll
        for (int i = 0; i < registers; ++i) sums[i] *= alpha;
    }
    if constexpr (reads_c) {
        if (beta == 0) return;
#pragma unroll
        for (int i = 0; i < registers; i += 2) {
            const int m = row + i % 4 / 2 * 8, n = column + i / 4 * 8;
            if (m >= M || n >= N) continue;
            const Output* old = C + size_t(m) * N + n;
            sums[i] += beta * widen(old[0]);
            sums[i + 1] += beta * widen(old[1]);
        }
    }
}

// Launches ----------------------------------------------------------------------------------------

// With `early_launch` in the header, blocks of a launch may begin before the launch before it has
// ended. Its results are there after this wait, and nothing may be written before.
__device__ inline void wait_for_launch_before() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Allows the next launch to begin as multiprocessors become free.
__device__ inline void allow_next_launch() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// The order of tiles -------------------------------------------------------------------------------

struct Place {
    int row, column;  // in tiles
};

// Down `group` rows of tiles, then one column to the right: tiles computed at the same time are a
// compact part of C, which needs the fewest rows of A and B. A division takes a hundred cycles, so the
// first group and groups of full height, if that is a power of two, need none.
__device__ inline Place grouped(int tile, int rows, int columns, int group) {
    const int per_group = group * columns;
    const int first = tile < per_group ? 0 : tile / per_group * group;
    tile -= first * columns;
    const int height = rows - first;
    if (height >= group) return {first + tile % group, tile / group};
    return {first + tile % height, tile / height};
}

__device__ inline int tiles_along(int extent, int tile) { return (extent - 1) / tile + 1; }
