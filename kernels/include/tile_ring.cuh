// Tiles of two operands X and W, whose rows lie in stages of TILE_K along K, in a ring that one thread fills by TMA
// for one or two warpgroups that multiply. Compute capability 9.0.
//
// Macros: CONSUMERS, warpgroups that multiply 64 rows of X each; PRODUCER, the threads beside them, of which one
// copies; TILE_N, rows of W of a tile; STAGES.
#pragma once

#include "hopper.cuh"

constexpr int TILE_M = 64 * CONSUMERS;
constexpr int THREADS = CONSUMERS * WARPGROUP + PRODUCER;
constexpr bool GIVES_REGISTERS = PRODUCER == WARPGROUP;  // only a whole warpgroup can

struct Shared {
    Input x[STAGES][TILE_M * TILE_K];
    Input w[STAGES][TILE_N * TILE_K];
    Output y[CONSUMERS][2][64 * CHUNK];
    Barrier full[STAGES], empty[STAGES];
};

// From a stage to the next one, in the units of descriptors.
constexpr unsigned STAGE_STRIDE_X = sizeof(Shared::x[0]) / 16, STAGE_STRIDE_W = sizeof(Shared::w[0]) / 16;

// By all threads, before anything else. Returns whether this one is the producer's.
__device__ inline bool begin_ring(Shared& shared, const TensorMap& X, const TensorMap& W, const TensorMap& Y) {
    const bool produces = of_first_lane(threadIdx.x / WARPGROUP) == CONSUMERS;
    if (threadIdx.x == CONSUMERS * WARPGROUP) {
        prefetch(X);
        prefetch(W);
        prefetch(Y);
        initialize_ring(shared.full, shared.empty, CONSUMERS);
    }
    begin_roles<1, THREADS>(produces);
    return produces;
}

// By the producer's threads, which then end: all stages of the tiles of a block, one after the other. W has
// WEIGHTS matrices of N rows, and a tile as many rows of each.
template <int WEIGHTS, int TOGETHER>
__device__ inline void fill_ring(Shared& shared, const TensorMap& X, const TensorMap& W, int rows, int columns,
                                 int steps, int N) {
    constexpr int COLUMNS = TILE_N / WEIGHTS;
    if constexpr (GIVES_REGISTERS) shrink_registers<40>();
    if (threadIdx.x >= CONSUMERS * WARPGROUP + 32 || !elected()) return;
    Ring<STAGES> ring;
    for (int tile = blockIdx.x; tile < rows * columns; tile += gridDim.x) {
        const Place place = grouped(tile, rows, columns, TOGETHER);
        const int row = place.row * TILE_M, column = place.column * COLUMNS;
        for (int k = 0; k < steps * TILE_K; k += TILE_K, ring.advance()) {
            Barrier* full = &shared.full[ring.stage];
            wait(&shared.empty[ring.stage], ring.phase ^ 1);
            announce(full, sizeof(shared.x[0]) + sizeof(shared.w[0]));
            copy_box(shared.x[ring.stage], X, row, k, full);
#pragma unroll
            for (int i = 0; i < WEIGHTS; ++i) {
                copy_box(shared.w[ring.stage] + i * COLUMNS * TILE_K, W, i * N + column, k, full);
            }
        }
    }
}
