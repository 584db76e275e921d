/*
title = "CUTLASS 2.x, TF32 by mma.sync"
launch = "plan"
rung = 42
needs = ["cutlass"]
access_bytes = 16
precisions = ["tf32"]
min_compute_capability = "8.0"
teaches = "the tensor cores of sm_80, with FP32 operands"
variants = [
  { name = "128x128x32 s3", TILE_M = 128, TILE_N = 128, TILE_K = 32, WARP_M = 64, WARP_N = 64, STAGES = 3 },
  { name = "128x256x32 s3", TILE_M = 128, TILE_N = 256, TILE_K = 32, WARP_M = 64, WARP_N = 64, STAGES = 3 },
  { name = "256x128x32 s3", TILE_M = 256, TILE_N = 128, TILE_K = 32, WARP_M = 64, WARP_N = 64, STAGES = 3 },
  { name = "256x128x16 s4", TILE_M = 256, TILE_N = 128, TILE_K = 16, WARP_M = 64, WARP_N = 64, STAGES = 4 },
  { name = "128x128x16 s5", TILE_M = 128, TILE_N = 128, TILE_K = 16, WARP_M = 64, WARP_N = 64, STAGES = 5 },
  { name = "64x128x32 s4", TILE_M = 64, TILE_N = 128, TILE_K = 32, WARP_M = 32, WARP_N = 64, STAGES = 4 },
  { name = "64x64x32 s5", TILE_M = 64, TILE_N = 64, TILE_K = 32, WARP_M = 32, WARP_N = 32, STAGES = 5 },
  { name = "128x128x32 s3 k4", TILE_M = 128, TILE_N = 128, TILE_K = 32, WARP_M = 64, WARP_N = 64, STAGES = 3, splits = 4 },
]
*/

/*
The hierarchy of `cutlass_simt`, down to the warp. There mma.sync multiplies a 16 x 8 piece of A by
an 8 x 8 piece of B in one instruction of the whole warp. The operands are FP32 in global and shared
memory; each fragment is rounded in registers to TF32's 10 mantissa bits before the tensor core uses
it.

Portable from sm_80 on. On Hopper expect about 60 % of the peak, because this instruction reads its
operands from registers; `cutlass_hopper` uses wgmma, which reads them from shared memory.
*/

#define INSTRUCTION_K 8
#include "cutlass_tensor_op.cuh"
