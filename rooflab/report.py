"""Runs as text: the table and the closing sentences in the terminal, and the exporters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from math import hypot
from typing import Final

from rich import box
from rich.markup import escape
from rich.table import Table

from rooflab.devices.base import Fact
from rooflab.measurement import COLUMNS, Measurement
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


def tables(rows: Sequence[Measurement]) -> list[Table]:
    """One terminal table per precision and layout, in the order of the rows; fits 80 columns."""
    return [_table(title, list(group)) for title, group in groupby(rows, key=_title)]


def _table(title: str, rows: list[Measurement]) -> Table:
    rows = sorted(rows, key=lambda row: row.flops or 0)
    small = max((row.tflops or 0 for row in rows), default=0) < 1
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("kernel", overflow="fold")
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


def remarks(rows: Iterable[Measurement]) -> list[str]:
    """A line for each row without figures, and one for those whose interval stayed wide."""
    lines = [
        f"{row.status}: {row.kernel} {row.precision} {row.layout} {row.shape}: {row.reason}"
        for row in rows
        if row.status != "ok"
    ]
    noisy = [row for row in rows if "noisy" in row.flags.split(";")]
    if noisy:
        widest = max(interval_percent(row) or 0 for row in noisy)
        lines.append(
            f"noisy: {len(noisy)} of the rows have intervals wider than asked for, "
            f"up to ±{widest:.1f} %"
        )
    return lines


def sentences(rows: Iterable[Measurement]) -> list[str]:
    """One sentence per precision and layout, on its largest problem that most kernels finished."""
    ok = [row for row in rows if row.status == "ok" and row.time_us]
    return [_sentence(list(group)) for _, group in groupby(ok, key=_title)]


def _sentence(rows: list[Measurement]) -> str:
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
    start = f"{name} at {size_label(first)}: {first.kernel} reached {reached}{roof}"
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
    "tflops",
    "gbps",
    "intensity",
    "roof_percent",
    "status",
)


def _paper_rows(rows: Sequence[Measurement]) -> tuple[list[str], list[list[str]]]:
    headings = ["size" if name == "shape" else COLUMNS[name].heading for name in _PAPER]
    body = []
    for row in rows:
        cells = []
        for name in _PAPER:
            if name == "shape":
                cells.append(size_label(row))
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
        for plain, tex in (("_", r"\_"), ("%", r"\%"), ("µ", r"\textmu "), ("·", r"\cdot ")):
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
