/*
title = "Tiles copied into shared memory by the copy engine"
entry = "bulk"
workload = "triad"
rung = 4
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = ["THREADS"]
tile = ["TILE_BYTES // input_bytes"]
shared_bytes = "2 * TILE_BYTES"
min_compute_capability = "9.0"
variants = [
    { THREADS = 256, TILE_BYTES = 4096 },
    { THREADS = 512, TILE_BYTES = 16384 },
]
teaches = "one thread starts the copy of a whole tile, and no register holds data in flight"
*/

/*
From compute capability 9.0 on, a copy engine (TMA) moves whole tiles into shared memory. One thread
starts the copies of a tile of A and a tile of B; a barrier in shared memory counts the bytes that
arrive. The loads hold no registers, and one instruction replaces hundreds.

A block moves one tile and ends. Other blocks on the same multiprocessor keep the memory busy in the
meantime: 8 blocks with 8 KB each, or 4 with 32 KB, are 64 or 128 KB in flight. Expect 4.2 TB/s.

Learned:
- Slightly faster than `streaming` at 1 GiB, and slower at a few MiB, where the barrier's latency
  shows.
- The tile must give every thread a vector: 512 threads with 4 KB tiles are by far the slowest
  choice.
- A persistent block that refills a ring of tiles is slower than one tile per block, like the
  persistent grid that `streaming` describes.
- Storing C through shared memory and the copy engine is no faster than plain stores.
*/

#include "bulk_copy.cuh"
#include "vector.cuh"

__device__ inline Vector<WIDTH> triad(Accumulate alpha, Vector<WIDTH> a, Vector<WIDTH> b) {
    Vector<WIDTH> c;
    for (int i = 0; i < WIDTH; ++i) {
        c.element[i] = narrow(widen(a.element[i]) + alpha * widen(b.element[i]));
    }
    return c;
}

__device__ inline Vector<WIDTH> shared_vector(const Input* from) {
    return *reinterpret_cast<const Vector<WIDTH>*>(from);
}

extern "C" __global__ void __launch_bounds__(THREADS)
bulk(long long elements, Accumulate alpha, const Input* A, const Input* B, Output* C) {
    constexpr int TILE = TILE_BYTES / sizeof(Input);
    extern __shared__ __align__(128) Input tile_a[];
    Input* const tile_b = tile_a + TILE;
    __shared__ Barrier arrived;

    const long long tile = blockIdx.x * (long long)TILE;
    const int count = elements - tile < TILE ? (int)(elements - tile) : TILE;
    const int whole = count / WIDTH * WIDTH;  // bulk copies move multiples of 16 bytes

    // 1. One thread starts both copies and does not wait.
    if (threadIdx.x == 0) {
        initialize(&arrived);
        announce(&arrived, 2 * whole * sizeof(Input));
        if (whole > 0) {
            copy_bulk(tile_a, A + tile, whole * sizeof(Input), &arrived);
            copy_bulk(tile_b, B + tile, whole * sizeof(Input), &arrived);
        }
    }
    // 2. All threads wait until the barrier is initialized, then until the bytes have arrived.
    __syncthreads();
    wait(&arrived, 0);

    // 3. Compute from shared memory.
    for (int i = threadIdx.x * WIDTH; i < whole; i += THREADS * WIDTH) {
        store_streaming(C + tile + i,
                        triad(alpha, shared_vector(tile_a + i), shared_vector(tile_b + i)));
    }
    // 4. The last elements, fewer than a vector holds.
    const long long i = tile + whole + threadIdx.x;
    if (i < tile + count) C[i] = narrow(widen(A[i]) + alpha * widen(B[i]));
}
