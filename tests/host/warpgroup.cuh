// kernels/include/warpgroup.cuh on the CPU. Products are computed as late as possible: when they are
// waited for. So a kernel that gives a stage back, writes to registers of rows or reads sums too early, is
// wrong. Tensor cores' narrower sums are not imitated, and TF32's shorter numbers only for fp32_3xtf32.
#pragma once

#include "gemm.cuh"
#include "setmaxnreg.cuh"
#include "tma.cuh"

constexpr int ROW_BYTES = 128;
constexpr int TILE_K = ROW_BYTES / sizeof(Input);
constexpr int WARPGROUP = 128;
constexpr int PRODUCTS_PER_STAGE = ROW_BYTES / 32;
constexpr int PRODUCT_K = 32 / sizeof(Input);

inline bool elected() { return threadIdx.x % 32 == 0; }
inline int of_first_lane(int value) { return value; }  // whose other lanes have the same, or end

inline bool is_last(unsigned* count, unsigned all) {
    *count = (*count + 1) % all;
    return *count == 0;
}

// In pieces of 16 bytes, as on the GPU, where adding to it moves along K.
constexpr unsigned long long ACROSS = 1ull << 62;
inline unsigned long long descriptor(const void* tile) { return address_of(tile) / 16; }
inline unsigned long long descriptor_across(const void* tile) { return descriptor(tile) | ACROSS; }

// What tensor cores see of a number.
inline float seen(float number) {
#ifdef ROOFLAB_PRECISION_FP32_3XTF32
    return __uint_as_float(__float_as_uint(number) & 0xffffe000);
#else
    return number;
#endif
}

inline float element_at(SharedAddress at) {
    return seen(widen(*reinterpret_cast<const Input*>(at ^ at / 128 % 8 * 16)));
}

// Element k of a row of a tile whose rows lie along K, or of column `row` of one whose rows lie across.
inline float element_of(unsigned long long tile, int row, int k) {
    const SharedAddress start = (tile & ~ACROSS) * 16;
    if (!(tile & ACROSS)) return element_at(start + row * ROW_BYTES + k * sizeof(Input));
    return element_at(start + row / TILE_K * TILE_K * ROW_BYTES + k * ROW_BYTES +
                      row % TILE_K * sizeof(Input));
}

// 64 rows of A times rows of B, of PRODUCT_K numbers each. Its places are right by construction, and
// most of the time is spent here.
__attribute__((no_sanitize("address", "thread", "undefined"), optimize("O3"))) inline void add_products(
    const float* rows_a, const float* rows_b, int registers, bool add, float* const* sums) {
    for (int thread = 0; thread < WARPGROUP; ++thread) {
        for (int i = 0; i < registers; ++i) {
            const float* a = rows_a + (thread / 32 * 16 + thread % 32 / 4 + i % 4 / 2 * 8) * PRODUCT_K;
            const float* b = rows_b + (thread % 4 * 2 + i / 4 * 8 + i % 2) * PRODUCT_K;
            float sum = add ? sums[thread][i] : 0;
            for (int k = 0; k < PRODUCT_K; ++k) sum += a[k] * b[k];
            sums[thread][i] = sum;
        }
    }
}

// 64 rows of A times rows of B. Each thread has some of the sums.
struct Product {
    unsigned long long a;  // 0 if the rows are in registers
    unsigned long long b;
    bool add;
    int registers;
    float* sums[WARPGROUP];
    const unsigned* held[WARPGROUP];  // four registers of rows

    // By places of 4 bytes.
    float held_element(int row, int k) const {
        constexpr int each = 4 / sizeof(Input);
        const int place = k / each, thread = row / 16 * 32 + row % 8 * 4 + place % 4;
        Input elements[each];
        std::memcpy(elements, &held[thread][row / 8 % 2 + place / 4 * 2], sizeof(elements));
        return seen(widen(elements[k % each]));
    }

    void compute() {
        const int columns = 2 * registers;
        std::vector<float> rows_a, rows_b;
        for (int i = 0; i < 64 * PRODUCT_K; ++i) {
            const int row = i / PRODUCT_K, k = i % PRODUCT_K;
            rows_a.push_back(a ? element_of(a, row, k) : held_element(row, k));
        }
        for (int i = 0; i < columns * PRODUCT_K; ++i) {
            rows_b.push_back(element_of(b, i / PRODUCT_K, i % PRODUCT_K));
        }
        add_products(rows_a.data(), rows_b.data(), registers, add, sums);
    }
};

// What a warpgroup commits together. It can be computed when all threads have committed it.
struct Group {
    std::vector<Product> products;
    int threads = 0;
    Waiting committed;
};
inline std::deque<Group> groups_of[MOST_BLOCKS_AT_ONCE][8];  // block, warpgroup
inline Own<unsigned> group, product;  // the next one of this thread
inline Own<unsigned> oldest;          // its first group that may not be done

inline std::deque<Group>& own_groups() { return groups_of[running->rank][threadIdx.x / WARPGROUP]; }

inline Group& open_group() {
    if (own_groups().size() <= *group) own_groups().emplace_back();
    return own_groups()[*group];
}

inline void begin_products() {}

inline void commit_products() {
    if (++open_group().threads == WARPGROUP) open_group().committed.tell();
    ++*group;
    *product = 0;
}

template <int pending>
inline void wait_for_products() {
    for (; *oldest + pending < *group; ++*oldest) {
        Group& one = own_groups()[*oldest];
        one.committed.until([&] { return one.threads == WARPGROUP; });
        for (Product& product : one.products) product.compute();  // by the first one
        one.products.clear();
    }
}

inline void compute_before_waiting(float value, float* unused) { *unused = value; }

// The product that all threads of the warpgroup begin with the same arguments.
template <int registers>
inline Product& begin_product(float (&sums)[registers], unsigned long long a, unsigned long long b,
                              bool add) {
    auto& products = open_group().products;
    if (products.size() <= *product) products.push_back({a, b, add, registers, {}, {}});
    Product& same = products[(*product)++];
    if (same.a != a || same.b != b || same.add != add || same.registers != registers) std::abort();
    same.sums[threadIdx.x % WARPGROUP] = sums;
    return same;
}

template <int registers>
inline void multiply(float (&sums)[registers], unsigned long long a, unsigned long long b, bool add) {
    begin_product(sums, a, b, add);
}

template <int registers>
inline void multiply(float (&sums)[registers], const unsigned (&a)[4], unsigned long long b, bool add) {
    Product& product = begin_product(sums, 0, b, add);
    product.held[threadIdx.x % WARPGROUP] = a;
}

// Where a lane finds its 4 bytes of a matrix, by the addresses of rows that all lanes have given.
inline unsigned& word_of(const SharedAddress (&rows)[32], int lane, int matrix) {
    return *reinterpret_cast<unsigned*>(rows[matrix * 8 + lane / 4] + lane % 4 * 4);
}

inline void load_matrices(unsigned (&to)[4], SharedAddress row) {
    const unsigned lane = threadIdx.x % 32;
    Warp& warp = *running->warp;
    warp.addresses[lane] = row;
    __syncwarp();
    for (int matrix = 0; matrix < 4; ++matrix) to[matrix] = word_of(warp.addresses, lane, matrix);
    __syncwarp();
}

// A store is made when all lanes have come to it. None waits for that: it would take most of the time.
struct Store {
    int lanes = 0;
    SharedAddress rows[32];
    unsigned words[32][4];

    // Element i of the row of 8 that lane `row` holds a quarter of, in matrix `matrix`.
    unsigned short element(int matrix, int row, int i) const {
        return words[row * 4 + i / 2][matrix] >> i % 2 * 16 & 0xffff;
    }
    void make(bool transposed) const {
        for (int i = 0; i < 4 * 64; ++i) {
            const int matrix = i / 64, row = i / 8 % 8, column = i % 8;
            reinterpret_cast<unsigned short*>(rows[matrix * 8 + row])[column] =
                transposed ? element(matrix, column, row) : element(matrix, row, column);
        }
    }
};
struct Stores {
    unsigned made = 0;
    std::vector<Store> open;
};
inline Stores stores_of[MOST_THREADS / 32];  // warp
inline Own<unsigned> stores_begun;

inline void store_matrices(SharedAddress row, const unsigned (&from)[4], bool transposed = false) {
    Stores& stores = stores_of[running->number / 32];
    const unsigned lane = threadIdx.x % 32, place = (*stores_begun)++ - stores.made;
    if (stores.open.size() <= place) stores.open.emplace_back();
    Store& store = stores.open[place];
    store.rows[lane] = row;
    std::copy(from, from + 4, store.words[lane]);
    if (++store.lanes < 32) return;
    store.make(transposed);
    stores.open.erase(stores.open.begin());  // the oldest: each lane comes to it first
    ++stores.made;
}

inline void store_transposed(SharedAddress row, const unsigned (&from)[4]) { store_matrices(row, from, true); }

inline void store_pair(SharedAddress to, float x, float y) {
    float* pair = reinterpret_cast<float*>(to);
    pair[0] = x;
    pair[1] = y;
}
