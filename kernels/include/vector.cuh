// Accesses of 16 bytes to arrays of any element type, and narrower ones if rows are not aligned.
#pragma once

#include "types.cuh"

// COUNT neighbouring elements that one instruction loads or stores. Their address must be a
// multiple of their total size.
template <int COUNT>
struct alignas(COUNT * sizeof(Input)) Vector {
    Input element[COUNT];
};

// Elements of the widest access: 16 bytes.
constexpr int WIDTH = 16 / sizeof(Input);

// The machine word of a size. Loads and stores take words, not structures.
template <int BYTES> struct WordOf;
template <> struct WordOf<16> { using type = uint4; };
template <> struct WordOf<8> { using type = uint2; };
template <> struct WordOf<4> { using type = unsigned int; };
template <> struct WordOf<2> { using type = unsigned short; };

template <int COUNT>
using Word = typename WordOf<COUNT * sizeof(Input)>::type;

// Loads data that no thread writes during the launch. It may stay in the caches.
template <int COUNT = WIDTH>
__device__ inline Vector<COUNT> load(const Input* from) {
    const Word<COUNT> word = __ldg(reinterpret_cast<const Word<COUNT>*>(from));
    return reinterpret_cast<const Vector<COUNT>&>(word);
}

// The same for data that is read once: the caches may drop it first (evict-first).
template <int COUNT = WIDTH>
__device__ inline Vector<COUNT> load_streaming(const Input* from) {
    const Word<COUNT> word = __ldcs(reinterpret_cast<const Word<COUNT>*>(from));
    return reinterpret_cast<const Vector<COUNT>&>(word);
}

template <int COUNT>
__device__ inline void store(Output* to, const Vector<COUNT>& vector) {
    *reinterpret_cast<Word<COUNT>*>(to) = reinterpret_cast<const Word<COUNT>&>(vector);
}

template <int COUNT>
__device__ inline void store_streaming(Output* to, const Vector<COUNT>& vector) {
    __stcs(reinterpret_cast<Word<COUNT>*>(to), reinterpret_cast<const Word<COUNT>&>(vector));
}
