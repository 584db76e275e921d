"""The content of a figure: runs, and the points of each precision in series."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from rooflab.errors import UsageError
from rooflab.figures.palette import KernelStyle, kernel_styles
from rooflab.figures.style import theme
from rooflab.model.grouping import grouped
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS, precision_name
from rooflab.model.problem import ProblemRecord
from rooflab.runs.program import is_program
from rooflab.runs.store import RunData

MEMORY: Final = "device memory"
HOST: Final = "host memory"
SEVERAL_GPUS: Final = "several GPUs"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The runs of a figure, the precisions and the workload if not all, and its option's value.

    ``whole`` asks for all kernels, also of several workloads; a run without points is no error.
    """

    runs: Sequence[RunData]
    precisions: Sequence[str] | None = None
    workload: str | None = None
    value: str = ""
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """Points that belong on one line: one run, kernel and precision, sizes of one family.

    ``kernel`` is the name in the legend: the workload's if there are several workloads.
    """

    run: int
    kernel: str
    rows: tuple[Measurement, ...]


def rows_of(group: Iterable[Series]) -> list[Measurement]:
    """The points of several series."""
    return [row for series in group for row in series.rows]


def having(group: Iterable[Series], value: Callable[[Measurement], object]) -> list[Series]:
    """The series with only their rows that have a value."""
    kept = (replace(series, rows=tuple(filter(value, series.rows))) for series in group)
    return [series for series in kept if series.rows]


@dataclass(frozen=True)
class FigureData:
    """The content of a figure. ``panels`` are the series of each precision.

    ``every`` says that all kernels are there, also of several workloads.
    """

    runs: Sequence[RunData]
    panels: Mapping[str, list[Series]]
    styles: Mapping[str, KernelStyle]
    every: bool = False

    def only(self, panels: Mapping[str, list[Series]], kernels: Collection[str]) -> FigureData:
        """With these panels, and with the styles of ``kernels``."""
        styles = {name: style for name, style in self.styles.items() if name in kernels}
        return replace(self, panels=panels, styles=styles)

    @property
    def several(self) -> bool:
        """Whether there is more than one panel."""
        return len(self.panels) > 1

    def rows(self, run: int | None = None) -> list[Measurement]:
        """The points of all panels, or those of one run."""
        every = (series for group in self.panels.values() for series in group)
        return rows_of(series for series in every if run in (None, series.run))

    @cached_property
    def settings(self) -> list[str]:
        """The settings of all points, as text."""
        return list(dict.fromkeys(row.problem.about for row in self.rows() if row.problem.about))

    def words(self, row: Measurement) -> str:
        """What tells ``row`` from points with other settings, such as its layout; may be empty."""
        words = (str(v) for v in row.problem.settings.values() if isinstance(v, str))
        return " ".join(words) if len(self.settings) > 1 else ""

    @cached_property
    def workloads(self) -> list[str]:
        """The workloads of all points."""
        return list(dict.fromkeys(row.problem.workload for row in self.rows()))


def _refuse_programs(runs: Sequence[RunData]) -> None:
    """Raises ``UsageError`` if one is of a program, whose groups have no sizes and no kernels."""
    of_programs = [run for run in runs if is_program(run.measurements)]
    if not of_programs:
        return
    path = of_programs[0].path
    if len(of_programs) < len(runs):
        raise UsageError(
            f"{path} is of a program and has no figure with sweeps: rooflab plot {path} alone"
        )
    raise UsageError(
        f"{path} is of a program, which has other figures: rooflab plot {path}, also with --step, "
        "--timeline or, for two runs, --changes"
    )


def select(
    wanted: Wanted, *, flops: bool = True, every: bool = False, place: str = MEMORY
) -> FigureData:
    """All points of the runs that can be drawn, or only those of the precisions or the workload.

    Of several workloads, only the fastest kernel of each problem, or with ``every`` all of them.
    With ``flops``, only points with FLOPs: a copy has no place on a roofline. Only points with
    operands in a ``place``. Raises ``UsageError`` if there is nothing to draw.
    """
    _refuse_programs(wanted.runs)
    runs, workload, every = wanted.runs, wanted.workload, every or wanted.whole
    drawable = [_drawable(run, flops, place) for run in runs]
    present = list(dict.fromkeys(row.problem.workload for rows in drawable for row in rows))
    if workload is not None:
        if workload not in present:
            raise UsageError(f"no row of {workload[:40]!r}: choose from {', '.join(present)}")
        drawable = [[row for row in rows if row.problem.workload == workload] for rows in drawable]
    several = workload is None and len(present) > 1 and not every
    if several:
        drawable = [fastest(rows) for rows in drawable]
    names = [precision_name(name) for name in wanted.precisions or ()]
    panels = {
        precision: _series(drawable, precision, several)
        for precision in _present(wanted, drawable, names)
    }
    return FigureData(runs, panels, _styles(panels.values()), every)


def fastest(
    rows: Iterable[Measurement], key: Callable[[Measurement], object] = lambda row: row.problem.key
) -> list[Measurement]:
    """The fastest row of each problem, or of each ``key``."""
    return [min(some, key=lambda row: row.time_us or 0) for some in grouped(rows, key).values()]


def flop_rate(row: Measurement) -> float:
    """FLOP/s of a point; ``_drawable`` makes sure that it has them."""
    return (row.tflops or 0.0) * 1e12


def intensity(row: Measurement) -> float:
    """FLOP/byte of a point; ``_drawable`` makes sure that it has them."""
    return row.intensity or 1.0


POSSIBLE: Final = (1e-9, 1e9)
"""Figures outside this range, in GB/s, TFLOP/s or FLOP/byte, come from a damaged file."""


def possible(value: float | None) -> bool:
    """Whether a figure can be drawn on a logarithmic axis."""
    return value is not None and POSSIBLE[0] < value < POSSIBLE[1]


def counted(row: Measurement) -> float | None:
    """FLOP/byte by the bytes that counters found in device memory."""
    value = row.flops / row.dram_bytes if row.flops and row.dram_bytes else None
    return value if possible(value) else None


def place_of(problem: ProblemRecord) -> str:
    """Where the operands are: bytes in other places cross another link."""
    return SEVERAL_GPUS if problem.gpus > 1 else HOST if problem.streamed else MEMORY


def _drawable(run: RunData, flops: bool, place: str) -> list[Measurement]:
    return [
        row
        for row in run.ok
        if row.problem.precision in PRECISIONS
        and place_of(row.problem) == place
        and possible(row.gbps)
        and ((possible(row.tflops) and possible(row.intensity)) or not (row.flops or flops))
    ]


def _present(
    wanted: Wanted, drawable: Sequence[Sequence[Measurement]], names: Sequence[str]
) -> list[str]:
    if not wanted.runs:
        raise UsageError("no run to draw: name a run folder")
    present = {row.problem.precision for rows in drawable for row in rows}
    for run, rows in zip(wanted.runs, drawable, strict=True):
        here = bool(rows) or (wanted.whole and bool(present))
        unknown = sorted({row.problem.precision for row in run.ok} - set(PRECISIONS))
        if not here and unknown:
            raise UsageError(
                f"{run.path} has only rows of precision {', '.join(unknown)}, which this "
                f"rooflab cannot draw; it supports {', '.join(PRECISIONS)}"
            )
        if not here:
            what = "no FLOPs in its rows" if run.ok else "no row with status ok"
            how = "rooflab plot --by-size" if run.ok else "see why: rooflab show"
            raise UsageError(
                f"{run.path} has {what}, so there is nothing to draw; {how} {run.path}"
            )
    for name in names:
        if name not in present:
            raise UsageError(
                f"no row of precision {name!r}: choose from {', '.join(sorted(present))}"
            )
    return [name for name in PRECISIONS if name in (names or present)]


def _series(
    drawable: Sequence[Sequence[Measurement]], precision: str, several: bool
) -> list[Series]:
    """Series of one precision; within a series only the size changes."""
    made = []
    for i, rows in enumerate(drawable):
        here = [row for row in rows if row.problem.precision == precision]
        kernels = grouped(here, lambda row: ("" if several else row.kernel, row.problem.workload))
        for (kernel, workload), some in kernels.items():
            for members in grouped(some, _family(some)).values():
                members.sort(key=lambda r: (r.link_bytes or 0, r.flops or 0, r.problem.size))
                made.append(Series(i, workload if several else kernel, tuple(members)))
    return made


Family = Callable[[Measurement], object]


def _family(rows: Sequence[Measurement]) -> Family:
    """The key that is constant along a line: settings, and all proportions or extents but one.

    It is the key with the fewest lines.
    """

    def proportions(row: Measurement) -> object:
        # A constant batch or number of rows has no proportion to the other extents.
        moving = [v for name, v in row.problem.extents.items() if name in varying]
        return (len(row.problem.extents), *(v / moving[0] for v in moving))

    def all_but(name: str) -> Family:
        return lambda row: tuple(v for n, v in row.problem.extents.items() if n != name)

    names = list(rows[0].problem.extents)
    varying = [n for n in names if len({row.problem.extents[n] for row in rows}) > 1]
    keys: list[Family] = [proportions, *map(all_but, names)]
    best = min(keys, key=lambda key: len({key(row) for row in rows}))
    return lambda row: (tuple(row.problem.settings.items()), best(row))


def _styles(panels: Iterable[list[Series]]) -> dict[str, KernelStyle]:
    """Of all kernels drawn, the fastest first: the order of the legend."""
    kernels = grouped((series for group in panels for series in group), lambda one: one.kernel)
    best = {name: max(row.gbps or 0 for row in rows_of(some)) for name, some in kernels.items()}
    styles = kernel_styles(best, theme().palette)
    return {name: styles[name] for name in sorted(best, key=lambda name: (-best[name], name))}
