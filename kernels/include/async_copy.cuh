// Asynchronous copies from global to shared memory without registers (cp.async). Compute capability
// 8.0.
//
// A thread's copies since its last commit_copies() are one group. Groups complete in order.
#pragma once

// Copies BYTES bytes, 4, 8 or 16, of which the first `valid` are read; the others become zero. Both
// addresses are multiples of BYTES.
template <int BYTES>
__device__ inline void copy_async(void* shared, const void* global, int valid) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    if constexpr (BYTES == 16) {  // past the L1 cache, which has no use for tiles
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global),
                     "r"(valid)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(global),
                     "n"(BYTES), "r"(valid)
                     : "memory");
    }
}

__device__ inline void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Returns when all of this thread's groups but the PENDING newest have arrived. Other threads see
// them after a barrier.
template <int PENDING>
__device__ inline void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
