// kernels/include/bulk_copy.cuh on the CPU, as far as kernels with tensor maps need it.
#pragma once

#include "shared_address.cuh"

using Barrier = unsigned long long;

inline void initialize(Barrier* barrier, unsigned arrivals = 1) {
    initialize(address_of(barrier), arrivals);
}
inline void announce(Barrier* barrier, unsigned bytes) { arrive(address_of(barrier), bytes); }
inline void arrive(Barrier* barrier) { arrive(address_of(barrier)); }
inline void wait(Barrier* barrier, unsigned phase) { wait(address_of(barrier), phase); }

// Complete only when its barrier is waited for, as in tma.cuh.
inline void copy_bulk(void* shared, const void* global, unsigned bytes, Barrier* barrier) {
    if (address_of(shared) % 16 || size_t(global) % 16 || bytes % 16) std::abort();
    std::memset(shared, 0xff, bytes);  // NaN
    copy_before(address_of(barrier), bytes, [=] { std::memcpy(shared, global, bytes); });
}
inline void copy_bulk(void* shared, const void* global, unsigned bytes, Barrier* barrier, unsigned long long) {
    copy_bulk(shared, global, bytes, barrier);
}

inline void prefetch_bulk(const void* global, unsigned bytes, unsigned long long) {
    if (size_t(global) % 16 || bytes % 16) std::abort();
    static volatile char sink;
    for (unsigned i = 0; i < bytes; ++i) sink = static_cast<const char*>(global)[i];  // must be there
}

// A store reads shared memory as late as possible: when the thread waits for it.
inline Own<std::vector<std::function<void()>>> stores;

inline void wait_until_stores_have_read() {
    for (const auto& store : *stores) store();
    stores->clear();
}
