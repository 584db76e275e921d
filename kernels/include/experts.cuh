// Which tiles of which experts' products a block computes.
#pragma once

struct ExpertTile {
    int expert;
    int row, column;  // its first ones
    int end;          // the row after the last one of the expert
};

// That of block blockIdx.x, of HEIGHT rows and WIDTH columns; `end` is 0 if there is none. Host code
// does not know the counts, so the grid has room for the worst ones. Blocks next to each other share
// columns of an expert's weights, which are read from memory once. By all lanes of a warp: each counts the
// tiles of an expert, since a block would wait long for a hundred ends read one after the other.
template <int HEIGHT, int WIDTH>
__device__ inline ExpertTile find_tile(const int* ends, int experts, int N) {
    constexpr unsigned all = 0xffffffff;
    const int columns = (N + WIDTH - 1) / WIDTH, lane = threadIdx.x % 32;
    int number = blockIdx.x;
    for (int first = 0; first < experts; first += 32) {
        const int expert = first + lane;
        const int end = ends[min(expert, experts - 1)];
        const int start = expert == 0 ? 0 : ends[min(expert, experts) - 1];
        const int rows = (end - start + HEIGHT - 1) / HEIGHT;
        int through = rows * columns;  // tiles of this expert, and of those of the lanes before
        for (int distance = 1; distance < 32; distance *= 2) {
            const int before = __shfl_up_sync(all, through, distance);
            if (lane >= distance) through += before;
        }
        if (const unsigned reached = __ballot_sync(all, number < through)) {
            const int owner = __ffs(reached) - 1;
            number -= __shfl_sync(all, through - rows * columns, owner);
            const int height = __shfl_sync(all, rows, owner);
            return {first + owner, __shfl_sync(all, start, owner) + number % height * HEIGHT,
                    number / height * WIDTH, __shfl_sync(all, end, owner)};
        }
        number -= __shfl_sync(all, through, 31);
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
