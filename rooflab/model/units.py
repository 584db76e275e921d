"""Numbers with decimal prefixes. Pure."""

from __future__ import annotations


def scaled(value: float) -> str:
    """Three digits and a prefix, before a unit: ``1.07 G``, ``512 ``."""
    for power, prefix in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if value >= 10**power:
            return f"{value / 10**power:.3g} {prefix}"
    return f"{value:.3g} "
