// kernels/include/async_copy.cuh on the CPU. A copy is made as late as possible: when it is waited
// for. So a kernel that does not wait reads what was there before.
#pragma once

#define HAS_DYNAMIC_SHARED

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

struct Copy {
    void* to;
    const void* from;
    size_t bytes;
    size_t valid;
};
inline thread_local std::deque<std::vector<Copy>> groups{{}};

using SharedAddress = char*;
inline SharedAddress dynamic;

inline SharedAddress address_of(void* shared) { return static_cast<SharedAddress>(shared); }
inline SharedAddress dynamic_shared() { return dynamic; }
inline float4 load_shared(SharedAddress at) { return *reinterpret_cast<float4*>(at); }
inline void store_shared(SharedAddress at, float4 quad) { *reinterpret_cast<float4*>(at) = quad; }

template <int BYTES>
inline void copy_async(SharedAddress shared, const void* global, int valid = BYTES) {
    const bool aligned = size_t(shared) % BYTES == 0 && (!valid || size_t(global) % BYTES == 0);
    if (!aligned) std::abort();
    groups.back().push_back({shared, global, BYTES, size_t(valid)});
}

inline void commit_copies() { groups.emplace_back(); }

template <int PENDING>
inline void wait_for_copies() {
    while (groups.size() > PENDING + 1) {
        for (const Copy& copy : groups.front()) {
            std::memset(copy.to, 0, copy.bytes);
            std::memcpy(copy.to, copy.from, copy.valid);
        }
        groups.pop_front();
    }
}

// Barriers. All share one lock: the threads are many and the CPUs few.
struct Phases {
    unsigned arrivals;
    unsigned missing;
    unsigned phase;
};
inline std::mutex lock;
inline std::condition_variable changed;
inline std::map<SharedAddress, Phases> barriers_at;

inline void initialize(SharedAddress barrier, unsigned arrivals) {
    const std::lock_guard<std::mutex> guard(lock);
    barriers_at[barrier] = {arrivals, arrivals, 0};
}

inline void arrive(SharedAddress barrier) {
    const std::lock_guard<std::mutex> guard(lock);
    Phases& phases = barriers_at.at(barrier);
    if (--phases.missing > 0) return;
    phases.missing = phases.arrivals;
    phases.phase ^= 1;
    changed.notify_all();
}

inline void arrive_with_copies(SharedAddress barrier) {
    commit_copies();
    wait_for_copies<0>();
    arrive(barrier);
}

inline void wait(SharedAddress barrier, unsigned phase) {
    std::unique_lock<std::mutex> guard(lock);
    changed.wait(guard, [&] { return barriers_at.at(barrier).phase != phase; });
}

inline Phases part;  // of the block

template <unsigned THREADS>
inline void sync_part() {
    std::unique_lock<std::mutex> guard(lock);
    const unsigned phase = part.phase;
    if (++part.arrivals == THREADS) {
        part = {0, 0, phase ^ 1};
        changed.notify_all();
    }
    changed.wait(guard, [&] { return part.phase != phase; });
}

template <unsigned COUNT>
inline void give_registers() {}

template <unsigned COUNT>
inline void take_registers() {}
