// The maximum of a row and the sum of its exponentials in one pass, for rows that begin anywhere.
#pragma once

#include "softmax.cuh"

// Where a row of a matrix has whole vectors of 16 bytes.
struct Vectors {
    long long head;   // elements before the first vector
    long long count;  // vectors

    __device__ Vectors(long long row, long long columns)
        : head(min(columns, -(row * columns) & (WIDTH - 1))), count((columns - head) / WIDTH) {}

    // The first column of a vector.
    __device__ long long column(long long vector) const { return head + vector * WIDTH; }

    // Column i of those outside of vectors, fewer than 2 * WIDTH: some before the first, some after
    // the last.
    __device__ long long edge(long long i) const { return i < head ? i : i + count * WIDTH; }
};

// The numbers so far. The sum is relative to the maximum, and rescaled where that grows.
struct Online {
    Accumulate largest = lowest(), sum = 0;

    __device__ void add(Accumulate value) {
        const Accumulate most = max(largest, value);
        sum = sum * exponential(largest - most) + exponential(value - most);
        largest = most;
    }

    template <int COUNT>
    __device__ void add(const uint4 (&packed)[COUNT]) {
        const Accumulate before = largest;
        for (int k = 0; k < COUNT; ++k) {
            const Vector vector = unpack(packed[k]);
            for (int i = 0; i < WIDTH; ++i) largest = max(largest, widen(vector.element[i]));
        }
        sum *= exponential(before - largest);
        for (int k = 0; k < COUNT; ++k) {
            const Vector vector = unpack(packed[k]);
            Accumulate sum_of_vector = 0;
            for (int i = 0; i < WIDTH; ++i) sum_of_vector += exponential(widen(vector.element[i]) - largest);
            sum += sum_of_vector;
        }
    }

    // Of all threads of a block. All must pass a barrier before `maxima` and `sums`, WARP values in
    // shared memory each, are used again.
    __device__ void combine(Accumulate* maxima, Accumulate* sums) {
        const Accumulate own = largest;
        largest = reduce_block<Maximum>(own, maxima);
        sum = reduce_block<Sum>(sum * exponential(own - largest), sums);
    }

    // Those of COUNT blocks take the place of this block's.
    template <int COUNT>
    __device__ void combine_blocks(const Accumulate (&maxima)[COUNT], const Accumulate (&sums)[COUNT]) {
        for (int block = 0; block < COUNT; ++block) largest = max(largest, maxima[block]);
        sum = 0;
        for (int block = 0; block < COUNT; ++block) sum += sums[block] * exponential(maxima[block] - largest);
    }
};
