// Launches that overlap (programmatic dependent launch). Compute capability 9.0.
#pragma once

// With `early_launch` in the header, blocks of a launch may begin before the launch before it has
// ended. Its results are there after this wait, and nothing may be written before.
__device__ inline void wait_for_launch_before() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Allows the next launch to begin as multiprocessors become free.
__device__ inline void allow_next_launch() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
