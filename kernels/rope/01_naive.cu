/*
title = "One pair per thread"
entry = "naive"
workload = "rope"
rung = 1
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = [256]
tile = [256]
teaches = "a rotation reads both halves of a head, and angles that all heads share"
*/

/*
Each thread turns one pair by its angle. Neighbouring threads take neighbouring pairs of a head: both
halves are read and written in coalesced pieces.

Traffic: X and Y cross the memory bus once, the least possible. The angles of a token are the same for
all heads, but a head comes long after the one before it: the tables come from L2 while they fit there,
8192 tokens of 128 in BF16 are 2 MB.

Expect 60 to 90 % of what a copy reaches in FP32, half of it in BF16: a thread moves 8 bytes of X and Y
there, has four loads in flight, and divides indices twice.
*/

#include "types.cuh"

extern "C" __global__ void __launch_bounds__(256)
naive(long long pairs, long long tokens, long long half, const Input* X, const Input* cosines,
      const Input* sines, Output* Y) {
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= pairs) return;
    const long long row = i / half;  // of a head and a token
    const long long place = i - row * half;
    const long long angle = row % tokens * half + place;
    const long long first = row * 2 * half + place, second = first + half;

    const Accumulate a = widen(X[first]), b = widen(X[second]);
    const Accumulate cosine = widen(cosines[angle]), sine = widen(sines[angle]);
    Y[first] = narrow(a * cosine - b * sine);
    Y[second] = narrow(b * cosine + a * sine);
}
