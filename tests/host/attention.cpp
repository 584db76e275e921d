// Runs the attention kernel ENTRY of the file SOURCE. Arguments: batch, heads, kv_heads, queries, keys,
// head_size, blocks along x, the block (x y), bytes of dynamic shared memory, blocks of a cluster. Q, K and
// V come from the standard input, O goes to the standard output.
#include "cuda.hpp"

#include SOURCE

#include <cstdio>
#include <cstdlib>
#include <vector>

std::vector<Input> read(size_t count) {
    std::vector<Input> numbers(count);
    if (std::fread(numbers.data(), sizeof(Input), count, stdin) != count) std::exit(2);
    return numbers;
}

int main(int, char** text) {
    int given[11];
    for (int i = 0; i < 11; ++i) given[i] = std::atoi(text[i + 1]);
    const auto [batch, heads, kv_heads, queries, keys, size, blocks, wide, high, bytes, cluster] = given;
    gridDim = {unsigned(blocks), 1, 1};
    blockDim = {unsigned(wide), unsigned(high), 1};
    const size_t of_queries = size_t(batch) * heads * queries * size;
    const size_t of_keys = size_t(batch) * kv_heads * keys * size;
    auto Q = read(of_queries), K = read(of_keys), V = read(of_keys);
    std::vector<Output> O(of_queries);
    std::memset(static_cast<void*>(O.data()), 0xff, of_queries * sizeof(Output));  // NaN
    run_blocks(cluster, max(bytes, 16), [&] {
        ENTRY(given[0], given[1], given[2], given[3], given[4], given[5], Q.data(), K.data(), V.data(),
              O.data());
    });
    std::fwrite(O.data(), sizeof(Output), of_queries, stdout);
}
