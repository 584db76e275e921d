// Tiles of rows on their way to shared memory, by cp.async.
#pragma once

#include "mma.cuh"

using Address = decltype(shared_address(nullptr));

// Copies ROWS rows of BYTES bytes, 16 at a time, to rows that are PITCH bytes apart. What is past the
// last of `rows`, or past the first `bytes` of a row, becomes zeros. `from` is the first row, `width`
// bytes before the next one. All of THREADS threads take part.
template <int THREADS, int ROWS, int BYTES, int PITCH>
__device__ inline void copy_tile(Address to, const void* from, size_t width, int rows, int bytes) {
    constexpr int CHUNKS = BYTES / 16;
    for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
        const int row = i / CHUNKS, byte = i % CHUNKS * 16;
        const bool inside = row < rows && byte < bytes;
        const char* source = static_cast<const char*>(from) + (inside ? row * width + byte : 0);
        copy_async<16>(to + row * PITCH + byte, source, inside);
    }
}
