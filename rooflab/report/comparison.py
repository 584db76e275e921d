"""Two runs side by side: for the terminal, as Markdown and as JSON; all formats by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from io import StringIO
from math import isfinite
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rooflab.model.grouping import grouped
from rooflab.report import markdown, verdicts
from rooflab.report.export import values
from rooflab.report.fitting import ROOMY, FigureTable
from rooflab.report.github import comparison_github
from rooflab.report.junit import comparison_junit
from rooflab.report.program_comparison import print_programs, programs_content, programs_markdown
from rooflab.report.text import as_json, digits, heading
from rooflab.runs.compare import Comparison, Point, Verdict
from rooflab.runs.compare_programs import ProgramComparison

_VERDICT_STYLES: Final = {Verdict.SLOW: "red", Verdict.AMBIGUOUS: "yellow", Verdict.FAST: "green"}


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Differences, one table per precision, unmatched rows, the counts; fits 80 columns.

    Of programs the step and what changed in it.
    """
    if isinstance(comparison, ProgramComparison):
        print_programs(comparison, console)
        return

    def print_lines(lines: Iterable[str]) -> None:
        for line in lines:
            console.print(line, markup=False, soft_wrap=True)

    print_lines(verdicts.headings(comparison))
    if comparison.differences:
        console.print(verdicts.differing_table(comparison))
    else:
        print_lines(["The environments are the same.", ""])
    by_title = grouped(comparison.points, lambda point: heading(point.base.problem))
    for title, points in by_title.items():
        console.print(_comparison_table(title, points))
    print_lines(verdicts.reasons(comparison))
    print_lines(f"{what}: {'; '.join(rows)}" for what, rows in verdicts.unmatched(comparison))
    print_lines([verdicts.sentence(comparison)])


def comparison_text(comparison: Comparison) -> str:
    """The output of ``print_comparison``, for a file."""
    file, width = StringIO(), 100 if isinstance(comparison, ProgramComparison) else 80
    print_comparison(comparison, Console(file=file, width=width, highlight=False, emoji=False))
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def _comparison_table(title: str, points: list[Point]) -> Table:
    table = FigureTable(escape(title), ("base µs", "new µs", "interval"))
    if max(len(p.base.kernel) + len(p.base.problem.size) for p in points) > ROOMY:
        table.padding = (0, 1, 0, 0)
    table.add_column("kernel", overflow="fold")
    for name in ("size", "base µs", "new µs", "change %", "interval"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for point in sorted(points, key=lambda point: point.base.flops or 0):
        style = _VERDICT_STYLES.get(point.verdict)
        table.add_row(
            escape(point.base.kernel),
            escape(point.base.problem.size),
            digits(point.base.time_us, 5),
            digits(point.new.time_us, 5),
            *verdicts.change_texts(point),
            f"[{style}]{point.verdict}[/]" if style else str(point.verdict),
        )
    return table


def comparison_markdown(comparison: Comparison) -> str:
    """For a comment on a change: differences, a table with regressions first, the counts."""
    if isinstance(comparison, ProgramComparison):
        return programs_markdown(comparison)
    blocks = [markdown.bullets(verdicts.headings(comparison))]
    if comparison.differences:
        blocks.append(verdicts.differing_markdown(comparison))
    blocks.append(markdown.table(verdicts.COLUMNS, verdicts.ALIGNED, verdicts.cells(comparison)))
    for what, rows in verdicts.unmatched(comparison):
        blocks.append(f"{what}: {markdown.escape('; '.join(rows))}\n")
    return "\n".join([*blocks, f"{verdicts.sentence(comparison)}\n"])


def comparison_json(comparison: Comparison) -> str:
    """Every figure, for programs: whole rows of both runs, unrounded; empty cells are null."""

    def number(value: float | None) -> float | None:
        return value if value is not None and isfinite(value) else None

    runs = {"base": comparison.base, "new": comparison.new}
    content: dict[str, Any] = {
        name: {
            "path": str(run.path),
            "created": run.manifest.created.isoformat(),
            "device": run.manifest.device.name,
        }
        for name, run in runs.items()
    }
    content |= {
        "threshold_percent": comparison.threshold_percent,
        "differences": [asdict(difference) for difference in comparison.differences],
        "points": [
            {
                "verdict": point.verdict,
                "reason": point.reason,
                "change_percent": number(point.change_percent),
                "change_lo_percent": number(point.change_lo_percent),
                "change_hi_percent": number(point.change_hi_percent),
                "base": values(point.base),
                "new": values(point.new),
            }
            for point in comparison.points
        ],
        "status_changes": [
            {"broken": change.broken, "base": values(change.base), "new": values(change.new)}
            for change in comparison.status_changes
        ],
        "only_base": [values(each) for each in comparison.only_base],
        "only_new": [values(each) for each in comparison.only_new],
        "counts": {
            **{str(verdict): count for verdict, count in comparison.counts.items()},
            "broken": comparison.broken,
            "unmeasured": comparison.unmeasured,
        },
    }
    if isinstance(comparison, ProgramComparison):
        content |= programs_content(comparison)
    return as_json(content)


COMPARISON_EXPORTERS: Final[dict[str, Callable[[Comparison], str]]] = {
    "markdown": comparison_markdown,
    "json": comparison_json,
    "github": comparison_github,
    "junit": comparison_junit,
}
