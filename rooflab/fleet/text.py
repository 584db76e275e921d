"""Who is slow in a fleet: tables and sentences for the terminal, and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import takewhile
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rooflab.fleet.interference import Cost, costs
from rooflab.fleet.outliers import OUT, Finding, Noise, Rating
from rooflab.fleet.runs import AVERAGES, Assessment, Resource, Standing
from rooflab.model.diagnosis import LAUNCH
from rooflab.model.grouping import grouped
from rooflab.model.roofline import COMPUTE
from rooflab.report import verdicts
from rooflab.report.fitting import FigureTable
from rooflab.report.text import as_json, digits

MOST_ROWS: Final = 24
"""Members of a table, if not more of them are slow, fast or undecided."""

MOST_SENTENCES: Final = 10
MENTIONED: Final = 4
LONGEST_NAME: Final = 20

_COLOURS: Final = {Rating.SLOW: "red", Rating.FAST: "green", Rating.UNDECIDED: "yellow"}


# Figures -----------------------------------------------------------------------------------------


def percent(share: float) -> str:
    """A share in percent, as sentences need it: two digits."""
    return digits(100 * share, 2) if share < 10 else "over 1000"


def signed(share: float | None) -> str:
    """A difference in percent, with its sign: ``+3.10``."""
    value = 100 * (share or 0.0)
    return "> 999" if value > 999 else verdicts.signed(value)


def interval(found: Finding | Cost) -> str:
    """The ends of a difference's interval in percent, empty if unknown: ``+2.80…+3.40``."""
    if found.low is None or found.high is None:
        return ""
    return f"{signed(found.low)}…{signed(found.high)}"


def change(found: Finding | Cost, unit: str = " %") -> str:
    """``+3.10 % (+2.80…+3.40)``."""
    ends = interval(found)
    return f"{signed(found.difference)}{unit}{f' ({ends})' if ends else ''}"


def detectable(findings: Iterable[Finding]) -> str:
    """The least difference that would show, in percent; empty if unknown."""
    known = [one.detectable for one in findings if one.detectable is not None]
    return percent(median(known)) if known else ""


def whole(value: float | None, unknown: str = "") -> str:
    """A figure of a sensor."""
    return unknown if value is None else f"{value:.0f}"


def many(count: int, one: str, several: str = "") -> str:
    """``1 member``, ``2 members``."""
    return f"{count} {one if count == 1 else several or f'{one}s'}"


def phase_title(phase: str) -> str:
    """``all together``, ``with cuda-1``."""
    return "all together" if phase == "together" else phase.replace("-", " ", 1)


# Sentences ---------------------------------------------------------------------------------------


def sentences(found: Assessment) -> list[str]:
    """Who is slow or fast, who may be, and what could not be told; the worst first."""
    return [
        _count(found),
        *_cut([sentence(one) for one in found.outliers], "members in other resources"),
        *_cut([sentence(one) for one in found.outlying_spots], "points"),
        *_undecided(found),
        *_without_repeats(found),
    ]


def _cut(lines: list[str], what: str) -> list[str]:
    rest = len(lines) - MOST_SENTENCES
    return lines if rest <= 0 else [*lines[:MOST_SENTENCES], f"And {rest} more {what}."]


def _count(found: Assessment) -> str:
    """``64 members, 5 resources: 2 slow, 1 fast.``"""
    judged = {one.member for one in found.standings}
    start = f"{many(len(judged), 'member')}, {many(len(found.resources), 'resource')}"
    if len(judged) < 2:
        return f"{start}: there is nothing to compare with."
    ratings = [standing.finding.verdict for standing in found.outliers]
    counts = ", ".join(f"{ratings.count(one)} {one.lower()}" for one in OUT)
    return f"{start}: {counts if ratings else 'no outlier'}."


def sentence(one: Standing) -> str:
    """``gpu-b is 3.1 % (2.8 to 3.4) slower than the median of the others in FP16 compute; …``."""
    found = one.finding
    difference = found.difference or 0.0
    ends = [abs(end) for end in (found.low, found.high) if end is not None]
    between = f" ({percent(min(ends))} to {percent(max(ends))})" if ends else ""
    claim = (
        f"{one.member} is {percent(abs(difference))} %{between} "
        f"{'slower' if difference > 0 else 'faster'} than the median of the others in {one.title}"
    )
    return f"{'; '.join(filter(None, [claim, noise_text(found.noise), _sensors(one)]))}."


def noise_text(noise: Noise) -> str:
    """What intervals are made of."""
    if noise.known:
        return f"noise between repeats is {percent(noise.repeats or 0.0)} %"
    if noise.members is None:
        return "noise between repeats is unknown"
    how = "unknown" if noise.repeats is None else "not known well"
    return f"noise between repeats is {how}, members differ by {percent(noise.members)} %"


SENSORS: Final = {"sm_mhz": ("SM clock ", "MHz"), "power_w": ("", "W"), "temp_c": ("", "°C")}
"""The start of their texts, and their units."""


def _sensors(one: Standing) -> str:
    """``SM clock 1410 MHz (others 1455), 690 W (others 698)``, as far as known."""
    return ", ".join(
        f"{start}{one.level[name]:.0f} {unit} (others {one.others[name]:.0f})"
        for name, (start, unit) in SENSORS.items()
        if name in one.level and name in one.others
    )


def _undecided(found: Assessment) -> Iterator[str]:
    """A sentence for each resource and reason."""
    groups = grouped(found.undecided, lambda one: (one.resource, one.finding.reason))
    for (resource, reason), group in groups.items():
        # Of two members the slower one says everything.
        shown = [s for s in group if s.finding.others > 1 or (s.finding.difference or 0.0) >= 0]
        names = ", ".join(f"{one.member} {change(one.finding)}" for one in shown[:MENTIONED])
        more = f" and {len(shown) - MENTIONED} more" if len(shown) > MENTIONED else ""
        if shown:
            yield f"Undecided in {resource.title}, {reason}: {names}{more}."


def _without_repeats(found: Assessment) -> Iterator[str]:
    """What the fleet cannot tell, if intervals are not made of the noise between processes."""
    known = [one.finding for one in found.standings if one.finding.difference is not None]
    if known and not any(one.noise.known for one in known):
        least = detectable(known)
        instead = "; the spread of the members takes its place, and shows differences above "
        instead = f"{instead}{least} % or so" if least else ""
        yield f"The noise between processes needs repeats of some members{instead}."


def cost_sentences(found: Sequence[Cost]) -> Iterator[str]:
    """What is proven of each phase."""
    for phase in dict.fromkeys(one.phase for one in found):
        title, some = phase_title(phase).capitalize(), [one for one in found if one.phase == phase]
        proven = sorted((one for one in some if one.proven), key=lambda one: -abs(one.difference))
        for one in proven[:MENTIONED]:
            text = change(one, " % of time")
            yield f"{title}, {one.resource.title} on {one.member}: {text} against alone."
        if len(proven) > MENTIONED:
            yield f"{title}: {len(proven) - MENTIONED} more changes beyond the noise."
        if not proven:
            known = any(one.low is not None for one in some)
            why = "beyond the noise" if known else "is proven: the noise needs repeats"
            yield f"{title}: no change {why}."


# Tables ------------------------------------------------------------------------------------------


def tables(found: Assessment, most: int = MOST_ROWS) -> list[Table]:
    """A table per resource, the slowest member first; fits 80 columns.

    Of more than ``most`` members, those in the middle of the order are left out if they are even.
    """
    names = short_names([member.name for member in found.fleet.members])
    return [_table(one, found.of(one), names, most) for one in found.resources]


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Names for narrow columns: without what all have in common, and no longer than needed."""
    if max(map(len, names), default=0) <= LONGEST_NAME:
        return {name: name for name in names}
    alike = zip(*names, strict=False) if len(names) > 1 else ()
    common = sum(1 for _ in takewhile(lambda them: len(set(them)) == 1, alike))
    rest = {name: f"…{name[common:]}" if common > 3 else name for name in names}
    for length in range(8, LONGEST_NAME):
        if len({text[:length] for text in rest.values()}) == len(names):
            return {n: t if len(t) <= length + 1 else f"{t[:length]}…" for n, t in rest.items()}
    return rest


def _narrow(title: str, spare: Sequence[str], folded: Sequence[str], *figures: str) -> Table:
    """An empty table with columns of text, which fold, and of figures."""
    table = FigureTable(escape(title), spare)
    table.padding = (0, 1, 0, 0)
    for heading in folded:
        table.add_column(heading, overflow="fold")
    for heading in figures:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _table(
    resource: Resource, standings: Sequence[Standing], names: Mapping[str, str], most: int
) -> Table:
    figure, heading = _figure(resource, standings)
    columns = (heading, "±", "differs %", "interval", "MHz", "W", "°C")
    spare = ("°C", "W", "MHz", "±", "interval")
    table = _narrow(_title(resource, standings), spare, ["member"], *columns)
    table.add_column("verdict", no_wrap=True)
    shown = _shown(standings, most)
    for one in shown:
        if one is None:
            table.add_row(f"… {len(standings) - len(shown) + 1} more")
        else:
            table.add_row(escape(names[one.member]), *_cells(one, figure))
    return table


def _title(resource: Resource, standings: Sequence[Standing]) -> str:
    """``FP16 compute, 12 points; noise …; differences from 1.6 % on would show``."""
    points = max(one.finding.points for one in standings)
    compared = [one.finding for one in standings if one.finding.difference is not None]
    least = detectable(compared)
    parts = [
        f"{resource.title}, {many(points, 'point')}",
        *(noise_text(one.noise) for one in compared[:1]),
        *([f"differences from {least} % on would show"] if least else []),
    ]
    return "; ".join(parts)


def _figure(resource: Resource, standings: Sequence[Standing]) -> tuple[str, str]:
    """The figure of a resource and its heading: % of roof, else a speed, else the time."""
    speeds = [("tflops", "TFLOP/s"), ("gbps", "GB/s")]
    choices = [("roof_percent", "% roof"), *(speeds if resource.kind == COMPUTE else speeds[1:])]
    for name, heading in choices if resource.kind != LAUNCH else []:
        if any(name in one.level for one in standings):
            return name, heading
    return "time_us", "time µs"


def _shown(standings: Sequence[Standing], most: int) -> list[Standing | None]:
    """The members of a table in their order; None is where others are left out, in the middle."""
    even = [one for one in standings if one.finding.verdict == Rating.EVEN]
    left = even[max(0, most - len(standings) + len(even)) :]
    found = [None if one in left else one for one in standings]
    return [one for i, one in enumerate(found) if one or None not in found[:i]]


def _cells(one: Standing, figure: str) -> Iterator[str]:
    found, value = one.finding, one.level.get(figure)
    yield "–" if value is None else digits(value, 4 if value < 1e6 else 2)
    half = 0.0 if value is None or found.half is None else value * found.half
    yield "" if value is None or found.half is None else digits(half, 2) if half < 1e4 else "> 9999"
    yield "–" if found.difference is None else signed(found.difference)
    yield interval(found)
    for sensor in SENSORS:
        yield whole(one.level.get(sensor), "–")
    colour = _COLOURS.get(found.verdict)
    yield f"[{colour}]{found.verdict}[/]" if colour else ""


def cost_tables(found: Sequence[Cost]) -> Iterator[Table]:
    """What neighbours cost: a table for each phase; fits 80 columns."""
    names = short_names(sorted({one.member for one in found}))
    spare, columns = ("W", "MHz", "alone", "interval"), ("MHz", "alone", "W", "alone")
    for phase in dict.fromkeys(one.phase for one in found):
        title = f"{phase_title(phase)}, against alone"
        table = _narrow(title, spare, ["resource", "member"], "time %", "interval", *columns)
        last: Resource | None = None
        for one in (one for one in found if one.phase == phase):
            resource = "" if one.resource == last else escape(one.resource.title)
            text = f"[bold]{signed(one.difference)}[/]" if one.proven else signed(one.difference)
            sensors = (whole(value, "–") for value in one.sensors.values())
            table.add_row(resource, escape(names[one.member]), text, interval(one), *sensors)
            last = one.resource
        yield table


def show(found: Assessment, screen: Console) -> None:
    """Print the tables, then the sentences, then what is missing."""
    beside = costs(found.fleet)
    for table in (*tables(found), *cost_tables(beside)):
        screen.print(table)
    for line in (*sentences(found), *cost_sentences(beside), *found.fleet.remarks):
        screen.print(line, markup=False, soft_wrap=not screen.is_terminal)


# JSON --------------------------------------------------------------------------------------------


def to_json(found: Assessment) -> str:
    """Everything, for programs: relative differences, unrounded."""
    content = {
        "threshold_percent": found.threshold_percent,
        "sentences": sentences(found),
        "members": [
            {"name": one.name, "processes": len(one.runs), "missing": list(one.missing)}
            for one in found.fleet.members
        ],
        "outliers": [
            {
                "member": one.member,
                "resource": one.resource.title,
                "verdict": one.finding.verdict.value,
                "difference": one.finding.difference,
                "sentence": sentence(one),
            }
            for one in found.outliers
        ],
        "resources": [_figures(one) for one in found.standings],
        "points": [_figures(one) for one in found.spots],
        "phases": [_cost(one) for one in costs(found.fleet)],
    }
    return as_json(content)


def _figures(one: Standing) -> dict[str, Any]:
    """What is known of a member on a resource or a point."""
    found = {"resource": one.resource.title, **asdict(one.finding)}
    del found["subject"]
    if one.row:
        problem = one.row.problem
        return {
            **found,
            "kernel": one.row.kernel,
            "workload": problem.workload,
            "precision": problem.precision,
            "parameters": problem.parameters,
        }
    levels = {"level": one.level, "others_level": one.others}
    figures = {name: {key: of.get(key) for key in AVERAGES} for name, of in levels.items()}
    return {**found, **one.resource._asdict(), **figures}


def _cost(one: Cost) -> dict[str, Any]:
    names = ("member", "phase", "points", "difference", "low", "high")
    found = {name: getattr(one, name) for name in names}
    return {**found, "resource": one.resource.title, **one.sensors}
