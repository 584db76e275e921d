// kernels/include/warpgroup.cuh on the CPU. Products are computed as late as possible: when they are
// waited for. So a kernel that gives a stage back too early, or reads sums too early, is wrong. Tensor
// cores' narrower sums and TF32's shorter numbers are not imitated.
#pragma once

#include "gemm.cuh"
#include "tma.cuh"

constexpr int ROW_BYTES = 128;
constexpr int TILE_K = ROW_BYTES / sizeof(Input);
constexpr int WARPGROUP = 128;
constexpr int PRODUCTS = ROW_BYTES / 32;
constexpr int PRODUCT_K = 32 / sizeof(Input);

template <int count>
inline void shrink_registers() {}
template <int count>
inline void grow_registers() {}

// In pieces of 16 bytes, as on the GPU, where adding to it moves along K.
constexpr unsigned long long ACROSS = 1ull << 62;
inline unsigned long long descriptor(const void* tile) { return address_of(tile) / 16; }
inline unsigned long long descriptor_across(const void* tile) { return descriptor(tile) | ACROSS; }

inline Input element_at(SharedAddress at) {
    return *reinterpret_cast<const Input*>(at ^ at / 128 % 8 * 16);
}

// Element k of a row of a tile whose rows lie along K, or of column `row` of one whose rows lie across.
inline float element_of(unsigned long long tile, int row, int k) {
    const SharedAddress start = (tile & ~ACROSS) * 16;
    if (!(tile & ACROSS)) return element_at(start + row * ROW_BYTES + k * sizeof(Input));
    return element_at(start + row / TILE_K * TILE_K * ROW_BYTES + k * ROW_BYTES +
                      row % TILE_K * sizeof(Input));
}

// 64 rows of A times rows of B. Each thread has some of the sums.
struct Product {
    unsigned long long a, b;
    bool add;
    int registers;
    float* sums[WARPGROUP];

    void compute() const {
        const int columns = 2 * registers;
        std::vector<float> rows_a, rows_b;
        for (int i = 0; i < 64 * PRODUCT_K; ++i) {
            rows_a.push_back(element_of(a, i / PRODUCT_K, i % PRODUCT_K));
        }
        for (int i = 0; i < columns * PRODUCT_K; ++i) {
            rows_b.push_back(element_of(b, i / PRODUCT_K, i % PRODUCT_K));
        }
        for (int thread = 0; thread < WARPGROUP; ++thread) {
            for (int i = 0; i < registers; ++i) {
                const int row = thread / 32 * 16 + thread % 32 / 4 + i % 4 / 2 * 8;
                const int column = thread % 4 * 2 + i / 4 * 8 + i % 2;
                float sum = add ? sums[thread][i] : 0;
                for (int k = 0; k < PRODUCT_K; ++k) {
                    sum += rows_a[row * PRODUCT_K + k] * rows_b[column * PRODUCT_K + k];
                }
                sums[thread][i] = sum;
            }
        }
    }
};

// What a warpgroup commits together. It can be computed when all threads have committed it.
struct Group {
    std::vector<Product> products;
    int threads = 0;
    bool begun = false, done = false;
    std::condition_variable changed;
};
inline std::map<std::pair<unsigned char*, unsigned>, std::deque<Group>> groups_of;
inline thread_local unsigned group, product;  // the next one of this thread

// With the lock.
inline std::deque<Group>& own_groups() { return groups_of[{dynamic, threadIdx.x / WARPGROUP}]; }

inline Group& open_group() {
    if (own_groups().size() <= group) own_groups().emplace_back();
    return own_groups()[group];
}

inline void begin_products() {}

inline void commit_products() {
    const std::lock_guard<std::mutex> guard(lock);
    if (++open_group().threads == WARPGROUP) own_groups()[group].changed.notify_all();
    ++group;
    product = 0;
}

template <int pending>
inline void wait_for_products() {
    std::unique_lock<std::mutex> guard(lock);
    for (unsigned i = 0; i + pending < group; ++i) {
        Group& one = own_groups()[i];
        one.changed.wait(guard, [&] { return one.threads == WARPGROUP; });
        if (!one.begun) {
            one.begun = true;
            guard.unlock();
            for (const Product& product : one.products) product.compute();
            guard.lock();
            one.products.clear();
            one.done = true;
            one.changed.notify_all();
        }
        one.changed.wait(guard, [&] { return one.done; });
    }
}

template <int registers>
inline void multiply(float (&sums)[registers], unsigned long long a, unsigned long long b, bool add) {
    const std::lock_guard<std::mutex> guard(lock);
    auto& products = open_group().products;
    if (products.size() <= product) products.push_back({a, b, add, registers, {}});
    const Product& same = products[product];
    if (same.a != a || same.b != b || same.add != add || same.registers != registers) std::abort();
    products[product++].sums[threadIdx.x % WARPGROUP] = sums;
}

inline void store_matrices(SharedAddress row, const unsigned (&from)[4]) {
    const unsigned lane = threadIdx.x % 32;
    warp->addresses[lane] = row;
    __syncwarp();
    for (int matrix = 0; matrix < 4; ++matrix) {
        const SharedAddress to = warp->addresses[matrix * 8 + lane / 4] + lane % 4 * 4;
        *reinterpret_cast<unsigned*>(to) = from[matrix];
    }
    __syncwarp();
}

inline void store_pair(SharedAddress to, float x, float y) {
    float* pair = reinterpret_cast<float*>(to);
    pair[0] = x;
    pair[1] = y;
}
