"""The roofs of a report's devices, by provenance. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.roofline import Ceiling, Roofline, extremes
from rooflab.report.html.points import Content, Entry, known, possible

PROVENANCES: Final = ("derived", "measured", "observed")

_SUFFIXES: Final = ("", "_fma", "_mma")
"""Measured peaks of a precision: of a library, of an FMA loop, of the tensor cores."""


@dataclass(frozen=True, slots=True)
class Roof:
    """A flat roof and a slope of one provenance; one of them may be missing.

    ``owner`` is the device, or empty if there is only one.
    """

    provenance: str
    device: str
    owner: str
    compute: Ceiling | None
    bandwidth: Ceiling | None

    def least_s(self, row: Measurement) -> float | None:
        """The least seconds of a row in device memory; None if a ceiling that it needs is missing.

        Integer work needs no compute ceiling, as in ``Roofline.roof``.
        """
        if not self.bandwidth or not row.bytes or row.bytes < 0:
            return None
        seconds = row.bytes / self.bandwidth.value
        if row.flops and self.compute:
            return max(seconds, row.flops / self.compute.value)
        return None if row.flops and not PRECISIONS[row.problem.precision].integer else seconds


def provenances(content: Content) -> set[str]:
    """Of all roofs of a report."""
    rows = [entry for entry in content.measured if known(entry.row) and entry.row.problem.resident]
    return {
        roof.provenance
        for precision in {entry.row.problem.precision for entry in rows}
        for roof in roofs(content, precision, rows)
    }


def roofs(content: Content, precision: str, here: Sequence[Entry]) -> list[Roof]:
    """The roofs of each device that has rows of a precision here: the highest of its runs."""
    devices: dict[str, list[Entry]] = {}
    for entry in here:
        if entry.row.problem.precision == precision:
            devices.setdefault(content.devices[entry.run], []).append(entry)
    return [
        roof
        for device, entries in devices.items()
        for roof in _of_device(
            [content.runs[one].manifest.roofline for one in sorted({e.run for e in entries})],
            precision,
            (device, device if len(devices) > 1 else ""),
            entries,
        )
    ]


def _of_device(
    rooflines: Sequence[Roofline],
    precision: str,
    names: tuple[str, str],
    entries: Sequence[Entry],
) -> Iterator[Roof]:
    for provenance in ("derived", "measured"):
        compute = _ceiling(rooflines, [precision + end for end in _SUFFIXES], provenance)
        bandwidth = _ceiling(rooflines, [rooflines[0].memory], provenance)
        if compute or bandwidth:
            yield Roof(provenance, *names, compute, bandwidth)
    yield from _observed(rooflines[0], precision, names, entries)


def _observed(
    roofline: Roofline, precision: str, names: tuple[str, str], entries: Sequence[Entry]
) -> Iterator[Roof]:
    """The derived roof at the lowest and at the highest clock that were counted."""
    derived = roofline.compute(precision)
    seen = [
        Ceiling("compute", precision, row.observed_tflops * 1e12, "observed", _clock(row))
        for entry in entries
        if (row := entry.row).bound == "compute"
        and row.observed_tflops
        and possible(row.observed_tflops)
    ]
    for flat in extremes(seen, derived.value) if derived and seen else ():
        yield Roof("observed", *names, flat, roofline.bandwidth())


def _clock(row: Measurement) -> str:
    return f" at {row.sm_mhz:.0f} MHz" if row.sm_mhz else ""


def _ceiling(rooflines: Sequence[Roofline], keys: Sequence[str], provenance: str) -> Ceiling | None:
    """The highest ceiling of this provenance with the first of the keys that exists."""
    given = [one for each in rooflines for one in each.ceilings if one.provenance == provenance]
    for key in keys:
        found = [one for one in given if one.key == key]
        if found:
            return max(found, key=lambda one: one.value)
    return None
