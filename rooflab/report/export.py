"""Rows for other programs and for papers: CSV, JSON, Markdown, LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Final

from rooflab.model.measurement import COLUMNS, Measurement
from rooflab.report import markdown
from rooflab.report.text import as_json, count_text, digits, interval_percent
from rooflab.runs.program import IDLE, is_launched, is_program, known_by
from rooflab.runs.store import RunData
from rooflab.runs.table import cells, csv_lines, header

_PAPER: Final[Mapping[str, Callable[[Measurement], str]]] = {
    "workload": lambda row: row.problem.workload,
    "kernel": lambda row: row.kernel,
    "precision": lambda row: row.problem.precision,
    "settings": lambda row: row.problem.about,
    "size": lambda row: row.problem.size,
    "time µs": lambda row: _figure(row, "time_us"),
    "± %": lambda row: "" if (half := interval_percent(row)) is None else f"{half:.1f}",
    "TFLOP/s": lambda row: _figure(row, "tflops"),
    "GB/s": lambda row: _figure(row, "gbps"),
    "FLOP/B": lambda row: _figure(row, "intensity"),
    "% of roof": lambda row: _figure(row, "roof_percent"),
    "status": lambda row: row.status,
}
"""Columns of a table for a paper."""

_PROGRAM: Final[Mapping[str, Callable[[Measurement], str]]] = {
    "kernel": lambda row: row.kernel,
    "grid, block": lambda row: row.problem.size.removesuffix("-"),
    "launches": lambda row: "" if row.kernel == IDLE else count_text(row.launches),
    "total µs": lambda row: _figure(row, "total_us"),
    "% of step": lambda row: _figure(row, "share_percent"),
    "time µs": lambda row: "" if row.kernel == IDLE else _figure(row, "time_us"),
    "TFLOP/s": lambda row: _figure(row, "tflops"),
    "GB/s": lambda row: _figure(row, "gbps"),
    "% of roof": lambda row: digits(row.observed_percent or row.roof_percent, 3),
    "bound": lambda row: row.bound,
    "above roof µs": lambda row: _figure(row, "recoverable_us"),
    "work": lambda row: known_by(row) if is_launched(row) else "",
}
"""Columns for a program. Its share of the roof is that at the clock that was counted."""

_WORDS: Final = ("workload", "kernel", "precision", "settings", "grid, block", "bound", "work")


def _figure(row: Measurement, name: str) -> str:
    return digits(getattr(row, name), COLUMNS[name].digits)


def values(row: Measurement) -> dict[str, Any]:
    """Every column of a row by name; NaN and infinity are None."""
    return {
        name: None if isinstance(value, float) and not isfinite(value) else value
        for name, value in cells(row).items()
    }


def to_csv(run: RunData) -> str:
    """Every column, unrounded.

    Text that a spreadsheet would treat as a formula is quoted with an apostrophe.
    """
    columns = header(run.manifest.workloads)
    rows = (values(row) for row in run.measurements)
    return csv_lines([columns, *([_csv_cell(row.get(name)) for name in columns] for row in rows)])


def _csv_cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return f"'{value}" if value[:1] in ("=", "+", "-", "@", "\t") else value
    return repr(value)


def to_json(run: RunData) -> str:
    """A list of objects with every column; empty cells are null."""
    rows = [values(row) for row in run.measurements]
    return as_json(rows)


def to_markdown(run: RunData) -> str:
    """A table for a README or a comment."""
    head, *body = _paper(run)
    aligned = [":--" if name in _WORDS else "--:" for name in head]
    return markdown.table(head, aligned, body)


def _paper(run: RunData) -> list[list[str]]:
    columns = _PROGRAM if is_program(run.measurements) else _PAPER
    rows = [[cell(row) for cell in columns.values()] for row in run.measurements]
    return [list(columns), *rows]


def to_latex(run: RunData) -> str:
    """A tabular with booktabs rules."""
    table = _paper(run)
    columns = "".join("l" if name in _WORDS else "r" for name in table[0])
    head, *body = (" & ".join(map(_tex, line)) + " \\\\" for line in table)
    start = [f"\\begin{{tabular}}{{{columns}}}", "\\toprule", head, "\\midrule"]
    return "\n".join([*start, *body, "\\bottomrule", "\\end{tabular}", ""])


_TEX: Final = {
    "\\": r"\textbackslash{}",
    **{special: f"\\{special}" for special in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "µ": r"\textmu{}",
    "±": r"$\pm$",
    "→": r"$\rightarrow$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "…": r"\dots{}",
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in text)


EXPORTERS: Final[dict[str, Callable[[RunData], str]]] = {
    "csv": to_csv,
    "markdown": to_markdown,
    "latex": to_latex,
    "json": to_json,
}
