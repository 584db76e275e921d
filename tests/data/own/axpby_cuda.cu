/*
title = "One element per thread"
workload = "axpby"
entry = "axpby"
precisions = ["fp64", "fp32"]
block = [256]
tile = [256]
*/

// Arguments: all extents, all numeric settings, all operands.

#ifdef ROOFLAB_PRECISION_FP64
using Number = double;
#else
using Number = float;
#endif

extern "C" __global__ void axpby(long long elements, Number alpha, Number beta, const Number* x,
                                 Number* y)
{
    const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
    if (i < elements)
        y[i] = alpha * x[i] + beta * y[i];
}
