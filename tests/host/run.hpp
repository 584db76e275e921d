// Runs the blocks of a kernel on threads of the CPU, one cluster after the other. It is included after the
// kernel's source, which says what it needs.
#pragma once

#include <sched.h>

#include <cstdlib>
#include <thread>
#include <vector>

#ifdef HAS_CLUSTERS
inline void begin_block(unsigned rank, unsigned threads) {
    const std::lock_guard<std::mutex> guard(lock);
    cluster_blocks[rank].running = threads;
}
inline void end_thread(unsigned rank) {
    const std::lock_guard<std::mutex> guard(lock);
    --cluster_blocks[rank].running;
}
#else
inline void begin_block(unsigned, unsigned) {}
inline void end_thread(unsigned) {}
#endif

// On one CPU hundreds of threads seldom wait for each other's locks, and end sooner than on several.
// ThreadSanitizer sees more if they run at once.
inline void stay_on_this_cpu() {
#ifndef __SANITIZE_THREAD__
    cpu_set_t here;
    CPU_ZERO(&here);
    CPU_SET(sched_getcpu(), &here);
    sched_setaffinity(0, sizeof(here), &here);
#endif
}

// A block has the threads of blockDim and `bytes` of dynamic shared memory; `kernel` is called by each
// thread of each block of gridDim.
template <class Kernel>
void run_blocks(unsigned cluster, size_t bytes, Kernel kernel) {
    stay_on_this_cpu();
    const unsigned threads = blockDim.x * blockDim.y;
    std::vector<pthread_barrier_t> block_barriers(cluster);
    for (auto& barrier : block_barriers) pthread_barrier_init(&barrier, nullptr, threads);
    std::vector<Warp> warps(cluster * ((threads + 31) / 32));
    for (auto& warp : warps) pthread_barrier_init(&warp.barrier, nullptr, 32);
    pthread_barrier_t all;
    pthread_barrier_init(&all, nullptr, cluster * threads);
    std::vector<void*> shared(cluster);
    for (auto& memory : shared) {
        if (posix_memalign(&memory, 1024, bytes)) std::exit(2);
#ifdef HAS_CLUSTERS
        cluster_blocks.push_back({static_cast<unsigned char*>(memory), 0});
#endif
    }

    const auto run = [&](unsigned rank, unsigned thread) {
        block_barrier = &block_barriers[rank];
        warp = &warps[rank * ((threads + 31) / 32) + thread / 32];
        threadIdx = {thread % blockDim.x, thread / blockDim.x, 0};
#ifdef HAS_DYNAMIC_SHARED
        dynamic = static_cast<unsigned char*>(shared[rank]);
#endif
#ifdef HAS_CLUSTERS
        own_rank = rank;
#endif
        for (unsigned block = rank; block < gridDim.x * gridDim.y * gridDim.z; block += cluster) {
            blockIdx = {block % gridDim.x, block / gridDim.x % gridDim.y,
                        block / gridDim.x / gridDim.y};
            begin_block(rank, threads);
            pthread_barrier_wait(&all);
            kernel();
            end_thread(rank);
            pthread_barrier_wait(&all);
        }
    };
    std::vector<std::thread> running;
    for (unsigned rank = 0; rank < cluster; ++rank) {
        for (unsigned thread = 0; thread < threads; ++thread) running.emplace_back(run, rank, thread);
    }
    for (auto& one : running) one.join();
    for (void* memory : shared) std::free(memory);
}
