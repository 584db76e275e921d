"""The table of all rows. Filters, sorting and the card of a point read it: it is the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from rooflab.model.measurement import Measurement
from rooflab.report.export import to_csv
from rooflab.report.html.markup import Markup, element, join, scrolled, section
from rooflab.report.html.points import Content, Entry, figure, number
from rooflab.report.text import digits, interval_percent, precision_title


@dataclass(frozen=True, slots=True)
class Cell:
    """A column: its text in a row. Readers choose among the values of one with a ``filter``."""

    text: Callable[[Measurement], str]
    is_number: bool = True
    filter: str = ""

    def of(self, entry: Entry) -> str:
        """The text for an entry."""
        return self.text(entry.row)


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
    "W": _shown("power_w"),
    "GFLOP/J": _shown("gflop_per_j"),
    "flags": Cell(lambda row: row.flags.replace(";", ", "), False),
    "reason": Cell(lambda row: row.reason, False),
}
"""The columns; one that is empty in all rows is left out."""


def columns(content: Content) -> dict[str, Callable[[Entry], str]]:
    """The columns with content, and with several runs the run."""
    found: dict[str, Callable[[Entry], str]] = {}
    if content.several:
        found["run"] = lambda entry: content.names[entry.run]
    for name, cell in CELLS.items():
        if any(cell.text(entry.row) for entry in content.entries):
            found[name] = cell.of
    return found


def rows(content: Content) -> Markup:
    """The section."""
    shown = columns(content)
    head = [_heading(name) for name in shown]
    body = [
        element("tr", *(_cell(name, text(entry)) for name, text in shown.items()), id=entry.id)
        for entry in content.entries
    ]
    table = element(
        "table",
        element("caption", f"{len(body)} rows; times are medians with their 95 % interval"),
        element("thead", element("tr", *head)),
        element("tbody", *body),
        class_="rows",
    )
    links = join([_csv(content, i) for i in range(len(content.runs))], " ")
    download = element("p", "Download, with every column and digit: ", links)
    return section("rows", "All rows", scrolled(table, "All rows"), download)


def _heading(name: str) -> Markup:
    cell = CELLS.get(name)
    by_name = "run" if cell is None else cell.filter
    return element(
        "th",
        name,
        scope="col",
        class_="n" if cell and cell.is_number else False,
        data_filter=by_name or False,
    )


def _cell(name: str, text: str) -> Markup:
    cell = CELLS.get(name)
    return element("td", text, class_="n" if cell and cell.is_number else False)


def _csv(content: Content, i: int) -> Markup:
    """A link with the file inside: it needs neither script nor network."""
    run = content.runs[i]
    data = quote(to_csv(run), safe=",;:/()=*+!$@")
    name = content.names[i] if content.several else "measurements"
    return element(
        "a",
        f"{name}.csv",
        href=f"data:text/csv;charset=utf-8,{data}",
        download=f"{run.path.name}.csv",
    )
