// Copies of boxes by the copy engine (TMA) between operands and shared memory. Compute capability 9.0.
//
// A header's `tensor_maps` make the descriptors: they take the place of the operands' pointers. Rows
// and columns are those of the operand as it is stored.
#pragma once

#include "bulk_copy.cuh"

// A CUtensorMap. It must be a `const __grid_constant__` parameter.
struct alignas(64) TensorMap {
    char opaque[128];
};

// Where dynamic shared memory begins, a multiple of 1024, as tiles that TMA permutes need it.
__device__ inline unsigned char* dynamic_shared_tiles() {
    extern __shared__ __align__(1024) unsigned char tiles[];
    return tiles;
}

// Before its first use, so that the use does not wait for it.
__device__ inline void prefetch(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// The box that begins at element (row, column). What is outside the operand arrives as zeros, and
// counts as bytes of the barrier.
__device__ inline void copy_box(void* shared, const TensorMap& map, int row, int column,
                                Barrier* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(shared)),
        "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier))
        : "memory");
}

// The same for an operand of several matrices.
__device__ inline void copy_box(void* shared, const TensorMap& map, int matrix, int row, int column,
                                Barrier* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(shared)),
        "l"(&map), "r"(column), "r"(row), "r"(matrix), "r"(shared_address(barrier))
        : "memory");
}

// The same as the first with a cache policy, such as those of l2_priority.cuh.
__device__ inline void copy_box(void* shared, const TensorMap& map, int row, int column,
                                Barrier* barrier, unsigned long long policy) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(shared)),
        "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier)), "l"(policy)
        : "memory");
}

// The same for each block of the cluster whose bit is set in `blocks`: to the same place, counted by
// that block's barrier.
__device__ inline void copy_box_to(unsigned short blocks, void* shared, const TensorMap& map, int row,
                                   int column, Barrier* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(shared)),
        "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier)), "h"(blocks)
        : "memory");
}

// From shared memory to the operand; nothing is written outside of it.
__device__ inline void store_box(const TensorMap& map, int row, int column, const void* shared) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
                     &map),
                 "r"(column), "r"(row), "r"(shared_address(shared))
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Orders this thread's writes to shared memory before later reads by TMA. A barrier must follow.
__device__ inline void publish_to_tma() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
