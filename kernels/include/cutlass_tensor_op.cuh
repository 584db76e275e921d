// A CUTLASS 2.x kernel on tensor cores. Macros: TILE_M, TILE_N, TILE_K, WARP_M, WARP_N and STAGES.
// INSTRUCTION_K is the depth of the precision's mma.sync, which is 16 x 8 x INSTRUCTION_K.
#pragma once

#include "cutlass_plan.cuh"

#include "cutlass/epilogue/thread/linear_combination.h"
#include "cutlass/gemm/kernel/default_gemm_universal.h"

constexpr int ALIGNMENT_IN = ACCESS_BYTES / sizeof(Element);
constexpr int ALIGNMENT_OUT = ACCESS_BYTES / sizeof(Output);

using GemmKernel = cutlass::gemm::kernel::DefaultGemmUniversal<
    Element, LayoutA, cutlass::ComplexTransform::kNone, ALIGNMENT_IN,
    Element, LayoutB, cutlass::ComplexTransform::kNone, ALIGNMENT_IN,
    Output, LayoutC, float, cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80,
    cutlass::gemm::GemmShape<TILE_M, TILE_N, TILE_K>,
    cutlass::gemm::GemmShape<WARP_M, WARP_N, TILE_K>,
    cutlass::gemm::GemmShape<16, 8, INSTRUCTION_K>,
    cutlass::epilogue::thread::LinearCombination<Output, ALIGNMENT_OUT, float, float>,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>, STAGES,
    cutlass::arch::OpMultiplyAdd>::GemmKernel;

#include "cutlass_2x.cuh"
