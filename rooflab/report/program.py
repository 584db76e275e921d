"""The roofline of a program in words: what it could take, and which kernels owe the difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.markup import escape
from rich.table import Table

from rooflab.model.measurement import Measurement
from rooflab.report.explain import time_text
from rooflab.report.fitting import FigureTable
from rooflab.report.text import digits
from rooflab.runs.store import Run

NAMED: Final = 4
"""Groups that are named in sentences."""

SHOWN: Final = 24
"""Rows of the table in a terminal."""

NEGLIGIBLE: Final = 0.01
"""A part of the step that is not worth a sentence."""


def lines(run: Run) -> Iterator[str]:
    """Sentences about a program, the most important first."""
    program = run.manifest.program
    step_us = float(program.get("step_us") or 0.0)
    if not step_us:
        return
    launched = [row for row in run.measurements if not row.kernel.startswith("(")]
    yield _first(program.get("steps", 1), step_us, launched)
    yield from _owed(launched, step_us)
    idle = next((row for row in run.measurements if row.kernel == "(idle)"), None)
    if idle and (idle.total_us or 0.0) > NEGLIGIBLE * step_us:
        yield (
            f"The GPU idles {time_text(idle.total_us or 0.0)} of it "
            f"({_percent(idle.total_us, step_us)})."
        )
    yield from _missing(launched, step_us)
    overhead = program.get("overhead_percent")
    if isinstance(overhead, int | float):
        yield f"Recording changed the time of a step by {digits(overhead, 2)} %."
    yield from (f"{note}." for note in program.get("notes", []))


def _first(steps: object, step_us: float, launched: Sequence[Measurement]) -> str:
    kernels = sum(row.total_us or 0.0 for row in launched)
    rated = [row for row in launched if row.roof_us]
    roofs = sum((row.launches or 0.0) * (row.roof_us or 0.0) for row in rated)
    rated_us = sum(row.total_us or 0.0 for row in rated)
    text = (
        f"One step takes {time_text(step_us)} (mean of {steps}); its kernels take "
        f"{time_text(kernels)}."
    )
    if rated:
        whole = "" if rated_us > 0.995 * kernels else f" the {_percent(rated_us, kernels)} known"
        text += f" At their roofs{whole} would take {time_text(roofs)}."
    return text


def _owed(launched: Sequence[Measurement], step_us: float) -> Iterator[str]:
    """Which groups are how far above their roofs."""
    owing = sorted(launched, key=lambda row: -(row.recoverable_us or 0.0))
    total = sum(row.recoverable_us or 0.0 for row in owing)
    named = [row for row in owing[:NAMED] if (row.recoverable_us or 0.0) > NEGLIGIBLE * step_us]
    if not named or not total:
        return
    share = sum(row.recoverable_us or 0.0 for row in named) / total
    parts = "; ".join(
        f"{row.kernel} ({time_text(row.total_us or 0.0)} at {digits(row.observed_percent, 2)} % of "
        f"its {_roof(row)})"
        for row in named
    )
    yield f"{_percent(share, 1)} of the difference at their clocks: {parts}."


def _roof(row: Measurement) -> str:
    return "memory roof" if row.bound == "dram" else f"{row.bound} roof"


def _missing(launched: Sequence[Measurement], step_us: float) -> Iterator[str]:
    unknown = sum(row.total_us or 0.0 for row in launched if not row.roof_us)
    if unknown > NEGLIGIBLE * step_us:
        yield f"The work of {_percent(unknown, step_us)} of the step is not known."


def _percent(part: float | None, whole: float) -> str:
    return f"{digits(100 * (part or 0.0) / whole, 2)} %"


def table(run: Run) -> Table:
    """The groups with the most time; fits 80 columns."""
    made = FigureTable("", ("GB/s", "TFLOP/s", "bound", "launches"))
    made.padding = (0, 1, 0, 0)
    made.add_column("kernel", overflow="fold")
    for name in ("launches", "total µs", "% of step", "TFLOP/s", "GB/s", "% roof"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("bound", no_wrap=True)
    made.add_column("above roof µs", justify="right", no_wrap=True)
    for row in _shown(run.measurements):
        made.add_row(
            escape(row.kernel),
            digits(row.launches, 3),
            digits(row.total_us, 4),
            digits(row.share_percent, 3),
            digits(row.tflops, 3),
            digits(row.gbps, 3),
            digits(row.observed_percent or row.roof_percent, 3),
            escape(row.bound),
            digits(row.recoverable_us, 3),
        )
    return made


def _shown(rows: Sequence[Measurement]) -> list[Measurement]:
    launched = [row for row in rows if not row.kernel.startswith("(")]
    others = [row for row in rows if row.kernel.startswith("(")]
    return [*launched[:SHOWN], *others]
