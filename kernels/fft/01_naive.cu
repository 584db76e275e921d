/*
title = "Sums as defined, a matrix per block"
entry = "naive"
workload = "fft"
rung = 1
precisions = ["fp32", "fp64"]
block = [256]
tile = [1]
shared_bytes = "2 * input_bytes * (n + n * (n + 1 - n % 2) + 8 * 2 * n)"
limits = { n = 64 }
teaches = "a transform of rows, then of columns, on a matrix that stays in shared memory"
*/

/*
Y = F·X·F with F[j, k] = exp(-2 pi i j k / n): transform every row, then every column. One block
does both on a matrix of up to 64 x 64 in shared memory, so that device memory moves each number
once in and once out. Larger matrices need two launches, or cuFFT.

A warp takes a line into a buffer of its own; each lane computes some elements, sums of n products.
The n different roots of unity are computed once per block.

Work: 8 n FLOP for each number and direction; n = 64 has 1024, and an FFT 60. FLOP/s in rooflab are
those of an FFT, so this kernel cannot be near the roof.

What limits it is shared memory: two reads of 8 bytes for each product in FP32. from[j] is one
address for all lanes, but the lanes read different roots, on average about 4 in the busiest bank: 5
clocks for the 32 products of a warp. 128 products per number are 20 clocks of a multiprocessor: at
132 and 1.7 GHz 11 G numbers/s, 0.2 TB/s in FP32 and 0.7 TFLOP/s.
*/

#include "fft.cuh"

extern "C" __global__ void __launch_bounds__(256, 1)
naive(long long batch, long long n, const Input* X, Output* Y) {
    extern __shared__ Complex memory[];
    const long long matrix = blockIdx.x * n * n;
    fft_matrix<8>((int)n, reinterpret_cast<const Complex*>(X) + matrix,
                  reinterpret_cast<Complex*>(Y) + matrix, memory, fft_direct);
}
