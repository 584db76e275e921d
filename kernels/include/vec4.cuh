// Tiles of FP32 operands that are read and written in quads: 4 elements, 16 bytes, at a time.
#pragma once

#include "gemm.cuh"

// Whether every row of `length` elements starts at a multiple of 16 bytes.
__device__ inline bool in_quads(const void* matrix, int length) {
    return length % 4 == 0 && reinterpret_cast<size_t>(matrix) % 16 == 0;
}

// Reads COUNT elements from shared memory: quads that begin `step` elements apart.
template <int COUNT>
__device__ inline void read_quads(float (&to)[COUNT], const float* from, int step) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) {
        const float4 quad = *reinterpret_cast<const float4*>(from + i / 4 * step);
        to[i] = quad.x;
        to[i + 1] = quad.y;
        to[i + 2] = quad.z;
        to[i + 3] = quad.w;
    }
}

// C[m][n ... n + 3] = alpha * sum + beta * C, of which the elements before column N exist.
__device__ inline void store_quad(float* C, int m, int n, int N, const float* sum, float alpha,
                                  float beta, bool aligned) {
    if (aligned && beta == 0 && n < N) {
        *reinterpret_cast<float4*>(C + size_t(m) * N + n) =
            make_float4(alpha * sum[0], alpha * sum[1], alpha * sum[2], alpha * sum[3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (n + i < N) store(C, m, n + i, N, sum[i], alpha, beta);
    }
}

// One operand of the product: op(A), or op(B) transposed. Its rows are M or N, its columns are K.
// ALONG_K: in memory it is contiguous along K, not along its rows.
template <bool ALONG_K>
struct Matrix {
    const float* data;
    int rows;
    int K;
    bool aligned;

    __device__ Matrix(const float* data, int rows, int K)
        : data(data), rows(rows), K(K), aligned(in_quads(data, ALONG_K ? K : rows)) {}

    // The address of COUNT elements. A row beyond the last is replaced by the last: its products are
    // never stored, so that only K has an edge.
    template <int COUNT>
    __device__ const float* at(int row, int k) const {
        const int existing = min(row, rows - (ALONG_K ? 1 : COUNT));
        return data + (ALONG_K ? size_t(existing) * K + k : size_t(k) * rows + existing);
    }
};

// Words at the end of each row of a tile in shared memory. With them 8 rows of K and 4 neighbouring
// columns are in 32 different banks.
constexpr int PAD = 4;

// By THREADS threads: loads the tile at (first_row, first_k), transposed if needed, so that in shared
// memory the rows are contiguous for each k. Elements beyond K are zero.
template <int THREADS, bool ALONG_K, int TILE_K, int PITCH>
__device__ inline void load_tile(float (&tile)[TILE_K][PITCH], const Matrix<ALONG_K>& matrix,
                                 int first_row, int first_k) {
    constexpr unsigned ROWS = PITCH - PAD;
    if (!matrix.aligned) {
#pragma unroll 1
        for (unsigned i = threadIdx.x; i < ROWS * TILE_K; i += THREADS) {
            const int row = ALONG_K ? i / TILE_K : i % ROWS;
            const int k = ALONG_K ? i % TILE_K : i / ROWS;
            const float* from = matrix.template at<1>(first_row + row, first_k + k);
            tile[k][row] = first_k + k < matrix.K ? *from : 0;
        }
        return;
    }
#pragma unroll
    for (int pass = 0; pass < ROWS * TILE_K / 4 / THREADS; ++pass) {
        const unsigned i = pass * THREADS + threadIdx.x;
        const int row = ALONG_K ? i / (TILE_K / 4) : i % (ROWS / 4) * 4;
        const int k = ALONG_K ? i % (TILE_K / 4) * 4 : i / (ROWS / 4);
        const float* from = matrix.template at<4>(first_row + row, first_k + k);
        float4 quad = {};
        if (first_k + k < matrix.K) quad = *reinterpret_cast<const float4*>(from);
        if (ALONG_K) {
            tile[k][row] = quad.x;
            tile[k + 1][row] = quad.y;
            tile[k + 2][row] = quad.z;
            tile[k + 3][row] = quad.w;
        } else {
            *reinterpret_cast<float4*>(&tile[k][row]) = quad;
        }
    }
}
