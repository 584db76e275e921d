// kernels/include/async_copy.cuh on the CPU. A copy is made as late as possible: when it is waited for. Until
// then there is no number. So a kernel that does not wait, or copies into a tile in use, is wrong.
#pragma once

#include "cuda.hpp"

using SharedAddress = std::uintptr_t;

inline SharedAddress address_of(const void* shared) { return reinterpret_cast<SharedAddress>(shared); }
inline SharedAddress dynamic_shared() { return address_of(running->dynamic); }
inline float4 load_shared(SharedAddress at) { return *reinterpret_cast<float4*>(at); }
inline void store_shared(SharedAddress at, float4 quad) { *reinterpret_cast<float4*>(at) = quad; }

void copy_later(SharedAddress to, const void* from, int bytes, int valid);
template <int BYTES>
inline void copy_async(SharedAddress shared, const void* global, int valid = BYTES) {
    copy_later(shared, global, BYTES, valid);
}

void commit_copies();

void wait_for_copies_but(int pending);
template <int PENDING>
inline void wait_for_copies() {
    wait_for_copies_but(PENDING);
}

// Barriers.
void initialize(SharedAddress barrier, unsigned arrivals);
void arrive(SharedAddress barrier, unsigned bytes = 0);
void wait(SharedAddress barrier, unsigned phase);

// A copy of so many of the announced bytes, which is made when the barrier is waited for.
void copy_before(SharedAddress barrier, unsigned bytes, std::function<void()> copy);

inline void arrive_with_copies(SharedAddress barrier) {
    commit_copies();
    wait_for_copies<0>();
    arrive(barrier);
}

// Barriers of some warps, by block and number. Who comes first, says how many will.
inline Meeting meetings[MOST_BLOCKS_AT_ONCE][16];

inline void arrive_threads(int barrier, int threads) { meetings[running->rank][barrier].arrive(threads); }
inline void sync_threads(int barrier, int threads) { meetings[running->rank][barrier].sync(threads); }

template <unsigned THREADS>
inline void sync_part() {
    sync_threads(1, THREADS);
}
