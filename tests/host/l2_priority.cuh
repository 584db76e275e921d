// kernels/include/l2_priority.cuh on the CPU, without policies.
#pragma once

inline unsigned long long evict_last() { return 0; }
inline unsigned long long evict_first() { return 0; }
