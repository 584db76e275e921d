// Mean and variance of a row in registers, for which its block meets once.
#pragma once

#include "rmsnorm.cuh"

// The elements of a vector. Of two BF16 in a word the compiler makes three instructions, this two.
__device__ inline void widen(const uint4& packed, Accumulate* elements) {
#ifdef ROOFLAB_PRECISION_BF16
    const unsigned words[] = {packed.x, packed.y, packed.z, packed.w};
    #pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        elements[i] = __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
    }
#else
    const Vector vector = unpack(packed);
    #pragma unroll
    for (int i = 0; i < WIDTH; ++i) elements[i] = widen(vector.element[i]);
#endif
}

// A normalised element is x * scale + offset.
struct Scaling {
    Accumulate scale, offset;
};

// Rows of the same length, which begin at multiples of 16 bytes, each spread over a block of at most WARPS
// warps, a power of two.
//
// A warp takes the mean of its own columns first, then their squares about that mean. The squares about the
// mean of the row are those of all warps, and for each column of a warp the square of the distance from its
// mean to the row's (Chan, Golub and LeVeque, 1979). So one exchange is enough, and nothing large cancels.
template <int COUNT, int WARPS>
struct Moments {
    const Share<COUNT, true>& share;
    Accumulate inverse_columns;  // one over the columns of the row
    Accumulate inverse_own;      // one over those of this warp
    Accumulate part;             // of the row, which warp lane % WARPS has

    static constexpr int EACH = COUNT * WIDTH;  // columns of a thread

    struct OfWarp {
        Accumulate mean, variance;  // of the variance its part, so that those of the warps add up
    };

    __device__ explicit Moments(const Share<COUNT, true>& share) : share(share) {
        inverse_columns = Accumulate(1) / share.columns;
        inverse_own = Accumulate(1) / max(1, columns_of(threadIdx.x / WARP));
        part = columns_of(threadIdx.x % WARPS) * inverse_columns;
    }

    __device__ int columns_of(int warp) const {
        return max(0, min(WARP * EACH, share.columns - warp * WARP * EACH));
    }

    // Columns past the end must be zero. From all of `x` the warp's mean is taken away.
    __device__ OfWarp center(Accumulate (&x)[EACH]) const {
        Accumulate sum = 0;
        #pragma unroll
        for (int k = 0; k < COUNT; ++k) {
            Accumulate of_vector = 0;
            #pragma unroll
            for (int i = 0; i < WIDTH; ++i) of_vector += x[k * WIDTH + i];
            sum += of_vector;
        }
        const Accumulate mean = reduce_warp<Sum>(sum) * inverse_own;

        Accumulate squares = 0;
        #pragma unroll
        for (int k = 0; k < COUNT; ++k) {
            Accumulate of_vector = 0;
            #pragma unroll
            for (int i = 0; i < WIDTH; ++i) {
                Accumulate& distance = x[k * WIDTH + i];
                distance -= mean;
                of_vector += distance * distance;
            }
            if (share.column(k, 0) < share.columns) squares += of_vector;
        }
        return {mean, reduce_warp<Sum>(squares) * inverse_columns};
    }

    // `partials` must not be those of the row before. Means are taken from the first warp's, so that a small
    // variance far from zero keeps its digits.
    __device__ Scaling exchange(OfWarp own, Accumulate epsilon, Accumulate (&partials)[2][WARPS]) const {
        if (blockDim.x == WARP) return {inverse_root(own.variance + epsilon), 0};
        const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, other = lane % WARPS;
        if (lane == 0) {
            partials[0][warp] = own.mean;
            partials[1][warp] = own.variance;
        }
        __syncthreads();
        const bool present = other < blockDim.x / WARP;
        const Accumulate first = partials[0][0];
        const Accumulate mean = present ? partials[0][other] - first : 0;
        const Accumulate variance = present ? partials[1][other] : 0;
        const Accumulate of_row = reduce_warp<Sum, WARPS>(part * mean);
        const Accumulate away = mean - of_row;
        const Accumulate scale = inverse_root(reduce_warp<Sum, WARPS>(variance + part * away * away) + epsilon);
        return {scale, (own.mean - first - of_row) * scale};
    }
};

// A vector of the result, from centered elements.
__device__ inline Vector normalised(const Accumulate* x, const Scaling& by, const uint4& weights,
                                    const uint4& biases) {
    Accumulate weight[WIDTH], bias[WIDTH];
    widen(weights, weight);
    widen(biases, bias);
    Vector vector;
    #pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        vector.element[i] = narrow((x[i] * by.scale + by.offset) * weight[i] + bias[i]);
    }
    return vector;
}
