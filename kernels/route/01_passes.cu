/*
title = "One warp per token, a pass for each expert"
entry = "passes"
workload = "route"
rung = 1
precisions = ["fp64", "fp32", "fp16", "bf16"]
block = [256]
tile = [8]
teaches = "the largest of a few numbers need no sort, and no memory: each pass looks below the one before"
*/

/*
A warp has the logits of a token. In each pass it finds the largest of those that come after the last one
that was chosen; equal ones come in the order of their experts. Exponentials do not change the order, so the
choice needs none. Weights follow from the chosen logits, and with the sum over all experts if they are not
normalised.

Traffic: logits are read once from memory, in further passes from L1; weights and ids are written once. A pass
over 128 experts is four loads per lane.

Expect 4 to 6 us for 512 tokens, 128 experts and 8 chosen, warm: eight passes, each with five shuffles that
wait for each other, hardly depend on the number of tokens. Of 131,072 tokens, which take 45 MB in BF16 with
their ids, 40 to 80 us.
*/

#include "softmax.cuh"

struct Expert {
    Accumulate logit;
    long long number;
};

__device__ inline bool before(Expert a, Expert b) {
    return a.logit > b.logit || (a.logit == b.logit && a.number < b.number);
}

// The first one of those that the lanes have.
__device__ inline Expert first_of_warp(Expert mine) {
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        const Expert other = {__shfl_xor_sync(0xffffffff, mine.logit, distance),
                              __shfl_xor_sync(0xffffffff, mine.number, distance)};
        if (before(other, mine)) mine = other;
    }
    return mine;
}

extern "C" __global__ void __launch_bounds__(256)
passes(long long tokens, long long experts, long long chosen, const Input* logits, Output* weights,
       long long* ids) {
    const long long token = blockIdx.x * 8LL + threadIdx.x / WARP;
    if (token >= tokens) return;
    const int lane = threadIdx.x % WARP;
    const Input* x = logits + token * experts;
    weights += token * chosen;
    ids += token * chosen;

    Accumulate largest = 0, sum = 0;
    Expert last = {-minus_infinity(), -1};
    for (long long j = 0; j < chosen; ++j) {
        Expert next = {minus_infinity(), experts - 1};
        for (long long e = lane; e < experts; e += WARP) {
            const Expert one = {widen(x[e]), e};
            if (before(last, one) && before(one, next)) next = one;
        }
        last = first_of_warp(next);
        if (j == 0) largest = last.logit;
        sum += exponential(last.logit - largest);
        if (lane == 0) ids[j] = last.number;
    }
#ifdef ROOFLAB_NORMALISED_OFF
    sum = 0;
    for (long long e = lane; e < experts; e += WARP) sum += exponential(widen(x[e]) - largest);
    sum = reduce_warp<Sum>(sum);
#endif
    __syncwarp();  // the first lane has written the ids
    for (long long j = lane; j < chosen; j += WARP) {
        weights[j] = narrow(exponential(widen(x[ids[j]]) - largest) / sum);
    }
}
