/*
title = "16 bytes per access"
entry = "vectorized"
workload = "swiglu"
rung = 2
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = [256]
tile = ["256 * 16 // input_bytes"]
teaches = "with wide accesses even eight exponentials and divisions per thread hide behind memory"
*/

/*
`naive` with accesses of 16 bytes: a thread has 2 elements of FP64 or 8 of BF16. Every operand starts at an
aligned address, so every vector is aligned. The last thread handles the remaining elements, fewer than a
vector holds. No element is used twice, so loads and stores are evict-first, as in the `streaming` of `add`.

Traffic: each operand crosses the memory bus once, the least possible.

In flight: two loads of 16 bytes per thread. 28 registers allow 2,048 threads and 64 KB per multiprocessor
in every precision; 15 KB hide the latency of 2.8 TB/s of loads.

Computing: at the roof a multiprocessor has three elements of BF16 per clock, of some 26 instructions each:
half of what it can issue. Of FP64 it has less than one, of some 60 instructions: FP64 is the closest to
being limited by them.

Expect 4.1 TB/s on an H200, of 4.8, in FP32, FP16 and BF16, and 3.8 to 4.1 in FP64. Several vectors per
thread should gain nothing, as in `add`.
*/

#include "exponential.cuh"
#include "vector.cuh"

__device__ inline Output swiglu(Input gate, Input up) {
    const Accumulate power = power_of_two(widen(gate) * Accumulate(-1.4426950408889634));  // exp(-gate)
    return narrow(widen(gate) / (1 + power) * widen(up));
}

extern "C" __global__ void __launch_bounds__(256)
vectorized(long long elements, const Input* gates, const Input* ups, Output* out) {
    const long long first = (blockIdx.x * 256LL + threadIdx.x) * WIDTH;
    if (first + WIDTH <= elements) {
        const Vector<WIDTH> gate = load_streaming(gates + first), up = load_streaming(ups + first);
        Vector<WIDTH> result;
        for (int i = 0; i < WIDTH; ++i) result.element[i] = swiglu(gate.element[i], up.element[i]);
        store_streaming(out + first, result);
    } else {
        // The last elements, fewer than a vector holds.
        for (long long i = first; i < elements; ++i) out[i] = swiglu(gates[i], ups[i]);
    }
}
