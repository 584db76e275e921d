// The three types of a precision, and conversions between them. A source is compiled once for each
// precision, with -DROOFLAB_PRECISION_<NAME>=1.
//
// Nothing here needs a standard-library header: the kernels are compiled at run time by NVRTC, on
// machines that have no host compiler.
#pragma once

#if defined(ROOFLAB_PRECISION_FP16) || defined(ROOFLAB_PRECISION_FP16_FP32)
#include <cuda_fp16.h>
#elif defined(ROOFLAB_PRECISION_BF16)
#include <cuda_bf16.h>
#elif defined(ROOFLAB_PRECISION_FP8)
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#endif

// Input is the type of operands, Accumulate the type of sums, Output the type of results.
#if defined(ROOFLAB_PRECISION_FP64)
using Input = double;
using Accumulate = double;
using Output = double;
#elif defined(ROOFLAB_PRECISION_FP32) || defined(ROOFLAB_PRECISION_TF32)
using Input = float;
using Accumulate = float;
using Output = float;
#elif defined(ROOFLAB_PRECISION_FP16)
using Input = __half;
using Accumulate = float;
using Output = __half;
#elif defined(ROOFLAB_PRECISION_BF16)
using Input = __nv_bfloat16;
using Accumulate = float;
using Output = __nv_bfloat16;
#elif defined(ROOFLAB_PRECISION_FP16_FP32)
using Input = __half;
using Accumulate = float;
using Output = float;
#elif defined(ROOFLAB_PRECISION_FP8)
using Input = __nv_fp8_e4m3;
using Accumulate = float;
using Output = __nv_bfloat16;
#elif defined(ROOFLAB_PRECISION_INT32)
using Input = int;
using Accumulate = int;
using Output = int;
#elif defined(ROOFLAB_PRECISION_INT64)
using Input = long long;
using Accumulate = long long;
using Output = long long;
#else
#error "types.cuh needs -DROOFLAB_PRECISION_<NAME>=1, such as -DROOFLAB_PRECISION_FP32=1"
#endif

// Conversions, even if the types are the same, so that a kernel's source is the same in every
// precision. Narrowing rounds to nearest, ties to even.
template <typename Stored>
__device__ inline Accumulate widen(Stored value) {
    return static_cast<Accumulate>(value);
}

__device__ inline Output narrow(Accumulate value) {
    return static_cast<Output>(value);
}
