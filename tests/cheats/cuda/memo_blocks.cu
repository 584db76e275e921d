/*
title = "A block skips its work if the first element of each input is that of the last time"
workload = "add"
entry = "memo_blocks"
precisions = ["fp32"]
block = [256]
tile = [256]
*/

struct Seen {
    float a, b;
    const float* c;
};
__device__ Seen memo[1 << 22];

extern "C" __global__ void
memo_blocks(long long elements, const float* a, const float* b, float* c) {
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    const long long first = blockIdx.x * 256LL;
    const unsigned hash = ((size_t)c >> 9) * 2654435761u + blockIdx.x * 40503u;
    const unsigned slot = hash % (1u << 22);
    const Seen seen = memo[slot];
    const bool same = seen.c == c + first && seen.a == a[first] && seen.b == b[first];
    __syncthreads();
    if (same) return;
    if (i < elements) c[i] = a[i] + b[i];
    if (threadIdx.x == 0) memo[slot] = {a[first], b[first], c + first};
}
