"""Facts: properties of a device, with their sources. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fact:
    """One property of a device: a value with its unit and source, or None and the reason."""

    value: str | int | float | None
    unit: str = ""
    source: str = ""
    reason: str = ""
