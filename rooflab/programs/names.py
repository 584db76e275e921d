"""Names of kernels that people can read. Pure."""

from __future__ import annotations

import re
from typing import Final

LONGEST: Final = 72

_NOISE: Final = re.compile(
    r"^(?:void|static|auto) |\(anonymous namespace\)::|at::native::|cutlass::|thrust::\w+::|"
    r"cub::\w+::|std::|c10::|_GLOBAL__N_\w+::|\bunsigned (?=int|long)"
)
_FUNCTORS: Final = re.compile(r"(\w+Functor(?:_\w+)?|\w+_functor|\w+Op)\b")


def short(name: str) -> str:
    """A C++ name without its arguments, and with as much of its templates as tells it apart.

    ``elementwise_kernel<…GeluCUDAKernelImpl…>``: the function's name, and what it was made for.
    """
    head, inside = _parts(_NOISE.sub("", name))
    if not inside:
        return head[:LONGEST]
    told = _FUNCTORS.findall(inside) or re.findall(r"(\w+Kernel\w*|\w+_kernel\w*)", inside)
    what = told[0] if told else inside
    room = max(8, LONGEST - len(head) - 2)
    what = what if len(what) <= room else what[: room - 1] + "…"
    return f"{head[:LONGEST]}<{what}>"


def _parts(name: str) -> tuple[str, str]:
    """The function's name, and what is in its template brackets."""
    depth = 0
    start = end = -1
    for i, c in enumerate(name):
        if c == "<":
            start = i if depth == 0 and start < 0 else start
            depth += 1
        elif c == ">" and depth:
            depth -= 1
            end = i if depth == 0 else end
        elif c == "(" and depth == 0:
            name = name[:i]
            break
    if start < 0 or end < start:
        return name.strip(), ""
    return name[:start].strip() + name[end + 1 :].partition("(")[0].strip(), name[start + 1 : end]
