// kernels/include/l2_priority.cuh on the CPU, without policies.
#pragma once

inline unsigned long long evict_last() { return 0; }
inline unsigned long long evict_first() { return 0; }

inline uint4 load_evict_last(const void* from, bool inside, uint4 otherwise) {
    return inside ? *static_cast<const uint4*>(from) : otherwise;
}
inline uint4 load_once_evict_last(const void* from, bool inside, uint4 otherwise) {
    return load_evict_last(from, inside, otherwise);
}
