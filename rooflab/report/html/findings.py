"""What holds each row back, and the three sentences that matter: best, largest gain, uncertain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rooflab.model.grouping import grouped
from rooflab.model.measurement import BATCH_TIMED
from rooflab.model.problem import PROGRAM
from rooflab.report import explain
from rooflab.report.explain import Explanation
from rooflab.report.html.content import Report, ReportRow, number
from rooflab.report.html.markup import Markup, element, section
from rooflab.report.html.rows import TextColumn
from rooflab.report.text import digits, label, speed, time_text
from rooflab.runs.own_kernels import OwnTimes

INTRO: Final = (
    "The cause of each row's time, the most time to save first. Rows of which the same can be said "
    "are one line: open it for the numbers, and for what to try."
)

SHOWN: Final = 10
"""Verdicts that are shown at once; each is on one or more rows."""

ON_THE_ROOF: Final = 100.5
"""Percent of the roof up to which a row is believed: a median has an error of 0.5 %."""

Explained = Sequence[tuple[ReportRow, Explanation]]


def explained(report: Report) -> list[tuple[ReportRow, Explanation]]:
    """Verdicts on the rows with possible figures in device memory; the largest gain first."""
    found: list[tuple[ReportRow, Explanation]] = []
    for run in report.drawn:
        if any(row.problem.resident for row in run.measurements):
            # A report may go to others: the folder's name says enough.
            sound = replace(run, path=Path(run.path.name))
            told = explain.explanations(sound, times=OwnTimes(run))
            found += [(report.of[id(one.row)], one) for one in told]
    return sorted(found, key=lambda pair: -pair[1].gain_us)


def columns(report: Report, found: Explained) -> Iterator[TextColumn]:
    """The cause of each row's time, and the time that it could take."""
    known = {one.id: verdict.verdict for one, verdict in found}
    ones = [known.get(one.id) for one in report.rows]
    yield TextColumn("cause", [one.bound if one else "" for one in ones])
    yield TextColumn("could be µs", [digits(one.reachable_us, 4) if one else "" for one in ones])


# Summary -----------------------------------------------------------------------------------------


def summary(report: Report, found: Explained) -> Markup:
    """The section of three sentences."""
    lines = (_best(report), _most(report, found), ("Uncertain", _uncertain(report)))
    items = [element("li", element("strong", f"{head}: "), text) for head, text in lines]
    return section("summary", "Summary", element("ul", *items))


def _named(report: Report, one: ReportRow) -> str:
    return label(one.row) + (f" ({report.owner(one)})" if report.several else "")


def _best(report: Report) -> tuple[str, str]:
    """The row that is closest to its roof and not above it."""
    measured = report.measured
    if not measured:
        return "Best", "no row has figures."
    believed = [one for one in measured if 0 < (one.row.roof_percent or 0) <= ON_THE_ROOF]
    best = max(believed, key=lambda one: one.row.roof_percent or 0, default=None)
    if best is None:
        best = max(measured, key=lambda one: number(one.row.tflops) or 0)
        reached = f"{_named(report, best)} reached {speed(best.row)}"
        return "Best", f"{reached}; no row has a roof to compare it with."
    share = f"{digits(best.row.roof_percent, 3)} % of its roof."
    return "Closest to its roof", f"{_named(report, best)} reached {speed(best.row)}, {share}"


def _most(report: Report, found: Explained) -> tuple[str, str]:
    """The largest gain of the fastest kernels: that a slower one can be replaced is no news."""
    title = "Most to gain"
    fastest = [pair for pair in found if pair[1].faster is None]
    if not fastest:
        return title, "unknown: no row in device memory can be explained."
    sure = [pair for pair in fastest if not pair[1].doubt]
    if not sure:
        return title, "unknown: no time is well known; measure again on a machine of your own."
    row, one = max(sure, key=lambda pair: pair[1].gain_us)
    if one.gain_us <= 0 and not any(pair[1].evidence.loads for pair in sure):
        return title, "unknown: no row has work with a roof."
    if one.gain_us <= 0:
        return title, "nothing that is known: the fastest kernel of each problem is at its limit."
    return title, (
        f"of the fastest kernels, {_named(report, row)}: {_gain(one)}. "
        f"{explain.verdict_sentence(one)} Try: {one.step}."
    )


def _uncertain(report: Report) -> str:
    rows = [one.row for one in report.rows]
    status = Counter(row.status for row in rows)
    flags = Counter(flag for row in rows for flag in row.flag_names if flag != BATCH_TIMED)
    damaged = status.pop("ok", 0) - len(report.measured)
    parts = [f"{count} {name}" for name, count in status.items()]
    parts += [f"{damaged} with impossible figures"] * bool(damaged)
    parts += [f"{count} flagged {flag}" for flag, count in flags.items()]
    missing = sum(max(0, run.manifest.points - len(run.measurements)) for run in report.runs)
    parts += [f"{missing} not measured yet"] * bool(missing)
    if parts:
        return f"of {len(rows)} rows, {', '.join(parts)}."
    if any(row.problem.workload == PROGRAM for row in rows):  # nobody knows its results
        return f"nothing: none of {len(rows)} rows has a caveat."
    return f"nothing: all {len(rows)} rows were verified, and none has a caveat."


# Verdicts ----------------------------------------------------------------------------------------


def verdicts(report: Report, found: Explained) -> Markup:
    """The section of what holds each kernel back."""
    if not found:
        return Markup()
    table = " The table of all rows has the cause of each." if report.many else ""
    groups = grouped(found, lambda pair: (pair[0].run, explain.gist(pair[1])))
    lines = [_verdict(report, group) for group in groups.values()]
    first, rest = lines[:SHOWN], lines[SHOWN:]
    if rest:
        more = element("summary", f"{len(rest)} more")
        first.append(element("details", more, *rest, id="more"))
    intro = element("p", INTRO + table)
    return section("diagnosis", "What holds each kernel back", intro, *first)


def _verdict(report: Report, group: Explained) -> Markup:
    row, one = group[0]
    owner = f"{report.owner(row)}: " if report.several else ""
    more = f" and {len(group) - 1} more" if len(group) > 1 else ""
    head = element("b", f"{owner}{label(row.row)}{more}")
    _, *lines = explain.paragraphs(one)
    told = [element("p", line) for line in lines]
    if report.many:
        told += [element("p", text) for text in [explain.others([one for _, one in group])] if text]
    elif more:
        items = (
            element("li", f"{row.row.problem.size}: {_gain(one)}", data_row=row.id)
            for row, one in group
        )
        told.append(element("ul", *items))
    gain = f"; {_gain(one)}" if one.gain_us > 0 else ""
    cause = f" {explain.title(one).rstrip(':').lower()}{gain}"
    ids = {"data_any" if more else "data_row": " ".join(row.id for row, _ in group)}
    return element("details", element("summary", head, cause), *told, **ids)


def _gain(one: Explanation) -> str:
    now, then = one.evidence.time_us, one.verdict.reachable_us
    return f"{time_text(now)} could be {time_text(then)}{explain.gain(now, then)}"
