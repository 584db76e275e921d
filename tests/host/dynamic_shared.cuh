// kernels/include/dynamic_shared.cuh on the CPU.
#pragma once

inline thread_local unsigned char* dynamic;  // of the thread's block
inline unsigned char* dynamic_shared_memory() { return dynamic; }
