/*
title = "The champion, launched early"
entry = "champion"
rung = 27
early_launch = 1
precisions = ["bf16", "fp16", "fp16_fp32", "tf32", "fp8"]
layouts = ["nn", "nt"]
k_major = ["tf32", "fp8"]
compute_capability = "9.0"
block = ["128 * CONSUMERS + PRODUCER"]
tile = ["64 * CONSUMERS", "TILE_N"]
flat = true
blocks_per_sm = 1
shared_bytes = "STAGES * 128 * (64 * CONSUMERS + TILE_N) + CONSUMERS * 2 * 64 * 128 + 16 * STAGES"
tensor_maps = [
  { operand = "a", box = ["64 * CONSUMERS", "128 // input_bytes"], swizzle = 128, promotion = 256 },
  { operand = "b", box = ["""ROOFLAB_TRANSPOSE_B * TILE_N \
    + (1 - ROOFLAB_TRANSPOSE_B) * 128 // input_bytes""", "128 // input_bytes"], swizzle = 128, promotion = 256 },
  { operand = "c", box = [16, "128 // output_bytes"], swizzle = 128, pointer = true },
]
variants = [
  { name = "128x256", CONSUMERS = 2, PRODUCER = 128, TILE_N = 256, STAGES = 4, SQUARES = 0, LOCKSTEP = 0 },
  { name = "128x256 in step", CONSUMERS = 2, PRODUCER = 128, TILE_N = 256, STAGES = 4, SQUARES = 1, LOCKSTEP = 1 },
  { name = "64x128", CONSUMERS = 1, PRODUCER = 32, TILE_N = 128, STAGES = 8, SQUARES = 1, LOCKSTEP = 0 },
]
teaches = "the next launch sets up its blocks while the last ones of this launch end"
*/

/*
`champion` with programmatic dependent launch. A launch waits for the one before it to end; between
the two the chip is idle for a microsecond or two, and then every block sets up its barriers. With
`early_launch` a block begins as soon as a multiprocessor is free, sets up, and waits only then for
the end of the launch before.

Expected to gain the same at every size, a microsecond or two, which matters at 1024 and is lost in the noise
at 4096. In BF16 `champion` takes 6.73 us at 1024, and this 5.60. At 2048 it takes 6 % fewer cycles, but
without the pause between launches the clock falls from 1722 to 1489 MHz, and 24.5 us become 26.6. In that
run there was no variant in step. It takes 25.4, in a run of its own.

The gain is there only if launches follow each other at once, and a library's launch without it pays the full
price: read such a comparison with that in mind. So this is a kernel of its own.
*/

#define EARLY
#include "26_champion.cu"
