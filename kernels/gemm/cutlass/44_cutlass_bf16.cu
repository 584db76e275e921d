/*
title = "CUTLASS 2.x, BF16 by mma.sync"
launch = "plan"
rung = 44
needs = ["cutlass"]
access_bytes = 16
precisions = ["bf16"]
min_compute_capability = "8.0"
teaches = "FP16's speed with FP32's range"
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
`cutlass_fp16` with the other two-byte type: 8 bits of exponent, as in FP32, and 7 of mantissa. The
tensor cores multiply both at the same rate, and the tiles are the same. If the speed differs, the
cause is power: the bits that toggle decide the clock.
*/

#define INSTRUCTION_K 16
#include "cutlass_tensor_op.cuh"
