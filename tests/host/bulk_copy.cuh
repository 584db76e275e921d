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

inline void prefetch_bulk(const void* global, unsigned bytes, unsigned long long) {
    if (size_t(global) % 16 || bytes % 16) std::abort();
    static volatile char sink;
    for (unsigned i = 0; i < bytes; ++i) sink = static_cast<const char*>(global)[i];  // must be there
}

// A store reads shared memory as late as possible: when the thread waits for it.
inline thread_local std::vector<std::function<void()>> stores;

inline void wait_until_stores_have_read() {
    for (const auto& store : stores) store();
    stores.clear();
}
