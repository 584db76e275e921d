// Thread block clusters: neighbouring blocks that run at the same time and can write to each other's
// shared memory. Compute capability 9.0.
//
// CLUSTER is the number of blocks. A kernel asks for them with __cluster_dims__(CLUSTER).
#pragma once

#include "bulk_copy.cuh"

__device__ inline unsigned rank_in_cluster() {
    unsigned rank;
    asm("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
    return rank;
}

// All threads of all blocks arrive; a wait returns when they have. What a thread wrote before it
// arrived is visible after the wait.
__device__ inline void arrive_in_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ inline void wait_for_cluster() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Write `value` to the place of *local in the shared memory of block `rank`.
__device__ inline void write_to_block(float* local, unsigned rank, float value) {
    unsigned remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(local)), "r"(rank));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(remote), "f"(value) : "memory");
}

__device__ inline void write_to_block(double* local, unsigned rank, double value) {
    unsigned remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(local)), "r"(rank));
    asm volatile("st.shared::cluster.f64 [%0], %1;" ::"r"(remote), "d"(value) : "memory");
}
