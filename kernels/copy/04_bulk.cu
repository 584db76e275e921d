/*
title = "Tiles through shared memory, in and out by the copy engine"
entry = "bulk"
workload = "copy"
rung = 4
precisions = ["fp64", "fp32", "fp16", "bf16", "int32", "int64"]
block = [32]
tile = ["2048 // input_bytes"]
min_compute_capability = "9.0"
teaches = "one thread moves a whole tile without holding it in registers"
*/

/*
From compute capability 9.0 on, a copy engine (TMA) moves whole tiles between global and shared
memory. One thread of a block loads 2 KB, waits for the barrier that counts the bytes, and stores
them. The other 31 threads have nothing to do.

The load and store units have little work: 2 instructions replace 256 loads and stores. 32 blocks
share a multiprocessor, with 64 KB in flight. Expect 4.2 TB/s.

Learned: the memory is the limit, not the instructions that access it. This kernel is no faster than
`streaming`: slightly slower at 1 GiB and clearly slower at a few MiB, because a tile is stored only
after its last byte has arrived. Larger tiles are slower, and a persistent block with a ring of
tiles is slower again. The copy engine helps if threads have other work to do; in a copy they have
none.
*/

#include "bulk_copy.cuh"
#include "types.cuh"

constexpr int TILE = 2048 / sizeof(Input);
constexpr int WIDTH = 16 / sizeof(Input);  // bulk copies move multiples of 16 bytes

extern "C" __global__ void __launch_bounds__(32)
bulk(long long elements, const Input* A, Output* C) {
    __shared__ __align__(128) Input tile_a[TILE];
    __shared__ Barrier arrived;

    const long long tile = blockIdx.x * (long long)TILE;
    const int count = elements - tile < TILE ? (int)(elements - tile) : TILE;
    const int whole = count / WIDTH * WIDTH;

    if (threadIdx.x == 0 && whole > 0) {
        initialize(&arrived);
        announce(&arrived, whole * sizeof(Input));
        copy_bulk(tile_a, A + tile, whole * sizeof(Input), &arrived);
        wait(&arrived, 0);
        store_bulk(C + tile, tile_a, whole * sizeof(Input));
        wait_until_stores_have_read();  // shared memory is freed when the block ends
    }
    // The last elements, fewer than 16 bytes.
    const long long i = tile + whole + threadIdx.x;
    if (i < tile + count) C[i] = A[i];
}
