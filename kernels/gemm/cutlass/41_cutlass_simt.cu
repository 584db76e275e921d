/*
title = "CUTLASS 2.x on CUDA cores"
launch = "plan"
rung = 41
needs = ["cutlass"]
precisions = ["fp32"]
min_compute_capability = "8.0"
teaches = "tuned templates for FP32 without tensor cores"
variants = [
  { name = "256x128", TILE_M = 256, TILE_N = 128, WARP_M = 32, WARP_N = 64, WIDE = 1, access_bytes = 16 },
  { name = "256x128 s4", TILE_M = 256, TILE_N = 128, WARP_M = 32, WARP_N = 64, STAGES = 4, WIDE = 1, access_bytes = 16 },
  { name = "128x256", TILE_M = 128, TILE_N = 256, WARP_M = 32, WARP_N = 64, WIDE = 1, access_bytes = 16 },
  { name = "128x128", TILE_M = 128, TILE_N = 128, WARP_M = 32, WARP_N = 64, WIDE = 1, access_bytes = 16, BLOCKS = 2 },
  { name = "128x64", TILE_M = 128, TILE_N = 64, WARP_M = 32, WARP_N = 32, WIDE = 1, access_bytes = 16, BLOCKS = 2 },
  { name = "64x64", TILE_M = 64, TILE_N = 64, WARP_M = 32, WARP_N = 32, WIDE = 1, access_bytes = 16, BLOCKS = 4 },
  { name = "128x128 split 4", TILE_M = 128, TILE_N = 128, WARP_M = 32, WARP_N = 64, WIDE = 1, access_bytes = 16, BLOCKS = 2, splits = 4 },
  { name = "256x128 narrow", TILE_M = 256, TILE_N = 128, WARP_M = 32, WARP_N = 64 },
  { name = "128x128 narrow", TILE_M = 128, TILE_N = 128, WARP_M = 32, WARP_N = 64, BLOCKS = 2 },
  { name = "64x64 narrow", TILE_M = 64, TILE_N = 64, WARP_M = 32, WARP_N = 32, BLOCKS = 4 },
]
*/

/*
CUTLASS is NVIDIA's collection of C++ templates for GEMM kernels. Version 2 describes a kernel by a
hierarchy of tiles: a thread block's tile of C (TILE_M x TILE_N), in it a warp's (WARP_M x WARP_N),
in it a thread's, here 8 x 8 or 8 x 4 elements. cp.async loads the next STAGES - 1 tiles of A and B,
16 steps of K each, into shared memory while the block computes from the tile that has arrived.

CUTLASS's default kernel of this kind loads one element at a time, and it transposes an operand that
is contiguous along K without padding: eight threads write to one bank. This file replaces both
parts and chooses other tiles (speeds: results/README.md):

  - 4 elements per cp.async (WIDE) for an operand that is not contiguous along K: A in layouts tn
    and tt, B in nn and tn. Of 100 instructions in the inner loop of 256x128 (nvdisasm -c of the
    cubin, sm_90a) 90 are then multiplications in layout tn, 85 in nn, and 83 in nt, in which both
    operands are contiguous along K;
  - 4 floats of padding for an operand that is, so that it is transposed without bank conflicts;
  - 8 x 8 sums per thread in blocks of 16 warps, or of 8 warps with two blocks per multiprocessor
    (BLOCKS): four warps per scheduler hide latencies that two warps with 16 x 8 sums each do not.

In nt both operands are transposed, with 4 bytes per cp.async, which is presumably why it is slower
than nn.

If even small tiles are too few to fill the GPU, `splits` lets several blocks share a tile, each
with a part of K; they add their parts to C one after the other. The narrow variants support any M,
N and K, the others rows that are multiples of 16 bytes.
*/

#include "cutlass_plan.cuh"

#include "cutlass/epilogue/thread/linear_combination.h"
#include "cutlass/epilogue/threadblock/default_epilogue_simt.h"
#include "cutlass/gemm/kernel/gemm_universal.h"
#include "cutlass/gemm/threadblock/default_mma_core_sm80.h"
#include "cutlass/gemm/threadblock/mma_multistage.h"
#include "cutlass/gemm/threadblock/threadblock_swizzle.h"
#include "cutlass/transform/threadblock/predicated_tile_access_iterator.h"

#ifndef STAGES
#define STAGES 3
#endif
#ifndef WIDE
#define WIDE 0
#endif

using cutlass::MatrixShape;
using cutlass::arch::CacheOperation;
using cutlass::gemm::GemmShape;
using cutlass::layout::PitchLinearCoord;
using cutlass::layout::PitchLinearShape;
using cutlass::platform::conditional_t;
using cutlass::transform::PitchLinearStripminedThreadMap;
using cutlass::transform::TransposePitchLinearThreadMapSimt;
using cutlass::transform::threadblock::PredicatedTileAccessIterator;
using cutlass::transform::threadblock::RegularTileAccessIterator;

constexpr int TILE_K = 16;

using Tile = GemmShape<TILE_M, TILE_N, TILE_K>;

// CUTLASS's default warp-level multiplication and layout of shared memory.
using Core = cutlass::gemm::threadblock::DefaultMmaCore<
    Tile, GemmShape<WARP_M, WARP_N, TILE_K>, GemmShape<1, 1, 1>, Element, LayoutA, Element, LayoutB,
    float, LayoutC, cutlass::arch::OpClassSimt, STAGES, cutlass::arch::OpMultiplyAdd>;

// The warps read shared memory along M and N, so it holds A as columns of M and B as rows of N. An
// operand that is contiguous along K is transposed on the way.
constexpr bool TURN_A = !ROOFLAB_TRANSPOSE_A;
constexpr bool TURN_B = ROOFLAB_TRANSPOSE_B;

// A transposed operand is written into columns of shared memory; each column starts 4 banks after
// the one before. A warp reads 8 elements along K of 4 rows, and writes them into banks 4 k + row:
// all 32.
constexpr int PAD = 4;

template <int LENGTH>
struct Turned : PitchLinearStripminedThreadMap<PitchLinearShape<TILE_K, LENGTH>, Core::kThreads, 1> {
    static PitchLinearCoord initial_offset(int thread) {
        return {(thread & 7) + (thread >> 5 & 1) * 8, (thread >> 3 & 3) + (thread >> 6) * 4};
    }
};

// How the tile of an operand, LENGTH elements of M or N by TILE_K, is loaded.
template <bool turn, int LENGTH, class Shape, class GlobalLayout, class SharedLayout, int RANK>
struct Loads {
    static constexpr int WIDTH = WIDE && !turn ? ACCESS_BYTES / sizeof(Element) : 1;
    static_assert(LENGTH * TILE_K % (Core::kThreads * WIDTH) == 0, "all threads take part");
    using Straight = PitchLinearStripminedThreadMap<PitchLinearShape<LENGTH, TILE_K>,
                                                    Core::kThreads, WIDTH>;
    using Map = conditional_t<turn, Turned<LENGTH>, Straight>;
    using SharedMap = conditional_t<turn, TransposePitchLinearThreadMapSimt<Map>, Map>;
    using Global = PredicatedTileAccessIterator<Shape, Element, GlobalLayout, 1 - RANK, Map,
                                                cutlass::Array<Element, WIDTH>>;
    using Shared = RegularTileAccessIterator<Shape, Element, SharedLayout, RANK, SharedMap>;
    static constexpr CacheOperation::Kind CACHE =
        WIDTH == 1 ? CacheOperation::Always : CacheOperation::Global;
};
using LoadsA =
    Loads<TURN_A, TILE_M, MatrixShape<TILE_M, TILE_K>, LayoutA, Core::SmemLayoutA, 0>;
using LoadsB =
    Loads<TURN_B, TILE_N, MatrixShape<TILE_K, TILE_N>, LayoutB, Core::SmemLayoutB, 1>;

using Policy = cutlass::gemm::threadblock::MmaPolicy<
    Core::MmaWarpSimt, MatrixShape<TURN_A ? PAD : 0, 0>, MatrixShape<0, TURN_B ? PAD : 0>, 1>;
using Mainloop = cutlass::gemm::threadblock::MmaMultistage<
    Tile, LoadsA::Global, LoadsA::Shared, LoadsA::CACHE, LoadsB::Global, LoadsB::Shared,
    LoadsB::CACHE, float, LayoutC, Policy, STAGES>;
using Epilogue = cutlass::epilogue::threadblock::DefaultEpilogueSimt<
    Tile, Core::MmaWarpSimt, cutlass::epilogue::thread::LinearCombination<Output, 1, float, float>,
    1>::Epilogue;
using GemmKernel = cutlass::gemm::kernel::GemmUniversal<
    Mainloop, Epilogue, cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>>;

#include "cutlass_2x.cuh"
