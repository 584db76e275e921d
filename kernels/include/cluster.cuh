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

// The same for barriers only, which their initialization makes visible.
__device__ inline void arrive_in_cluster_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
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

// On the barrier at the same place in block `rank` of the cluster.
__device__ inline void arrive_at(unsigned rank, Barrier* barrier) {
    asm volatile(
        "{\n"
        ".reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
        "}" ::"r"(shared_address(barrier)),
        "r"(rank)
        : "memory");
}

// Write to the place of *local in the shared memory of block `rank`. The barrier at the place of
// *barrier there counts the bytes, and whoever waits for it sees them.
__device__ inline void send(float4* local, Barrier* barrier, unsigned rank, const float (&value)[4]) {
    asm volatile(
        "{\n"
        ".reg .b32 remote, remote_barrier;\n"
        "mapa.shared::cluster.u32 remote, %0, %2;\n"
        "mapa.shared::cluster.u32 remote_barrier, %1, %2;\n"
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
        "[remote], {%3, %4, %5, %6}, [remote_barrier];\n"
        "}" ::"r"(shared_address(local)),
        "r"(shared_address(barrier)), "r"(rank), "f"(value[0]), "f"(value[1]), "f"(value[2]),
        "f"(value[3])
        : "memory");
}
