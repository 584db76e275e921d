// Cache policies, and loads whose lines the L2 cache evicts last. From compute capability 8.0 on.
#pragma once

__device__ inline unsigned long long evict_last() {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ inline unsigned long long evict_first() {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// 16 bytes from `address` if it is `inside`, else `fill`. No thread may write the data during the
// launch. The predicate is part of the assembly, so that the compiler sees no branch: it would move
// a vector's conversions into the branch, and each load would wait for the one before.
__device__ inline uint4 load_evict_last(const void* address, bool inside, uint4 fill) {
    asm("{\n"
        ".reg .pred inside;\n"
        "setp.ne.u32 inside, %5, 0;\n"
        "@inside ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %6;\n"
        "}"
        : "+r"(fill.x), "+r"(fill.y), "+r"(fill.z), "+r"(fill.w)
        : "l"(address), "r"(static_cast<unsigned>(inside)), "l"(evict_last()));
    return fill;
}

// The same without a place in the L1 cache, for data that one thread reads once.
__device__ inline uint4 load_once_evict_last(const void* address, bool inside, uint4 fill) {
    asm("{\n"
        ".reg .pred inside;\n"
        "setp.ne.u32 inside, %5, 0;\n"
        "@inside ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %6;\n"
        "}"
        : "+r"(fill.x), "+r"(fill.y), "+r"(fill.z), "+r"(fill.w)
        : "l"(address), "r"(static_cast<unsigned>(inside)), "l"(evict_last()));
    return fill;
}
