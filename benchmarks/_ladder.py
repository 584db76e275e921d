"""What counts in the race of our kernels against the libraries, and ladder.md. Needs no GPU."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import exp, hypot, log
from pathlib import Path
from statistics import fmean

from _common import Row, markdown

from rooflab.config import load
from rooflab.files import kernel_name, kernels_dir
from rooflab.kernels.base import Kernel
from rooflab.kernels.cuda_file.header import Header, read_header
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import Problem
from rooflab.report.text import digits, times_as_fast
from rooflab.runs.store import RunData

SIZES = (1024, 2048, 4096, 8192)
RUNG_SIZES = (4096, 8192)
DECODE = "decode"
DECODE_PRECISIONS = ("fp16", "bf16")

PROPOSED = "cutlass_heuristics"
"""The fastest of the CUTLASS kernels that nvMatmulHeuristics proposes."""

TENSOR_RUNG = 20
"""The first rung with tensor cores: before it is FP32's ladder."""

FEW_ROWS_RUNG = 50
"""From here on rungs are for products with few rows."""

BESIDE = ("large",)
"""No rungs, since they are for larger sizes than SIZES: there they race beside the highest rung."""

LAYOUTS = {"fp8": ("nt",), DECODE: ("nt",)}
"""The library has FP8 in one layout only. Of others both count, each by itself."""

AGAINST = {"fp32_3xtf32": "fp32"}
"""Precisions that race with the libraries of another one."""

TARGETS = {
    "fp32": (1.10, 1.03),
    "tf32": (1.08, 0.99),
    "fp16": (1.05, 0.99),
    "bf16": (1.05, 0.99),
    "fp8": (1.05, 0.99),
    "fp64": (1.00, 0.97),
    "fp32_3xtf32": (2.0, 1.7),
    DECODE: (1.10, 0.97),
}
"""Least geometric mean of the ratios of a layout, and least ratio."""

MOST_ERROR = 1.5
"""Times the library's error that ours may have."""

ERRORS = "ladder_errors"


def layouts(precision: str) -> tuple[str, ...]:
    return LAYOUTS.get(precision, ("nn", "nt"))


# Kernels -----------------------------------------------------------------------------------------


@cache
def rungs() -> dict[str, Header]:
    """Our files for gemm and gemv without a library's headers, as WORKLOAD/NAME, by rung."""
    found = {}
    for path in [*kernels_dir().glob("gemm/**/*.cu"), *kernels_dir().glob("gemv/**/*.cu")]:
        header = read_header(path)
        if not header.needs:
            found[f"{header.workload}/{kernel_name(path)}"] = header
    return dict(sorted(found.items(), key=lambda pair: pair[1].rung))


def ladder_of(precision: str) -> list[str]:
    """Names of our kernels for many rows, by rung; those of FP32 have no tensor cores.

    Kernels with early launch are left out: launches of other rungs do not overlap.
    """
    first = 0 if precision == "fp32" else TENSOR_RUNG
    return [
        name.partition("/")[2]
        for name, header in rungs().items()
        if header.workload == "gemm" and precision in header.precisions
        if first <= header.rung < FEW_ROWS_RUNG and not header.early_launch
        if name.partition("/")[2] not in BESIDE
    ]


def competes(kernel: str, what: str = "") -> bool:
    """Whether this is one of ours for ``what``: those for few rows are for the decode shapes.

    Kernels with early launch are left out: the library's launches do not overlap.
    """
    header = rungs().get(kernel)
    if header is None or header.early_launch != 0:
        return False
    return what == DECODE or header.rung < FEW_ROWS_RUNG


def champion(kernels: Iterable[Kernel], problem: Problem) -> Kernel | None:
    """Our highest rung that takes the problem, of those for many rows."""
    able = [
        one
        for one in kernels
        if competes(one.id) and one.name not in BESIDE and not one.refuses(problem)
    ]
    return max(able, key=lambda one: rungs()[one.id].rung, default=None)


def ours(row: Measurement, what: str) -> bool:
    if what not in (DECODE, row.problem.precision) or row.backend != "cuda":
        return False
    return competes(f"{row.problem.workload}/{row.kernel}", what)


def libraries_of(precision: str, name: str) -> tuple[str, ...]:
    """The library's kernels that sum as ours does, whose kernel and variant are called ``name``.

    Ours leave the sums of FP8 products in the tensor cores, unless "promoted" is in the name.
    """
    if precision != "fp8":
        return ("cublas", "cublaslt", PROPOSED)
    return ("cublaslt",) if "promoted" in name else ("cublaslt_fast", PROPOSED)


# Contests ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contest:
    """Our fastest row against the library's fastest in the same problem and layout, of one run.

    ``burst`` is the ratio before the power limit acts, of the fastest there; None if it does not
    act, or if it was not measured. ``rivals`` is the number of the library's kernels.
    ``own_clock``: at the power limit each kernel was timed at its own clock, not at that of the
    kernels before it.
    """

    ours: Measurement
    library: Measurement
    burst: float | None
    rivals: int
    own_clock: bool

    @property
    def ratio(self) -> float:
        return times_as_fast(self.library, self.ours)[0]

    @property
    def factor(self) -> float | None:
        """The ratio is known to within this factor."""
        return times_as_fast(self.library, self.ours)[1]

    @property
    def interval(self) -> str:
        return within(self.ratio, self.factor) or "–"


def within(ratio: float, factor: float | None) -> str:
    """The interval of a ratio, empty if it is not known."""
    return "" if factor is None else f"{ratio / factor:.3f} to {ratio * factor:.3f}"


Place = tuple[str, str]
"""A problem in words, and its layout."""


def places(what: str) -> list[Place]:
    """What must be won."""
    return [(problem, layout) for layout in layouts(what) for problem in problems(what)]


def problems(what: str) -> list[str]:
    """The problems that must be won, in words."""
    if what == DECODE:
        return [f"{p} {shape}" for p in DECODE_PRECISIONS for shape in decode_shapes()]
    return [str(size) for size in SIZES]


@cache
def decode_shapes() -> tuple[str, ...]:
    """Those of decode.toml, MxNxK."""
    shapes = load(str(Path(__file__).parent / "decode.toml"), None, "cuda", {}).workloads[0].shapes
    return tuple(shape.removesuffix("x1") if shape.count("x") == 3 else shape for shape in shapes)


def contests(run: RunData, what: str) -> dict[Place, Contest]:
    """Those of a run, in the order of ``places``."""
    if (
        run.manifest.device.kind != "cuda"
        or run.manifest.config.get("fill", "uniform") != "uniform"
    ):
        return {}
    rows = [
        row for row in run.ok if row.time_us and row.cache == "cold" and not row.problem.streamed
    ]
    by_place: dict[Place, list[Measurement]] = {}
    for row in rows:
        if name := _problem(row, what):
            by_place.setdefault((name, _layout(row)), []).append(row)
    return {
        place: contest
        for place in places(what)
        if (contest := _race(by_place.get(place, []), what, run.manifest.own_clock))
    }


def _race(rows: Sequence[Measurement], what: str, own_clock: bool) -> Contest | None:
    """The contest of one problem and layout; None without ours or the library's."""
    mine = [row for row in rows if ours(row, what)]
    if not mine:
        return None
    best = min(mine, key=_time)
    precision = AGAINST.get(what, best.problem.precision)
    able = libraries_of(best.problem.precision, f"{best.kernel} {best.variant}")
    others = [row for row in rows if row.kernel in able and row.problem.precision == precision]
    if not others:
        return None
    library = min(others, key=_time)
    capped = any("power_capped" in row.flag_names for row in (best, library))
    bursts = [min(map(_burst, some)) for some in (others, mine)] if capped else []
    return Contest(
        best,
        library,
        bursts[0] / bursts[1] if all(bursts) and bursts else None,
        len({row.kernel for row in others}),
        own_clock or not capped,
    )


def _burst(row: Measurement) -> float:
    """The time before the power limit acts; 0 if it acts and this was not measured."""
    capped = "power_capped" in row.flag_names
    return row.burst_us or (0.0 if capped else _time(row))


def _time(row: Measurement) -> float:
    return row.time_us or 0.0


def _layout(row: Measurement) -> str:
    """That of a product; a matrix and a vector are the product of one row in layout nt."""
    return str(row.problem.settings.get("layout", "nt"))


def _problem(row: Measurement, what: str) -> str:
    """The problem of a row in words, empty if it is another one."""
    problem, extents = row.problem, row.problem.extents
    if problem.workload == "gemv" and what == DECODE:
        shape: tuple[int, ...] = (1, extents["m"], extents["n"])
        usual = True
    elif problem.workload == "gemm" and problem.gpus == 1:
        shape = tuple(extents[name] for name in "mnk")
        scalars = (problem.settings.get("alpha", 1.0), problem.settings.get("beta", 0.0))
        usual = extents.get("batch", 1) == 1 and scalars == (1.0, 0.0)
    else:
        return ""
    if what == DECODE:
        text = "x".join(map(str, shape))
        fits = problem.precision in DECODE_PRECISIONS and text in decode_shapes()
        return f"{problem.precision} {text}" if usual and fits and _layout(row) == "nt" else ""
    fits = problem.precision in (what, AGAINST.get(what)) and _layout(row) in layouts(what)
    square = len(set(shape)) == 1 and shape[0] in SIZES
    return str(shape[0]) if usual and fits and square else ""


# The page ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """Of one precision, or of the decode shapes, by one run on one kind of GPU."""

    what: str
    contests: Mapping[Place, Contest]
    run: RunData | None = None

    def of(self, layout: str) -> list[Contest]:
        return [one for (_, other), one in self.contests.items() if other == layout]

    def mean(self, layout: str) -> float:
        return exp(fmean(log(one.ratio) for one in self.of(layout)))

    def interval(self, layout: str) -> str:
        """The interval of the mean of independent ratios; empty if a ratio has none."""
        factors = [one.factor for one in self.of(layout)]
        halves = [log(factor) for factor in factors if factor is not None]
        if len(halves) < len(factors):
            return ""
        return within(self.mean(layout), exp(hypot(*halves) / len(halves)))

    def least(self, layout: str) -> float:
        return min(one.ratio for one in self.of(layout))

    @property
    def missing(self) -> list[str]:
        return [" ".join(place) for place in places(self.what) if place not in self.contests]

    @property
    def shared_clock(self) -> str:
        """A sentence that names the contests whose kernels shared one clock; empty without any."""
        names = [" ".join(place) for place, one in self.contests.items() if not one.own_clock]
        if not names:
            return ""
        return (
            f" At the power limit, at a clock that the kernels of a run shared: {', '.join(names)}."
        )

    @property
    def reached(self) -> bool:
        mean, least = TARGETS[self.what]
        raced = [layout for layout in layouts(self.what) if self.of(layout)]
        good = all(self.mean(one) >= mean and self.least(one) >= least for one in raced)
        return good and not self.missing

    @property
    def sentence(self) -> str:
        mean, least = TARGETS[self.what]
        wanted = f"target {mean:.2f}, none below {least:.2f}"
        if not self.contests:
            return f"Not measured; {wanted}"
        found = "; ".join(self._of_layout(one) for one in layouts(self.what) if self.of(one))
        if self.missing:
            return f"Geometric mean: {found}; {wanted}: open, without {', '.join(self.missing)}"
        return f"Geometric mean: {found}; {wanted}: {'reached' if self.reached else 'NOT REACHED'}"

    def _of_layout(self, layout: str) -> str:
        around = f" (95 %: {interval})" if (interval := self.interval(layout)) else ""
        return f"{layout} {self.mean(layout):.3f}{around}, least {self.least(layout):.3f}"


def verdict(runs: Sequence[RunData], what: str) -> Verdict:
    """By the run that has most of it, with the most rivals; the first of several."""
    found = [Verdict(what, contests(run, what), run) for run in runs]

    def worth(one: Verdict) -> tuple[int, int]:
        return len(one.contests), sum(contest.rivals for contest in one.contests.values())

    return max((one for one in found if one.contests), key=worth, default=Verdict(what, {}))


def verdicts(runs: Sequence[RunData]) -> list[Verdict]:
    return [verdict(runs, what) for what in TARGETS]


def newest_first(runs: Iterable[RunData]) -> list[RunData]:
    return sorted(runs, key=lambda run: run.manifest.created, reverse=True)


def by_card(runs: Sequence[RunData]) -> dict[str, list[RunData]]:
    """The runs on GPUs, by the GPU's name."""
    found: dict[str, list[RunData]] = {}
    for run in runs:
        if run.manifest.device.kind == "cuda":
            found.setdefault(run.manifest.device.name, []).append(run)
    return dict(sorted(found.items()))


def title(what: str) -> str:
    if what == DECODE:
        return "Decode shapes of benchmarks/decode.toml, FP16 and BF16"
    if other := AGAINST.get(what):
        return f"{PRECISIONS[what].title} against the libraries' {PRECISIONS[other].title}"
    return PRECISIONS[what].title


def section(verdict: Verdict) -> str:
    rows: list[Row] = [
        {
            "size": name,
            "layout": layout,
            "ours": one.ours.kernel,
            "variant": one.ours.variant,
            "µs": digits(one.ours.time_us, 4),
            "MHz": digits(one.ours.sm_mhz, 4),
            "library": one.library.kernel,
            "its µs": digits(one.library.time_us, 4),
            "its MHz": digits(one.library.sm_mhz, 4),
            "ratio": f"{one.ratio:.3f}",
            "95 %": one.interval,
            "in bursts": f"{one.burst:.3f}" if one.burst else "",
        }
        for (name, layout), one in verdict.contests.items()
    ]
    table = f"{markdown(rows)}\n\n" if rows else ""
    origin = f" From {verdict.run.path.name}." if verdict.run else ""
    text = f"{verdict.sentence}.{verdict.shared_clock}{origin}"
    return f"### {title(verdict.what)}\n\n{table}{text}"


def summary(runs: Sequence[RunData]) -> str:
    """Ratios by size, each layout of a precision a column, with those of bursts in brackets."""
    found = {what: verdict(runs, what) for what in TARGETS if what != DECODE}
    columns = [
        (what, layout) for what, one in found.items() for layout in layouts(what) if one.of(layout)
    ]
    rows: list[Row] = []
    for size in map(str, SIZES):
        raced = {one: found[one[0]].contests.get((size, one[1])) for one in columns}
        rows.append({"size": size, **{_column(*one): _cell(raced[one]) for one in columns}})
    means = {_column(what, layout): f"{found[what].mean(layout):.3f}" for what, layout in columns}
    rows.append({"size": "geometric mean", **means})
    return markdown(rows)


def _column(what: str, layout: str) -> str:
    return f"{PRECISIONS[what].title} {layout}"


def _cell(contest: Contest | None) -> str:
    if contest is None:
        return "–"
    return f"{contest.ratio:.3f}" + (f" ({contest.burst:.3f})" if contest.burst else "")


HEADING = """# Our kernels against NVIDIA's

By `python benchmarks/ladder.py bf16` and the like, one sweep for each precision and card. A ratio
is the time of the fastest of cuBLAS, cuBLASLt (all algorithms that its heuristics propose; in runs
before 2026-11-26 the first eight) and, on Hopper, CUTLASS's kernels that nvMatmulHeuristics
proposes, over that of our fastest: medians of one run, with cold rotated operands, uniform numbers,
and rounds of all kernels in turn at settled power. Where a power limit lowers the clock, each
kernel runs at its own before a round; in runs before 2026-11-24 they shared one, which favours
kernels with few cycles that need much power. There "in bursts" is the ratio of a few launches on a
chip that has rested, at its highest clock; elsewhere it would be the same. The ratio's interval is
what the 95 % intervals of both times leave open; that of a geometric mean takes the sizes as
independent. What differs from run to run and from card to card is not in it. Each layout counts by
itself. FP8 kernels race with those that sum as they do."""

OTHER_PRECISION = """FP32 by 3×TF32 is a precision of its own. It and the libraries' FP32 are
separate points of one run: their medians compare, but their rounds did not
alternate."""

ABOUT_ERRORS = f"""Error of C against FP64: ‖C - ref‖ / ‖ref‖, and the largest of an element over
the root mean square of ref. Ours is that of the variant that rooflab chooses for the problem; the
library's that of cuBLAS, in FP8 of cuBLASLt's first heuristic. Wanted is at most {MOST_ERROR}
times the library's"""


def page(runs: Sequence[RunData], errors: Sequence[Mapping[str, str]]) -> tuple[str, bool]:
    """ladder.md, and whether all that was measured reaches its target."""
    parts, right = [HEADING], []
    for card, some in by_card(runs).items():
        found = verdicts(some)
        ladders = list(ladder_sections(some))
        parts += [f"## On one {card}", summary(some), *map(section, found), OTHER_PRECISION]
        parts += [text for text, _ in ladders]
        right += [one.reached for one in found if one.contests] + [good for _, good in ladders]
    if errors:
        text, good = error_section(errors)
        parts.append(text)
        right.append(good)
    last = f"{sum(right)} of {len(right)} as wanted"
    return "\n\n".join([*parts, last]) + "\n", bool(right) and all(right)


# Rungs -------------------------------------------------------------------------------------------


def steps(run: RunData, precision: str) -> dict[str, dict[int, Measurement]]:
    """Rows of our rungs of one precision by kernel and size, in the order of the ladder."""
    found: dict[str, dict[int, Measurement]] = {}
    rows = [row for row in run.ok if row.backend == "cuda" and row.time_us]
    for kernel in ladder_of(precision):
        for row in rows:
            size = _problem(row, precision)
            if row.kernel == kernel and row.problem.precision == precision and size:
                sizes = found.setdefault(kernel, {})
                if int(size) in RUNG_SIZES:
                    before = sizes.get(int(size), row)
                    sizes[int(size)] = min(row, before, key=_time)
    return {kernel: sizes for kernel, sizes in found.items() if len(sizes) == len(RUNG_SIZES)}


def ladder_sections(runs: Sequence[RunData]) -> Iterator[tuple[str, bool]]:
    """For each precision the run with the most rungs, the newest of them."""
    for precision in TARGETS:
        best = max(runs, key=lambda run: len(steps(run, precision)), default=None)
        found = steps(best, precision) if best and precision != DECODE else {}
        if best and len(found) > 1:
            yield _ladder_section(precision, found, best.path.name)


def _ladder_section(
    precision: str, found: Mapping[str, Mapping[int, Measurement]], run: str
) -> tuple[str, bool]:
    gains = {
        after: {size: times_as_fast(found[before][size], found[after][size]) for size in RUNG_SIZES}
        for before, after in pairwise(found)
    }
    rows: list[Row] = []
    for kernel, sizes in found.items():
        row: dict[str, str | float | None] = {"rung": kernel}
        for size in RUNG_SIZES:
            row[f"{size}: µs"] = digits(sizes[size].time_us, 4)
            gain = gains.get(kernel, {}).get(size)
            row[f"{size}: times the one before"] = f"{gain[0]:.3f}" if gain else ""
            row[f"{size}: 95 %"] = within(*gain) if gain else ""
        rows.append(row)
    places = [(f"{k} at {size}", *gain) for k, row in gains.items() for size, gain in row.items()]
    slower = [place for place, gain, _ in places if gain <= 1]
    unsure = [place for place, gain, factor in places if factor and 1 < gain <= factor]
    verdict = "Each rung is faster than the one before"
    if slower:
        verdict = f"NOT faster than before: {', '.join(slower)}"
    elif unsure:
        verdict += f", but the interval has 1 in it: {', '.join(unsure)}"
    heading = f"### Rungs in {PRECISIONS[precision].title}\n\n{markdown(rows)}"
    return f"{heading}\n\n{verdict}. From {run}.", not slower


# Errors ------------------------------------------------------------------------------------------


def read_errors(folder: Path) -> list[dict[str, str]]:
    """The table that ``--errors`` wrote, empty if there is none."""
    path = folder / f"{ERRORS}.csv"
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def error_section(rows: Iterable[Mapping[str, str]]) -> tuple[str, bool]:
    table = [dict(row) for row in rows]
    larger = sum(row["verdict"] == "LARGER" for row in table)
    found = f"NOT so in {larger} of {len(table)} rows" if larger else "so everywhere"
    return f"## Errors\n\n{markdown(table)}\n\n{ABOUT_ERRORS}: {found}.", not larger
