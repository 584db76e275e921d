// Asynchronous copies from global to shared memory without registers (cp.async), barriers, and shared
// memory by its 32-bit addresses. Compute capability 8.0.
//
// A thread's copies since its last commit_copies() are one group. Groups complete in order.
#pragma once

// In bytes. NVRTC computes with 64-bit pointers to shared memory; this address takes half the
// registers and instructions.
using SharedAddress = unsigned;

__device__ inline SharedAddress address_of(const void* shared) {
    return static_cast<SharedAddress>(__cvta_generic_to_shared(shared));
}

// Where dynamic shared memory begins, a multiple of 16.
__device__ inline SharedAddress dynamic_shared() {
    extern __shared__ __align__(16) unsigned char bytes[];
    return address_of(bytes);
}

// Copies BYTES bytes, 4, 8 or 16, of which the first `valid` are read; the others become zero. Both
// addresses are multiples of BYTES.
template <int BYTES>
__device__ inline void copy_async(SharedAddress shared, const void* global, int valid = BYTES) {
    if constexpr (BYTES == 16) {  // past the L1 cache, which has no use for tiles
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                     "r"(valid)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global),
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

// 16 bytes from and to shared memory.
__device__ inline float4 load_shared(SharedAddress address) {
    float4 quad;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(quad.x), "=f"(quad.y), "=f"(quad.z), "=f"(quad.w)
                 : "r"(address));
    return quad;
}

__device__ inline void store_shared(SharedAddress address, float4 quad) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(quad.x),
                 "f"(quad.y), "f"(quad.z), "f"(quad.w)
                 : "memory");
}

// A barrier in shared memory, 8 bytes at a multiple of 8. It counts arrivals; when all of them have
// come, its phase ends and the next one begins. Phases are numbered 0, 1, 0, 1, ...

// By one thread. A __syncthreads() must follow before another thread uses the barrier.
__device__ inline void initialize(SharedAddress barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ inline void arrive(SharedAddress barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives as soon as all earlier copies of this thread have.
__device__ inline void arrive_with_copies(SharedAddress barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Returns when the phase has ended.
__device__ inline void wait(SharedAddress barrier, unsigned phase) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "AGAIN:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra AGAIN;\n"
        "}" ::"r"(barrier),
        "r"(phase)
        : "memory");
}

// A barrier of some of the block's warps.
template <unsigned THREADS>
__device__ inline void sync_part() {
    asm volatile("barrier.sync 1, %0;" ::"n"(THREADS) : "memory");
}
