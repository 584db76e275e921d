"""The table of all rows, which is the data: filters, sorting and the card of a point read it."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from rooflab.model.measurement import Measurement
from rooflab.report.export import to_csv
from rooflab.report.html.content import Report, figure, number
from rooflab.report.html.frame import choice
from rooflab.report.html.markup import Markup, element, join, scrolled, section
from rooflab.report.text import digits, half_width, interval_percent, precision_title

Text = Callable[[Measurement], str]


def _shown(name: str) -> Text:
    return lambda row: figure(row, name)


def _counted(row: Measurement) -> str:
    flops = number(row.flops)
    return digits(number(flops / row.dram_bytes), 4) if flops and row.dram_bytes else ""


TEXTS: Final[Mapping[str, Text]] = {
    "workload": lambda row: row.problem.workload,
    "kernel": lambda row: row.kernel,
    "precision": lambda row: precision_title(row.problem.precision),
    "settings": lambda row: row.problem.about,
    "size": lambda row: row.problem.size,
    "status": lambda row: row.status,
    "time µs": _shown("time_us"),
    "± %": lambda row: half_width(number(interval_percent(row))),
    "burst µs": _shown("burst_us"),
    "TFLOP/s": _shown("tflops"),
    "GB/s": _shown("gbps"),
    "FLOP/B": _shown("intensity"),
    "counted FLOP/B": _counted,
    "% of roof": _shown("roof_percent"),
    "% of observed": _shown("observed_percent"),
    "bound": lambda row: row.bound,
    "SM MHz": _shown("sm_mhz"),
    "burst MHz": _shown("burst_mhz"),
    "W": _shown("power_w"),
    "burst W": _shown("burst_w"),
    "GFLOP/J": _shown("gflop_per_j"),
}
"""The columns of a row."""

LAST: Final[Mapping[str, Text]] = {
    "flags": lambda row: row.flags.replace(";", ", "),
    "changed": lambda row: row.changed,
    "reason": lambda row: row.reason,
}
"""The columns of longer text."""

FILTERS: Final = ("run", "workload", "kernel", "precision", "size", "verdict", "cause")
WORDS: Final = {*FILTERS, "settings", "status", "bound", *LAST} - {"size"}
"""Columns whose values readers choose among, and those that are no numbers."""

TIMES: Final = (
    "times are medians with their 95 % interval",
    "times of a program's kernels are means, and ± has 90 % of the launches",
)
ENLARGE: Final = "a double click, or the key z, enlarges a figure"
PROVENANCES: Final = ("derived", "measured", "observed")


@dataclass(frozen=True, slots=True)
class TextColumn:
    """The texts of all rows under one heading."""

    name: str
    texts: Sequence[str]

    @property
    def align(self) -> str | bool:
        """The class of its cells: numbers are on the right."""
        return False if self.name in WORDS else "n"


def columns(report: Report, found: Iterable[TextColumn] = ()) -> list[TextColumn]:
    """The columns with content; with several runs the run; ``found`` are before longer texts."""

    def own(texts: Mapping[str, Text]) -> list[TextColumn]:
        return [TextColumn(name, [text(one.row) for one in report.rows])
                for name, text in texts.items()]  # fmt: skip

    runs = TextColumn("run", [report.owner(one) for one in report.rows])
    return [one for one in (runs, *own(TEXTS), *found, *own(LAST)) if any(one.texts)]


def rows(report: Report, shown: Sequence[TextColumn]) -> Markup:
    """The section."""
    lines = list(zip(*(column.texts for column in shown), strict=True))
    body = [] if report.many else [_row(i, shown, line) for i, line in enumerate(lines, 1)]
    caption = f"{len(report.rows)} rows; {TIMES[bool(report.of_programs)]}"
    table = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *map(_heading, shown))),
        element("tbody", *body),
        class_="rows",
    )
    links = join([_csv(report, i) for i in range(len(report.runs))], " ")
    return section(
        "rows",
        "All rows",
        scrolled(table, "All rows"),
        _text(shown, lines) if report.many else Markup(),
        element("p", "Download, with every column and digit: ", links, hidden=report.many),
    )


def _heading(column: TextColumn) -> Markup:
    filtered = column.name if column.name in FILTERS else False
    return element("th", column.name, scope="col", class_=column.align, data_filter=filtered)


def _row(i: int, shown: Sequence[TextColumn], line: Sequence[str]) -> Markup:
    pairs = zip(shown, line, strict=True)
    cells = (element("td", text, class_=column.align) for column, text in pairs)
    return element("tr", *cells, id=f"r{i}")


def _text(shown: Sequence[TextColumn], lines: Iterable[Sequence[str]]) -> Markup:
    """The rows as text, of which the script makes the table."""
    text = "\n".join("\t".join(" ".join(cell.split()) for cell in line) for line in lines)
    return element(
        "details",
        element("summary", "All rows as text: the table needs JavaScript"),
        element("p", ", ".join(column.name for column in shown)),
        element("pre", text, id="data", tabindex=0),
    )


def _csv(report: Report, i: int) -> Markup:
    """A link with the file inside, without network; the script unpacks a large one."""
    run = report.runs[i]
    name = report.names[i] if report.several else "measurements"
    text = to_csv(run).encode("utf-8", "replace")
    file = f"{run.path.name}.csv"
    if report.many:
        # Browsers limit the length of a link.
        packed = base64.b64encode(gzip.compress(text, 6, mtime=0)).decode()
        return element("a", f"{name}.csv", download=file, data_gzip=packed)
    data = quote(text, safe=",;:/()=*+!$@")
    return element("a", f"{name}.csv", href=f"data:text/csv;charset=utf-8,{data}", download=file)


def controls(shown: Sequence[TextColumn], provenances: set[str], counted: bool) -> Markup:
    """A choice for each column with several values, and the switches that change something.

    They are shown only if the script runs.
    """
    values = {one.name: dict.fromkeys(filter(None, one.texts)) for one in shown}
    choices = [choice(n, some) for n, some in values.items() if n in FILTERS and len(some) > 1]
    roofs = [
        element("label", element("input", type="checkbox", checked=True, data_show=n), f" {n}")
        for n in PROVENANCES
        if n in provenances
    ]
    moved = [
        element("label", element("input", type="radio", name="bytes", value=n, checked=on), f" {n}")
        for n, on in (("modelled", True), ("counted", False))
        if counted
    ]
    switches = [
        element("fieldset", element("legend", name), *boxes)
        for name, boxes in (("Roofs", roofs), ("Bytes", moved))
        if len(boxes) > 1
    ]
    total = element("p", element("output", id="shown"), f"; {ENLARGE}")
    return element(
        "form", *choices, *switches, total, id="controls", aria_label="Filters", hidden=True
    )
