// What blocks of a grid tell each other through global memory. Compute capability 9.0.
#pragma once

// What another block had written before this flag can be read from now on.
__device__ inline unsigned read_flag(const unsigned* flag) {
    unsigned value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}

// After what this thread, and those that it met at a barrier, have written.
__device__ inline void write_flag(unsigned* flag, unsigned value) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

// What the counter is now. Nothing else is ordered by it. Volatile, since ptxas may drop a loop that only
// waits for a relaxed read.
__device__ inline unsigned read_now(const unsigned* counter) {
    unsigned value;
    asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
    return value;
}

// Adds to 4 elements at a multiple of 16 bytes, in L2. Nobody waits for it.
__device__ inline void add_quad(float* to, float4 quad) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(quad.x),
                 "f"(quad.y), "f"(quad.z), "f"(quad.w)
                 : "memory");
}
