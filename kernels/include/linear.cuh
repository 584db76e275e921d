// What follows the product of a linear layer: a bias, GELU or SwiGLU, one for a compiled kernel. WEIGHTS is the
// number of matrices of weights: W has rows of the gate, then rows of up, if there are two.
#pragma once

#include "exponential.cuh"
#include "types.cuh"

constexpr int WEIGHTS = ROOFLAB_WEIGHTS;

// In FP32 without a branch: off by two roundings, zero if the divisor is above 2^126.
__device__ inline float quotient(float z, float divisor) { return __fdividef(z, divisor); }
__device__ inline double quotient(double z, double divisor) { return z / divisor; }

// z / (1 + exp(-power)). If the exponential overflows, the quotient is zero, which is right.
__device__ inline Accumulate gated(Accumulate z, Accumulate power) {
    return quotient(z, 1 + power_of_two(power * Accumulate(-1.4426950408889634)));
}

// An element of Y, in column `column`, from its sums: one, or those of gate and up. The kernel's parameter for
// the bias is LINEAR_BIAS, which is none if there is no bias.
#if defined(ROOFLAB_EPILOGUE_SWIGLU)

#define LINEAR_BIAS
constexpr const Output* bias = nullptr;

__device__ inline Accumulate finish(Accumulate gate, Accumulate up, const Output*, int) {
    return gated(gate, gate) * up;
}

#else

#define LINEAR_BIAS const Output* bias,

__device__ inline Accumulate finish(Accumulate sum, Accumulate, const Output* bias, int column) {
    const Accumulate z = sum + static_cast<Accumulate>(bias[column]);
#if defined(ROOFLAB_EPILOGUE_GELU)
    // z/2 (1 + tanh t) is z / (1 + exp(-2 t)), with t = sqrt(2 / pi) (z + 0.044715 z^3).
    return gated(z, z * (Accumulate(1.5957691216057308) + Accumulate(0.07135481627260025) * z * z));
#else
    return z;
#endif
}

#endif
