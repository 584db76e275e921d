/*
title = "CUTLASS 2.x, FP16 by mma.sync"
launch = "plan"
rung = 43
needs = ["cutlass"]
access_bytes = 16
precisions = ["fp16", "fp16_fp32"]
min_compute_capability = "8.0"
teaches = "half the bytes per operand: twice the depth of a tile"
variants = [
  { name = "128x128x32 s4", TILE_M = 128, TILE_N = 128, TILE_K = 32, WARP_M = 64, WARP_N = 64, STAGES = 4 },
  { name = "128x256x32 s3", TILE_M = 128, TILE_N = 256, TILE_K = 32, WARP_M = 64, WARP_N = 64, STAGES = 3 },
  { name = "256x128x32 s3", TILE_M = 256, TILE_N = 128, TILE_K = 32, WARP_M = 64, WARP_N = 64, STAGES = 3 },
  { name = "128x256x64 s3", TILE_M = 128, TILE_N = 256, TILE_K = 64, WARP_M = 64, WARP_N = 64, STAGES = 3 },
  { name = "256x128x64 s3", TILE_M = 256, TILE_N = 128, TILE_K = 64, WARP_M = 64, WARP_N = 64, STAGES = 3 },
  { name = "128x128x64 s3", TILE_M = 128, TILE_N = 128, TILE_K = 64, WARP_M = 64, WARP_N = 64, STAGES = 3 },
  { name = "64x128x64 s3", TILE_M = 64, TILE_N = 128, TILE_K = 64, WARP_M = 32, WARP_N = 64, STAGES = 3 },
  { name = "64x64x64 s5", TILE_M = 64, TILE_N = 64, TILE_K = 64, WARP_M = 32, WARP_N = 32, STAGES = 5 },
]
*/

/*
`cutlass_tf32` with two-byte operands: mma.sync takes 16 steps of K at once, and ldmatrix loads the
operands into registers. The 16-byte pieces in shared memory are permuted, so that neither writes
nor reads have bank conflicts. All sums are FP32.

TILE_K = 64 is a cache line of 128 bytes per row: fewer barriers per product than 32, and twice the
shared memory. On Hopper expect about 60 % of the peak; `cutlass_hopper` uses wgmma for the rest.
*/

#define INSTRUCTION_K 16
#include "cutlass_tensor_op.cuh"
