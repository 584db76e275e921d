"""The members on each resource as SVG: a dot with its interval each, the slowest on top."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import expm1, log1p
from typing import Final

from rooflab.figures.model import Axis
from rooflab.figures.palette import MARKERS
from rooflab.fleet.outliers import Finding, Rating
from rooflab.fleet.page.tables import MemberRow, Overview
from rooflab.fleet.runs import Resource
from rooflab.fleet.text import change, detectable, percent
from rooflab.report.html.figure import WIDTH, brief, line, panels, place, sample
from rooflab.report.html.markup import Markup, element, section

LEFT, RIGHT, TOP = 12.0, 258.0, 48.0
"""The frame within a panel; on its right are the names."""

NAMES: Final = 272.0
LONGEST: Final = 16
"""Characters of a name that fit beside the frame."""

ROOMY, CLOSE = 14.0, 5.5
"""Pixels from one member to the next: with a name each, and without."""

TALLEST: Final = 260.0
"""Height from which on members are closer."""

MOST: Final = 10.0
"""Differences are drawn up to ten times the time; larger ones are at the edge, with their value."""

_SHAPES: Final = {Rating.SLOW: "^", Rating.FAST: "v", Rating.UNDECIDED: "D", Rating.EVEN: "o"}


def strips(about: Overview) -> Markup:
    """The section; nothing if there is nothing to compare."""
    found, drawn = about.found, []
    for resource in found.resources:
        marked = [
            (about.members[one.member], one.finding)
            for one in found.of(resource)
            if one.finding.difference is not None
        ]
        drawn += [_panel(resource, marked, found.threshold_percent)] if marked else []
    if not drawn:
        return Markup()
    told = (
        "One mark per member: the difference of its time from the median of the others, with the "
        f"95 % interval. The band is the threshold, {found.threshold_percent:g} %."
    )
    words = {verdict.lower(): marker for verdict, marker in _SHAPES.items()}
    items = (element("li", sample(marker, word), " ", word) for word, marker in words.items())
    legend = element("ul", *items, class_="legend")
    return section("strips", "Each resource", element("p", told), legend, panels(drawn))


# The axis ----------------------------------------------------------------------------------------


def axis(found: Sequence[Finding], threshold: float) -> Axis:
    """For all differences and the threshold; intervals are cut at twice the largest difference."""
    differences = [_drawn(one) for one in found]
    most = 2 * max(1.5 * threshold, 0.002, *map(abs, differences))
    ends = [end for one in found for end in (one.low, one.high) if end is not None]
    reached = [*differences, *(min(max(end, -most), most) for end in ends)]
    low, high = min(-1.3 * threshold, *reached), max(1.3 * threshold, *reached)
    margin = 0.04 * (high - low) + 1e-4
    return Axis((low - margin, high + margin), log=False)


def _drawn(found: Finding) -> float:
    """The difference as a share, at most what can be drawn."""
    return min(found.difference or 0.0, MOST)


def pixel(across: Axis, value: float) -> float:
    """The place of a difference; what is beyond the ends of the axis is at its ends."""
    return LEFT + min(max(across.share(value), 0.0), 1.0) * (RIGHT - LEFT)


def tick_text(value: float) -> str:
    """A tick in percent: ``+2``, ``0``, ``−0.5``."""
    text = f"{100 * value:+.4g}".replace("-", "\u2212")
    return "0" if abs(value) < 1e-9 else text


# A panel -----------------------------------------------------------------------------------------


def _panel(
    resource: Resource, marked: Sequence[tuple[MemberRow, Finding]], threshold_percent: float
) -> Markup:
    pitch = min(ROOMY, max(CLOSE, TALLEST / len(marked)))
    bottom = TOP + pitch * max(len(marked), 3)
    findings = [found for _, found in marked]
    threshold = log1p(threshold_percent / 100)
    across = axis(findings, expm1(threshold))
    heights = [TOP + pitch * (i + 0.5) for i in range(len(marked))]
    named = _named(findings, heights, bottom, everyone=pitch == ROOMY)
    title = resource.title
    return element(
        "svg",
        element("text", brief(title, 36), class_="title", x=LEFT, y=16),
        element("text", _noise(findings), x=LEFT, y=34),
        *_frame(across, bottom, threshold),
        *(
            _mark(row, found, across, height, named.get(i))
            for i, ((row, found), height) in enumerate(zip(marked, heights, strict=True))
        ),
        viewBox=f"0 0 {WIDTH} {place(bottom + 36)}",
        role="group",
        aria_label=f"{title}: difference from the median of the others, in percent",
        class_="panel strip" if pitch == ROOMY else "panel strip close",
    )


def _noise(findings: Sequence[Finding]) -> str:
    """``noise 0.20 %; 1.4 % or more would show``."""
    noise = findings[0].noise
    text = "noise unknown"
    if noise.known:
        text = f"noise {percent(noise.repeats or 0.0)} %"
    elif noise.members is not None:
        text = f"members differ by {percent(noise.members)} %"
    least = detectable(findings)
    return f"{text}; {least} % or more would show" if least else text


def _frame(across: Axis, bottom: float, threshold: float) -> Iterator[Markup]:
    """The band of the threshold, the grid with its labels, and the line of the median."""
    left, right = (place(pixel(across, expm1(end))) for end in (-threshold, threshold))
    yield element("path", d=f"M{left} {TOP:g}H{right}V{place(bottom)}H{left}z", class_="band")
    ticks = {tick: pixel(across, tick) for tick, _ in across.marks(6)[0]}
    lines = "".join(f"M{place(x)} {TOP:g}V{place(bottom)}" for x in ticks.values())
    yield element("path", d=lines, class_="grid")
    middle = pixel(across, 0)
    yield line([(middle, TOP - 4), (middle, bottom)], class_="middle")
    for tick, x in ticks.items():
        yield element("text", tick_text(tick), class_="mid", x=place(x), y=place(bottom + 14))
    text, middle = "← faster\u2003%\u2003slower →", (LEFT + RIGHT) / 2
    yield element("text", text, class_="mid", x=place(middle), y=place(bottom + 30))


def _mark(
    row: MemberRow, found: Finding, across: Axis, height: float, label: float | None
) -> Markup:
    """A marker that is a link to the member's row, with its interval and perhaps its name."""
    x, word = pixel(across, _drawn(found)), found.verdict.lower()
    start = end = 0.0
    if found.low is not None and found.high is not None:
        start, end = pixel(across, found.low) - x, pixel(across, found.high) - x
    name = [] if label is None else _name(row.short, x, max(end, 5), label - height)
    return element(
        "a",
        element("title", f"{row.name}: {change(found)}, {word}"),
        element("path", d=f"M{place(start)} 0H{place(end)}", class_="ends"),
        element("use", href=f"#m{MARKERS.index(_SHAPES[found.verdict])}"),
        *name,
        href=f"#{row.id}",
        class_=f"pt {word}",
        transform=f"translate({place(x)},{place(height)})",
    )


def _name(name: str, x: float, end: float, down: float) -> list[Markup]:
    """The name beside the frame, so far below the marker, and a line to it."""
    lead = f"M{place(end + 2)} 0H{place(RIGHT + 2 - x)}L{place(NAMES - 3 - x)} {place(down)}"
    at = {"x": place(NAMES - x), "y": place(down + 3.5)}
    text = element("text", brief(name, LONGEST), class_="halo", **at)
    return [element("path", d=lead, class_="lead"), text]


def _named(
    findings: Sequence[Finding], heights: Sequence[float], bottom: float, everyone: bool
) -> Mapping[int, float]:
    """The height of each name. Without room for all, of the outliers, the largest ones first."""
    chosen = [i for i, found in enumerate(findings) if everyone or found.outlier]
    room = int((bottom - TOP) / ROOMY)
    chosen = sorted(sorted(chosen, key=lambda i: -abs(_drawn(findings[i])))[:room])
    half = ROOMY / 2
    places = spread([heights[i] for i in chosen], TOP + half, bottom - half)
    return dict(zip(chosen, places, strict=True))


def spread(wanted: Sequence[float], top: float, bottom: float) -> list[float]:
    """Ascending heights near the wanted ones, ``ROOMY`` apart, between ``top`` and ``bottom``."""
    found: list[float] = []
    for height in wanted:
        found.append(max(height, found[-1] + ROOMY if found else top))
    limit = bottom
    for i in reversed(range(len(found))):
        found[i] = min(found[i], limit)
        limit = found[i] - ROOMY
    return found
