// Enough of CUDA to compile a kernel as C++ and run its blocks on the CPU, under a sanitizer: one after the
// other, or those of a cluster at once. It is included ahead of the kernel's source.
#pragma once

#include "threads.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __shared__ static  // with it, one block runs at a time
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __grid_constant__

#define threadIdx running->index
#define blockIdx running->block
inline Index blockDim;
inline Index gridDim;

struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(8) float2 {
    float x, y;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

inline float __uint_as_float(unsigned bits) {
    float number;
    std::memcpy(&number, &bits, sizeof(number));
    return number;
}
inline float __int_as_float(int bits) { return __uint_as_float(bits); }
inline unsigned __float_as_uint(float number) {
    unsigned bits;
    std::memcpy(&bits, &number, sizeof(bits));
    return bits;
}

// Four of the eight bytes of both words, each by a digit of `which`.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned which) {
    const std::uint64_t both = std::uint64_t(high) << 32 | low;
    unsigned chosen = 0;
    for (int i = 0; i < 4; ++i) chosen |= unsigned(both >> (which >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return chosen;
}

inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }

using std::max;
using std::min;

inline void __syncthreads() { running->block_barrier->sync(blockDim.x * blockDim.y); }

inline void __threadfence() {}
template <class Number>
inline Number atomicAdd(Number* to, Number value) {  // by one block at a time
    return (*to += value) - value;
}

inline unsigned atomicInc(unsigned* to, unsigned most) {
    const unsigned before = *to;
    *to = before >= most ? 0 : before + 1;
    return before;
}

template <class Number>
inline Number __ldg(const Number* from) {
    return *from;
}
template <class Number>
inline Number __ldcs(const Number* from) {
    return *from;
}
template <class Number>
inline Number __ldcg(const Number* from) {
    return *from;
}
template <class Number>
inline void __stcs(Number* to, Number value) {
    *to = value;
}

inline float __fdividef(float number, float divisor) { return number / divisor; }

struct Warp {
    Meeting barrier;
    std::uintptr_t addresses[32];  // one of each lane
    unsigned registers[32][6];
};
inline void __syncwarp() { running->warp->barrier.sync(32); }

inline int lane_number() { return (threadIdx.y * blockDim.x + threadIdx.x) % 32; }

// What another lane has. All 32 lanes must ask.
template <class Number>
inline Number of_lane(Number value, int other) {
    std::memcpy(&running->warp->addresses[lane_number()], &value, sizeof(value));
    __syncwarp();
    std::memcpy(&value, &running->warp->addresses[other], sizeof(value));
    __syncwarp();
    return value;
}
template <class Number>
inline Number __shfl_xor_sync(unsigned, Number value, int distance) {
    return of_lane(value, lane_number() ^ distance);
}
template <class Number>
inline Number __shfl_up_sync(unsigned, Number value, int distance) {
    const int lane = lane_number();
    return of_lane(value, lane < distance ? lane : lane - distance);
}
template <class Number>
inline Number __shfl_sync(unsigned, Number value, int lane, int width = 32) {
    return of_lane(value, lane_number() / width * width + lane % width);
}
inline unsigned __ballot_sync(unsigned, bool vote) {
    std::uintptr_t* all = running->warp->addresses;
    all[lane_number()] = vote;
    __syncwarp();
    unsigned votes = 0;
    for (int lane = 0; lane < 32; ++lane) votes |= unsigned(all[lane]) << lane;
    __syncwarp();
    return votes;
}
inline unsigned __match_any_sync(unsigned, int number) {
    std::uintptr_t* all = running->warp->addresses;
    all[lane_number()] = std::uintptr_t(number);
    __syncwarp();
    unsigned same = 0;
    for (int lane = 0; lane < 32; ++lane) same |= unsigned(all[lane] == std::uintptr_t(number)) << lane;
    __syncwarp();
    return same;
}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(unsigned bits) { return __builtin_ffs(int(bits)); }
