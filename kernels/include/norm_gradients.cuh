// The gradients of a norm over rows, by persistent blocks: they sum those of weights in registers. The
// next rows are loaded while one is computed, by an object which says how.
//
// Macros: VECTORS per thread, and RESIDENT threads per multiprocessor.
#pragma once

#include "grid_barrier.cuh"
#include "row_kernels.cuh"

constexpr int MULTIPROCESSORS = 192;  // the most that there may be
constexpr int EACH = VECTORS * WIDTH;  // columns of a thread

// What a block sums up over its rows, for all columns: a row for each block.
struct ColumnSums {
    Accumulate of_block[static_cast<long long>(MULTIPROCESSORS) * RESIDENT * EACH];

    template <bool ALIGNED>
    __device__ void keep(const Share<VECTORS, ALIGNED>& share, const Accumulate (&sums)[EACH]) {
        #pragma unroll
        for (int j = 0; j < EACH; ++j) {
            const int c = share.column(j / WIDTH, j % WIDTH);
            if (c < share.columns) of_block[blockIdx.x * static_cast<long long>(share.columns) + c] = sums[j];
        }
    }

    // Adds those of all blocks, after a barrier of the grid. Warps share the blocks, and each lane has a
    // column; the order is always the same.
    __device__ void add(int columns, Output* to) const {
        __shared__ Accumulate parts[WARP][WARP + 1];
        const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
        for (int first = blockIdx.x * WARP; first < columns; first += gridDim.x * WARP) {
            const int column = first + lane;
            Accumulate sum = 0;
            #pragma unroll 4
            for (int b = warp; b < (column < columns ? gridDim.x : 0); b += warps) {
                sum += __ldcg(&of_block[b * static_cast<long long>(columns) + column]);
            }
            parts[warp][lane] = sum;
            __syncthreads();
            if (warp == 0 && column < columns) {
                for (int other = 1; other < warps; ++other) sum += parts[other][lane];
                to[column] = narrow(sum);
            }
            __syncthreads();
        }
    }
};

__device__ ColumnSums weight_sums;

// Operands; a norm that is not CENTERED has no mean.
struct Norm {
    long long rows, columns;
    const Input *X, *DY, *W;
    const Accumulate *MEAN, *RSTD;
    Output* DX;
};

// The sums of two values over the block. `partials` must not be those of the call before.
__device__ inline void reduce_two(Accumulate& a, Accumulate& b, Accumulate (&partials)[2][WARP]) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    a = reduce_warp<Sum>(a);
    b = reduce_warp<Sum>(b);
    if (lane == 0) {
        partials[0][warp] = a;
        partials[1][warp] = b;
    }
    __syncthreads();
    const bool present = lane < blockDim.x / WARP;
    a = reduce_warp<Sum>(present ? partials[0][lane] : Accumulate(0));
    b = reduce_warp<Sum>(present ? partials[1][lane] : Accumulate(0));
}

// The next row is loaded into registers.
template <bool ALIGNED>
struct AheadInRegisters {
    const Share<VECTORS, ALIGNED>& share;
    const Norm& norm;
    uint4 x[VECTORS], dy[VECTORS];

    __device__ AheadInRegisters(const Share<VECTORS, ALIGNED>& share, const Norm& norm)
        : share(share), norm(norm) {
        load(blockIdx.x);
    }

    __device__ void load(long long row) {
        if (row >= norm.rows) return;
        for (int k = 0; k < VECTORS; ++k) x[k] = share.load(norm.X + row * norm.columns, k, narrow(0));
        for (int k = 0; k < VECTORS; ++k) dy[k] = share.load(norm.DY + row * norm.columns, k, narrow(0));
    }

    __device__ void take(long long row, uint4 (&xs)[VECTORS], uint4 (&dys)[VECTORS]) {
        for (int k = 0; k < VECTORS; ++k) {
            xs[k] = x[k];
            dys[k] = dy[k];
        }
        load(row + gridDim.x);
    }

    __device__ void taken_by_all(long long) {}
};

// The gradients of every gridDim.x-th row. Adds dy·n to `weights` and, if CENTERED, dy to `biases`, where
// n is the row after the norm.
template <bool CENTERED, bool ALIGNED, typename Ahead>
__device__ void norm_gradients(const Share<VECTORS, ALIGNED>& share, const Norm& norm, Ahead ahead,
                               Accumulate (&weights)[EACH], Accumulate (&biases)[EACH]) {
    __shared__ Accumulate partials[2][2][WARP];
    uint4 w[VECTORS], x[VECTORS], dy[VECTORS];
    for (int k = 0; k < VECTORS; ++k) w[k] = share.load(norm.W, k, narrow(0));

    Accumulate rstd = 0, mean = 0, next_rstd = 0, next_mean = 0;
    const auto load_next = [&](long long row) {
        if (row >= norm.rows) return;
        next_rstd = norm.RSTD[row];
        if (CENTERED) next_mean = norm.MEAN[row];
    };
    load_next(blockIdx.x);
    bool odd = false;
    for (long long row = blockIdx.x; row < norm.rows; row += gridDim.x) {
        rstd = next_rstd;
        mean = next_mean;
        ahead.take(row, x, dy);
        load_next(row + gridDim.x);

        // 1. What the row has, in registers: n, and the gradient of n.
        Accumulate n[EACH], g[EACH], along = 0, offset = 0;
        #pragma unroll
        for (int j = 0; j < EACH; ++j) {
            const int k = j / WIDTH, i = j % WIDTH;
            const Accumulate given = widen(unpack(dy[k]).element[i]);
            n[j] = (widen(unpack(x[k]).element[i]) - mean) * rstd;
            g[j] = widen(unpack(w[k]).element[i]) * given;
            weights[j] += given * n[j];
            along += g[j] * n[j];
            if constexpr (CENTERED) {
                biases[j] += given;
                offset += g[j];
            }
        }
        if constexpr (CENTERED) {
            reduce_two(along, offset, partials[odd]);
            offset /= norm.columns;
        } else {
            along = reduce_block<Sum>(along, partials[odd][0]);
        }
        along /= norm.columns;
        odd = !odd;
        ahead.taken_by_all(row);  // the reduction was a barrier

        // 2. Less what is along the row and, if centred, what is common to all columns.
        #pragma unroll
        for (int k = 0; k < VECTORS; ++k) {
            keep_packed(w[k]);
            Vector out;
            #pragma unroll
            for (int i = 0; i < WIDTH; ++i) {
                const int j = k * WIDTH + i;
                out.element[i] = narrow(rstd * (g[j] - offset - n[j] * along));
            }
            share.store(norm.DX + row * norm.columns, k, out);
        }
    }
}
