// kernels/include/cluster.cuh on the CPU, where the blocks of a cluster run at once.
#pragma once

#include "bulk_copy.cuh"

inline unsigned rank_in_cluster() { return running->rank; }

// Where block `rank`, which must not have ended, has what this block has at `local`.
inline SharedAddress in_block(unsigned rank, const void* local) {
    const Block& block = blocks_at_once[rank];
    if (!block.running) std::abort();
    return address_of(local) - dynamic_shared() + address_of(block.shared);
}

inline Meeting cluster_meeting;
inline Own<unsigned> cluster_phase;

inline void arrive_in_cluster() {
    *cluster_phase = cluster_meeting.arrive(blockDim.x * blocks_of_cluster);
}
inline void arrive_in_cluster_relaxed() { arrive_in_cluster(); }
inline void wait_for_cluster() { cluster_meeting.wait(*cluster_phase); }

inline void arrive_at(unsigned rank, Barrier* barrier) { arrive(in_block(rank, barrier)); }

inline void write_to_block(float* local, unsigned rank, float value) {
    *reinterpret_cast<float*>(in_block(rank, local)) = value;
}

inline void send(float4* local, Barrier* barrier, unsigned rank, const float (&value)[4]) {
    const float4 quad = {value[0], value[1], value[2], value[3]};
    const SharedAddress to = in_block(rank, local);
    copy_before(in_block(rank, barrier), sizeof(quad), [=] { store_shared(to, quad); });
}
