// kernels/include/shared_address.cuh on the CPU.
#pragma once

#include "async_copy.cuh"

inline SharedAddress shared_address(const void* shared) { return address_of(shared); }
