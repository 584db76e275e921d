"""Runs as text: the table and the closing sentences in the terminal, and the exporters."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from io import StringIO
from itertools import groupby
from math import hypot, isfinite
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rooflab.compare import Comparison, Point, StatusChange, Verdict
from rooflab.devices.base import Fact
from rooflab.measurement import BATCH_TIMED, COLUMNS, FLAGS, Measurement
from rooflab.problem import PRECISIONS
from rooflab.roofline import Roofline


def digits(value: float | None, count: int) -> str:
    """``value`` with ``count`` significant digits and no exponent, empty for None."""
    if value is None:
        return ""
    if value == 0 or value != value:
        return f"{value:g}"
    places = count - 1
    while places > 0 and abs(value) >= 10 ** (count - places):
        places -= 1
    while abs(value) < 10 ** (count - places - 1) and places < count + 12:
        places += 1
    return f"{value:.{places}f}"


def size_label(row: Measurement) -> str:
    """``4096`` for a square problem, ``MxNxK`` for others."""
    square = row.m == row.n == row.k and row.batch == 1
    return str(row.m) if square else row.shape


def interval_percent(row: Measurement) -> float | None:
    """Half of the 95 % interval in percent of the time."""
    if row.time_us is None or row.time_lo_us is None or row.time_hi_us is None:
        return None
    return 50 * (row.time_hi_us - row.time_lo_us) / row.time_us


def _title(row: Measurement) -> str:
    extras = [f"layout {row.layout}"]
    extras += [f"alpha {row.alpha:g}, beta {row.beta:g}"] if (row.alpha, row.beta) != (1, 0) else []
    return f"{PRECISIONS[row.precision].title}, {', '.join(extras)}"


ROOMY: Final = 20
"""Characters of size and kernel together that leave room for wide gaps."""


def tables(rows: Sequence[Measurement]) -> list[Table]:
    """One terminal table per precision and layout, in the order of the rows; fits 80 columns."""
    return [_table(title, list(group)) for title, group in groupby(rows, key=_title)]


def _table(title: str, rows: list[Measurement]) -> Table:
    rows = sorted(rows, key=lambda row: row.flops or 0)
    small = max((row.tflops or 0 for row in rows), default=0) < 1
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    if max(len(row.kernel) + len(size_label(row)) for row in rows) > ROOMY:
        table.padding = (0, 1, 0, 0)  # so that it still fits 80 columns
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("kernel", no_wrap=True)
    for heading in ("time µs", "± %", "GFLOP/s" if small else "TFLOP/s", "GB/s", "% roof"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("bound")
    last = ""
    for row in rows:
        size = size_label(row)
        figures = (
            (
                digits(row.time_us, 4),
                f"{interval_percent(row) or 0:.1f}",
                digits((row.tflops or 0) * (1000 if small else 1), 4),
                digits(row.gbps, 3),
                digits(row.roof_percent, 3),
                row.bound,
            )
            if row.status == "ok"
            else (f"[yellow]{row.status}[/]", "", "", "", "", "")
        )
        if last and size != last:
            table.add_section() if len({r.kernel for r in rows}) > 1 else None
        table.add_row("" if size == last else size, row.kernel, *figures)
        last = size
    return table


def device_tables(facts: Mapping[str, Fact], roofline: Roofline) -> list[Table]:
    """Facts and ceilings of one device; fits 80 columns."""
    known = Table(box=box.SIMPLE_HEAD, title="facts", title_justify="left")
    for heading in ("fact", "value", "source, or why it is missing"):
        known.add_column(heading, overflow="fold")
    for name, fact in facts.items():
        source = fact.reason if fact.value is None else fact.source
        known.add_row(name.replace("_", " "), _fact_text(fact), escape(source))

    limits = Table(box=box.SIMPLE_HEAD, title="ceilings", title_justify="left")
    limits.add_column("ceiling", no_wrap=True)
    limits.add_column("value", justify="right", no_wrap=True)
    limits.add_column("from", no_wrap=True)
    limits.add_column("formula", overflow="fold")
    caveats: list[str] = []
    for ceiling in roofline.ceilings:
        mark = ""
        if ceiling.caveat:
            if ceiling.caveat not in caveats:
                caveats.append(ceiling.caveat)
            mark = f" [{caveats.index(ceiling.caveat) + 1}]"
        cells = (ceiling.key, ceiling.amount, ceiling.provenance, ceiling.formula + mark)
        limits.add_row(*map(escape, cells))
    for missing_ceiling in roofline.missing:
        limits.add_row(missing_ceiling.key, "–", "missing", escape(missing_ceiling.reason))
    limits.caption = escape("\n".join(f"[{i}] {text}" for i, text in enumerate(caveats, 1)))
    limits.caption_justify = "left"
    return [known, limits]


def _fact_text(fact: Fact) -> str:
    """Value and unit as a person reads them; memory in binary units, as vendors count it."""
    if fact.value is None:
        return "–"
    if fact.unit == "B" and isinstance(fact.value, int):
        exponent = min((fact.value.bit_length() - 1) // 10, 3) if fact.value else 0
        unit = ("B", "KiB", "MiB", "GiB")[exponent]
        return f"{fact.value / 1024**exponent:.4g} {unit}"
    value = f"{fact.value:.5g}" if isinstance(fact.value, float) else fact.value
    return f"{value} {fact.unit}".strip()


def remarks(rows: Sequence[Measurement]) -> list[str]:
    """A line for each row without figures, and one for each flag that is a caveat, in words."""
    lines = [
        f"{row.status}: {row.kernel} {row.precision} {row.layout} {row.shape}: {row.reason}"
        for row in rows
        if row.status != "ok"
    ]
    flags = (flag for row in rows for flag in row.flags.split(";"))
    flagged = Counter(flag for flag in flags if flag not in ("", BATCH_TIMED))
    for flag, count in flagged.items():
        lines.append(f"{flag} ({count} of {len(rows)} rows): {FLAGS.get(flag, flag)}")
    return lines


def sentences(rows: Iterable[Measurement]) -> list[str]:
    """One sentence per precision and layout, on its largest problem that most kernels finished."""
    ok = [row for row in rows if row.status == "ok" and row.time_us]
    several_layouts = len({row.layout for row in ok}) > 1
    return [_sentence(list(group), several_layouts) for _, group in groupby(ok, key=_title)]


def _sentence(rows: list[Measurement], several_layouts: bool) -> str:
    by_problem: dict[str, list[Measurement]] = {}
    for row in rows:
        by_problem.setdefault(row.shape, []).append(row)
    best = max(by_problem.values(), key=lambda group: (len(group), group[0].flops or 0))
    best.sort(key=lambda row: row.time_us or 0)
    first, others = best[0], best[1:]
    name = PRECISIONS[first.precision].title
    reached = f"{digits(first.tflops, 3)} TFLOP/s"
    if (first.tflops or 0) < 1:
        reached = f"{digits((first.tflops or 0) * 1000, 3)} GFLOP/s"
    roof = f", {digits(first.roof_percent, 3)} % of its roof" if first.roof_percent else ""
    layout = f" {first.layout}" if several_layouts else ""
    start = f"{name}{layout} at {size_label(first)}: {first.kernel} reached {reached}{roof}"
    if not others:
        return start + "."
    ratios = ", ".join(f"{_ratio(row, first)} {row.kernel}" for row in others)
    return f"{start}, and ran {ratios}."


def _ratio(slow: Measurement, fast: Measurement) -> str:
    """``1.42 ± 0.03 times as fast as``, the error by propagation of both intervals."""
    ratio = (slow.time_us or 0) / (fast.time_us or 1)
    error = ratio * hypot(interval_percent(slow) or 0, interval_percent(fast) or 0) / 100
    return f"{ratio:.2f} ± {error:.2f} times as fast as"


# Columns that a paper's table has room for.
_PAPER: Final = (
    "kernel",
    "precision",
    "layout",
    "shape",
    "time_us",
    "interval",
    "tflops",
    "gbps",
    "intensity",
    "roof_percent",
    "status",
)
_OURS: Final = {"shape": "size", "interval": "± %"}
"""The headings of those that no file has as a column."""


def _paper_rows(rows: Sequence[Measurement]) -> tuple[list[str], list[list[str]]]:
    headings = [_OURS.get(name) or COLUMNS[name].heading for name in _PAPER]
    body = []
    for row in rows:
        cells = []
        for name in _PAPER:
            if name == "shape":
                cells.append(size_label(row))
            elif name == "interval":
                half = interval_percent(row)
                cells.append("" if half is None else f"{half:.1f}")
            elif COLUMNS[name].type is float:
                cells.append(digits(getattr(row, name), COLUMNS[name].digits or 4))
            else:
                cells.append(str(getattr(row, name)))
        body.append(cells)
    return headings, body


def to_csv(rows: Sequence[Measurement]) -> str:
    """Every column, unrounded."""
    import pandas

    return str(pandas.DataFrame(rows, columns=list(COLUMNS)).to_csv(index=False))


def to_json(rows: Sequence[Measurement]) -> str:
    """A list of objects with every column; empty cells are null."""
    return (
        json.dumps(
            [
                {
                    name: None if (value := getattr(row, name)) != value else value
                    for name in COLUMNS
                }
                for row in rows
            ],
            indent=1,
        )
        + "\n"
    )


def to_markdown(rows: Sequence[Measurement]) -> str:
    """A table for a README or a comment."""
    headings, body = _paper_rows(rows)
    aligned = [":--" if name in ("kernel", "precision", "layout") else "--:" for name in _PAPER]
    lines = [headings, aligned, *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def to_latex(rows: Sequence[Measurement]) -> str:
    """A tabular with booktabs rules."""
    headings, body = _paper_rows(rows)

    def escaped(cells: list[str]) -> str:
        safe = " & ".join(cells)
        for plain, tex in (("_", r"\_"), ("%", r"\%"), ("µ", r"\textmu "), ("±", r"$\pm$")):
            safe = safe.replace(plain, tex)
        return safe + " \\\\\n"

    columns = "".join("l" if name in ("kernel", "precision", "layout") else "r" for name in _PAPER)
    return (
        f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{escaped(headings)}\\midrule\n"
        + "".join(map(escaped, body))
        + "\\bottomrule\n\\end{tabular}\n"
    )


EXPORTERS: Final[dict[str, Callable[[Sequence[Measurement]], str]]] = {
    "csv": to_csv,
    "markdown": to_markdown,
    "latex": to_latex,
    "json": to_json,
}


# --- two runs ----------------------------------------------------------------------------------

_MENTIONED: Final = 4
_VERDICT_STYLES: Final = {Verdict.SLOW: "red", Verdict.AMBIGUOUS: "yellow", Verdict.FAST: "green"}


def print_comparison(comparison: Comparison, console: Console) -> None:
    """What differs, one table per precision, what they leave out, the counts; fits 80 columns."""

    def say(lines: Iterable[str]) -> None:
        for line in lines:
            console.print(line, markup=False, soft_wrap=True)

    say(_headings(comparison))
    if comparison.differences:
        differing = Table(box=box.SIMPLE_HEAD)
        for heading in ("what differs", "BASE", "NEW"):
            differing.add_column(heading, overflow="fold")
        for difference in comparison.differences:
            differing.add_row(*map(escape, (difference.name, difference.base, difference.new)))
        console.print(differing)
    else:
        say(["The environments are the same.", ""])
    by_title: dict[str, list[Point]] = {}
    for point in comparison.points:
        by_title.setdefault(_title(point.base), []).append(point)
    for title, points in by_title.items():
        console.print(_comparison_table(title, points))
    say(_reasons(comparison))
    say(f"{what}: {', '.join(rows)}" for what, rows in _unmatched(comparison))
    say([comparison_sentence(comparison)])


def comparison_text(comparison: Comparison) -> str:
    """What ``print_comparison`` prints, for a file."""
    file = StringIO()
    print_comparison(comparison, Console(file=file, width=80, highlight=False))
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def _headings(comparison: Comparison) -> list[str]:
    runs = (("BASE", comparison.base), ("NEW", comparison.new))
    return [
        f"{name}: {run.path}, {run.manifest.device.name}, {run.manifest.created:%Y-%m-%d %H:%M} UTC"
        for name, run in runs
    ]


def _comparison_table(title: str, points: list[Point]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("kernel", overflow="fold")
    for heading in ("size", "base µs", "new µs", "change % (interval)"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for point in sorted(points, key=lambda point: point.base.flops or 0):
        style = _VERDICT_STYLES.get(point.verdict)
        table.add_row(
            escape(point.base.kernel),
            size_label(point.base),
            digits(point.base.time_us, 5),
            digits(point.new.time_us, 5),
            _change_text(point),
            f"[{style}]{point.verdict}[/]" if style else str(point.verdict),
        )
    return table


def _change_text(point: Point) -> str:
    """``+1.23 (+0.70…+1.76)``: the change, and what the intervals leave possible."""
    low, high = point.change_lo_percent, point.change_hi_percent
    interval = "" if low is None or high is None else f" ({_signed(low)}…{_signed(high)})"
    return _signed(point.change_percent) + interval


def _signed(percent: float | None) -> str:
    if percent is None:
        return ""
    places = 2 if abs(percent) < 9.995 else 1 if abs(percent) < 99.95 else 0
    # Adding 0 turns the -0.0 that rounding leaves into 0.0.
    return f"{round(percent, places) + 0.0:+.{places}f}"


def _point_label(row: Measurement) -> str:
    factors = f" alpha {row.alpha:g} beta {row.beta:g}" if (row.alpha, row.beta) != (1, 0) else ""
    return f"{row.kernel} {row.precision} {row.layout} {size_label(row)}{factors}"


def _mentioned(rows: Sequence[Measurement]) -> list[str]:
    names = [_point_label(row) for row in rows[:_MENTIONED]]
    return names + [f"and {len(rows) - _MENTIONED} more"] * (len(rows) > _MENTIONED)


def _reasons(comparison: Comparison) -> list[str]:
    """One line per reason for which points are AMBIGUOUS, and one per change of status."""
    by_reason: dict[str, list[Measurement]] = {}
    for point in comparison.points:
        if point.reason:
            by_reason.setdefault(point.reason, []).append(point.base)
    lines = [
        f"{Verdict.AMBIGUOUS}, {reason}: {', '.join(_mentioned(rows))}"
        for reason, rows in by_reason.items()
    ]
    for change in comparison.status_changes:
        why = change.new.reason or change.base.reason
        lines.append(
            f"{change.base.status} → {change.new.status}: {_point_label(change.base)}"
            + (f": {why}" if why else "")
        )
    return lines


def _unmatched(comparison: Comparison) -> list[tuple[str, list[str]]]:
    sides = (("only in BASE", comparison.only_base), ("only in NEW", comparison.only_new))
    return [(what, _mentioned(rows)) for what, rows in sides if rows]


def comparison_sentence(comparison: Comparison) -> str:
    """The counts: ``12 points in common: 1 SLOW, 11 SAME; 1 broken, 2 only in BASE.``"""
    verdicts = [f"{count} {verdict}" for verdict, count in comparison.counts.items() if count]
    others = [
        f"{count} {what}"
        for count, what in (
            (comparison.broken, "broken"),
            (len(comparison.status_changes) - comparison.broken, "with another status"),
            (comparison.unmeasured, "without figures in both"),
            (len(comparison.only_base), "only in BASE"),
            (len(comparison.only_new), "only in NEW"),
        )
        if count
    ]
    common = len(comparison.points) + len(comparison.status_changes) + comparison.unmeasured
    parts = [", ".join(part) for part in (verdicts, others) if part]
    return f"{common} point{'s' * (common != 1)} in common: {'; '.join(parts)}."


def comparison_markdown(comparison: Comparison) -> str:
    """For a comment on a change: what differs, a table with regressions first, the counts."""
    blocks = ["".join(f"- {line}\n" for line in map(_cell, _headings(comparison)))]
    if comparison.differences:
        body = [[each.name, each.base, each.new] for each in comparison.differences]
        blocks.append(_markdown(["what differs", "BASE", "NEW"], [":--"] * 3, body))

    def line(verdict: str, change: Point | StatusChange, percent: str, why: str) -> list[str]:
        base, new = change.base, change.new
        problem = _title(base).replace(", layout ", " ")
        times = (digits(row.time_us, 5) for row in (base, new))
        return [verdict, base.kernel, problem, size_label(base), *times, percent, why]

    statuses: dict[bool, list[list[str]]] = {True: [], False: []}
    for change in comparison.status_changes:
        verdict = f"{change.base.status} → {change.new.status}"
        why = change.new.reason or change.base.reason
        statuses[change.broken].append(line(verdict, change, "", why))
    order = list(Verdict)
    judged = [
        line(point.verdict, point, _change_text(point), point.reason)
        for point in sorted(comparison.points, key=lambda point: order.index(point.verdict))
    ]
    headings = ["verdict", "kernel", "problem", "size", "base µs", "new µs", "change %", "why"]
    aligned = [":--", ":--", ":--", "--:", "--:", "--:", "--:", ":--"]
    blocks.append(_markdown(headings, aligned, [*statuses[True], *judged, *statuses[False]]))
    blocks += [f"{what}: {_cell(', '.join(rows))}\n" for what, rows in _unmatched(comparison)]
    return "\n".join([*blocks, f"{comparison_sentence(comparison)}\n"])


def _cell(text: str) -> str:
    """``text`` with what Markdown would take for the end of a cell or for markup."""
    for special in ("\\", "|", "*", "_", "`", "<"):
        text = text.replace(special, "\\" + special)
    return text


def _markdown(headings: list[str], aligned: list[str], body: list[list[str]]) -> str:
    lines = [headings, aligned, *([_cell(cell) for cell in line] for line in body)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def comparison_json(comparison: Comparison) -> str:
    """Every figure, for programs: whole rows of both runs, unrounded; empty cells are null."""

    def number(value: float | None) -> float | None:
        return value if value is not None and isfinite(value) else None

    def row(row: Measurement) -> dict[str, Any]:
        cells = {name: getattr(row, name) for name in COLUMNS}
        return {k: number(v) if isinstance(v, float) else v for k, v in cells.items()}

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
                "base": row(point.base),
                "new": row(point.new),
            }
            for point in comparison.points
        ],
        "status_changes": [
            {"broken": change.broken, "base": row(change.base), "new": row(change.new)}
            for change in comparison.status_changes
        ],
        "only_base": [row(each) for each in comparison.only_base],
        "only_new": [row(each) for each in comparison.only_new],
        "counts": {
            **{str(verdict): count for verdict, count in comparison.counts.items()},
            "broken": comparison.broken,
            "unmeasured": comparison.unmeasured,
        },
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


COMPARISON_EXPORTERS: Final[dict[str, Callable[[Comparison], str]]] = {
    "markdown": comparison_markdown,
    "json": comparison_json,
}
