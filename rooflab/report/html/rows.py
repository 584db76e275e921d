"""The table of all rows. Filters, sorting and the card of a point read it: it is the data."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from rooflab.model.measurement import Measurement
from rooflab.report.export import to_csv
from rooflab.report.html.markup import Markup, element, join, scrolled, section
from rooflab.report.html.points import Content, figure, number
from rooflab.report.text import digits, interval_percent, precision_title


@dataclass(frozen=True, slots=True)
class Cell:
    """A column: its text in a row. Readers choose among the values of one with a ``filter``."""

    text: Callable[[Measurement], str]
    is_number: bool = True
    filter: str = ""


def _interval(row: Measurement) -> str:
    half = number(interval_percent(row))
    return "" if half is None else f"{half:.1f}" if half < 100 else "> 100"


def _shown(name: str) -> Cell:
    return Cell(lambda row: figure(row, name))


CELLS: Final[Mapping[str, Cell]] = {
    "workload": Cell(lambda row: row.problem.workload, False, "workload"),
    "kernel": Cell(lambda row: row.kernel, False, "kernel"),
    "precision": Cell(lambda row: precision_title(row.problem.precision), False, "precision"),
    "settings": Cell(lambda row: row.problem.about, False),
    "size": Cell(lambda row: row.problem.size, True, "size"),
    "status": Cell(lambda row: row.status, False),
    "time µs": _shown("time_us"),
    "± %": Cell(_interval),
    "burst µs": _shown("burst_us"),
    "TFLOP/s": _shown("tflops"),
    "GB/s": _shown("gbps"),
    "FLOP/B": _shown("intensity"),
    "counted FLOP/B": Cell(
        lambda row: (
            digits(number(row.flops / row.dram_bytes), 4)
            if row.flops and number(row.flops) and row.dram_bytes
            else ""
        )
    ),
    "% of roof": _shown("roof_percent"),
    "% of observed": _shown("observed_percent"),
    "bound": Cell(lambda row: row.bound, False),
    "SM MHz": _shown("sm_mhz"),
    "burst MHz": _shown("burst_mhz"),
    "W": _shown("power_w"),
    "burst W": _shown("burst_w"),
    "GFLOP/J": _shown("gflop_per_j"),
    "flags": Cell(lambda row: row.flags.replace(";", ", "), False),
    "changed": Cell(lambda row: row.changed, False),
    "reason": Cell(lambda row: row.reason, False),
}
"""The columns of a run's own."""

LAST: Final = ("flags", "changed", "reason")
"""The columns of longer text, which are last."""


@dataclass(frozen=True, slots=True)
class Column:
    """The texts of all rows under one heading."""

    name: str
    texts: Sequence[str]
    is_number: bool = True
    filter: str = ""


def columns(content: Content, found: Sequence[Column] = ()) -> list[Column]:
    """The columns with content; with several runs the run; those that were ``found`` beside them.

    The latter are before the texts of flags and reasons.
    """
    rows = [entry.row for entry in content.entries]
    own = [
        Column(name, [cell.text(row) for row in rows], cell.is_number, cell.filter)
        for name, cell in CELLS.items()
    ]
    last = [one for one in own if one.name in LAST]
    names = [content.names[entry.run] for entry in content.entries] if content.several else []
    every = [
        Column("run", names, False, "run"),
        *(one for one in own if one not in last),
        *found,
        *last,
    ]
    return [one for one in every if any(one.texts)]


def rows(content: Content, shown: Sequence[Column]) -> Markup:
    """The section."""
    count = len(content.entries)
    lines = zip(*(column.texts for column in shown), strict=True)
    body = [] if content.many else [_row(i, shown, line) for i, line in enumerate(lines, 1)]
    table = element(
        "table",
        element("caption", f"{count} rows; times are medians with their 95 % interval"),
        element("thead", element("tr", *map(_heading, shown))),
        element("tbody", *body),
        class_="rows",
    )
    parts = [scrolled(table, "All rows")]
    parts += [_text(shown, lines)] if content.many else []
    links = join([_csv(content, i) for i in range(len(content.runs))], " ")
    return section(
        "rows",
        "All rows",
        *parts,
        element("p", "Download, with every column and digit: ", links, hidden=content.many),
    )


def _heading(column: Column) -> Markup:
    return element(
        "th",
        column.name,
        scope="col",
        class_="n" if column.is_number else False,
        data_filter=column.filter or False,
    )


def _row(i: int, shown: Sequence[Column], line: Sequence[str]) -> Markup:
    cells = (
        element("td", text, class_="n" if column.is_number else False)
        for column, text in zip(shown, line, strict=True)
    )
    return element("tr", *cells, id=f"r{i}")


def _text(shown: Sequence[Column], lines: Iterable[Sequence[str]]) -> Markup:
    """The rows as text, of which the script makes the table."""
    text = "\n".join("\t".join(" ".join(cell.split()) for cell in line) for line in lines)
    return element(
        "details",
        element("summary", "All rows as text: the table needs JavaScript"),
        element("p", ", ".join(column.name for column in shown)),
        element("pre", text, id="data", tabindex=0),
    )


def _csv(content: Content, i: int) -> Markup:
    """A link with the file inside, without network; the script unpacks a large one."""
    run = content.runs[i]
    name = content.names[i] if content.several else "measurements"
    text = to_csv(run).encode("utf-8", "replace")
    file = f"{run.path.name}.csv"
    if content.many:
        # Browsers limit the length of a link.
        packed = base64.b64encode(gzip.compress(text, 6, mtime=0)).decode()
        return element("a", f"{name}.csv", download=file, data_gzip=packed)
    data = quote(text, safe=",;:/()=*+!$@")
    return element("a", f"{name}.csv", href=f"data:text/csv;charset=utf-8,{data}", download=file)
