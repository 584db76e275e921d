"""A counter of a user's own, and a column that follows from it."""

import rooflab

rooflab.counter(
    "warp_instructions", "warp instr.", "executed in one launch", "sm__inst_executed.sum"
)


@rooflab.column("B/instruction", "bytes / warp_instructions")
def bytes_per_instruction(row):
    return row.bytes / row.warp_instructions if row.warp_instructions else None
