// Which tiles of which experts' products a block computes.
#pragma once

struct ExpertTile {
    int expert;
    int row, column;  // its first ones
    int end;          // the row after the last one of the expert
};

// That of block blockIdx.x, of HEIGHT rows and WIDTH columns; `end` is 0 if there is none. Host code
// does not know the counts, so the grid has room for the worst ones. Blocks next to each other share
// columns of an expert's weights, which are read from memory once.
template <int HEIGHT, int WIDTH>
__device__ inline ExpertTile find_tile(const int* ends, int experts, int N) {
    const int columns = (N + WIDTH - 1) / WIDTH;
    int number = blockIdx.x, start = 0;
    for (int expert = 0; expert < experts; ++expert) {
        const int end = ends[expert], rows = (end - start + HEIGHT - 1) / HEIGHT;
        if (number < rows * columns) {
            return {expert, start + number % rows * HEIGHT, number / rows * WIDTH, end};
        }
        number -= rows * columns;
        start = end;
    }
    return {0, 0, 0, 0};
}

// The tiles of all experts, of HEIGHT rows and WIDTH columns, for a thread that takes some of them in order.
template <int HEIGHT, int WIDTH>
struct ExpertTiles {
    const int* ends;
    int experts, columns;  // columns of tiles
    int expert = -1, rows = 0;  // rows of tiles of this expert
    int start = 0, end = 0;     // its first row, and the one after its last
    int before = 0;             // tiles of the experts before it

    __device__ ExpertTiles(const int* ends, int experts, int N)
        : ends(ends), experts(experts), columns((N + WIDTH - 1) / WIDTH) {}

    // Goes on to the expert with tile `number`, which is not less than the last one. False if none has it.
    __device__ bool reach(int number) {
        while (number >= before + rows * columns) {
            if (++expert >= experts) return false;
            before += rows * columns;
            start = end;
            end = ends[expert];
            rows = (end - start + HEIGHT - 1) / HEIGHT;
        }
        return true;
    }
};
