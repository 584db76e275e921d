/*
title = "One parameter per thread"
entry = "naive"
workload = "adamw"
rung = 1
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = [256]
tile = [256]
teaches = "one kernel for the whole step moves each number once"
*/

/*
The whole step for a parameter by one thread: both moments, then the parameter. A kernel for each
operation would read and write the same numbers many times.

Traffic: parameters and moments cross the memory bus twice, gradients once, the least possible: 28
bytes per parameter in FP32, 22 with parameters in BF16. Neighbouring threads take neighbouring
parameters, so that accesses are coalesced.

Expect 3.7 to 4.1 TB/s on an H200, of 4.8: a thread has four loads in flight, twice those of `add`.
*/

#include "types.cuh"

extern "C" __global__ void __launch_bounds__(256)
naive(long long elements, Accumulate kept, Accumulate rate, Accumulate beta1, Accumulate rest1,
      Accumulate beta2, Accumulate rest2, Accumulate correction, Accumulate epsilon, Output* P,
      const Input* G, Accumulate* M, Accumulate* V) {
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= elements) return;
    const Accumulate g = widen(G[i]);
    const Accumulate m = beta1 * M[i] + rest1 * g;
    const Accumulate v = beta2 * V[i] + rest2 * (g * g);
    const Accumulate root = correction * sqrt(v) + epsilon;
    M[i] = m;
    V[i] = v;
    P[i] = narrow(kept * widen(P[i]) - rate * m / root);
}
