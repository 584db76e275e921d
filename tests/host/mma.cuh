// kernels/include/mma.cuh on the CPU, for FP16 and FP8. A warp's lanes tell each other what they hold. Copies
// are made when they are waited for.
#pragma once

#include <cuda_fp8.h>

#include "shared_address.cuh"
#include "types.cuh"

template <int BYTES>
inline void copy_async(SharedAddress to, const void* from, bool inside) {
    copy_async<BYTES>(to, from, inside ? BYTES : 0);
}
inline void copy_commit() { commit_copies(); }
template <int PENDING>
inline void copy_wait() {
    wait_for_copies<PENDING>();
}

inline int lane_of_warp() { return threadIdx.x % 32; }

// A lane has row l / 4 of each matrix, 4 bytes at l % 4, or the same of the transposed matrix.
inline void load(unsigned (&to)[4], SharedAddress row, bool transposed) {
    const int lane = lane_of_warp(), group = lane / 4, place = lane % 4;
    if (row % 16) std::abort();
    const SharedAddress* rows = running->warp->addresses;
    running->warp->addresses[lane] = row;
    __syncwarp();
    for (int matrix = 0; matrix < 4; ++matrix) {
        unsigned short pair[2];
        for (int i = 0; i < 2; ++i) {
            const int from = transposed ? 2 * place + i : group, at = transposed ? group : 2 * place + i;
            std::memcpy(&pair[i], reinterpret_cast<void*>(rows[matrix * 8 + from] + 2 * at), 2);
        }
        std::memcpy(&to[matrix], pair, 4);
    }
    __syncwarp();
}
inline void load_matrices(unsigned (&to)[4], SharedAddress row) { load(to, row, false); }
inline void load_transposed(unsigned (&to)[4], SharedAddress row) { load(to, row, true); }

inline unsigned pack_pair(float low, float high) {
    const Output pair[2] = {narrow(low), narrow(high)};
    unsigned packed;
    std::memcpy(&packed, pair, 4);
    return packed;
}
inline unsigned pack_quad(float first, float second, float third, float fourth) {
    const __nv_fp8_e4m3 quad[4] = {__nv_fp8_e4m3(first), __nv_fp8_e4m3(second), __nv_fp8_e4m3(third),
                                   __nv_fp8_e4m3(fourth)};
    unsigned packed;
    std::memcpy(&packed, quad, 4);
    return packed;
}

// One of the numbers in a register of another lane.
template <typename Number>
float held(int lane, int number, int i) {
    Number together[4 / sizeof(Number)];
    std::memcpy(together, &running->warp->registers[lane][number], 4);
    return float(together[i]);
}

template <typename Number>
void multiply_registers(float (&c)[4], const unsigned (&a)[4], const unsigned* b) {
    constexpr int EACH = 4 / sizeof(Number);
    const int lane = lane_of_warp();
    std::copy(a, a + 4, running->warp->registers[lane]);
    std::copy(b, b + 2, running->warp->registers[lane] + 4);
    __syncwarp();
    for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (int k = 0; k < 8 * EACH; ++k) {
            const int at = k / EACH % 4, later = k / EACH / 4, one = k % EACH;
            c[i] += held<Number>(row % 8 * 4 + at, row / 8 + later * 2, one) *
                    held<Number>(column * 4 + at, 4 + later, one);
        }
    }
    __syncwarp();
}
inline void multiply_add(float (&c)[4], const unsigned (&a)[4], const unsigned* b) {
    multiply_registers<Input>(c, a, b);
}
