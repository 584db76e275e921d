"""Runs and devices in the terminal: tables, remarks and closing sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import floor, log10
from typing import Final

from rich import box
from rich.markup import escape
from rich.table import Table

from rooflab.model.facts import Fact
from rooflab.model.grouping import grouped
from rooflab.model.measurement import BATCH_TIMED, FLAGS, Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.roofline import Ceiling, CeilingList, Roofline
from rooflab.model.timeline import Span, unit
from rooflab.report.fitting import ROOMY, FigureTable
from rooflab.report.text import (
    digits,
    fact_cells,
    half_width,
    heading,
    interval_percent,
    label,
    speed,
    times_as_fast,
)
from rooflab.runs.scaling import Scaling, scalings

AT_CLOCK: Final = "% at clock"
BURST: Final = "burst µs"


def _heading(row: Measurement) -> str:
    return heading(row.problem)


def tables(rows: Sequence[Measurement]) -> list[Table]:
    """A table per workload, precision and settings, in the order of the rows.

    All columns fit 80 characters; in fewer some are left out.
    """
    return [_table(title, list(group)) for title, group in groupby(rows, key=_heading)]


def _table(title: str, rows: list[Measurement]) -> Table:
    rows = sorted(rows, key=lambda row: (row.flops or 0, row.link_bytes or 0))
    small = max((row.tflops or 0 for row in rows), default=0) < 1
    throughput = "GFLOP/s" if small else "TFLOP/s"
    spare = ("bound", "GB/s", "± %", AT_CLOCK, BURST, throughput)
    table = FigureTable(escape(title), spare)
    if max(len(row.kernel) + len(row.problem.size) for row in rows) > ROOMY:
        table.padding = (0, 1, 0, 0)  # so that it fits 80 columns
    table.add_column("size", justify="right", overflow="fold")
    table.add_column("kernel", overflow="fold")
    figures = _columns(rows, small)
    for name in figures:
        table.add_column(name, justify="left" if name == "bound" else "right", no_wrap=True)
    several = len({row.kernel for row in rows}) > 1
    last = ""
    for row in rows:
        size = row.problem.size
        if last and size != last and several:
            table.add_section()
        shown = "" if size == last else escape(size)
        cells = [figure(row) for figure in figures.values()]
        if row.status != "ok":
            cells = [f"[yellow]{escape(row.status)}[/]", *[""] * (len(cells) - 1)]
        table.add_row(shown, escape(row.kernel), *cells)
        last = size
    return table


def _columns(rows: Sequence[Measurement], small: bool) -> dict[str, Callable[[Measurement], str]]:
    """The cells of a row by heading; those of bursts and clocks only where there are some."""
    scale = 1000 if small else 1
    found: dict[str, Callable[[Measurement], str]] = {
        "time µs": lambda row: digits(row.time_us, 4),
        "± %": lambda row: half_width(interval_percent(row) or 0),
        BURST: lambda row: digits(row.burst_us, 4),
        f"{'G' if small else 'T'}FLOP/s": (
            lambda row: digits((row.tflops or 0) * scale, 4) if row.flops else "–"
        ),
        "GB/s": lambda row: digits(row.gbps, 3),
        "% roof": lambda row: digits(row.roof_percent, 3),
        AT_CLOCK: lambda row: digits(row.observed_percent, 3),
        "bound": lambda row: escape(row.bound),
    }
    if all(row.burst_us is None for row in rows):
        del found[BURST]
    if all(row.observed_percent is None for row in rows):
        del found[AT_CLOCK]
    return found


def counter_tables(rows: Sequence[Measurement]) -> list[Table]:
    """What counters found, and its ratio to the model, for rows with counters; fits 80 columns."""
    counted = [row for row in rows if row.counted_flops is not None]
    return [_counter_table(title, list(group)) for title, group in groupby(counted, key=_heading)]


def _counter_table(title: str, rows: list[Measurement]) -> Table:
    spare = ("SM MHz", "of model", "GFLOP", "L2 MB")
    table = FigureTable(escape(f"{title}: one launch"), spare)
    table.padding = (0, 1, 0, 0)
    for name in ("size", "kernel"):
        table.add_column(name, overflow="fold")
    for name in ("GFLOP", "of model", "DRAM MB", "of model", "L2 MB", "L1 MB", "SM MHz"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        flops, moved = row.counted_flops or 0, row.dram_bytes
        figures = (
            digits(flops / 1e9, 4),
            digits(flops / row.flops, 4) if row.flops else "–",
            *(_per(moved, 1e6), _per(moved, row.bytes)),
            *(_per(row.l2_bytes, 1e6), _per(row.l1_bytes, 1e6), digits(row.counted_mhz, 4)),
        )
        table.add_row(escape(row.problem.size), escape(row.kernel), *figures)
    return table


def _per(value: float | None, unit: float | None) -> str:
    return digits(value / unit, 4) if value is not None and unit else "–"


def device_tables(facts: Mapping[str, Fact], roofline: Roofline) -> list[Table]:
    """Facts and ceilings of one device; fits 80 columns."""
    known = Table(box=box.SIMPLE_HEAD, title="facts", title_justify="left")
    for column in ("fact", "value", "source, or why it is missing"):
        known.add_column(column, overflow="fold")
    for cells in fact_cells(facts):
        known.add_row(*map(escape, cells))
    limits = Table(box=box.SIMPLE_HEAD, title="ceilings", title_justify="left")
    limits.add_column("ceiling", overflow="fold")
    limits.add_column("value", justify="right", no_wrap=True)
    limits.add_column("from", no_wrap=True)
    limits.add_column("formula", overflow="fold")
    caveats: list[str] = []
    for ceiling in roofline.ceilings:
        mark = ""
        passed = roofline.passed(ceiling.key) if ceiling.provenance == "derived" else ""
        for caveat in filter(None, (ceiling.caveat, passed)):
            if caveat not in caveats:
                caveats.append(caveat)
            mark += f" [{caveats.index(caveat) + 1}]"
        datasheet = f"; datasheet: {ceiling.show(ceiling.datasheet)}" if ceiling.datasheet else ""
        formula = ceiling.formula + datasheet + mark
        limits.add_row(*map(escape, (ceiling.key, ceiling.amount, ceiling.provenance, formula)))
    for missing_ceiling in roofline.missing:
        limits.add_row(escape(missing_ceiling.key), "–", "missing", escape(missing_ceiling.reason))
    limits.caption = escape("\n".join(f"[{i}] {text}" for i, text in enumerate(caveats, 1)))
    limits.caption_justify = "left"
    return [known, limits]


ROUTES: Final = {
    ("PEER", "derived"): "NVLinks × rate of one",
    ("PEER", "measured"): "measured, one way",
    ("PEER_BOTH", "measured"): "measured, each way of both at once",
}


def route_tables(routes: Mapping[tuple[str, str], CeilingList]) -> dict[str, Table]:
    """GB/s from each device (rows) to each other one (columns), a table per kind of figure."""
    names = list(dict.fromkeys(name for route in routes for name in route))
    tables = {}
    for (key, provenance), title in ROUTES.items():
        rates = {
            route: limit.value / 1e9
            for route, limits in routes.items()
            for limit in limits
            if isinstance(limit, Ceiling) and (limit.key, limit.provenance) == (key, provenance)
        }
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for name in ("", *names):
            table.add_column(escape(name), justify="right", no_wrap=True)
        for here in names:
            cells = (rates.get((here, there)) for there in names)
            table.add_row(escape(here), *("–" if v is None else digits(v, 3) for v in cells))
        tables[f"GB/s, {title}"] = table
    return tables


def remarks(rows: Sequence[Measurement]) -> list[str]:
    """A line for each reason of rows without figures, and one for each flag that is a caveat."""
    lines = list(_reasons(rows))
    flagged = Counter(flag for row in rows for flag in row.flag_names if flag != BATCH_TIMED)
    for flag, count in flagged.items():
        lines.append(f"{flag} ({count} of {len(rows)} rows): {FLAGS.get(flag, flag)}")
    changes = dict.fromkeys((row.kernel, row.changed) for row in rows if row.changed)
    return lines + [f"{kernel} changed: {what}" for kernel, what in changes]


def _reasons(rows: Iterable[Measurement]) -> Iterator[str]:
    """Which rows of a kernel have no figures, and why: the first one, and how many are alike."""
    failed = (row for row in rows if row.status != "ok")
    alike = grouped(failed, lambda row: (row.status, row.kernel, row.reason))
    for (status, _, reason), group in alike.items():
        more = f", and {len(group) - 1} more" if len(group) > 1 else ""
        yield f"{status}: {label(group[0])}{more}: {reason}"


def bursts(rows: Sequence[Measurement]) -> list[str]:
    """For each table with bursts, the largest row that has one: why its two times differ."""
    known = [row for row in rows if row.burst_us and row.time_us]
    return [_burst(list(group)) for _, group in groupby(known, key=_heading)]


def _burst(rows: list[Measurement]) -> str:
    row = max(rows, key=lambda row: (row.flops or 0, -(row.time_us or 0)))
    burst = _state(row.burst_us, row.burst_mhz, row.burst_w)
    settled = _state(row.time_us, row.sm_mhz, row.power_w)
    return (
        f"{label(row)} takes {burst} in a burst after a rest, and {settled} settled: "
        "the power limit lowers the clock of sustained work."
    )


def _state(us: float | None, mhz: float | None, watts: float | None) -> str:
    known = [f"{mhz:.0f} MHz" if mhz else "", f"{watts:.0f} W" if watts else ""]
    text = ", ".join(filter(None, known))
    return f"{digits(us, 4)} µs" + (f" ({text})" if text else "")


def sentences(rows: Iterable[Measurement]) -> list[str]:
    """One sentence per table: on the largest of the problems that the most kernels finished.

    A function that was not in a race is compared with no other.
    """
    ok = [row for row in rows if row.status == "ok" and row.time_us]
    groups = groupby(ok, key=lambda row: (_heading(row), _alone(row)))
    return [_sentence(title, list(group)) for (title, _), group in groups]


def _alone(row: Measurement) -> str:
    """A function that had nothing to be compared with."""
    alone = row.problem.workload == "function" and "unverified" in row.flag_names
    return row.kernel if alone else ""


def _sentence(title: str, rows: list[Measurement]) -> str:
    best = max(
        grouped(rows, lambda row: row.problem.size).values(),
        key=lambda group: (len(group), group[0].flops or 0, group[0].link_bytes or 0),
    )
    best.sort(key=lambda row: row.time_us or 0)
    first, others = best[0], best[1:]
    roof = f", {digits(first.roof_percent, 3)} % of its roof" if first.roof_percent else ""
    start = f"{title} at {first.problem.size}: {first.kernel} reached {speed(first)}{roof}"
    ratios = [(row.kernel, _ratio(row, first)) for row in others]
    claims = ", ".join(f"{ratio} {name}" for name, ratio in ratios if ratio)
    unclear = " or ".join(name for name, ratio in ratios if not ratio)
    start += f", and ran {claims}" if claims else ""
    start += f"; its times do not show that it is faster than {unclear}" if unclear else ""
    return f"{start}."


def scaling_sentences(rows: Iterable[Measurement]) -> list[str]:
    """For each scaling the row with the most GPUs: how many times as fast as one."""
    return [_scaling(one) for one in scalings(row for row in rows if row.status == "ok")]


def _scaling(one: Scaling) -> str:
    problem, times, gpus = one.base.problem, digits(one.times_one[-1], 3), one.gpus[-1]
    title = f"{problem.workload} {PRECISIONS[problem.precision].title}, {one.base.kernel}"
    if one.weak:
        work = f"each with the {one.split} of {problem.size}"
        return f"{title}: {gpus} GPUs, {work}, do {times} times the work of one in its time."
    return (
        f"{title} at {problem.size}: {gpus} GPUs by {one.split} are {times} times as fast as one."
    )


def _ratio(slow: Measurement, fast: Measurement) -> str:
    """``1.42 ± 0.03 times as fast as``, with the digits that both intervals leave certain.

    Empty if the intervals allow the other order as well.
    """
    ratio, factor = times_as_fast(slow, fast)
    if factor is None:
        return f"{digits(ratio, 2)} times as fast as"
    if ratio < factor:
        return ""
    if factor > VAGUE:
        return f"at least {digits(ratio / factor, 2)} times as fast as"
    if factor > 1.1:
        ends = f"{digits(ratio / factor, 2)} to {digits(ratio * factor, 2)}"
        return f"{digits(ratio, 2)} ({ends}) times as fast as"
    half = ratio * (factor - 1)
    if half < 0.0005:
        return f"{ratio:.3f} times as fast as"
    places = max(0, -floor(log10(half)))
    return f"{ratio:.{places}f} ± {half:.{places}f} times as fast as"


VAGUE: Final = 2.0
"""The factor from which on only the lower end of a range says something."""

SIGNS: Final = {"in": ">", "kernel": "#", "out": "<"}


def timeline(row: Measurement, spans: Sequence[Span], width: int) -> list[str]:
    """When the chunks of a streamed row were copied and computed, in ``width`` characters."""
    end = max(span.end_us for span in spans)
    name, scale = unit(end)
    columns = max(10, width - 12)
    streams = [[" "] * columns for _ in range(1 + max(span.stream for span in spans))]
    for span in sorted(spans, key=lambda span: span.what == "kernel"):
        first = min(int(span.start_us / end * columns), columns - 1)
        last = min(max(first + 1, round(span.end_us / end * columns)), columns)
        streams[span.stream][first:last] = SIGNS[span.what] * (last - first)
    lines = [f"{label(row)}: > copy in, # kernel, < copy out, {digits(end / scale, 3)} {name}"]
    return lines + [f"slot {i:<6} {''.join(cells)}" for i, cells in enumerate(streams, 1)]
