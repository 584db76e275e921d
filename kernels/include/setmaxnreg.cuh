// Registers that move between warpgroups, four neighbouring warps each. Compute capability 9.0.
#pragma once

// By all threads of a warpgroup: from now on they have `count` registers each, a multiple of 8. Needs
// __launch_bounds__(threads, 1). Growing waits until another warpgroup has given enough.
template <int count>
__device__ inline void shrink_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

template <int count>
__device__ inline void grow_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}
