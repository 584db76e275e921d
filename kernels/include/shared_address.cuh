// Shared memory is addressed by 32-bit numbers. From plain pointers NVRTC computes 64-bit ones.
#pragma once

__device__ inline unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}
