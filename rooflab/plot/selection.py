"""What a figure shows: runs, and the points of each precision in series."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rooflab.errors import UsageError
from rooflab.measurement import Measurement
from rooflab.plot.style import Style, kernel_styles
from rooflab.problem import PRECISIONS
from rooflab.run import Run


@dataclass(frozen=True, slots=True)
class Series:
    """Points that belong on one line: one run, kernel and precision, sizes of one family."""

    run: int
    kernel: str
    rows: tuple[Measurement, ...]


@dataclass(frozen=True, slots=True)
class Selection:
    """What a figure shows. ``panels`` are the series of each precision."""

    runs: Sequence[Run]
    panels: Mapping[str, list[Series]]
    styles: Mapping[str, Style]

    @property
    def several(self) -> bool:
        """Whether there is more than one panel."""
        return len(self.panels) > 1

    def rows(self, run: int | None = None) -> list[Measurement]:
        """The points of all panels, or those of one run."""
        every = (series for group in self.panels.values() for series in group)
        return [row for series in every if run in (None, series.run) for row in series.rows]


def select(runs: Sequence[Run], precisions: Sequence[str] | None = None) -> Selection:
    """All that can be drawn of ``runs``, or only that in ``precisions``.

    Raises ``UsageError`` where there is nothing to draw.
    """
    panels = {precision: _series(runs, precision) for precision in _present(runs, precisions)}
    return Selection(runs, panels, _styles(panels.values()))


def flop_rate(row: Measurement) -> float:
    """FLOP/s of a point, which has them: see ``_drawable``."""
    return (row.tflops or 0.0) * 1e12


def intensity(row: Measurement) -> float:
    """FLOP/byte of a point, which has them: see ``_drawable``."""
    return row.intensity or 1.0


def short_name(device: str) -> str:
    """``Xeon Platinum 8481C`` for ``Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz``."""
    plain = re.sub(r"\((R|TM|C)\)|\bCPU\b|@.*", "", device)
    words = plain.split() or [device]
    return " ".join(words[1:] if words[0] in ("NVIDIA", "Intel", "AMD") and words[1:] else words)


def run_names(runs: Sequence[Run]) -> list[str]:
    """A short name per run: its device where those differ, else its date, else its folder."""
    names = [short_name(run.manifest.device.name) for run in runs]
    dates = [f"{run.manifest.created:%Y-%m-%d %H:%M}" for run in runs]
    both = [", ".join(pair) for pair in zip(names, dates, strict=True)]
    folders = [run.path.name for run in runs]
    choices = (names, dates if len(set(names)) == 1 else both, folders)
    distinct = (labels for labels in choices if len(set(labels)) == len(runs))
    return next(distinct, [f"{i}: {label}" for i, label in enumerate(both, 1)])


def _drawable(run: Run) -> list[Measurement]:
    known = (row for row in run.ok if row.precision in PRECISIONS)
    return [row for row in known if row.tflops and row.intensity and row.gbps]


def _present(runs: Sequence[Run], wanted: Sequence[str] | None) -> list[str]:
    """The precisions to draw, in the order of ``PRECISIONS``."""
    if not runs:
        raise UsageError("no run to draw: name a run folder")
    present: set[str] = set()
    for run in runs:
        here = {row.precision for row in _drawable(run)}
        unknown = sorted({row.precision for row in run.ok} - set(PRECISIONS))
        if not here and unknown:
            raise UsageError(
                f"{run.path} has only rows of precision {', '.join(unknown)}, which this "
                f"rooflab cannot draw; it knows {', '.join(PRECISIONS)}"
            )
        if not here:
            raise UsageError(
                f"{run.path} has no row with status ok, so there is nothing to draw; "
                f"see why: rooflab show {run.path}"
            )
        present |= here
    for name in wanted or ():
        if name not in present:
            raise UsageError(
                f"no row of precision {name!r}: choose from {', '.join(sorted(present))}"
            )
    return [name for name in PRECISIONS if name in (wanted or present)]


def _series(runs: Sequence[Run], precision: str) -> list[Series]:
    """Series of one precision; within a series only the size changes."""
    groups: dict[tuple[int, str], list[Measurement]] = defaultdict(list)
    for i, run in enumerate(runs):
        for row in _drawable(run):
            if row.precision == precision:
                groups[i, row.kernel].append(row)
    made = []
    for (i, kernel), rows in groups.items():
        family = _family(rows)
        families: dict[object, list[Measurement]] = defaultdict(list)
        for row in rows:
            settings = (row.batch, row.layout, row.alpha, row.beta)
            families[settings, family(row)].append(row)
        for members in families.values():
            ordered = sorted(members, key=lambda r: (r.m * r.n * r.k, r.m, r.n))
            made.append(Series(i, kernel, tuple(ordered)))
    return made


def _family(rows: Sequence[Measurement]) -> Callable[[Measurement], object]:
    """What stays fixed along a line: the proportions, or two extents, whichever splits least."""
    keys: tuple[Callable[[Measurement], object], ...] = (
        lambda r: (r.m / r.n, r.m / r.k),
        lambda r: (r.n, r.k),
        lambda r: (r.m, r.k),
        lambda r: (r.m, r.n),
    )
    return min(keys, key=lambda key: len({key(row) for row in rows}))


def _styles(panels: Iterable[list[Series]]) -> dict[str, Style]:
    """Styles of all kernels drawn, the fastest first: the order of the legend."""
    best: dict[str, float] = defaultdict(float)
    for series in (series for group in panels for series in group):
        best[series.kernel] = max(best[series.kernel], *map(flop_rate, series.rows))
    styles = kernel_styles(best)
    return {name: styles[name] for name in sorted(best, key=lambda name: (-best[name], name))}
