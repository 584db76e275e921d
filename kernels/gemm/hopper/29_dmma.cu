/*
title = "FP64: operands as registers want them"
entry = "dmma"
rung = 29
precisions = ["fp64"]
layouts = ["nn"]
compute_capability = "9.0"
block = ["32 * WARPS_M * WARPS_N + 128"]
tile = ["32 * WARPS_M", "WARP_N * WARPS_N"]
flat = true
blocks_per_sm = 1
cluster = ["CLUSTER"]
shared_bytes = "STAGES * (128 * (32 * WARPS_M + WARP_N * WARPS_N) + 16)"
tensor_maps = [
  { operand = "a", box = ["32 * WARPS_M", 16], swizzle = 128 },
  { operand = "b", box = [16, 16], swizzle = 128 },
]
variants = [
  { name = "128x128", WARPS_M = 4, WARPS_N = 2, WARP_N = 64, STAGES = 6, CLUSTER = 1, GROUP = 8, SHARE = 0 },
  { name = "128x128 2x1", WARPS_M = 4, WARPS_N = 2, WARP_N = 64, STAGES = 6, CLUSTER = 2, GROUP = 4, SHARE = 0 },
  { name = "128x128 2x1 shared", WARPS_M = 4, WARPS_N = 2, WARP_N = 64, STAGES = 6, CLUSTER = 2, GROUP = 4, SHARE = 1 },
  { name = "64x128", WARPS_M = 2, WARPS_N = 4, WARP_N = 32, STAGES = 9, CLUSTER = 1, GROUP = 16, SHARE = 0 },
]
teaches = "operands that lie in memory in the order in which registers want them"
*/

/*
wgmma has no FP64. Hopper's FP64 tensor cores take operands from registers, by mma.sync as in `mma`,
in products that are twice as deep: 16 x 8 sums, 16 steps along K, 64 clocks. This rung feeds them
with what the rungs before it teach: TMA, a ring of stages with a producer, blocks that stay,
clusters.

The lesson is how operands get into registers. Neighbouring registers of mma.sync hold two lines of
its first operand at one step of K, but two steps of K of one line of its second. In layout nn,
neighbours in memory are two steps of K of a row of A, and two columns of B at one step. So B must
be the first operand and A the second, and the product is C transposed: B^T A^T. Then every 16-byte
load fills four registers in their order. The order of steps within a product is free if it is the
same for both operands, and so is that of rows and columns if C is written accordingly. So

  - lanes with t = 0 to 3 take steps 2 t and 2 t + 1, which lie side by side in A, and
  - rows are taken in the order 0 4 1 5 2 6 3 7: the 8 lanes that read at a time are at 8 different
    places of TMA's swizzle. Neither operand has bank conflicts.

The sums come out as neighbours along rows of C, in whole lines of 128 bytes.

Arithmetic: a warp's 64 x 32 sums take 24 loads for 16 products, and a block of 128 x 128 reads 32
KB from L2 in the 2048 clocks of a step. So neither the instructions nor L2 limit it, and the tensor
cores should be busy but for the write of C, and for the last wave of tiles where it is not full.

What decides is power: from 2048 on an H200 lowers its clock to stay within its limit. What saves
energy saves time:

  - The 16-deep product reads and writes the sums half as often as the 8-deep one of `mma`.
  - A cluster of two blocks, one above the other, copies the tile of B once (`clusters`). It takes
    more cycles than without, and mostly less time.
  - 128 x 128 reads a third less from L2 than two blocks of 64 x 128 per multiprocessor.

SHARE: at 8192 on 132 multiprocessors 31 waves are full, and the last has 4 tiles. These come first,
and all clusters share them: each takes as many of their steps along K. Whoever began a tile adds
the sums of the others. It saves nearly a whole wave there. Where most tiles would be shared, as at
2048, the exchange costs as much as the gap.

At 1024 only 64 x 128 has a tile for nearly every multiprocessor. The start and the write of C take
about a tenth of the time there.

Lessons:
  - A load into registers that a product has just read waits until it has read them, and with it
    the warp's next product: instructions of a warp start in order. So operands are loaded LEAD
    products before their use, and LAG after their last. One warp per scheduler still has gaps, for
    there are waits that the compiler adds; two hide each other's.
  - The compiler may move a warp's arrival at `empty` ahead of products, but not to another step. A
    version whose arrival followed the loads directly gave wrong sums once, presumably because TMA
    overtook a load. So a warp arrives one step later.
  - A head start for half of the warps, so that they write C while the others multiply, is lost at
    once: the warp that is behind finds the tensor core free.
  - Clusters of four leave multiprocessors without work: 132 do not hold 33 of them.
  - Sums that are added from memory must not all be loaded at once: that spills.
*/

#include "grid_flags.cuh"
#include "hopper.cuh"

constexpr int WARP_M = 32;
constexpr int TILE_M = WARP_M * WARPS_M;
constexpr int TILE_N = WARP_N * WARPS_N;
constexpr int WARPS = WARPS_M * WARPS_N;  // that multiply
constexpr int PART = TILE_N / CLUSTER;    // of the tile of B, that a block copies

// A warp's sums: so many pieces of 16 columns and of 8 rows, and a product for each pair.
constexpr int COLUMNS = WARP_N / 16;
constexpr int ROWS = WARP_M / 8;
constexpr int PAIRS = COLUMNS * ROWS;
using Sums = double[COLUMNS][ROWS][4];

// When operands of the next products are loaded: so many products before the first that needs a
// piece of B, and so many after the last that needed a piece of A.
constexpr int LEAD = 2;
constexpr int LAG = 2;
constexpr int LAST_COLUMN = PAIRS - ROWS;  // the first product of the last piece of B
constexpr int SWITCH = LAST_COLUMN + LAG;  // from this product on, loads are of the next stage
static_assert(LEAD + LAG <= ROWS, "loads of the next stage begin with a piece of A");

struct Shared {
    double a[STAGES][TILE_M * TILE_K];  // rows along K
    double b[STAGES][TILE_N * TILE_K];  // boxes of 16 columns, rows along N
    Barrier full[STAGES], empty[STAGES];
};

// Products ----------------------------------------------------------------------------------------

// c += b * a, of 16 columns and 8 rows of C and 16 steps along K. Lane l holds, with g = l / 4 and
// t = l % 4, at places t, t + 4, t + 8 and t + 12 along K:
//   b[0..1], b[2..3], …  columns g and g + 8 at one place
//   a[0], a[1], …        row g at one place
//   c[0..1], c[2..3]     rows 2 t and 2 t + 1 of columns g and g + 8
__device__ inline void multiply_add(double (&c)[4], const double (&b)[8], const double (&a)[4]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, {%0, %1, %2, %3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(b[0]), "d"(b[1]), "d"(b[2]), "d"(b[3]), "d"(b[4]), "d"(b[5]), "d"(b[6]), "d"(b[7]),
          "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]));
}

__device__ inline void load_two(double* to, unsigned from) {
    asm volatile("ld.shared.v2.f64 {%0, %1}, [%2];"
                 : "=d"(to[0]), "=d"(to[1]) : "r"(from) : "memory");
}

// A warp's operands of one stage. Place t + 4 i is element 2 t + i % 2 + i / 2 * 8 along K. Columns
// g and g + 8 are 2 g and 2 g + 1 of 16; row g is g / 2 + g % 2 * 4 of 8.
struct Operands {
    double b[COLUMNS][8];
    double a[ROWS][4];
    unsigned from_b[2], from_a[2];

    __device__ Operands(const Shared& shared, int first_row, int first_column) {
        const int g = threadIdx.x % 32 / 4;
        const int t = threadIdx.x % 4;
        const int row = g / 2 + g % 2 * 4;
        const unsigned b_start = shared_address(shared.b) + first_column * ROW_BYTES;
        const unsigned a_start = shared_address(shared.a) + first_row * ROW_BYTES;
        from_b[0] = b_start + 2 * t * ROW_BYTES + (g ^ 2 * t) * 16;
        from_b[1] = (from_b[0] ^ 16) + ROW_BYTES;  // the next row along K
        from_a[0] = a_start + row * ROW_BYTES + (t ^ row) * 16;
        from_a[1] = from_a[0] ^ 64;  // 8 elements on
    }

    __device__ void load_b(int stage, int column) {
        const unsigned offset = stage * sizeof(Shared::b[0]) + column * 16 * ROW_BYTES;
        for (int i = 0; i < 4; ++i) {
            load_two(b[column] + 2 * i, from_b[i % 2] + offset + i / 2 * 8 * ROW_BYTES);
        }
    }
    __device__ void load_a(int stage, int row) {
        const unsigned offset = stage * sizeof(Shared::a[0]) + row * 8 * ROW_BYTES;
        for (int i = 0; i < 2; ++i) load_two(a[row] + 2 * i, from_a[i] + offset);
    }

    // The loads after a product; those from SWITCH on are of the next stage.
    __device__ void load_after(int product, int stage) {
        for (int i = 0; i < COLUMNS; ++i) {
            if ((i * ROWS - LEAD + PAIRS) % PAIRS == product) load_b(stage, i);
        }
        for (int i = 0; i < ROWS; ++i) {
            if ((LAST_COLUMN + i + LAG) % PAIRS == product) load_a(stage, i);
        }
    }
};

// Work --------------------------------------------------------------------------------------------

// The pieces of tiles that a cluster computes. With SHARE, the tiles that would not fill the last
// wave come first, and each cluster takes the same number of their steps along K.
struct Work {
    int tiles, steps;      // in all, and of each tile
    int at, stop;          // in the steps of shared tiles
    int whole;             // the next tile of its own
    int tile, begin, end;  // the piece: a tile and its steps

    __device__ static int workers() { return gridDim.x / CLUSTER; }  // clusters
    __device__ static int worker() { return blockIdx.x / CLUSTER; }

    __device__ Work(int tiles, int steps) : tiles(tiles), steps(steps) {
        at = start(worker());
        stop = start(worker() + 1);
        whole = shared_tiles() + worker();
    }
    __device__ int shared_tiles() const { return SHARE ? tiles % workers() : 0; }
    __device__ int start(int of_worker) const {
        return int(static_cast<long long>(of_worker) * shared_tiles() * steps / workers());
    }
    __device__ bool next() {
        if (SHARE && at < stop) {
            tile = at / steps;
            begin = at % steps;
            end = min(steps, begin + stop - at);
            at += end - begin;
            return true;
        }
        tile = whole;
        begin = 0;
        end = steps;
        whole += workers();
        return tile < tiles;
    }
};

// Sums of pieces that do not begin at K = 0: a warp leaves them for the same warp of the block that
// began the tile. Launches must not overlap. A flag is 0 again when its sums have been taken.
constexpr int MOST_BLOCKS = SHARE ? 160 : 1;
__device__ double2 left_sums[MOST_BLOCKS][WARPS][2 * PAIRS][32];
__device__ unsigned left_flags[MOST_BLOCKS][WARPS];

__device__ inline void leave(const Sums& sums, int warp) {
    const int lane = threadIdx.x % 32;
    double2* to = &left_sums[blockIdx.x][warp][0][lane];
#pragma unroll
    for (int i = 0; i < 2 * PAIRS; ++i) {
        const double* two = sums[i / 2 / ROWS][i / 2 % ROWS] + i % 2 * 2;
        __stcg(to + 32 * i, make_double2(two[0], two[1]));
    }
    __syncwarp();
    if (lane == 0) write_flag(&left_flags[blockIdx.x][warp], 1);
}

// Adds what the next clusters have left of the tile.
__device__ inline void collect(Sums& sums, const Work& work, int warp) {
    const int lane = threadIdx.x % 32;
    const int stop = (work.tile + 1) * work.steps;
    for (int worker = work.worker() + 1; work.start(worker) < stop; ++worker) {
        if (work.start(worker) == work.start(worker + 1)) continue;
        const int block = worker * CLUSTER + blockIdx.x % CLUSTER;
        while (!read_flag(&left_flags[block][warp])) {}
        const double2* from = &left_sums[block][warp][0][lane];
#pragma unroll
        for (int i = 0; i < 2 * PAIRS; ++i) {
            double* two = sums[i / 2 / ROWS][i / 2 % ROWS] + i % 2 * 2;
            const double2 more = __ldcg(from + 32 * i);
            two[0] += more.x;
            two[1] += more.y;
            if (i % 8 == 7) __syncwarp();  // so that few registers wait for loads
        }
        if (lane == 0) write_flag(&left_flags[block][warp], 0);
    }
}

// Two neighbours of a row. Rows are multiples of 16 bytes, as TMA requires.
struct alignas(16) Two {
    double x, y;
};

__device__ inline void store_two(double* C, int row, int column, int M, int N, double x, double y,
                                 double alpha, double beta) {
    if (row >= M || column >= N) return;
    Two& place = *reinterpret_cast<Two*>(C + size_t(row) * N + column);
    x *= alpha;
    y *= alpha;
    if (beta != 0) {
        const Two old = place;
        x += beta * old.x;
        y += beta * old.y;
    }
    place = {x, y};
}

// The address of a place in block `rank` of the cluster, and an arrival at a barrier there.
__device__ inline unsigned address_at(unsigned rank, const void* local) {
    unsigned address = shared_address(local);
    if constexpr (CLUSTER > 1) {
        asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(rank));
    }
    return address;
}

__device__ inline void arrive_at_address(unsigned barrier) {
    if constexpr (CLUSTER == 1) {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
    } else {
        asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
    }
}

// Roles -------------------------------------------------------------------------------------------

// A warp says that a stage is empty one step later, when the last products that needed it have
// begun: only then its loads are complete. So the stage before the first is empty in the first step.
__device__ inline void wait_for_room(Shared& shared, const Ring<STAGES>& ring) {
    wait(&shared.empty[ring.stage], ring.phase ^ (ring.stage < STAGES - 1));
}

// One step along K of the tiles of A and B.
__device__ inline void copy_step(Shared& shared, int stage, const TensorMap& A, const TensorMap& B,
                                 int row, int column, int k, int rank) {
    Barrier* full = &shared.full[stage];
    announce(full, sizeof(shared.a[0]) + sizeof(shared.b[0]));
    copy_box(shared.a[stage], A, row, k, full);
    double* b = shared.b[stage] + rank * PART * TILE_K;
    column += rank * PART;
    for (int i = 0; i < PART; i += 16) {
        if constexpr (CLUSTER == 1) {
            copy_box(b + i * TILE_K, B, k, column + i, full);
        } else {
            copy_box_to((1 << CLUSTER) - 1, b + i * TILE_K, B, k, column + i, full);
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS + WARPGROUP, 1)
dmma(int M, int N, int K, double alpha, const __grid_constant__ TensorMap A,
     const __grid_constant__ TensorMap B, double beta, double* C) {
    Shared& shared = reinterpret_cast<Shared&>(*dynamic_shared_tiles());

    const int warp = threadIdx.x / 32;
    if (threadIdx.x == 32 * WARPS) {
        prefetch(A);
        prefetch(B);
        initialize_ring(shared.full, shared.empty, CLUSTER * WARPS);
    }
    begin_roles<CLUSTER, 32 * WARPS + WARPGROUP>(warp >= WARPS);

    const int rank = CLUSTER > 1 ? rank_in_cluster() : 0;
    const int rows = tiles_along(M, CLUSTER * TILE_M);
    const int columns = tiles_along(N, TILE_N);
    Work work(rows * columns, tiles_along(K, TILE_K));
    Ring<STAGES> ring;

    if (warp >= WARPS) {  // the producer
        shrink_registers<24>();
        if (threadIdx.x > 32 * WARPS) return;
        while (work.next()) {
            const Place place = grouped(work.tile, rows, columns, GROUP);
            const int row = (place.row * CLUSTER + rank) * TILE_M;
            const int column = place.column * TILE_N;
            for (int step = work.begin; step < work.end; ++step, ring.advance()) {
                wait_for_room(shared, ring);
                copy_step(shared, ring.stage, A, B, row, column, step * TILE_K, rank);
            }
        }
        // The others load operands of the next stage even after the last one.
        wait_for_room(shared, ring);
        arrive(&shared.full[ring.stage]);
    } else {
        grow_registers<240>();
        const int lane = threadIdx.x % 32;
        const int warp_row = warp / WARPS_N * WARP_M;
        const int warp_column = warp % WARPS_N * WARP_N;
        const unsigned empty = address_at(lane % CLUSTER, shared.empty);
        unsigned used = empty + (STAGES - 1) * sizeof(Barrier);  // of the stage before

        Operands operands(shared, warp_row, warp_column);
        wait(&shared.full[0], 0);
#pragma unroll
        for (int product = SWITCH; product < PAIRS; ++product) operands.load_after(product, 0);
        while (work.next()) {
            Sums sums = {};
#pragma unroll 1
            for (int step = work.begin; step < work.end; ++step) {
#pragma unroll
                for (int product = 0; product < PAIRS; ++product) {
                    const int i = product / ROWS, j = product % ROWS;
                    multiply_add(sums[i][j], operands.b[i], operands.a[j]);
                    if (product == 0 && lane < CLUSTER) arrive_at_address(used);
                    if (product == SWITCH) {
                        used = empty + ring.stage * sizeof(Barrier);
                        ring.advance();
                        wait(&shared.full[ring.stage], ring.phase);
                    }
                    operands.load_after(product, ring.stage);
                }
            }
            if (SHARE && work.begin > 0) {
                leave(sums, warp);
                continue;
            }
            if (SHARE && work.end < work.steps) collect(sums, work, warp);

            const Place place = grouped(work.tile, rows, columns, GROUP);
            const int row = (place.row * CLUSTER + rank) * TILE_M + warp_row + lane % 4;
            const int column = place.column * TILE_N + warp_column + lane / 4 * 2;
#pragma unroll
            for (int product = 0; product < PAIRS; ++product) {
                const int i = product / ROWS, j = product % ROWS;
                const double(&c)[4] = sums[i][j];
                store_two(C, row + 8 * j, column + 16 * i, M, N, c[0], c[2], alpha, beta);
                store_two(C, row + 8 * j + 4, column + 16 * i, M, N, c[1], c[3], alpha, beta);
            }
        }
    }
    if constexpr (CLUSTER > 1) {  // warps of the other block arrive at barriers of this one
        asm volatile("barrier.cluster.arrive.release;" ::: "memory");
        asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
    }
}
