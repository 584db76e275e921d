"""The roofline of a program in words: what it could take, and which kernels owe the difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from rich.console import Console, ConsoleOptions
from rich.markup import escape
from rich.table import Table

from rooflab.model.grouping import grouped
from rooflab.model.measurement import Measurement
from rooflab.model.problem import DRAM
from rooflab.report import own_kernels
from rooflab.report.fitting import FigureTable, text_width
from rooflab.report.kernel_names import fitted, spoken
from rooflab.report.remedies import remedies
from rooflab.report.text import count_text, digits, share_text, time_text
from rooflab.runs.own_kernels import OwnTimes
from rooflab.runs.program import (
    COUNTED,
    IDLE,
    MODELLED,
    Program,
    endings,
    is_launched,
    is_program,
    known_by,
    recoverable,
    total,
)
from rooflab.runs.store import RunData

NAMED: Final = 4
"""Groups that are named in sentences."""

SHOWN: Final = 20
"""Groups of the table in a terminal."""

NEGLIGIBLE: Final = 0.01
"""A part of the step that is not worth a sentence."""


def of_run(run: RunData) -> Program | None:
    """The program, if the run is one's."""
    return Program.of(run) if is_program(run.measurements) else None


def lines(run: RunData) -> Iterator[str]:
    """Sentences about a program, the most important first."""
    program = Program.of(run)
    if not program.step_us:
        return
    yield _first(program)
    yield from _owed(program)
    yield from _idle(program)
    yield from remedies(program)
    yield from own_kernels.of_program(program, OwnTimes(run))
    yield from _known(program)
    yield from _recorded(program)


def _first(program: Program) -> str:
    it = "The program" if program.whole else "One step"
    mean = f" (mean of {program.steps})" if program.steps > 1 else ""
    kernels_us = program.kernels_us
    text = f"{it} takes {time_text(program.step_us)}{mean}."
    if not kernels_us:
        return f"{text} It launches no kernel."
    text += f" Its kernels take {time_text(kernels_us)}"
    if (busy := program.figure("busy_us")) and program.overlaps:
        text += f" in all, and some run at once: the GPU is busy for {time_text(busy)}"
    rated = [row for row in program.groups if row.roof_us]
    if not rated:
        return f"{text}."
    rated_us = sum(map(total, rated))
    all_known = rated_us > 0.995 * kernels_us
    who = "they" if all_known else f"the {share_text(rated_us, kernels_us)} whose work is known"
    here = sum(map(recoverable, rated))
    ideal = sum(min(total(row), (row.launches or 0.0) * (row.roof_us or 0.0)) for row in rated)
    text += f"; at their roofs {who} would take {time_text(ideal)}"
    slowed = rated_us - here - ideal
    if slowed > NEGLIGIBLE * program.step_us:
        text += f", {time_text(rated_us - here)} at the clocks that they ran at"
    return f"{text}."


def _owed(program: Program) -> Iterator[str]:
    """Which kernels are how far above their roofs, all groups of a name together."""
    rated = (row for row in program.groups if row.roof_us)
    by_name = grouped(rated, lambda row: spoken(row.kernel))
    owed = {name: sum(map(recoverable, rows)) for name, rows in by_name.items()}
    whole = sum(owed.values())
    names = sorted(owed, key=lambda name: -owed[name])[:NAMED]
    named = [name for name in names if owed[name] > NEGLIGIBLE * program.step_us]
    if not named:
        return
    share = share_text(sum(owed[name] for name in named), whole)
    parts = listed([_owing(name, by_name[name]) for name in named])
    yield f"Of the {time_text(whole)} above these roofs, {share} belongs to {parts}."


def _owing(name: str, rows: Sequence[Measurement]) -> str:
    us = sum(map(total, rows))
    reached = digits(100 * (1 - sum(map(recoverable, rows)) / us), 2) if us else "0"
    return f"{name} ({time_text(us)} at {reached} % of {_roof(rows)})"


def _roof(rows: Sequence[Measurement]) -> str:
    bounds = {row.bound for row in rows}
    if len(bounds) > 1:
        return "its roofs"
    return "the memory roof" if bounds == {DRAM} else f"the {bounds.pop()} roof"


def _idle(program: Program) -> Iterator[str]:
    idle = program.other(IDLE)
    if idle and total(idle) > NEGLIGIBLE * program.step_us:
        share = share_text(total(idle), program.step_us)
        yield f"The GPU idles {time_text(total(idle))} ({share})."


def _known(program: Program) -> Iterator[str]:
    times = {key: sum(map(total, rows)) for key, rows in grouped(program.groups, known_by).items()}
    whole = program.kernels_us
    words = {COUNTED: "by counters", MODELLED: "modelled from shapes", "": "not known"}
    known = [key for key in words if times.get(key, 0.0) > 0.001 * whole]
    if known == [COUNTED]:
        yield "The work of all kernels is known by counters."
    elif known == [MODELLED]:
        yield "The work of all kernels is modelled from shapes; nothing was counted."
    elif known:
        parts = [f"{share_text(times[key], whole)} {words[key]}" for key in known]
        yield f"The work of the kernels is, by their time, {listed(parts)}."


def _recorded(program: Program) -> Iterator[str]:
    overhead, plain = program.figure("overhead_percent"), program.figure("plain_us")
    if overhead is not None and plain is not None:
        sign = "more" if overhead >= 0 else "less"
        yield (
            f"Without recording a step takes {time_text(plain)}: recorded it takes "
            f"{digits(abs(overhead), 2)} % {sign}."
        )
    notes = program.about.get("notes")
    for note in filter(None, map(str, notes if isinstance(notes, list) else ())):
        yield f"{note[0].upper()}{note[1:].rstrip('.')}."


def listed(parts: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


# The table ---------------------------------------------------------------------------------------


class GroupTable(FigureTable):
    """A table whose first column has kernels, which are shortened to the width of the terminal.

    Columns in ``spare`` are left out as long as names have less than ``WANTED`` characters.
    """

    WANTED: Final = 27
    LEAST: Final = 8

    def __init__(self, spare: Sequence[str], title: str = "") -> None:
        super().__init__(title, spare)
        self.padding = (0, 1, 0, 0)
        self.add_column("kernel", no_wrap=True)
        self.labels: list[tuple[str, str]] = []

    def add_group(self, kernel: str, ending: str, *cells: str) -> None:
        """A row: a kernel's name, what tells the group apart, and its figures."""
        self.labels.append((kernel, ending))
        self.add_row(kernel, *cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        """What rich calls to print it."""
        columns = self.columns
        longest = max((len(f"{kernel} {end}".strip()) for kernel, end in self.labels), default=6)
        room = 0
        for count in range(len(self.spare) + 1):
            kept = [one for one in columns[1:] if one.header not in self.spare[:count]]
            widths = [max(text_width(str(c)) for c in (one.header, *one.cells)) for one in kept]
            room = options.max_width - self._width([*widths, 0])
            if room >= min(longest, self.WANTED):
                break
        names = fitted(self.labels, max(self.LEAST, min(room, longest)))
        first = replace(columns[0], _cells=[escape(name) for name in names])
        try:
            self.columns = [first, *kept]
            yield from super().__rich_console__(console, options)
        finally:
            self.columns = columns


def table(run: RunData) -> Table:
    """The groups with the most time, the sum of the others, then copies and idle time."""
    program = Program.of(run)
    columns = figures(program)
    made = GroupTable(("GB/s", "work", "TFLOP/s", "count", "bound", "% time", "% step"))
    for name in columns:
        left = name in ("bound", "work")
        made.add_column(name, justify="left" if left else "right", no_wrap=True)
    groups, others = _shown(program)
    for i, (label, row) in enumerate([*groups, *others]):
        if 0 < i == len(groups):
            made.add_section()
        made.add_group(*label, *(escape(figure(row)) for figure in columns.values()))
    return made


def show(run: RunData, screen: Console) -> None:
    """Print the sentences and the table."""
    for line in lines(run):
        # Whole lines for other programs; a terminal breaks them between words.
        screen.print(line, markup=False, soft_wrap=not screen.is_terminal)
    screen.print(table(run))


def cells_of(run: RunData) -> tuple[list[str], list[list[str]]]:
    """The headings and cells of the table, names unshortened."""
    program = Program.of(run)
    columns = figures(program)
    groups, others = _shown(program)
    cells = [
        [" ".join(filter(None, name)), *(figure(row) for figure in columns.values())]
        for name, row in (*groups, *others)
    ]
    return ["kernel", *columns], cells


NamedRow = tuple[tuple[str, str], Measurement]
"""A row, its name and what tells it apart."""


def _shown(program: Program) -> tuple[list[NamedRow], list[NamedRow]]:
    """Groups, all small ones as one; then what is no launch."""
    most = SHOWN if len(program.groups) != SHOWN + 1 else SHOWN + 1
    shown, rest = program.groups[:most], program.groups[most:]
    ends = endings(shown)
    found = [((row.kernel, ends[id(row)]), row) for row in shown]
    if rest:
        found.append(((f"{len(rest)} others", ""), _together(rest)))
    return found, [((row.kernel.strip("()"), ""), row) for row in program.others]


def _together(rows: Sequence[Measurement]) -> Measurement:
    shares = [row.share_percent for row in rows]
    return Measurement(
        problem=rows[0].problem,
        launches=sum(row.launches or 0.0 for row in rows),
        total_us=sum(map(total, rows)),
        share_percent=sum(share or 0.0 for share in shares),
        recoverable_us=sum(map(recoverable, rows)) if any(row.roof_us for row in rows) else None,
    )


def figures(program: Program) -> Mapping[str, Any]:
    """The cells of a group by heading; whose work is modelled is only said if some is.

    What no row has is left out.
    """
    of = "% time" if program.whole else "% step"
    rows = (*program.groups, *program.others)
    unit, scale = ("ms", 1e3) if max(map(total, rows), default=0.0) >= 1e5 else ("µs", 1.0)

    def time(us: float | None) -> str:
        return digits(us / scale if us is not None else None, 4)

    found: dict[str, Any] = {
        "count": lambda row: "" if row.kernel == IDLE else count_text(row.launches),
        unit: lambda row: time(row.total_us),
        of: lambda row: f"{row.share_percent:.1f}" if row.share_percent is not None else "",
        "TFLOP/s": lambda row: digits(row.tflops, 3),
        "GB/s": lambda row: digits(row.gbps, 3),
        "% roof": lambda row: digits(row.observed_percent or row.roof_percent, 3),
        "bound": lambda row: row.bound,
        f"{unit} above": lambda row: time(row.recoverable_us),
        "work": lambda row: known_by(row) if is_launched(row) else "",
    }
    if all(known_by(row) != MODELLED for row in program.groups):
        del found["work"]
    return {name: cell for name, cell in found.items() if any(map(cell, rows))}
