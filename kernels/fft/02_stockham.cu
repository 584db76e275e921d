/*
title = "Stockham's radix 2, a matrix per block"
entry = "stockham"
workload = "fft"
rung = 2
precisions = ["fp32", "fp64"]
block = [256]
tile = [1]
shared_bytes = "2 * input_bytes * (n + n * (n + 1 - n % 2) + 8 * 2 * n)"
limits = { n = 64 }
teaches = "log2(n) passes of butterflies instead of n products, and no bit reversal"
*/

/*
An FFT of n numbers is two FFTs of n/2, of the even and of the odd ones, and n/2 butterflies: a +
w·b and a - w·b. Done log2(n) times that is 5 n log2(n) FLOP instead of 8 n².

Cooley and Tukey's order needs its input at bit-reversed places. Stockham's order sorts in passing:
each pass reads numbers n/2 apart and writes them next to the ones that they belong to, from one
buffer to the other. Reads are contiguous in every pass; the first writes have a stride of two.

A warp transforms a line; a row of 64 is one butterfly for each lane, and a pass ends with
__syncwarp instead of a barrier of the block. Other n than powers of two are summed as in `naive`.

Traffic in device memory: the least, as in `naive`. What limits it is shared memory: for n = 64, 12
passes of 2.5 accesses of 8 bytes per number, 6 accesses in the copies between line, matrix and
device memory, each access 2 clocks for 32 lanes, and 3 or 4 with a stride of two in 2 of 12 passes:
about 76 clocks for 32 numbers. 132 multiprocessors at 1.7 GHz are 94 G numbers/s, 1.5 TB/s and 5.7
TFLOP/s in FP32. FP64 has twice the bytes: 1.5 TB/s and 2.8 TFLOP/s.
*/

#include "fft.cuh"

// `done` numbers are transformed so far, in each of n / done groups. Butterfly i takes the same
// place k of two groups, which become one.
__device__ inline Complex* fft_stockham(Complex* from, Complex* to, const Complex* roots, int n) {
    if (n & (n - 1)) return fft_direct(from, to, roots, n);
    for (int done = 1; done < n; done *= 2) {
        for (int i = threadIdx.x % WARP; i < n / 2; i += WARP) {
            const int k = i & (done - 1);
            const Complex a = from[i];
            const Complex b = from[i + n / 2] * roots[k * (n / 2 / done)];
            to[2 * i - k] = a + b;
            to[2 * i - k + done] = a - b;
        }
        __syncwarp();
        Complex* const result = to;
        to = from;
        from = result;
    }
    return from;
}

extern "C" __global__ void __launch_bounds__(256, 1)
stockham(long long batch, long long n, const Input* X, Output* Y) {
    extern __shared__ Complex memory[];
    const long long matrix = blockIdx.x * n * n;
    fft_matrix<8>((int)n, reinterpret_cast<const Complex*>(X) + matrix,
                  reinterpret_cast<Complex*>(Y) + matrix, memory, fft_stockham);
}
