// Bulk copies between global and shared memory, and the barriers that count their bytes. Compute
// capability 9.0.
//
// One thread starts a copy of any length; the copy engine (TMA) does the rest without registers or
// further instructions. A barrier's phase completes when the announced bytes have arrived. Phases
// are numbered 0, 1, 0, 1, …; a wait names its phase. On a new barrier a wait for phase 1 returns at once,
// as if that phase had just ended.
#pragma once

#include "shared_address.cuh"

using Barrier = unsigned long long;  // in shared memory

// By one thread: a phase needs `arrivals`. A __syncthreads() must follow before another thread uses the barrier.
__device__ inline void initialize(Barrier* barrier, unsigned arrivals = 1) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(arrivals)
                 : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// By one thread, once per phase: its one arrival, after which the phase completes when `bytes` have come. It
// also makes this thread's earlier writes to shared memory visible to the waiting threads.
__device__ inline void announce(Barrier* barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}

__device__ inline void arrive(Barrier* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Addresses and `bytes` are multiples of 16.
__device__ inline void copy_bulk(void* shared, const void* global, unsigned bytes, Barrier* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(shared)),
        "l"(global), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

// The same with a cache policy, such as that of l2_priority.cuh.
__device__ inline void copy_bulk(void* shared, const void* global, unsigned bytes, Barrier* barrier,
                                 unsigned long long policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(shared)),
        "l"(global), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
        : "memory");
}

__device__ inline void wait(Barrier* barrier, unsigned phase) {
    unsigned done;
    do {
        asm volatile(
            "{\n"
            ".reg .pred done;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
            "selp.u32 %0, 1, 0, done;\n"
            "}"
            : "=r"(done)
            : "r"(shared_address(barrier)), "r"(phase)
            : "memory");
    } while (!done);
}

// Bytes of dynamic shared memory per block of this launch.
__device__ inline unsigned dynamic_shared_bytes() {
    unsigned bytes;
    asm("mov.u32 %0, %dynamic_smem_size;" : "=r"(bytes));
    return bytes;
}

// Asks L2 for `bytes` from `global`, multiples of 16, with a cache policy.
__device__ inline void prefetch_bulk(const void* global, unsigned bytes, unsigned long long policy) {
    asm volatile("cp.async.bulk.prefetch.L2.global.L2::cache_hint [%0], %1, %2;" ::"l"(global), "r"(bytes),
                 "l"(policy)
                 : "memory");
}

// From shared into global memory. Addresses and `bytes` are multiples of 16.
__device__ inline void store_bulk(void* global, const void* shared, unsigned bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
                 "r"(shared_address(shared)), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// By the thread that started the stores: returns once all of them have read shared memory.
__device__ inline void wait_until_stores_have_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
