// The product of a tile of 64 x 64 on ordinary cores: a thread has 4 x 4 sums, SIDE rows and columns apart.
#pragma once

#include "types.cuh"

constexpr int TILE = 64;
constexpr int TILE_K = 16;
constexpr int EACH = 4;            // rows, and columns, of a thread
constexpr int SIDE = TILE / EACH;  // threads along a side of the tile
constexpr int THREADS = SIDE * SIDE;
constexpr int PAD = 4;             // so that writes down a column go to different banks

// Adds TILE_K products to each sum: a column of 4 values of X with a row of 4 values of W.
template <typename Sum, int X, int W>
__device__ void multiply(const Sum (&tile_x)[TILE_K][X], const Sum (&tile_w)[TILE_K][W], int x, int y,
                         Sum (&sum)[EACH][EACH]) {
#pragma unroll
    for (int k = 0; k < TILE_K; ++k) {
        Sum a[EACH], b[EACH];
        for (int i = 0; i < EACH; ++i) a[i] = tile_x[k][y + i * SIDE];
        for (int j = 0; j < EACH; ++j) b[j] = tile_w[k][x + j * SIDE];
        for (int i = 0; i < EACH; ++i) {
            for (int j = 0; j < EACH; ++j) sum[i][j] += a[i] * b[j];
        }
    }
}

// Stores the sums of the tile that begins there, as far as Y has rows, up to `end`, and columns.
template <typename Sum>
__device__ void store(Output* Y, const Sum (&sum)[EACH][EACH], int x, int y, int first_row,
                      int first_column, int end, int columns) {
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
            const int row = first_row + y + i * SIDE, column = first_column + x + j * SIDE;
            if (row < end && column < columns) Y[size_t(row) * columns + column] = narrow(sum[i][j]);
        }
    }
}
