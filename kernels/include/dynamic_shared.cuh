// Dynamic shared memory.
#pragma once

// Where it begins, a multiple of 128.
__device__ inline unsigned char* dynamic_shared_memory() {
    extern __shared__ __align__(128) unsigned char memory[];
    return memory;
}
