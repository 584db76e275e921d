/*
title = "CUTLASS 3.x on Hopper: TMA and wgmma"
launch = "plan"
rung = 45
needs = ["cutlass"]
access_bytes = 16
precisions = ["tf32", "fp16", "bf16", "fp16_fp32", "fp8"]
k_major = ["tf32", "fp8"]
compute_capability = "9.0"
teaches = "warps that only load, warps that only multiply, clusters that share loads"
variants = [
  { name = "128x128 2x1 pingpong", TILE_M = 128, TILE_N = 128, CLUSTER_M = 2, PINGPONG = 1, precisions = ["tf32", "fp16", "bf16", "fp16_fp32"] },
  { name = "128x128 2x1 pingpong swizzle 4", TILE_M = 128, TILE_N = 128, CLUSTER_M = 2, PINGPONG = 1, swizzle = 4, raster = "n", precisions = ["tf32", "fp16", "bf16", "fp16_fp32"] },
  { name = "128x128 1x2 pingpong", TILE_M = 128, TILE_N = 128, CLUSTER_N = 2, PINGPONG = 1, precisions = ["tf32", "fp16", "bf16", "fp16_fp32"] },
  { name = "128x128 1x2 pingpong swizzle 8", TILE_M = 128, TILE_N = 128, CLUSTER_N = 2, PINGPONG = 1, swizzle = 8, raster = "m", precisions = ["tf32", "fp16", "bf16", "fp16_fp32"] },
  { name = "64x256 2x1 pingpong", TILE_M = 64, TILE_N = 256, CLUSTER_M = 2, PINGPONG = 1, precisions = ["tf32", "fp16", "bf16", "fp16_fp32"] },
  { name = "64x128 pingpong", TILE_M = 64, TILE_N = 128, PINGPONG = 1, precisions = ["tf32", "fp16", "bf16", "fp16_fp32"] },
  { name = "128x64 2x1", TILE_M = 128, TILE_N = 64, CLUSTER_M = 2, precisions = ["tf32", "fp16", "bf16", "fp16_fp32"] },
  { name = "128x256 2x1", TILE_M = 128, TILE_N = 256, CLUSTER_M = 2, precisions = ["tf32", "fp16", "bf16", "fp16_fp32"] },
  { name = "128x256 2x1 swizzle 8 m", TILE_M = 128, TILE_N = 256, CLUSTER_M = 2, swizzle = 8, raster = "m", precisions = ["tf32", "fp16", "bf16", "fp16_fp32"] },
  { name = "128x256 2x1 swizzle 8 n", TILE_M = 128, TILE_N = 256, CLUSTER_M = 2, swizzle = 8, raster = "n", precisions = ["tf32", "fp16", "bf16", "fp16_fp32"] },
  { name = "128x256 1x2", TILE_M = 128, TILE_N = 256, CLUSTER_N = 2, precisions = ["tf32", "fp16", "bf16", "fp16_fp32"] },
  { name = "256x128 1x2", TILE_M = 256, TILE_N = 128, CLUSTER_N = 2, precisions = ["tf32", "fp16", "bf16", "fp16_fp32"] },
  { name = "256x128 1x2 swizzle 8", TILE_M = 256, TILE_N = 128, CLUSTER_N = 2, swizzle = 8, raster = "m", precisions = ["tf32", "fp16", "bf16", "fp16_fp32"] },
  { name = "128x128 2x1 stream-k", TILE_M = 128, TILE_N = 128, CLUSTER_M = 2, STREAM_K = 1, precisions = ["tf32", "fp16", "bf16", "fp16_fp32"] },
  { name = "128x128 2x1 promoted", TILE_M = 128, TILE_N = 128, CLUSTER_M = 2, precisions = ["fp8"] },
  { name = "64x128 pingpong promoted", TILE_M = 64, TILE_N = 128, PINGPONG = 1, precisions = ["fp8"] },
  { name = "128x128 2x1 pingpong fast", TILE_M = 128, TILE_N = 128, CLUSTER_M = 2, PINGPONG = 1, FAST_ACCUMULATE = 1, precisions = ["fp8"] },
  { name = "128x256 2x1 fast", TILE_M = 128, TILE_N = 256, CLUSTER_M = 2, FAST_ACCUMULATE = 1, precisions = ["fp8"] },
  { name = "256x128 2x1 fast", TILE_M = 256, TILE_N = 128, CLUSTER_M = 2, FAST_ACCUMULATE = 1, precisions = ["fp8"] },
  { name = "64x256 2x1 pingpong fast", TILE_M = 64, TILE_N = 256, CLUSTER_M = 2, PINGPONG = 1, FAST_ACCUMULATE = 1, precisions = ["fp8"] },
  { name = "64x128 pingpong fast", TILE_M = 64, TILE_N = 128, PINGPONG = 1, FAST_ACCUMULATE = 1, precisions = ["fp8"] },
]
*/

/*
CUTLASS 3 describes a kernel by collectives: one loads tiles of A and B and multiplies them, one
stores C. On Hopper the first gives its warps different work. One thread of a producer warp starts
TMA loads of whole tiles, 128 bytes along K by all rows of the tile. Consumer warp groups of 128
threads multiply them from shared memory by wgmma, 64 x TILE_N x 32 bytes at a time. Barriers in
shared memory signal full and empty stages. The stages fill the shared memory beside C's buffer,
from which TMA stores C. Blocks are persistent: one per multiprocessor, each computes tile after
tile.

If beta is 0, C is not read, and the kernel has no code for it (ROOFLAB_READS_C). Such a kernel
replaces CUTLASS's code before the first and after the last product (cutlass_early.cuh).

The variants include the best kernel of CUTLASS's profiler for BF16 at 2048, 4096 and 8192
(results/benchmarks/cutlass_space_bf16.md, made with CUTLASS's code throughout). All of them multiply without a gap, so the clock decides, and the clock depends on
power: 128x256 moves the least data per product and is the fastest from 4096 on, unless the GPU is
already at its power limit. Ping-pong on 128x128, in clusters of two, needs the fewest cycles and is
the fastest at 2048, where it hides half of its stores.

Parameters of a variant:
  TILE_M, TILE_N      the tile of C. 128x256 reads least per product: 128 sums per thread. 128x128
                      with PINGPONG has as many.
  CLUSTER_M, _N       blocks of a cluster share loads: those of a column of tiles receive B
                      together (CLUSTER_M), those of a row receive A (CLUSTER_N). Four blocks would
                      share more, but leave multiprocessors idle: the size of a GPC is not a
                      multiple of such clusters.
  PINGPONG            0: two warp groups divide each tile, and finish it together. 1: each has a
                      separate tile, and one multiplies while the other stores.
  STREAM_K            1: the tiles left over after the last full wave are cut along K, so that
                      every multiprocessor works to the end.
  EARLY               1: if C is not read, the kernel begins and ends with the code of
                      cutlass_early.cuh. 0: with CUTLASS's, as always with STREAM_K and DIRECT.
  DIRECT              1: threads store their sums to C without a buffer and TMA.
  FAST_ACCUMULATE     FP8 only. The tensor core adds FP8 products with fewer bits than FP32 has.
                      0: every fourth sum is added in FP32 registers ("promoted"), twice as many
                      of them. 1: the tensor core adds all.
  swizzle, raster     the order of tiles, for reuse in L2.

Layouts: wgmma reads FP16 and BF16 from shared memory in either direction, other types only with K
contiguous, which is layout nt. TMA requires rows that are multiples of 16 bytes.
*/

#include "cutlass_plan.cuh"

#ifndef CLUSTER_M
#define CLUSTER_M 1
#endif
#ifndef CLUSTER_N
#define CLUSTER_N 1
#endif
#ifndef PINGPONG
#define PINGPONG 0
#endif
#ifndef STREAM_K
#define STREAM_K 0
#endif
#ifndef DIRECT
#define DIRECT 0
#endif
#ifndef FAST_ACCUMULATE
#define FAST_ACCUMULATE 0
#endif
#ifndef EARLY
#define EARLY 1
#endif

// Not collective_builder.hpp and gemm_universal.hpp, which include every architecture.
#include "cute/tensor.hpp"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_mma_decl.hpp"
#include "cutlass/gemm/collective/sm90_mma_tma_gmma_ss_warpspecialized.hpp"
#include "cutlass/gemm/collective/sm90_mma_tma_gmma_ss_warpspecialized_fp8.hpp"
#include "cutlass/gemm/collective/builders/sm90_gmma_builder.inl"
#include "cutlass/gemm/kernel/gemm_universal_decl.h"
#include "cutlass/gemm/kernel/tile_scheduler.hpp"
#include "cutlass/gemm/kernel/sm90_gemm_tma_warpspecialized_cooperative.hpp"
#include "cutlass/gemm/kernel/sm90_gemm_tma_warpspecialized_pingpong.hpp"

#include "cutlass_early.cuh"

using cute::Int;
using cute::Shape;
using cute::conditional_t;

constexpr int ALIGNMENT_IN = ACCESS_BYTES / sizeof(Element);
constexpr int ALIGNMENT_OUT = ACCESS_BYTES / sizeof(Output);

// A row of shared memory is 128 bytes, the widest that TMA can swizzle.
using Tile = Shape<Int<TILE_M>, Int<TILE_N>, Int<128 / sizeof(Element)>>;
using Cluster = Shape<Int<CLUSTER_M>, Int<CLUSTER_N>, Int<1>>;

using Schedule = conditional_t<
    PINGPONG,
    conditional_t<FAST_ACCUMULATE, cutlass::gemm::KernelTmaWarpSpecializedPingpongFP8FastAccum,
                  cutlass::gemm::KernelTmaWarpSpecializedPingpong>,
    conditional_t<FAST_ACCUMULATE, cutlass::gemm::KernelTmaWarpSpecializedCooperativeFP8FastAccum,
                  cutlass::gemm::KernelTmaWarpSpecializedCooperative>>;
using EpilogueSchedule = conditional_t<
    DIRECT, cutlass::epilogue::NoSmemWarpSpecialized,
    conditional_t<PINGPONG, cutlass::epilogue::TmaWarpSpecialized,
                  cutlass::epilogue::TmaWarpSpecializedCooperative>>;

using Source = conditional_t<ROOFLAB_READS_C, Output, void>;
constexpr int PART_N = 128 / sizeof(Output);  // columns of what one TMA stores
constexpr bool STARTS_EARLY =
    EARLY && !ROOFLAB_READS_C && !STREAM_K && !DIRECT && TILE_N % PART_N == 0;
using Part = conditional_t<STARTS_EARLY && PINGPONG, Shape<Int<64>, Int<PART_N>>,
                           cutlass::epilogue::collective::EpilogueTileAuto>;
using CollectiveEpilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster, Part, float, float, Source,
    LayoutC, ALIGNMENT_OUT, Output, LayoutC, ALIGNMENT_OUT, EpilogueSchedule>::CollectiveOp;

using CollectiveMainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, LayoutA, ALIGNMENT_IN, Element,
    LayoutB, ALIGNMENT_IN, float, Tile, Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<
        int(sizeof(typename CollectiveEpilogue::SharedStorage))>,
    Schedule>::CollectiveOp;

using CutlassKernel = cutlass::gemm::kernel::GemmUniversal<
    Shape<int, int, int, int>, CollectiveMainloop, CollectiveEpilogue,
    conditional_t<STREAM_K, cutlass::gemm::StreamKScheduler, cutlass::gemm::PersistentScheduler>>;

using GemmKernel = conditional_t<STARTS_EARLY, Early<CutlassKernel>, CutlassKernel>;

#include "cutlass_3x.cuh"
