"""The roofline model: ceilings, ridge point, and the least time that a problem can take. Pure.

After Williams, Waterman, Patterson, "Roofline: An Insightful Visual Performance Model for
Multicore Architectures", CACM 52(4), 2009.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import DRAM, SFU, Problem

CeilingKind = Literal["compute", "bandwidth", "launch"]
Provenance = Literal["derived", "observed", "measured"]

COMPUTE: Final = "compute"


DISTURBED: Final = "other programs used the processor while it was measured: it may be too low"
"""The caveat of a ceiling that was measured on a busy machine."""

SLOWED: Final = 0.98
"""An observed ceiling below this share of the next higher one differs from it."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """One limit of a device.

    ``key`` is a precision's name for ``compute`` (``fp64_vector`` and the like for secondary
    limits, ``sfu`` for the special-function units), a memory's name (``HBM``, ``DRAM``, ``L2``) for
    ``bandwidth``. ``value`` is FLOP/s, operations of ``sfu`` per second, or byte/s, for ``launch``
    the seconds of an empty launch. ``formula`` shows the inputs of the value; ``caveat`` its
    uncertainty; ``datasheet`` is the vendor's value if it assumes another clock. ``sm_mhz`` is the
    clock while it was measured.
    """

    kind: CeilingKind
    key: str
    value: float
    provenance: Provenance
    formula: str
    caveat: str = ""
    datasheet: float | None = None
    sm_mhz: float | None = None

    @property
    def limit(self) -> tuple[CeilingKind, str]:
        """What it limits."""
        return (self.kind, self.key)

    @property
    def disturbed(self) -> bool:
        """Whether it was measured while other programs used the processor."""
        return DISTURBED in self.caveat

    @property
    def amount(self) -> str:
        """Value with unit, three digits: ``66.9 TFLOP/s``, ``4.81 TB/s``, ``35.2 GB/s``."""
        return self.show(self.value)

    def show(self, value: float) -> str:
        """A ``value`` of this limit with unit, three digits."""
        if self.kind == "launch":
            return f"{value * 1e6:.3g} µs"
        unit = "FLOP/s" if self.kind == "compute" else "B/s"
        unit = "op/s" if self.key == SFU else unit
        scale, prefix = (1e12, "T") if value >= 1e12 else (1e9, "G")
        scaled = value / scale
        text = f"{scaled:.3g}" if scaled < 100 else f"{scaled:.0f}"
        return f"{text} {prefix}{unit}"


@dataclass(frozen=True, slots=True)
class MissingCeiling:
    """An unknown limit, with the reason. It is never replaced by a guess."""

    kind: CeilingKind
    key: str
    reason: str

    @property
    def limit(self) -> tuple[CeilingKind, str]:
        """What it would limit."""
        return (self.kind, self.key)


CeilingList = Sequence[Ceiling | MissingCeiling]


def extremes(observed: Sequence[Ceiling], top: float) -> Iterator[Ceiling]:
    """The highest and the lowest of ``observed``, without one that is near the next above it.

    Each kernel has its own clock, so that some are above the lowest and none above the highest.
    """
    ordered = sorted(observed, key=lambda one: one.value)
    for one in (ordered[-1], ordered[0]):
        if one.value <= SLOWED * top:
            yield one
            top = one.value


@dataclass(frozen=True, slots=True)
class Roof:
    """The least time of a problem, and its cause: ``compute``, ``sfu`` or a link like ``dram``."""

    us: float
    bound: str


@dataclass(frozen=True, slots=True)
class Roofline:
    """All ceilings of one device.

    ``prefer`` orders provenances: percentages and ridges refer to the first one present. GPUs
    prefer derived peaks, which are comparable between machines; CPUs prefer measured ones, because
    their clocks and vector widths cannot be read reliably.
    ``memory`` names the bandwidth of device memory (``HBM``, ``GDDR``, ``DRAM``).
    """

    ceilings: tuple[Ceiling, ...]
    missing: tuple[MissingCeiling, ...] = ()
    memory: str = "DRAM"
    prefer: tuple[Provenance, ...] = ("derived", "measured")

    def with_limits(self, *limits: Ceiling | MissingCeiling) -> Roofline:
        """This roofline with more ceilings, or with more of them missing."""
        return replace(
            self,
            ceilings=(*self.ceilings, *(c for c in limits if isinstance(c, Ceiling))),
            missing=(*self.missing, *(c for c in limits if isinstance(c, MissingCeiling))),
        )

    def _find(
        self, kind: CeilingKind, key: str, prefer: tuple[Provenance, ...] | None = None
    ) -> Ceiling | None:
        found = {one.provenance: one for one in reversed(self.ceilings) if one.limit == (kind, key)}
        return next((found[one] for one in prefer or self.prefer if one in found), None)

    def compute(self, precision: str) -> Ceiling | None:
        """The compute ceiling that percentages for ``precision`` refer to, or None."""
        return self._find("compute", precision)

    def bandwidth(self, link: str = DRAM) -> Ceiling | None:
        """The bandwidth ceiling of a link, device memory by default, or None.

        Of a link to the host the measured one if there is one: the derived one has no protocol.
        """
        if link == DRAM:
            return self._find("bandwidth", self.memory)
        return self._find("bandwidth", link.upper(), ("measured", "derived"))

    def used(self, precisions: Iterable[str]) -> list[Ceiling]:
        """What percentages of rows in device memory refer to."""
        found = [self.bandwidth(), *map(self.compute, precisions)]
        return [one for one in found if one]

    def cache(self, level: str) -> Ceiling | None:
        """The bandwidth of ``L1`` or ``L2``, measured if it is; None if it is not known.

        L1 and shared memory have one data pipe, whose cycles are counted: L1 has the faster of the
        two rates.
        """
        keys = ("L1", "shared") if level == "L1" else (level,)
        found = [self._find("bandwidth", key, ("measured", "derived")) for key in keys]
        known = [replace(one, key=level) for one in found if one]
        return max(known, key=lambda ceiling: ceiling.value, default=None)

    def passed(self, precision: str) -> str:
        """Why the derived compute ceiling is below the measured one, or empty if it is not."""
        found = {one.provenance: one for one in self.ceilings if one.limit == (COMPUTE, precision)}
        derived, measured = found.get("derived"), found.get("measured")
        if derived is None or measured is None or derived.value >= measured.value:
            return ""
        clock = re.search(r"(\d+) MHz$", derived.formula)
        reported = f"the reported clock, {int(clock[1]) / 1000:.3g} GHz" if clock else "a low clock"
        return f"The derived roof assumes {reported}; the processor ran faster."

    def ridge(self, precision: str) -> float | None:
        """Intensity (FLOP/byte) at which the slope meets the flat roof, or None."""
        compute, bandwidth = self.compute(precision), self.bandwidth()
        return compute.value / bandwidth.value if compute and bandwidth else None

    def of(self, problem: Problem) -> Roof | None:
        """The roof of a problem; on several GPUs, of the busiest one."""
        name, flops = problem.precision.name, problem.flops_each
        return self.roof(name, flops, problem.traffic, problem.units)

    def roof(
        self,
        precision: str,
        flops: int,
        traffic: Mapping[str, int],
        units: Mapping[str, int] | None = None,
    ) -> Roof | None:
        """max(FLOPs / P, bytes / B over all links), or None if a ceiling is missing.

        Operations of other ``units`` count where the device has a ceiling for them. Integer work
        needs no compute ceiling: few devices have one, and memory limits it.
        """
        alone = self._seconds(precision, flops, traffic)
        limits = alone | self._both_ways(traffic, alone)
        if limits:
            limits |= self._of_units(units or {})
        if not limits:
            return None
        bound = max(limits, key=limits.__getitem__)
        return Roof(limits[bound] * 1e6, bound)

    def serial_us(
        self, precision: str, flops: int, traffic: Mapping[str, int], kernel_bytes: int
    ) -> float | None:
        """The least time if copies and kernels do not overlap; None if a ceiling is missing.

        ``kernel_bytes`` is the kernels' own part of the memory traffic; the rest is the copies'.
        """
        kernels = self._seconds(precision, flops, {DRAM: kernel_bytes})
        links = {link: count for link, count in traffic.items() if link != DRAM}
        copies = self._seconds(precision, 0, links)
        return (max(kernels.values()) + sum(copies.values())) * 1e6 if kernels and copies else None

    def _seconds(self, precision: str, flops: int, traffic: Mapping[str, int]) -> dict[str, float]:
        """The least time by cause, each link alone; empty if a ceiling is missing."""
        limits: dict[str, float] = {}
        compute = self.compute(precision)
        if flops and compute:
            limits[COMPUTE] = flops / compute.value
        elif flops and not PRECISIONS[precision].integer:
            return {}
        for link, count in traffic.items():
            bandwidth = self.bandwidth(link)
            if bandwidth is None:
                return {}
            limits[link] = count / bandwidth.value
        return limits

    def _of_units(self, units: Mapping[str, int]) -> dict[str, float]:
        """The least time of each unit whose ceiling is known."""
        known = {unit: self.compute(unit) for unit in units}
        return {unit: units[unit] / one.value for unit, one in known.items() if one}

    def _both_ways(
        self, traffic: Mapping[str, int], alone: Mapping[str, float]
    ) -> dict[str, float]:
        """Seconds of the busier direction of a host link, while the other one slows it down.

        As long as both directions are busy each has the rate of ``…_both``; the rest moves alone.
        """
        links = [link for link in alone if link not in (DRAM, COMPUTE)]
        if len(links) < 2:
            return {}
        busier = max(links, key=alone.__getitem__)
        less = min(traffic[link] for link in links)
        both, rate = self.bandwidth(f"{busier}_both"), self.bandwidth(busier)
        if both is None or rate is None:
            return {}
        return {busier: less / both.value + (traffic[busier] - less) / rate.value}

    def highest(self) -> Roofline:
        """Of each limit the highest ceiling, wherever it is from, as if only that were known."""
        best: dict[tuple[CeilingKind, str], Ceiling] = {}
        # The rate of one direction of a link holds while the other one rests.
        for one in sorted(self.ceilings, key=lambda one: -one.value):
            best.setdefault(one.limit, one)
        prefer: tuple[Provenance, ...] = ("derived", "measured", "observed")
        return replace(self, ceilings=tuple(best.values()), prefer=prefer)

    def completed(self, limits: CeilingList) -> Roofline:
        """This roofline with those of ``limits`` that it does not have."""
        known = {one.limit for one in self.ceilings if one.provenance == "measured"}
        return self.with_limits(*(one for one in limits if one.limit not in known))

    def raised(self, again: Roofline) -> Roofline:
        """These ceilings, measured ones replaced by those of ``again`` that are higher."""
        measured = {one.limit: one for one in again.ceilings if one.provenance == "measured"}

        def best(ceiling: Ceiling) -> Ceiling:
            other = measured.get(ceiling.limit, ceiling)
            return max(ceiling, other, key=lambda one: one.value)

        ceilings = (best(c) if c.provenance == "measured" else c for c in self.ceilings)
        return replace(self, ceilings=tuple(ceilings))
