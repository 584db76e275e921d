/*
title = "A warp per column of Y, for few rows"
entry = "rows"
workload = "w4a16"
rung = 2
precisions = ["fp16", "bf16"]
block = [128]
tile = ["FEW", 4]
limits = { m = 64 }
constraints = { k = 8 }
variants = [
    { FEW = 1, UNROLL = 4 },
    { FEW = 1, UNROLL = 8 },
    { FEW = 2, UNROLL = 4 },
    { FEW = 4, UNROLL = 2 },
    { FEW = 8, UNROLL = 1 },
]
teaches = "with 4 bits the instructions that unpack a weight are as scarce as bytes"
*/

/*
With few rows W is read once and multiplied at once, as in `few_rows` of GEMM. A warp has a column of Y,
which is a row of W, and FEW rows of X. A lane loads 8 weights at a time, one word, UNROLL times before
it multiplies the first. They are of one group of 128, so that the scale comes once, after their sum.
Shuffles add the lanes' sums.

A lane's 8 numbers of X are 16 bytes, next to those of its neighbours: L1 delivers 512 bytes of X for 128
of W. With 16 bytes of W for a lane, its 64 of X would be far from its neighbours', in four times as many
lines of the cache.

Arithmetic: a weight costs a shift, a logical operation that makes it the end of a floating-point
number, a subtraction, and for each row of X a conversion and a multiply-add. An H200 reads 43 weights
for each clock of a multiprocessor, which starts 128 operations of lanes then: three for each weight are
what memory waits for. Here they are five at one row, and one more for loads and scales.

Traffic: W and scales once for each FEW rows of X; X from L1 and L2.

Occupancy: 40 to 62 registers, 8 to 12 blocks of 4 warps: with 8 words in flight 40 KB of W.

Expect 2 TB/s of weights on an H200 at M = 1 (8192 x 8192 in 17 µs, of 7 at the roof), limited by
instructions, and half of it at M = 4.
*/

#include "w4.cuh"

constexpr int WARPS = 4;
constexpr int EACH = 8;          // weights of a word
constexpr int STEP = 32 * EACH;  // between two words of a lane

// The products of 8 weights, without their scale, with a row of X.
__device__ inline float dot(unsigned word, const Input* x) {
    const uint4 bits = *reinterpret_cast<const uint4*>(x);
    const Input(&number)[EACH] = reinterpret_cast<const Input(&)[EACH]>(bits);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) sum += weight(word, i) * widen(number[i]);
    return sum;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
rows(int M, int N, int K, const Input* X, const unsigned char* W, const Input* scales, Output* Y) {
    const int lane = threadIdx.x % 32, column = blockIdx.x * WARPS + threadIdx.x / 32;
    const int first_row = blockIdx.y * FEW;
    if (column >= N) return;
    const unsigned* words = reinterpret_cast<const unsigned*>(W + size_t(column) * (K / 2));
    const Input* scale = scales + size_t(column) * ((K + GROUP - 1) / GROUP);

    // Beyond the last row of X the last one is read again.
    const Input* x[FEW];
    for (int i = 0; i < FEW; ++i) x[i] = X + size_t(min(first_row + i, M - 1)) * K;

    float sum[FEW] = {};
    for (int first = lane * EACH; first < K; first += STEP * UNROLL) {
        // All loads of W come before the first product. Past the end the first word comes again, times 0.
        unsigned word[UNROLL];
        float factor[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int k = first + u * STEP;
            word[u] = words[(k < K ? k : first) / EACH];
            factor[u] = k < K ? widen(scale[k / GROUP]) : 0;
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int k = first + u * STEP;
            for (int i = 0; i < FEW; ++i) sum[i] += factor[u] * dot(word[u], x[i] + (k < K ? k : first));
        }
    }

    for (int i = 0; i < FEW; ++i) {
        for (int distance = 16; distance > 0; distance /= 2) {
            sum[i] += __shfl_xor_sync(0xffffffff, sum[i], distance);
        }
        if (lane == 0 && first_row + i < M) Y[size_t(first_row + i) * N + column] = narrow(sum[i]);
    }
}
