// Runs the attention kernel ENTRY of the file SOURCE. Arguments: batch, heads, kv_heads, queries, keys,
// head_size, blocks along x, the block (x y), bytes of dynamic shared memory. Q, K and V come from the
// standard input, O goes to the standard output.
#include "cuda.hpp"

#include "dynamic_shared.cuh"

#include SOURCE

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

std::vector<Input> read(size_t count) {
    std::vector<Input> numbers(count);
    if (std::fread(numbers.data(), sizeof(Input), count, stdin) != count) std::exit(2);
    return numbers;
}

int main(int, char** text) {
    int given[10];
    for (int i = 0; i < 10; ++i) given[i] = std::atoi(text[i + 1]);
    const auto [batch, heads, kv_heads, queries, keys, size, blocks, wide, high, bytes] = given;
    gridDim = {unsigned(blocks), 1, 1};
    blockDim = {unsigned(wide), unsigned(high), 1};
    const size_t of_queries = size_t(batch) * heads * queries * size;
    const size_t of_keys = size_t(batch) * kv_heads * keys * size;
    auto Q = read(of_queries), K = read(of_keys), V = read(of_keys);
    std::vector<Output> O(of_queries);
    std::memset(static_cast<void*>(O.data()), 0xff, of_queries * sizeof(Output));  // NaN

    const unsigned threads = blockDim.x * blockDim.y;
    pthread_barrier_t barrier, all;
    pthread_barrier_init(&barrier, nullptr, threads);
    pthread_barrier_init(&all, nullptr, threads);
    std::vector<Warp> warps(threads / 32);
    for (auto& warp : warps) pthread_barrier_init(&warp.barrier, nullptr, 32);
    void* memory;
    if (posix_memalign(&memory, 128, max(bytes, 16))) std::exit(2);
    const auto run = [&](unsigned thread) {
        block_barrier = &barrier;
        warp = &warps[thread / 32];
        dynamic = static_cast<unsigned char*>(memory);
        threadIdx = {thread % blockDim.x, thread / blockDim.x, 0};
        for (unsigned block = 0; block < gridDim.x; ++block) {
            blockIdx = {block, 0, 0};
            pthread_barrier_wait(&all);
            ENTRY(given[0], given[1], given[2], given[3], given[4], given[5], Q.data(), K.data(), V.data(),
                  O.data());
            pthread_barrier_wait(&all);
        }
    };
    std::vector<std::thread> running;
    for (unsigned thread = 0; thread < threads; ++thread) running.emplace_back(run, thread);
    for (auto& one : running) one.join();
    std::free(memory);
    std::fwrite(O.data(), sizeof(Output), of_queries, stdout);
}
