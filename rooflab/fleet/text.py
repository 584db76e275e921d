"""Who is slow in a fleet: tables and sentences for the terminal, and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import takewhile
from statistics import median
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rooflab.fleet.interference import Cost, costs
from rooflab.fleet.outliers import Finding, Noise, Rating
from rooflab.fleet.runs import (
    L2,
    OTHER,
    PCIE,
    Assessment,
    Averages,
    PointFinding,
    Resource,
    Standing,
)
from rooflab.model.diagnosis import LAUNCH
from rooflab.model.problem import DRAM
from rooflab.model.roofline import COMPUTE
from rooflab.report.fitting import Fitting
from rooflab.report.text import digits, label, precision_title

TITLES: Final = {DRAM: "DRAM", L2: "L2", PCIE: "PCIe", LAUNCH: "launch", OTHER: "other points"}
"""Names of the resources."""

MOST_ROWS: Final = 24
"""Members of a table, if not more of them are slow, fast or undecided."""

MOST_SENTENCES: Final = 10
MENTIONED: Final = 4
LONGEST_NAME: Final = 20

_COLOURS: Final = {Rating.SLOW: "red", Rating.FAST: "green", Rating.UNDECIDED: "yellow"}


def resource_title(resource: Resource) -> str:
    """``FP16 compute``, ``DRAM``; with the device if members have different ones."""
    kind, precision = resource.kind, precision_title(resource.precision)
    title = f"{precision} compute" if kind == COMPUTE else TITLES.get(kind, kind.upper())
    return f"{title} of {resource.device}" if resource.device else title


# Sentences ---------------------------------------------------------------------------------------


def sentences(found: Assessment) -> list[str]:
    """Who is slow or fast, who may be, and what could not be told; the worst first."""
    return [
        _count(found),
        *_cut([sentence(one) for one in found.outliers], "members in other resources"),
        *_cut([spot_sentence(one) for one in found.outlying_spots], "points"),
        *_undecided(found),
        *_without_repeats(found),
    ]


def _cut(lines: list[str], what: str) -> list[str]:
    rest = len(lines) - MOST_SENTENCES
    return lines if rest <= 0 else [*lines[:MOST_SENTENCES], f"And {rest} more {what}."]


def _count(found: Assessment) -> str:
    """``64 members, 5 resources: 2 slow, 1 fast.``"""
    judged = {one.member for one in found.standings}
    start = f"{_many(len(judged), 'member')}, {_many(len(found.resources), 'resource')}"
    if len(judged) < 2:
        return f"{start}: there is nothing to compare with."
    verdicts = [standing.finding.verdict for standing in found.outliers]
    counts = [f"{verdicts.count(v)} {v.lower()}" for v in (Rating.SLOW, Rating.FAST)]
    return f"{start}: {', '.join(counts) if verdicts else 'no outlier'}."


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def sentence(one: Standing) -> str:
    """``gpu-b is 3.1 % (2.8 to 3.4) slower than the median of the others in FP16 compute; …``."""
    claim = f"{one.member} is {_claim(one.finding)} in {resource_title(one.resource)}"
    return f"{'; '.join(filter(None, [claim, noise_text(one.finding.noise), _sensors(one)]))}."


def spot_sentence(spot: PointFinding) -> str:
    """The same of one point."""
    claim = f"{spot.finding.member} is {_claim(spot.finding)} in {label(spot.row)}"
    return f"{claim} ({resource_title(spot.resource)}); {noise_text(spot.finding.noise)}."


def _claim(found: Finding) -> str:
    """``3.1 % (2.8 to 3.4) slower than the median of the others``."""
    difference = found.difference or 0.0
    ends = [abs(end) for end in (found.low, found.high) if end is not None]
    between = f" ({percent(min(ends))} to {percent(max(ends))})" if ends else ""
    what = "slower" if difference > 0 else "faster"
    return f"{percent(abs(difference))} %{between} {what} than the median of the others"


def noise_text(noise: Noise) -> str:
    """What intervals are made of."""
    if noise.known:
        return f"noise between repeats is {percent(noise.repeats or 0.0)} %"
    if noise.members is None:
        return "noise between repeats is unknown"
    how = "unknown" if noise.repeats is None else "not known well"
    return f"noise between repeats is {how}, members differ by {percent(noise.members)} %"


_SENSORS: Final = {"sm_mhz": ("SM clock ", "MHz"), "power_w": ("", "W"), "temp_c": ("", "°C")}


def _sensors(one: Standing) -> str:
    """``SM clock 1410 MHz (others 1455), 690 W (others 698)``, as far as known."""
    parts = []
    for name, (start, unit) in _SENSORS.items():
        mine, theirs = getattr(one.level, name), getattr(one.others, name)
        if mine is not None and theirs is not None:
            parts.append(f"{start}{mine:.0f} {unit} (others {theirs:.0f})")
    return ", ".join(parts)


def _undecided(found: Assessment) -> Iterator[str]:
    """A sentence for each resource and reason."""
    groups: dict[tuple[Resource, str], list[Standing]] = {}
    for one in found.undecided:
        groups.setdefault((one.resource, one.finding.reason), []).append(one)
    for (resource, reason), group in groups.items():
        # Of two members the slower one says everything.
        shown = [s for s in group if s.finding.others > 1 or (s.finding.difference or 0.0) >= 0]
        names = ", ".join(f"{s.member} {_change(s.finding)}" for s in shown[:MENTIONED])
        more = f" and {len(shown) - MENTIONED} more" if len(shown) > MENTIONED else ""
        if shown:
            yield f"Undecided in {resource_title(resource)}, {reason}: {names}{more}."


def _without_repeats(found: Assessment) -> Iterator[str]:
    """What the fleet cannot tell, if intervals are not made of the noise between processes."""
    known = [one.finding for one in found.standings if one.finding.difference is not None]
    if not known or any(one.noise.known for one in known):
        return
    least = [one.detectable for one in known if one.detectable is not None]
    instead = (
        f"; the spread of the members takes its place, and shows differences above "
        f"{percent(median(least))} % or so"
        if least
        else ""
    )
    yield f"The noise between processes needs repeats of some members{instead}."


def percent(share: float) -> str:
    """A share in percent, as sentences need it: two digits."""
    return digits(100 * share, 2) if share < 10 else "over 1000"


def signed(share: float) -> str:
    """A difference in percent, with its sign: ``+3.10``."""
    value = 100 * share
    if value > 999:
        return "> 999"
    places = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{round(value, places) + 0.0:+.{places}f}"


def _change(found: Finding) -> str:
    """``+3.10 % (+2.80…+3.40)``."""
    ends = interval(found)
    return f"{signed(found.difference or 0.0)} %{f' ({ends})' if ends else ''}"


def interval(found: Finding) -> str:
    """The ends of a difference's interval in percent, empty if unknown: ``+2.80…+3.40``."""
    if found.low is None or found.high is None:
        return ""
    return f"{signed(found.low)}…{signed(found.high)}"


# Tables ------------------------------------------------------------------------------------------


def tables(found: Assessment, most: int = MOST_ROWS) -> list[Table]:
    """A table per resource, the slowest member first; fits 80 columns.

    Of more than ``most`` members, those in the middle of the order are left out if they are even.
    """
    names = short_names([member.name for member in found.fleet.members])
    return [
        _table(resource, [one for one in found.standings if one.resource == resource], names, most)
        for resource in found.resources
        if any(one.resource == resource for one in found.standings)
    ]


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


def _table(
    resource: Resource, standings: Sequence[Standing], names: Mapping[str, str], most: int
) -> Table:
    spare = ("°C", "W", "MHz", "±", "interval")
    table = Fitting(spare=spare, title=escape(_title(resource, standings)), title_justify="left")
    table.title_style, table.box, table.padding = "bold", box.SIMPLE_HEAD, (0, 1, 0, 0)
    name, heading = _value(resource, standings)
    table.add_column("member", overflow="fold")
    for column in (heading, "±", "differs %", "interval", "MHz", "W", "°C"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    shown = _shown(standings, most)
    for one in shown:
        if one is None:
            left = len(standings) - len(shown) + 1
            table.add_row(f"… {left} more")
        else:
            table.add_row(*_cells(one, name, names[one.member]))
    return table


def _title(resource: Resource, standings: Sequence[Standing]) -> str:
    """``FP16 compute, 12 points; noise …; differences from 1.6 % on would show``."""
    points = max(one.finding.points for one in standings)
    parts = [f"{resource_title(resource)}, {_many(points, 'point')}"]
    compared = [one.finding for one in standings if one.finding.difference is not None]
    parts += [noise_text(one.noise) for one in compared[:1]]
    least = [one.detectable for one in compared if one.detectable is not None]
    parts += [f"differences from {percent(median(least))} % on would show"] if least else []
    return "; ".join(parts)


def _value(resource: Resource, standings: Sequence[Standing]) -> tuple[str, str]:
    """The figure of a resource and its heading: % of roof, else a speed, else the time."""
    speeds = [("tflops", "TFLOP/s"), ("gbps", "GB/s")]
    choices = [("roof_percent", "% roof"), *(speeds if resource.kind == COMPUTE else speeds[1:])]
    for name, heading in choices if resource.kind != LAUNCH else []:
        if any(getattr(one.level, name) is not None for one in standings):
            return name, heading
    return "time_us", "time µs"


def _shown(standings: Sequence[Standing], most: int) -> list[Standing | None]:
    """The members of a table in their order; None is where others are left out, in the middle."""
    odd = {one.member for one in standings if one.finding.verdict != Rating.EVEN}
    room = most - len(odd)
    even = [one.member for one in standings if one.member not in odd]
    if room >= len(even):
        return list(standings)
    kept = {*odd, *even[: max(0, room)]}
    found: list[Standing | None] = []
    for one in standings:
        if one.member in kept:
            found.append(one)
        elif None not in found:
            found.append(None)
    return found


def _cells(one: Standing, name: str, member: str) -> list[str]:
    found, value = one.finding, getattr(one.level, name)
    half = "" if value is None or found.half is None else _half(value * found.half)
    verdict = "" if found.verdict == Rating.EVEN else found.verdict.value
    colour = _COLOURS.get(found.verdict)
    return [
        escape(member),
        _amount(value),
        half,
        "–" if found.difference is None else signed(found.difference),
        interval(found),
        *(_whole(getattr(one.level, sensor)) for sensor in _SENSORS),
        f"[{colour}]{verdict}[/]" if colour else verdict,
    ]


def _amount(value: float | None) -> str:
    return "–" if value is None else digits(value, 4 if value < 1e6 else 2)


def _half(value: float) -> str:
    return digits(value, 2) if value < 1e4 else "> 9999"


def _whole(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def cost_tables(found: Sequence[Cost]) -> list[Table]:
    """What neighbours cost: a table for each phase; fits 80 columns."""
    names = short_names(sorted({one.member for one in found}))
    return [
        _cost_table(phase, [one for one in found if one.phase == phase], names)
        for phase in dict.fromkeys(one.phase for one in found)
    ]


def _cost_table(phase: str, found: Sequence[Cost], names: Mapping[str, str]) -> Table:
    title = f"{escape(phase_title(phase))}, against alone"
    table = Fitting(spare=("W", "MHz", "alone", "interval"), title=title, title_justify="left")
    table.title_style, table.box, table.padding = "bold", box.SIMPLE_HEAD, (0, 1, 0, 0)
    for column in ("resource", "member"):
        table.add_column(column, overflow="fold")
    for column in ("time %", "interval", "MHz", "alone", "W", "alone"):
        table.add_column(column, justify="right", no_wrap=True)
    last: Resource | None = None
    for one in found:
        title = "" if one.resource == last else resource_title(one.resource)
        last = one.resource
        sensors = (one.mhz, one.alone_mhz, one.watts, one.alone_w)
        change = signed(one.difference)
        table.add_row(
            escape(title),
            escape(names[one.member]),
            f"[bold]{change}[/]" if one.proven else change,
            cost_interval(one),
            *map(_whole, sensors),
        )
    return table


def phase_title(phase: str) -> str:
    """``all together``, ``with cuda-1``."""
    return "all together" if phase == "together" else phase.replace("-", " ", 1)


def cost_interval(one: Cost) -> str:
    """The ends of the interval in percent, empty if unknown."""
    if one.low is None or one.high is None:
        return ""
    return f"{signed(one.low)}…{signed(one.high)}"


def cost_sentences(found: Sequence[Cost]) -> list[str]:
    """What is proven of each phase."""
    return [
        line
        for phase in dict.fromkeys(one.phase for one in found)
        for line in _cost_sentences(phase, [one for one in found if one.phase == phase])
    ]


def _cost_sentences(phase: str, found: Sequence[Cost]) -> Iterator[str]:
    title = phase_title(phase).capitalize()
    proven = sorted((one for one in found if one.proven), key=lambda one: -abs(one.difference))
    for one in proven[:MENTIONED]:
        change = f"{signed(one.difference)} % of time ({cost_interval(one)})"
        yield f"{title}, {resource_title(one.resource)} on {one.member}: {change} against alone."
    if len(proven) > MENTIONED:
        yield f"{title}: {len(proven) - MENTIONED} more changes beyond the noise."
    if not proven:
        known = any(one.low is not None for one in found)
        why = "beyond the noise" if known else "is proven: the noise needs repeats"
        yield f"{title}: no change {why}."


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
                "resource": resource_title(one.resource),
                "verdict": one.finding.verdict.value,
                "difference": one.finding.difference,
                "sentence": sentence(one),
            }
            for one in found.outliers
        ],
        "resources": [_standing(one) for one in found.standings],
        "points": [_spot(spot) for spot in found.spots],
        "phases": [
            {**asdict(one), "resource": resource_title(one.resource)} for one in costs(found.fleet)
        ],
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def _finding(found: Finding) -> dict[str, Any]:
    content = asdict(found)
    del content["subject"]
    return content


def _standing(one: Standing) -> dict[str, Any]:
    levels: dict[str, Averages] = {"level": one.level, "others_level": one.others}
    return {
        "resource": resource_title(one.resource),
        **one.resource._asdict(),
        **_finding(one.finding),
        **{name: asdict(level) for name, level in levels.items()},
    }


def _spot(spot: PointFinding) -> dict[str, Any]:
    problem = spot.row.problem
    return {
        "resource": resource_title(spot.resource),
        "kernel": spot.row.kernel,
        "workload": problem.workload,
        "precision": problem.precision,
        "parameters": problem.parameters,
        **_finding(spot.finding),
    }
