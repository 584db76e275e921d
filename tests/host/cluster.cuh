// kernels/include/cluster.cuh on the CPU, where the blocks of a cluster run at once.
#pragma once

#define HAS_CLUSTERS

#include "bulk_copy.cuh"

struct Block {
    unsigned char* shared;  // where its dynamic shared memory begins
    unsigned running;       // threads that have not ended
};
inline std::vector<Block> cluster_blocks;
inline thread_local unsigned own_rank;
inline unsigned rank_in_cluster() { return own_rank; }

// With the lock: where block `rank`, which must not have ended, has what this block has at `local`.
inline SharedAddress in_block(unsigned rank, const void* local) {
    const Block& block = cluster_blocks.at(rank);
    if (!block.running) std::abort();
    return address_of(local) - address_of(dynamic) + address_of(block.shared);
}

inline Meeting cluster_meeting;
inline thread_local unsigned cluster_phase;

inline void arrive_in_cluster() {
    const std::lock_guard<std::mutex> guard(lock);
    cluster_phase = come(cluster_meeting, blockDim.x * cluster_blocks.size());
}
inline void arrive_in_cluster_relaxed() { arrive_in_cluster(); }
inline void wait_for_cluster() {
    std::unique_lock<std::mutex> guard(lock);
    cluster_meeting.ended.wait(guard, [] { return cluster_meeting.phase != cluster_phase; });
}

inline void arrive_at(unsigned rank, Barrier* barrier) {
    const std::lock_guard<std::mutex> guard(lock);
    Phases& phases = barriers_at.at(in_block(rank, barrier));
    --phases.missing;
    end_phase_if_complete(phases);
}

inline void write_to_block(float* local, unsigned rank, float value) {
    const std::lock_guard<std::mutex> guard(lock);
    *reinterpret_cast<float*>(in_block(rank, local)) = value;
}

inline void send(float4* local, Barrier* barrier, unsigned rank, const float (&value)[4]) {
    const float4 quad = {value[0], value[1], value[2], value[3]};
    const std::lock_guard<std::mutex> guard(lock);
    const SharedAddress to = in_block(rank, local);
    Phases& phases = barriers_at.at(in_block(rank, barrier));
    phases.boxes.push_back([=] { store_shared(to, quad); });
    phases.bytes -= long(sizeof(quad));
    end_phase_if_complete(phases);
}
