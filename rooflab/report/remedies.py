"""What is known to help a program: one sentence for each cause that its rows show. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from rooflab.model.measurement import Measurement
from rooflab.model.problem import DRAM
from rooflab.model.roofline import COMPUTE
from rooflab.report.kernel_names import spoken
from rooflab.report.text import count_text, digits, share_text, time_text
from rooflab.runs.program import COPIES, IDLE, SHORT_US, Program, total

WORTH: Final = 0.02
"""Part of a step from which on its cause gets a sentence."""

MANY: Final = 8
"""Launches in a step that are many of one kind."""

SLOW_LINK_PERCENT: Final = 60.0
"""Copies of a megabyte or more reach more of the host link if their memory is pinned."""

LARGE_BYTES: Final = 1e6

_ELEMENTWISE: Final = re.compile(r"elementwise|pointwise")
_FILL: Final = re.compile(r"FillFunctor|\bfill_?kernel", re.IGNORECASE)
_MOVING: Final = re.compile(
    r"direct_copy|\w*copy_kernel_cuda|CatArrayBatchedCopy|gpu_kernel_impl_nocast|transpose|permute",
    re.IGNORECASE,
)
_SOFTMAX: Final = re.compile(r"softmax", re.IGNORECASE)
_LOG_SOFTMAX: Final = re.compile(
    r"log_?softmax|softmax_warp_\w+<(?:[^,]+,){4} *true", re.IGNORECASE
)
_ATTENTION: Final = re.compile(r"flash|sdpa|fmha|attention|_attn|attn_", re.IGNORECASE)
_PRODUCT: Final = re.compile(
    r"gemm|gemv|nvjet|xmma|cutlass|conv|winograd|matmul|linear|::\w*mm\b|\bdot", re.IGNORECASE
)
_FUSED: Final = re.compile(r"triton_|_fused_|fusion", re.IGNORECASE)

_NARROWER: Final = {
    "fp32": "TF32 (in PyTorch torch.set_float32_matmul_precision('high')) or BF16",
    "tf32": "BF16 or FP16 (in PyTorch torch.autocast)",
}


def remedies(program: Program) -> Iterator[str]:
    """A sentence for each, with the time that it concerns; the largest time first."""
    found = [*_of_kernels(program), *_of_others(program)]
    least = WORTH * program.step_us
    for us, sentence in sorted(found, key=lambda pair: -pair[0]):
        if us > least:
            yield sentence


Remedy = tuple[float, str]
"""The time in a step that it concerns, and what to say of it."""


def _of_kernels(program: Program) -> Iterator[Remedy]:
    groups = program.groups
    moving = [row for row in groups if row.bound == DRAM and _MOVING.search(row.kernel)]
    filling = [row for row in groups if _FILL.search(row.kernel)]
    elementwise = [
        row
        for row in groups
        if row.bound == DRAM
        and _ELEMENTWISE.search(row.kernel)
        and not _FUSED.search(row.kernel)
        and row not in (*moving, *filling)
    ]
    if _launches(elementwise) >= MANY:
        yield (
            _sum(elementwise),
            f"{count_text(_launches(elementwise))} launches of elementwise kernels "
            f"({_names(elementwise)}) take {_of(program, elementwise)} and are limited by memory: "
            "fused with each other or with what is before them (in PyTorch torch.compile) they "
            "read and write less.",
        )
    if moving:
        yield (
            _sum(moving),
            f"Copies between types and layouts ({_names(moving)}) take {_of(program, moving)}: "
            "keep one type and layout, write results where they are needed, or fuse the "
            "conversion.",
        )
    if memory := [row for row in (program.other(COPIES["memset"]),) if row] + filling:
        yield (
            _sum(memory),
            f"Memsets and fills take {_of(program, memory)}: reuse buffers, and allocate without "
            "zeros what is overwritten (in PyTorch zero_grad(set_to_none=True), torch.empty).",
        )
    for precision, narrower in _NARROWER.items():
        slow = [
            row
            for row in groups
            if row.bound == COMPUTE
            and row.problem.precision == precision
            and _PRODUCT.search(_told(row))
        ]
        yield (
            _sum(slow),
            f"{precision.upper()} arithmetic limits products that take {_of(program, slow)} "
            f"({_names(slow)}): {narrower} has a higher roof, if its accuracy suffices.",
        )
    yield from _attention(program)


def _attention(program: Program) -> Iterator[Remedy]:
    softmax = [
        row
        for row in program.groups
        if _SOFTMAX.search(row.kernel) and not _LOG_SOFTMAX.search(_told(row))
    ]
    if softmax and not any(_ATTENTION.search(_told(row)) for row in program.groups):
        yield (
            _sum(softmax),
            f"Softmax has kernels of its own, which take {_of(program, softmax)}, and no kernel "
            "has the name of a fused attention: if it is attention's, a fused kernel (in PyTorch "
            "scaled_dot_product_attention) does not write the scores to memory.",
        )


def _of_others(program: Program) -> Iterator[Remedy]:
    idle = program.other(IDLE)
    short = [row for row in program.groups if (row.time_us or 0.0) < SHORT_US]
    count = _launches(short)
    if idle and count >= MANY and 2 * count >= _launches(program.groups):
        yield (
            total(idle),
            f"{count_text(count)} of {count_text(_launches(program.groups))} launches take less "
            f"than {SHORT_US:.0f} µs while the GPU idles {_of(program, [idle])}: a CUDA graph or a "
            "larger batch spares the host work between them.",
        )
    for kind in ("h2d", "d2h"):
        copies = program.other(COPIES[kind])
        if copies is None or (copies.roof_percent or 100.0) > SLOW_LINK_PERCENT:
            continue
        name = copies.kernel.strip("()").capitalize()
        if (moved := copies.host_bytes or 0) >= LARGE_BYTES:
            advice = (
                "as from pageable memory: pinned memory and asynchronous copies (in PyTorch "
                "pin_memory and non_blocking=True) are faster and overlap with kernels"
            )
        else:
            advice = (
                f"in small pieces, {digits(moved / 1e3, 2)} kB on average: copy larger pieces, or "
                "keep the data on the GPU"
            )
        yield (
            total(copies),
            f"{name} take {_of(program, [copies])} at {digits(copies.roof_percent, 2)} % of the "
            f"link's bandwidth, {advice}.",
        )


def _told(row: Measurement) -> str:
    return f"{row.kernel} {row.backend}"


def _sum(rows: Sequence[Measurement]) -> float:
    return sum(map(total, rows))


def _launches(rows: Sequence[Measurement]) -> float:
    return sum(row.launches or 0.0 for row in rows)


def _names(rows: Sequence[Measurement], most: int = 3) -> str:
    names = list(dict.fromkeys(spoken(row.kernel) for row in rows))
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def _of(program: Program, rows: Sequence[Measurement]) -> str:
    """``1.2 ms (4.1 %)``."""
    us = _sum(rows)
    return f"{time_text(us)} ({share_text(us, program.step_us)})"
