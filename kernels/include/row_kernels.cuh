// Shared by the kernels over rows: reductions, and a row spread over a block.
//
// X and Y are matrices of rows x columns, row-major and tightly packed. Only the matrix is aligned:
// a row starts right after the previous one.
#pragma once

#include "l2_priority.cuh"
#include "types.cuh"

constexpr int WARP = 32;

// Reductions -------------------------------------------------------------------------------------

__device__ inline Accumulate minus_infinity() { return -__int_as_float(0x7f800000); }

// The lowest finite number. Unlike minus infinity, it can be subtracted from itself.
__device__ inline Accumulate lowest() {
    return static_cast<Accumulate>(sizeof(Accumulate) == 8 ? -0x1.fffffffffffffp1023 : -0x1.fffffep127);
}

struct Sum {
    static __device__ Accumulate nothing() { return 0; }
    static __device__ Accumulate of(Accumulate a, Accumulate b) { return a + b; }
};

struct Maximum {
    static __device__ Accumulate nothing() { return minus_infinity(); }
    static __device__ Accumulate of(Accumulate a, Accumulate b) { return max(a, b); }
};

// Combines one value per thread of a warp, or of each group of NEIGHBOURS in it. Every thread gets the result.
template <typename Operation, int NEIGHBOURS = WARP>
__device__ inline Accumulate reduce_warp(Accumulate value) {
    for (int distance = NEIGHBOURS / 2; distance > 0; distance /= 2) {
        value = Operation::of(value, __shfl_xor_sync(0xffffffff, value, distance));
    }
    return value;
}

// Combines one value per thread of a block of whole warps. Every thread gets the result. `partials`
// are WARP values in shared memory; all threads must pass a barrier before they are used again.
template <typename Operation>
__device__ inline Accumulate reduce_block(Accumulate value, Accumulate* partials) {
    value = reduce_warp<Operation>(value);
    if (blockDim.x == WARP) return value;

    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (lane == 0) partials[warp] = value;
    __syncthreads();

    // Every warp combines all warps' values, so no second barrier is needed.
    const bool present = lane < blockDim.x / WARP;
    return reduce_warp<Operation>(present ? partials[lane] : Operation::nothing());
}

// A row, spread over a block ---------------------------------------------------------------------

// Elements that one thread moves with one 16-byte instruction, as a uint4 ("packed").
constexpr int WIDTH = 16 / sizeof(Input);
static_assert(sizeof(Input) == sizeof(Output), "rows of X and of Y have the same vectors");

struct Vector {
    Input element[WIDTH];
};

__device__ inline Vector unpack(const uint4& packed) {
    Vector vector;
    memcpy(&vector, &packed, sizeof(vector));
    return vector;
}

__device__ inline uint4 pack(const Vector& vector) {
    uint4 packed;
    memcpy(&packed, &vector, sizeof(packed));
    return packed;
}

__device__ inline uint4 filled(Input value) {
    Vector vector;
    for (int i = 0; i < WIDTH; ++i) vector.element[i] = value;
    return pack(vector);
}

// Makes the compiler unpack again. Otherwise it keeps the widened elements from one use to the
// next, in twice the registers of FP16 or BF16.
__device__ inline void keep_packed(uint4& packed) {
    asm volatile("" : "+r"(packed.x), "+r"(packed.y), "+r"(packed.z), "+r"(packed.w));
}

// The columns of a row that one thread keeps, as COUNT vectors.
//
// Each warp has WARP * COUNT * WIDTH neighbouring columns. If all rows start at multiples of 16
// bytes (ALIGNED), a vector is WIDTH neighbouring columns, moved by one instruction. Otherwise a
// thread takes every 32nd column of the warp's, one at a time. In both cases a warp's accesses are
// coalesced, and a thread's addresses are at constant distances from its first.
template <int COUNT, bool ALIGNED>
struct Share {
    int first;    // this thread's first column
    int columns;  // of the row, at most held(): no column from here on is read or written

    __device__ explicit Share(long long columns)
        : first(threadIdx.x / WARP * (WARP * COUNT * WIDTH)
                + threadIdx.x % WARP * (ALIGNED ? WIDTH : 1)),
          columns(static_cast<int>(min(columns, held()))) {}

    // Columns that a whole block keeps.
    static __device__ long long held() { return blockDim.x * COUNT * WIDTH; }

    __device__ int column(int k, int i) const {
        return first + (ALIGNED ? k * WARP * WIDTH + i : (k * WIDTH + i) * WARP);
    }

    // Vector k. Columns past the end are `fill`.
    __device__ uint4 load(const Input* row, int k, Input fill) const {
        if constexpr (ALIGNED) {
            const bool inside = column(k, 0) < columns;
            return inside ? *reinterpret_cast<const uint4*>(row + column(k, 0)) : filled(fill);
        } else {
            Vector vector = unpack(filled(fill));
            for (int i = 0; i < WIDTH; ++i) {
                if (column(k, i) < columns) vector.element[i] = row[column(k, i)];
            }
            return pack(vector);
        }
    }

    // The same from global memory, in lines that the L2 cache evicts last.
    __device__ uint4 load_kept(const Input* row, int k, Input fill) const {
        if constexpr (ALIGNED) {
            const int start = column(k, 0);
            return load_evict_last(row + start, start < columns, filled(fill));
        } else {
            return load(row, k, fill);
        }
    }

    // The same for elements that are read once: they take no place in the L1 cache.
    __device__ uint4 load_once_kept(const Input* row, int k, Input fill) const {
        if constexpr (ALIGNED) {
            const int start = column(k, 0);
            return load_once_evict_last(row + start, start < columns, filled(fill));
        } else {
            return load(row, k, fill);
        }
    }

    __device__ void store(Output* row, int k, const Vector& vector) const {
        if constexpr (ALIGNED) {
            if (column(k, 0) < columns) *reinterpret_cast<uint4*>(row + column(k, 0)) = pack(vector);
        } else {
            for (int i = 0; i < WIDTH; ++i) {
                if (column(k, i) < columns) row[column(k, i)] = vector.element[i];
            }
        }
    }
};
