// Runs the kernel ENTRY of the file SOURCE. Arguments: M N K alpha beta batch, the grid (x y z), the
// block (x y), bytes of dynamic shared memory. A, B and C come from the standard input, C goes to the
// standard output. With BOX_A and BOX_B (rows, columns and swizzle) it takes tensor maps.
#include "cuda.hpp"

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
    const int M = std::atoi(text[1]), N = std::atoi(text[2]), K = std::atoi(text[3]);
    const float alpha = std::atof(text[4]), beta = std::atof(text[5]);
    const size_t batch = std::atoi(text[6]);
    const auto number = [&](int i) { return unsigned(std::atoi(text[i])); };
    gridDim = {number(7), number(8), number(9)};
    const unsigned width = number(10), threads = width * number(11);
    const auto A = read(batch * M * K), B = read(batch * K * N);
    auto C = read(batch * M * N);

#ifdef BOX_A
    const TensorMap a{A.data(), transpose_a ? K : M, transpose_a ? M : K, BOX_A};
    const TensorMap b{B.data(), transpose_b ? N : K, transpose_b ? K : N, BOX_B};
#else
    const Input *const a = A.data(), *const b = B.data();
#endif

#ifdef HAS_DYNAMIC_SHARED
    void* bytes;
    if (posix_memalign(&bytes, 1024, number(12))) std::exit(2);
    dynamic = static_cast<unsigned char*>(bytes);
#endif

    pthread_barrier_init(&block_barrier, nullptr, threads);
    std::vector<pthread_barrier_t> warps((threads + 31) / 32);
    for (auto& warp : warps) pthread_barrier_init(&warp, nullptr, 32);
    const auto run = [&](unsigned thread) {
        warp_barrier = &warps[thread / 32];
        threadIdx = {thread % width, thread / width, 0};
        for (unsigned block = 0; block < gridDim.x * gridDim.y * gridDim.z; ++block) {
            blockIdx = {block % gridDim.x, block / gridDim.x % gridDim.y,
                        block / gridDim.x / gridDim.y};
            ENTRY(M, N, K, alpha, a, b, beta, C.data());
            __syncthreads();
        }
    };
    std::vector<std::thread> block;
    for (unsigned thread = 0; thread < threads; ++thread) block.emplace_back(run, thread);
    for (auto& one : block) one.join();
#ifdef HAS_DYNAMIC_SHARED
    std::free(dynamic);
#endif
    std::fwrite(C.data(), sizeof(Input), C.size(), stdout);
}
