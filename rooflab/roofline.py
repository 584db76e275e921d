"""The roofline model: ceilings, ridge point, attainable performance, diagnosis. Pure.

After Williams, Waterman, Patterson, "Roofline: An Insightful Visual Performance Model for
Multicore Architectures", CACM 52(4), 2009.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Provenance = Literal["derived", "observed", "measured"]


@dataclass(frozen=True, slots=True)
class Ceiling:
    """One limit of a device.

    ``key`` is a precision's name for ``compute`` (``fp64_vector`` and the like for secondary
    limits), a memory's name (``HBM``, ``DRAM``, ``L2``) for ``bandwidth``. ``value`` is FLOP/s or
    byte/s. ``formula`` shows with which inputs the value came about; ``caveat`` what to doubt.
    """

    kind: Literal["compute", "bandwidth"]
    key: str
    value: float
    provenance: Provenance
    formula: str
    caveat: str = ""

    @property
    def amount(self) -> str:
        """Value with unit, three digits: ``66.9 TFLOP/s``, ``4.81 TB/s``, ``35.2 GB/s``."""
        unit = "FLOP/s" if self.kind == "compute" else "B/s"
        scale, prefix = (1e12, "T") if self.value >= 1e12 else (1e9, "G")
        scaled = self.value / scale
        text = f"{scaled:.3g}" if scaled < 100 else f"{scaled:.0f}"
        return f"{text} {prefix}{unit}"


@dataclass(frozen=True, slots=True)
class MissingCeiling:
    """A limit that could not be established, and why. It is never replaced by a guess."""

    kind: Literal["compute", "bandwidth"]
    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class Roofline:
    """All ceilings of one device.

    ``prefer`` orders provenances: percentages and ridges refer to the first one present. GPUs
    prefer derived peaks, which are comparable between machines; CPUs prefer measured ones, as
    their clocks and vector widths cannot be read reliably.
    ``memory`` names the bandwidth that feeds the model (``HBM``, ``GDDR``, ``DRAM``).
    """

    ceilings: tuple[Ceiling, ...]
    missing: tuple[MissingCeiling, ...] = ()
    memory: str = "DRAM"
    prefer: tuple[Provenance, ...] = ("derived", "measured")

    def with_limits(self, *limits: Ceiling | MissingCeiling) -> Roofline:
        """This roofline with more ceilings, or with more of them missing."""
        return replace(
            self,
            ceilings=(*self.ceilings, *(one for one in limits if isinstance(one, Ceiling))),
            missing=(*self.missing, *(one for one in limits if isinstance(one, MissingCeiling))),
        )

    def _find(self, kind: str, key: str) -> Ceiling | None:
        for provenance in self.prefer:
            for ceiling in self.ceilings:
                if (ceiling.kind, ceiling.key, ceiling.provenance) == (kind, key, provenance):
                    return ceiling
        return None

    def compute(self, precision: str) -> Ceiling | None:
        """The compute ceiling that percentages for ``precision`` refer to, or None."""
        return self._find("compute", precision)

    def bandwidth(self) -> Ceiling | None:
        """The bandwidth ceiling of device memory, or None."""
        return self._find("bandwidth", self.memory)

    def ridge(self, precision: str) -> float | None:
        """Intensity (FLOP/byte) at which the slope meets the flat roof, or None."""
        compute, bandwidth = self.compute(precision), self.bandwidth()
        return compute.value / bandwidth.value if compute and bandwidth else None

    def attainable(self, precision: str, intensity: float) -> float | None:
        """min(P, intensity · B) in FLOP/s, or None where either ceiling is missing."""
        compute, bandwidth = self.compute(precision), self.bandwidth()
        return min(compute.value, intensity * bandwidth.value) if compute and bandwidth else None

    def bound(self, precision: str, intensity: float) -> str:
        """``memory`` left of the ridge, ``compute`` from it on, empty where there is none."""
        ridge = self.ridge(precision)
        if ridge is None:
            return ""
        return "memory" if intensity < ridge else "compute"
