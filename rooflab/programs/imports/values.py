"""Values from files of other people: checked, bounded, cleaned of control characters."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from rooflab.devices.records import NOWHERE, Dim
from rooflab.runs.text import clean

BIGGEST: Final = 2**62
"""Fits in 64 bits, also as the sum of two."""

LONGEST: Final = 4096
"""Characters of a name. CUTLASS's kernels have names of more than a thousand."""

MOST: Final = 20_000_000
"""Launches, copies, calls or ranges of one file."""

_MOST_BLOCKS: Final = 2**31 - 1


def whole(value: object, most: int = BIGGEST) -> int | None:
    """``value`` if it is an integer from 0 to ``most``, else None."""
    return value if type(value) is int and 0 <= value <= most else None


def number(value: object, most: int = BIGGEST) -> int:
    """Like ``whole``, with 0 for what is not known."""
    return whole(value, most) or 0


def dim(values: Any) -> Dim:
    """A grid or block; ``NOWHERE`` for anything but three positive integers below 2**31."""
    if not isinstance(values, (list, tuple)) or len(values) != 3:
        return NOWHERE
    x, y, z = values
    known = whole(x, _MOST_BLOCKS) and whole(y, _MOST_BLOCKS) and whole(z, _MOST_BLOCKS)
    return (x, y, z) if known else NOWHERE


@lru_cache(maxsize=4096)
def name(text: str) -> str:
    """A name to show, without control characters and of bounded length."""
    return clean(text[:LONGEST])


def described(
    title: object, facts: Mapping[str, object], major: object, minor: object
) -> tuple[str, dict[str, object]]:
    """Name and facts of a device, as far as they are known."""
    known = {fact: value for fact, value in facts.items() if whole(value)}
    if whole(major) is not None and whole(minor) is not None:
        known["compute_capability"] = f"{major}.{minor}"
    return name(title) if isinstance(title, str) else "", known
