// kernels/include/async_copy.cuh on the CPU. A copy is made as late as possible: when it is waited
// for. So a kernel that does not wait reads what was there before.
#pragma once

#define HAS_DYNAMIC_SHARED

#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
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

using SharedAddress = std::uintptr_t;
inline thread_local unsigned char* dynamic;  // of the thread's block

inline SharedAddress address_of(const void* shared) { return reinterpret_cast<SharedAddress>(shared); }
inline SharedAddress dynamic_shared() { return address_of(dynamic); }
inline float4 load_shared(SharedAddress at) { return *reinterpret_cast<float4*>(at); }
inline void store_shared(SharedAddress at, float4 quad) { *reinterpret_cast<float4*>(at) = quad; }

template <int BYTES>
inline void copy_async(SharedAddress shared, const void* global, int valid = BYTES) {
    const bool aligned = shared % BYTES == 0 && (!valid || size_t(global) % BYTES == 0);
    if (!aligned) std::abort();
    groups.back().push_back({reinterpret_cast<void*>(shared), global, BYTES, size_t(valid)});
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

// Barriers. All share one lock: the threads are many and the CPUs few. A phase ends with the last
// arrival and the last of the announced bytes; its boxes are copied when it is waited for.
struct Phases {
    unsigned arrivals;
    unsigned missing;
    unsigned phase;
    long bytes;
    std::vector<std::function<void()>> boxes;
    std::condition_variable ended;
};
inline std::mutex lock;
inline std::map<SharedAddress, Phases> barriers_at;

inline void initialize(SharedAddress barrier, unsigned arrivals) {
    const std::lock_guard<std::mutex> guard(lock);
    Phases& phases = barriers_at[barrier];
    phases.arrivals = phases.missing = arrivals;
    phases.phase = phases.bytes = 0;
    phases.boxes.clear();
}

// With the lock.
inline void end_phase_if_complete(Phases& phases) {
    if (phases.missing > 0 || phases.bytes != 0) return;
    phases.missing = phases.arrivals;
    phases.phase ^= 1;
    phases.ended.notify_all();
}

inline void arrive(SharedAddress barrier, unsigned bytes = 0) {
    const std::lock_guard<std::mutex> guard(lock);
    Phases& phases = barriers_at.at(barrier);
    phases.bytes += bytes;
    --phases.missing;
    end_phase_if_complete(phases);
}

inline void arrive_with_copies(SharedAddress barrier) {
    commit_copies();
    wait_for_copies<0>();
    arrive(barrier);
}

inline void wait(SharedAddress barrier, unsigned phase) {
    std::unique_lock<std::mutex> guard(lock);
    Phases& phases = barriers_at.at(barrier);
    phases.ended.wait(guard, [&] { return phases.phase != phase; });
    for (const auto& copy : phases.boxes) copy();
    phases.boxes.clear();
}

// Barriers of some warps, by block and number. Who comes first, says how many will.
struct Meeting {
    unsigned come = 0, phase = 0;
    std::condition_variable ended;
};
inline std::map<std::pair<unsigned char*, int>, Meeting> meetings;

// With the lock. Returns the phase that the thread came to.
inline unsigned come(Meeting& meeting, unsigned threads) {
    const unsigned phase = meeting.phase;
    if (++meeting.come == threads) {
        meeting.come = 0;
        meeting.phase ^= 1;
        meeting.ended.notify_all();
    }
    return phase;
}

inline void arrive_threads(int barrier, int threads) {
    const std::lock_guard<std::mutex> guard(lock);
    come(meetings[{dynamic, barrier}], threads);
}

inline void sync_threads(int barrier, int threads) {
    std::unique_lock<std::mutex> guard(lock);
    Meeting& meeting = meetings[{dynamic, barrier}];
    const unsigned phase = come(meeting, threads);
    meeting.ended.wait(guard, [&] { return meeting.phase != phase; });
}

template <unsigned THREADS>
inline void sync_part() {
    sync_threads(1, THREADS);
}
