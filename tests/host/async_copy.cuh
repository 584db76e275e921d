// kernels/include/async_copy.cuh on the CPU. A copy is made as late as possible: when it is waited
// for. So a kernel that does not wait reads what was there before.
#pragma once

#define HAS_DYNAMIC_SHARED

#include <cstdlib>
#include <cstring>
#include <deque>
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

inline SharedAddress address_of(void* shared) { return static_cast<char*>(shared); }
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
