// Work for all multiprocessors, where tiles do not come in whole waves (stream-K): with EVEN a block stays
// and computes tile after tile, and the tiles that are left over are cut along K in equal parts. The part
// that begins at K = 0 writes C, the others add to it one after the other, so that results do not depend on
// chance. Compute capability 9.0.
//
// Without EVEN a block has one tile.
#pragma once

#include "grid_flags.cuh"
#include "simt_pipeline.cuh"

static_assert(!EVEN || SLICES == 1, "a tile is cut along K once");

// What a block computes without a break: of a tile of C the steps from `begin` to before `end`, in
// units of TILE_K.
struct Piece {
    int tile, begin, end;
    Corner corner;
};

// What this block computes.
template <int TILE_K>
struct Work {
    int rows, columns;  // of tiles
    int steps;          // of a tile
    int split = 0;      // the first tiles, which all blocks share; a block computes all of the others
    int begin = 0;      // this block's steps of the split tiles, less than one tile's
    int end = 0;

    __device__ Work(int M, int N, int K) {
        rows = (M + TILE_M - 1) / TILE_M;
        columns = (N + TILE_N - 1) / TILE_N;
        steps = (K + TILE_K * SLICES - 1) / (TILE_K * SLICES) * SLICES;  // zeros beyond K
        if (EVEN) {
            split = rows * columns % gridDim.x;
            begin = static_cast<long long>(split) * steps * blockIdx.x / gridDim.x;
            end = static_cast<long long>(split) * steps * (blockIdx.x + 1) / gridDim.x;
        }
    }

    __device__ int whole_tiles() const {
        return (rows * columns - split + gridDim.x - 1 - blockIdx.x) / gridDim.x;
    }
    __device__ int pieces() const { return EVEN ? 2 + whole_tiles() : 1; }
    __device__ int all_steps() const {
        return EVEN ? end - begin + whole_tiles() * steps : steps;
    }

    // The steps of split tiles begin in one tile and may end in the next one. The next one comes
    // first: its sums must be in C before another block adds later steps.
    __device__ Piece get(int nth) const {
        Piece piece;
        const int border = EVEN ? min((begin / steps + 1) * steps, end) : 0;
        if (EVEN && nth == 0) {
            piece.tile = begin / steps + 1;
            piece.begin = 0;
            piece.end = end - border;
        } else if (EVEN && nth == 1) {
            piece.tile = begin / steps;
            piece.begin = begin % steps;
            piece.end = piece.begin + border - begin;
        } else {
            piece.tile = split + (nth - 2 * EVEN) * gridDim.x + blockIdx.x;
            piece.begin = 0;
            piece.end = steps;
        }
        piece.corner = corner_of(piece.tile, rows, columns);
        return piece;
    }
};

// How many steps of each split tile are in C. All are zero between launches.
constexpr int MOST_BLOCKS = 1024;
__device__ unsigned steps_done[MOST_BLOCKS];

// By all multiplying threads: returns when the steps before `piece` are in C.
__device__ inline void wait_for_steps(const Piece& piece) {
    if (threadIdx.x == 0) {
        while (read_flag(&steps_done[piece.tile]) != piece.begin) {}
    }
    sync_part<MULTIPLIERS>();
}

// By all multiplying threads, when their sums are in C.
__device__ inline void report_steps(const Piece& piece, int steps) {
    sync_part<MULTIPLIERS>();
    if (threadIdx.x == 0) {
        __threadfence();
        write_flag(&steps_done[piece.tile], piece.end == steps ? 0 : piece.end);
    }
}

// C[m][n ... n + 3] += alpha * sum, of which the elements before column N exist.
__device__ inline void add_to(float* C, int m, int n, int N, const float* sum, float alpha,
                              bool aligned) {
    float* const to = C + size_t(m) * N + n;
    if (aligned && n < N) {
        add_quad(to, make_float4(alpha * sum[0], alpha * sum[1], alpha * sum[2], alpha * sum[3]));
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (n + i < N) atomicAdd(to + i, alpha * sum[i]);
    }
}
