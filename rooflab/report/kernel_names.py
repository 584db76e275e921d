"""Names of a program's kernels in sentences and in narrow columns. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final

from rooflab.model.grouping import grouped
from rooflab.runs.program import GENERAL

LONGEST: Final = 40
"""Characters of a name in a sentence."""

_MADE_FOR: Final = re.compile(
    r"(?:CUDA)?(?:Math)?(?:Kernel(?:Impl|Template)?|Functor)|_(?:kernel_(?:cuda|impl)|functor)"
)
"""What says no more than that something is a kernel's operation, at the end of its name."""

_TUNING: Final = re.compile(r"_(?:wgmma|knob|tilesize|stages?|warpsize|cga)_?\d.*|_wgmma_.*")
"""How libraries tuned a kernel, to its end."""

CUTS: Final = tuple((level, share) for level in (0, 1, 2) for share in (0.4, 0.6, 0.2, 0.8))
"""Ways to shorten a name, of which the first is taken that keeps names apart: how much of what a
library or a template adds stays, and which share of the room the name's end has."""


def spoken(kernel: str) -> str:
    """A short name for a sentence: ``FusedAdam`` for ``multi_tensor_apply_kernel<FusedAdamMath…``.

    Several kernels may share it.
    """
    head, _, inside = kernel.partition("<")
    operation = inside.rstrip(">").partition(",")[0].partition("<")[0]
    if operation and not operation[0].isdigit() and GENERAL.search(head):
        head = operation
    head = head.replace("cudnn_generated_fort_native_", "cudnn_")
    head = _TUNING.sub("", head)
    return cut(_bare(head) or kernel, LONGEST, CUTS[0][1])


def _bare(name: str) -> str:
    """A name without what is said of all kernels."""
    name = name.removeprefix("CUDAFunctor_") or name
    found = re.search(rf"(?:{_MADE_FOR.pattern}|_kernel)$", name)
    return name[: found.start()] if found and found.start() else name


def fitted(labels: Sequence[tuple[str, str]], room: int) -> list[str]:
    """Kernels and what tells their groups apart, each in ``room`` characters.

    Different kernels stay different if there is a way to cut them so.
    """
    told = {label: _label(*label, room, *CUTS[0]) for label in labels}
    for group in grouped(list(told), told.__getitem__).values():
        if len(group) > 1:
            ways = [{label: _label(*label, room, *how) for label in group} for how in CUTS]
            ways.append(_apart(group, room))
            best = max(ways, key=lambda way: len(set(way.values())))
            told |= best
    return [told[label] for label in labels]


def _apart(group: Collection[tuple[str, str]], room: int) -> dict[tuple[str, str], str]:
    """Names that show where they begin to differ."""
    names = [kernel for kernel, _ in group]
    pairs = enumerate(zip(min(names), max(names), strict=False))
    differ = next((i for i, (a, b) in pairs if a != b), 0)
    start = min(8, room // 3)
    found = {}
    for kernel, ending in group:
        after = f" {ending}" if ending else ""
        left = room - len(after) - start - 1
        found[kernel, ending] = f"{kernel[:start]}…{cut(kernel[differ:], max(1, left), 0)}{after}"
    return found


def _label(kernel: str, ending: str, room: int, level: int, share: float) -> str:
    after = f" {ending}" if ending else ""
    return f"{_cell(kernel, max(4, room - len(after)), level, share)}{after}"


def _cell(kernel: str, room: int, level: int, share: float) -> str:
    """A kernel's name: what a general one was made for outlives its own name."""
    if len(kernel) <= room:
        return kernel
    if level == 2:
        return cut(kernel, room, share)
    head, bracket, inside = kernel.partition("<")
    head = head.replace("cudnn_generated_fort_native_", "cudnn_")
    head = _bare(head if level else _TUNING.sub("", head))
    if not bracket or not kernel.endswith(">"):
        return cut(head, room, share)
    first, comma, rest = inside[:-1].partition(",")
    if not GENERAL.search(head):
        return cut(f"{head}<{inside}" if level else head, room, share)
    inside = _bare(first) + (comma + rest if level else "")
    least = min(len(head), max(6, room // 4))
    inside = cut(inside, max(1, room - least - 2), share)
    head = cut(head, max(1, room - len(inside) - 2), 0)
    return cut(f"{head}<{inside}>", room, share)


def cut(text: str, room: int, share: float) -> str:
    """``text`` in ``room`` characters without its middle; ``share`` of them are its end's."""
    if len(text) <= room:
        return text
    end = round(share * (room - 1))
    return f"{text[: max(0, room - 1 - end)]}…{text[len(text) - end :] if end else ''}"[:room]
