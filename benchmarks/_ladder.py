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

from rooflab.backends.header import Header, read_header
from rooflab.config import load
from rooflab.files import kernels_dir
from rooflab.kernels import Kernel
from rooflab.model.dtypes import PRECISIONS
from rooflab.model.measurement import Measurement
from rooflab.model.problem import Problem
from rooflab.report.text import digits, times_as_fast
from rooflab.runs.store import Run

SIZES = (1024, 2048, 4096, 8192, 16384)
RUNG_SIZES = (4096, 8192)
DECODE = "decode"
DECODE_PRECISIONS = ("fp16", "bf16")
MOST_TOKENS = 64

TENSOR_RUNG = 20
"""The first rung with tensor cores: before it is FP32's ladder."""

FEW_ROWS_RUNG = 50
"""From here on rungs are for products with few rows."""

BESIDE = ("large",)
"""No rungs, since they are for some sizes only. They race beside the highest rung."""

LAYOUTS = {"fp32": ("nn",)}
"""Of others both count."""

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
"""Least geometric mean of all ratios, and least ratio."""

MOST_ERROR = 1.5
"""Times the library's error that ours may have."""

ERRORS = "ladder_errors"


def layouts(precision: str) -> tuple[str, ...]:
    return LAYOUTS.get(precision, ("nt", "nn"))


# Kernels -----------------------------------------------------------------------------------------


@cache
def rungs() -> dict[str, Header]:
    """Our files for gemm and gemv without a library's headers, as WORKLOAD/NAME, by rung."""
    found = {}
    for path in [*kernels_dir().glob("gemm/**/*.cu"), *kernels_dir().glob("gemv/**/*.cu")]:
        header = read_header(path)
        if not header.needs:
            found[f"{header.workload}/{path.stem}"] = header
    return dict(sorted(found.items(), key=lambda pair: pair[1].rung))


def ladder_of(precision: str) -> list[str]:
    """Names of our kernels for many rows, by rung; those of FP32 have no tensor cores.

    A launch that overlaps the one before is left out, since those of other rungs do not.
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

    A launch that overlaps the one before is left out, since the library's does not.
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
        return ("cublas", "cublaslt")
    return ("cublaslt" if "promoted" in name else "cublaslt_fast",)


# Contests ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contest:
    """Our fastest row against the library's fastest in the same problem, of one run.

    ``either`` is the ratio to the library's fastest in any layout, ``rivals`` the number of the
    library's kernels. ``own_clock``: if the device was at its power limit, each kernel was timed at
    its own clock, not at that of the kernels before it.
    """

    ours: Measurement
    library: Measurement
    run: str
    either: float
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


def contests(runs: Sequence[Run], what: str) -> dict[str, Contest]:
    """By problem, each from the first of ``runs`` that has it with the most rivals."""
    found: dict[str, Contest] = {}
    for run in runs:
        for problem, contest in _of_run(run, what).items():
            if problem not in found or contest.rivals > found[problem].rivals:
                found[problem] = contest
    return {problem: found[problem] for problem in problems(what) if problem in found}


def problems(what: str) -> list[str]:
    """The problems that must be won, in words."""
    if what == DECODE:
        return [f"{p} {shape}" for p in DECODE_PRECISIONS for shape in decode_shapes()]
    return [str(size) for size in SIZES]


@cache
def decode_shapes() -> tuple[str, ...]:
    """Those of configs/llm.toml with few tokens, MxNxK."""
    shapes = load("llm", None, "cuda", {}).workloads[0].shapes
    shapes = [shape.removesuffix("x1") if shape.count("x") == 3 else shape for shape in shapes]
    return tuple(shape for shape in shapes if int(shape.partition("x")[0]) <= MOST_TOKENS)


def _of_run(run: Run, what: str) -> dict[str, Contest]:
    if (
        run.manifest.device.kind != "cuda"
        or run.manifest.config.get("fill", "uniform") != "uniform"
    ):
        return {}
    rows = [
        row for row in run.ok if row.time_us and row.cache == "cold" and not row.problem.streamed
    ]
    named = [(name, row) for row in rows if (name := _problem(row, what))]
    found: dict[str, Contest] = {}
    for name, row in named:
        if not ours(row, what):
            continue
        others = [
            other
            for same, other in named
            if same == name
            and other.kernel in libraries_of(row.problem.precision, f"{row.kernel} {row.variant}")
            and other.problem.precision == AGAINST.get(what, row.problem.precision)
        ]
        here = [other for other in others if _layout(other) == _layout(row)]
        if not here:
            continue
        best, anywhere = (min(some, key=_time) for some in (here, others))
        rivals = len({other.kernel for other in here})
        either = _time(anywhere) / _time(row)
        own = run.manifest.own_clock or "power_capped" not in (*row.flag_names, *best.flag_names)
        contest = Contest(row, best, run.path.name, either, rivals, own)
        if name not in found or _time(row) < _time(found[name].ours):
            found[name] = contest
    return found


def _time(row: Measurement) -> float:
    return row.time_us or 0.0


def _layout(row: Measurement) -> str:
    """That of a product; a matrix and a vector are the product of one row in layout nt."""
    return str(row.problem.settings.get("layout", "nt"))


def _problem(row: Measurement, what: str) -> str:
    """The problem of a row in words, empty if it is another one."""
    problem, extents = row.problem, row.problem.extents
    if problem.workload == "gemv" and what == DECODE:
        shape, usual = (1, extents["m"], extents["n"]), True
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
    """Of one precision, or of the decode shapes."""

    what: str
    contests: Mapping[str, Contest]

    @property
    def mean(self) -> float:
        return exp(fmean(log(one.ratio) for one in self.contests.values()))

    @property
    def interval(self) -> str:
        """That of the mean, if the ratios are independent; empty if one has none."""
        factors = [one.factor for one in self.contests.values()]
        halves = [log(factor) for factor in factors if factor is not None]
        if len(halves) < len(factors):
            return ""
        return within(self.mean, exp(hypot(*halves) / len(halves)))

    @property
    def least(self) -> float:
        return min(one.ratio for one in self.contests.values())

    @property
    def missing(self) -> list[str]:
        return [name for name in problems(self.what) if name not in self.contests]

    @property
    def shared_clock(self) -> str:
        """What was measured at a clock that kernels shared, as a sentence; else empty."""
        names = [name for name, one in self.contests.items() if not one.own_clock]
        if not names:
            return ""
        return (
            f" At the power limit, at a clock that the kernels of a run shared: {', '.join(names)}."
        )

    @property
    def reached(self) -> bool:
        mean, least = TARGETS[self.what]
        return not self.missing and self.mean >= mean and self.least >= least

    @property
    def sentence(self) -> str:
        mean, least = TARGETS[self.what]
        wanted = f"target {mean:.2f}, none below {least:.2f}"
        if not self.contests:
            return f"Not measured; {wanted}"
        around = f" (95 %: {self.interval})" if self.interval else ""
        found = f"Geometric mean {self.mean:.3f}{around}, least {self.least:.3f}"
        if self.missing:
            return f"{found}; {wanted}: open, not measured at {', '.join(self.missing)}"
        return f"{found}; {wanted}: {'reached' if self.reached else 'NOT REACHED'}"


def verdicts(runs: Sequence[Run]) -> list[Verdict]:
    return [Verdict(what, contests(runs, what)) for what in TARGETS]


def title(what: str) -> str:
    if what == DECODE:
        return "Decode shapes of configs/llm.toml, FP16 and BF16"
    if other := AGAINST.get(what):
        return f"{PRECISIONS[what].title} against the libraries' {PRECISIONS[other].title}"
    return PRECISIONS[what].title


def section(verdict: Verdict) -> str:
    rows: list[Row] = [
        {
            "size": name,
            "layout": _layout(one.ours),
            "ours": one.ours.kernel,
            "variant": one.ours.variant,
            "µs": digits(one.ours.time_us, 4),
            "library": one.library.kernel,
            "its µs": digits(one.library.time_us, 4),
            "ratio": f"{one.ratio:.3f}",
            "95 %": one.interval,
            "either layout": f"{one.either:.3f}",
            "run": one.run,
        }
        for name, one in verdict.contests.items()
    ]
    table = f"{markdown(rows)}\n\n" if rows else ""
    return f"## {title(verdict.what)}\n\n{table}{verdict.sentence}.{verdict.shared_clock}"


HEADING = """# Our kernels against cuBLAS

By `python benchmarks/ladder.py`. A ratio is the time of the faster library kernel, cuBLAS or the
best of cuBLASLt's first eight heuristics, over that of our fastest: medians of one run, with
cold rotated operands, uniform numbers, and rounds of all kernels in turn at settled power. Where a
power limit lowers the clock, each kernel runs at its own before a round; in runs before 2026-11-24
they shared one, which favours kernels with few cycles that need much power. Such a round lasts
0.1 s; in runs before 2026-11-25 21:10 it lasts 2 to 60 ms, so that intervals are wider. The ratio's
interval is what the 95 % intervals of both times leave open; that of a geometric mean takes the
sizes as independent. What differs from run to run and from card to card is not in it. Of two
layouts the one counts in which our kernel is faster; "either layout" is the ratio to the
library's time in its own better one. FP8 kernels race with the library's kernel that sums as they
do."""

OTHER_PRECISION = """FP32 by 3×TF32 is a precision of its own. It and the libraries' FP32 are
separate points of one run: their medians compare, but their rounds did not
alternate."""

ABOUT_ERRORS = f"""Error of C against FP64: ‖C - ref‖ / ‖ref‖, and the largest of an element over
the root mean square of ref. Ours is that of the variant that rooflab chooses for the problem; the
library's that of cuBLAS, in FP8 of cuBLASLt's first heuristic. Wanted is at most {MOST_ERROR}
times the library's"""


def page(runs: Sequence[Run], errors: Sequence[Mapping[str, str]]) -> tuple[str, bool]:
    """ladder.md, and whether all that was measured reaches its target."""
    found = verdicts(runs)
    ladders = list(ladder_sections(runs))
    table = [*map(section, found), OTHER_PRECISION, *(text for text, _ in ladders)]
    right = [verdict.reached for verdict in found] + [good for _, good in ladders]
    if errors:
        text, good = error_section(errors)
        table.append(text)
        right.append(good)
    gpus = (run.manifest.device for run in runs if run.manifest.device.kind == "cuda")
    devices = dict.fromkeys(gpu.name for gpu in gpus)
    last = f"{sum(right)} of {len(right)} as wanted"
    return "\n\n".join([HEADING, f"On {', '.join(devices)}.", *table, last]) + "\n", all(right)


# Rungs -------------------------------------------------------------------------------------------


def steps(run: Run, precision: str) -> dict[str, dict[int, Measurement]]:
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


def ladder_sections(runs: Sequence[Run]) -> Iterator[tuple[str, bool]]:
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
    heading = f"## Rungs in {PRECISIONS[precision].title}\n\n{markdown(rows)}"
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
