// kernels/include/dynamic_shared.cuh on the CPU.
#pragma once

#include "async_copy.cuh"

inline unsigned char* dynamic_shared_memory() { return running->dynamic; }
