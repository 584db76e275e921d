/*
title = "CUTLASS 2.x on CUDA cores"
order = 1
precisions = ["fp32"]
access_bytes = 0
min_compute_capability = "8.0"
teaches = "what tuned templates get out of FP32 without tensor cores"
variants = [
  { name = "128x128 w32x64 s4", TILE_M = 128, TILE_N = 128, WARP_M = 32, WARP_N = 64, STAGES = 4 },
  { name = "256x128 s4", TILE_M = 256, TILE_N = 128, WARP_M = 64, WARP_N = 64, STAGES = 4 },
  { name = "256x128 s5", TILE_M = 256, TILE_N = 128, WARP_M = 64, WARP_N = 64, STAGES = 5 },
  { name = "128x256 s4", TILE_M = 128, TILE_N = 256, WARP_M = 64, WARP_N = 64, STAGES = 4 },
  { name = "128x128 w64x64 s5", TILE_M = 128, TILE_N = 128, WARP_M = 64, WARP_N = 64, STAGES = 5 },
  { name = "128x64 s5", TILE_M = 128, TILE_N = 64, WARP_M = 64, WARP_N = 32, STAGES = 5 },
  { name = "64x128 s5", TILE_M = 64, TILE_N = 128, WARP_M = 32, WARP_N = 64, STAGES = 5 },
  { name = "64x64 s5", TILE_M = 64, TILE_N = 64, WARP_M = 32, WARP_N = 32, STAGES = 5 },
  { name = "128x128 w32x64 s4 k4", TILE_M = 128, TILE_N = 128, WARP_M = 32, WARP_N = 64, STAGES = 4, splits = 4 },
]
*/

/*
CUTLASS is NVIDIA's collection of C++ templates of which GEMM kernels are put together. Its version
2 describes a kernel by a hierarchy of tiles, the same that the ladder of kernels/ climbs: a thread
block's tile of C (TILE_M x TILE_N), in it a warp's (WARP_M x WARP_N), in it a thread's, here 8 x 8
or 16 x 8 elements. The next STAGES - 1 tiles of A and B are on their way into shared memory by
cp.async, 8 steps of K each, while the block computes from the one that has arrived.

What a variant chooses: a large tile reads the operands less often, and fills the GPU badly where C
is small. 256x128 takes 255 registers of each thread and leaves room for one block per
multiprocessor, 128x128 for two, of which one computes while the other stores its results. Where
even small tiles are too few, `splits` lets several blocks share a tile, each with its part of K;
they add up in C one after the other.

The elements are loaded one by one, 4 bytes each, so any M, N and K will do. Expect what cuBLAS
gets, which runs a kernel of this same family: 50 of an H200's 67 TFLOP/s.
*/

#include "cutlass_plan.cuh"

#include "cutlass/epilogue/thread/linear_combination.h"
#include "cutlass/gemm/kernel/default_gemm_universal.h"

using cutlass::ComplexTransform;
using cutlass::gemm::GemmShape;

using GemmKernel = cutlass::gemm::kernel::DefaultGemmUniversal<
    Element, LayoutA, ComplexTransform::kNone, 1,
    Element, LayoutB, ComplexTransform::kNone, 1,
    Output, LayoutC, float, cutlass::arch::OpClassSimt, cutlass::arch::Sm80,
    GemmShape<TILE_M, TILE_N, 8>, GemmShape<WARP_M, WARP_N, 8>, GemmShape<1, 1, 1>,
    cutlass::epilogue::thread::LinearCombination<Output, 1, float, float>,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>, STAGES,
    cutlass::arch::OpMultiplyAdd>::GemmKernel;

#include "cutlass_2x.cuh"
