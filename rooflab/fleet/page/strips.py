"""The members on each resource as SVG: a dot with its interval each, the slowest on top."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import expm1, log1p
from statistics import median
from typing import Final

from rooflab.figures.model import linear_ticks
from rooflab.figures.palette import MARKERS
from rooflab.fleet.outliers import Finding, Rating
from rooflab.fleet.page.members import Content, Entry
from rooflab.fleet.runs import Resource
from rooflab.fleet.text import interval, percent, resource_title, signed
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
_WORDS: Final = {
    Rating.SLOW: "slow",
    Rating.FAST: "fast",
    Rating.UNDECIDED: "undecided",
    Rating.EVEN: "even",
}


def strips(content: Content) -> Markup:
    """The section; nothing if there is nothing to compare."""
    entries = content.by_name
    drawn = []
    for resource in content.found.resources:
        dots = [
            Dot(entries[one.member], one.finding)
            for one in content.found.standings
            if one.resource == resource and one.finding.difference is not None
        ]
        drawn += [_panel(resource, dots, content.found.threshold_percent)] if dots else []
    if not drawn:
        return Markup()
    told = (
        "One mark per member: the difference of its time from the median of the others, with the "
        f"95 % interval. The band is the threshold, {content.found.threshold_percent:g} %."
    )
    title = "Each resource"
    return section("strips", title, element("p", told), _legend(), panels(drawn))


@dataclass(frozen=True, slots=True)
class Dot:
    """One member on one resource."""

    entry: Entry
    finding: Finding

    @property
    def difference(self) -> float:
        """As a share, at most what can be drawn."""
        return min(self.finding.difference or 0.0, MOST)

    @property
    def name(self) -> str:
        """Everything in a line."""
        ends = interval(self.finding)
        change = f"{signed(self.finding.difference or 0.0)} %{f' ({ends})' if ends else ''}"
        return f"{self.entry.name}: {change}, {_WORDS[self.finding.verdict]}"

    @property
    def label(self) -> str:
        """Its short name."""
        return brief(self.entry.short, LONGEST)


# The axis ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Axis:
    """Differences in pixels; what is beyond its ends is at its ends."""

    low: float
    high: float

    def __call__(self, value: float) -> float:
        """The pixel of a difference."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return LEFT + share * (RIGHT - LEFT)

    def ticks(self) -> list[float]:
        """Multiples of 1, 2 or 5 times a power of ten, with zero, seven at most."""
        return linear_ticks((self.low, self.high), 6)[0]


def axis(dots: Iterable[Dot], threshold: float) -> Axis:
    """For all differences and the threshold; intervals are cut at twice the largest difference."""
    given = list(dots)
    most = 2 * max(1.5 * threshold, 0.002, *(abs(dot.difference) for dot in given))
    ends = [end for dot in given for end in (dot.finding.low, dot.finding.high) if end is not None]
    reached = [*(dot.difference for dot in given), *(min(max(end, -most), most) for end in ends)]
    low, high = min(-1.3 * threshold, *reached), max(1.3 * threshold, *reached)
    margin = 0.04 * (high - low) + 1e-4
    return Axis(low - margin, high + margin)


# A panel -----------------------------------------------------------------------------------------


def _panel(resource: Resource, dots: Sequence[Dot], threshold_percent: float) -> Markup:
    pitch = min(ROOMY, max(CLOSE, TALLEST / len(dots)))
    bottom = TOP + pitch * max(len(dots), 3)
    threshold = log1p(threshold_percent / 100)
    across = axis(dots, expm1(threshold))
    heights = [TOP + pitch * (i + 0.5) for i in range(len(dots))]
    named = _named(dots, heights, bottom, everyone=pitch == ROOMY)
    title = resource_title(resource)
    return element(
        "svg",
        element("text", brief(title, 36), class_="title", x=LEFT, y=16),
        element("text", _noise([dot.finding for dot in dots]), x=LEFT, y=34),
        *_frame(across, bottom, threshold),
        *(
            _dot(dot, across, height, named.get(i))
            for i, (dot, height) in enumerate(zip(dots, heights, strict=True))
        ),
        viewBox=f"0 0 {WIDTH} {place(bottom + 36)}",
        role="group",
        aria_label=f"{title}: difference from the median of the others, in percent",
        class_="panel strip" if pitch == ROOMY else "panel strip close",
    )


def _noise(findings: Sequence[Finding]) -> str:
    """``noise 0.20 %; differences from 1.4 % on would show``."""
    noise = findings[0].noise
    text = "noise unknown"
    if noise.known:
        text = f"noise {percent(noise.repeats or 0.0)} %"
    elif noise.members is not None:
        text = f"members differ by {percent(noise.members)} %"
    least = [one.detectable for one in findings if one.detectable is not None]
    return f"{text}; {percent(median(least))} % or more would show" if least else text


def _frame(across: Axis, bottom: float, threshold: float) -> Iterator[Markup]:
    """The band of the threshold, the grid with its labels, and the line of the median."""
    left, right = across(expm1(-threshold)), across(expm1(threshold))
    band = f"M{place(left)} {TOP:g}H{place(right)}V{place(bottom)}H{place(left)}z"
    yield element("path", d=band, class_="band")
    ticks = across.ticks()
    lines = "".join(f"M{place(across(tick))} {TOP:g}V{place(bottom)}" for tick in ticks)
    yield element("path", d=lines, class_="grid")
    yield line([(across(0), TOP - 4), (across(0), bottom)], class_="middle")
    for tick in ticks:
        yield element(
            "text", tick_text(tick), class_="mid", x=place(across(tick)), y=place(bottom + 14)
        )
    middle = place((LEFT + RIGHT) / 2)
    text = "← faster\u2003%\u2003slower →"
    yield element("text", text, class_="mid", x=middle, y=place(bottom + 30))


def tick_text(value: float) -> str:
    """A tick in percent: ``+2``, ``0``, ``−0.5``."""
    text = f"{100 * value:+.4g}".replace("-", "\u2212")
    return "0" if abs(value) < 1e-9 else text


def _dot(dot: Dot, across: Axis, height: float, label: float | None) -> Markup:
    """A marker that is a link to the member's row, with its interval and perhaps its name."""
    x, verdict = across(dot.difference), dot.finding.verdict
    start, end = _ends(dot, across)
    name = [] if label is None else _name(dot, x, max(end, 5), label - height)
    return element(
        "a",
        element("title", dot.name),
        element("path", d=f"M{place(start)} 0H{place(end)}", class_="ends"),
        element("use", href=f"#m{MARKERS.index(_SHAPES[verdict])}"),
        *name,
        href=f"#{dot.entry.id}",
        class_=f"pt {_WORDS[verdict]}",
        transform=f"translate({place(x)},{place(height)})",
    )


def _ends(dot: Dot, across: Axis) -> tuple[float, float]:
    """Of the interval, from the marker."""
    x, low, high = across(dot.difference), dot.finding.low, dot.finding.high
    return (0.0, 0.0) if low is None or high is None else (across(low) - x, across(high) - x)


def _name(dot: Dot, x: float, end: float, down: float) -> list[Markup]:
    """The name beside the frame, so far below the marker, and a line to it."""
    turn, last = place(RIGHT + 2 - x), place(NAMES - 3 - x)
    lead = f"M{place(end + 2)} 0H{turn}L{last} {place(down)}"
    text = element("text", dot.label, x=place(NAMES - x), y=place(down + 3.5), class_="halo")
    return [element("path", d=lead, class_="lead"), text]


def _named(
    dots: Sequence[Dot], heights: Sequence[float], bottom: float, everyone: bool
) -> Mapping[int, float]:
    """The height of each name. Without room for all, of the outliers, the largest ones first."""
    chosen = [i for i, dot in enumerate(dots) if everyone or dot.finding.outlier]
    room = int((bottom - TOP) / ROOMY)
    chosen = sorted(sorted(chosen, key=lambda i: -abs(dots[i].difference))[:room])
    half = ROOMY / 2
    places = spread([heights[i] for i in chosen], TOP + half, bottom - half)
    return dict(zip(chosen, places, strict=True))


def spread(wanted: Sequence[float], top: float, bottom: float, gap: float = ROOMY) -> list[float]:
    """Ascending heights near the wanted ones, ``gap`` apart, between ``top`` and ``bottom``."""
    found: list[float] = []
    for height in wanted:
        found.append(max(height, found[-1] + gap if found else top))
    limit = bottom
    for i in reversed(range(len(found))):
        found[i] = min(found[i], limit)
        limit = found[i] - gap
    return found


def _legend() -> Markup:
    items = [
        element("li", sample(marker, _WORDS[verdict]), " ", _WORDS[verdict])
        for verdict, marker in _SHAPES.items()
    ]
    return element("ul", *items, class_="legend")
