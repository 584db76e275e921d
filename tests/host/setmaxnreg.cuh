// kernels/include/setmaxnreg.cuh on the CPU.
#pragma once

template <int count>
inline void shrink_registers() {}
template <int count>
inline void grow_registers() {}
