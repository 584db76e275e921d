"""A figure as data: panels with axes, lines, marks and labels, in data coordinates. Pure.

The files of ``kinds/`` make it, renderers draw it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import atan2, ceil, cos, degrees, floor, hypot, log10, nan, pi, radians, sin
from typing import Final

from rooflab.figures.palette import KernelStyle
from rooflab.figures.selection import Series, Wanted
from rooflab.figures.style import PROVENANCE_LINES, UNUSED_WIDTH, Dash, Fill, run_look, theme
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.runs.store import RunData

AxisLimits = tuple[float, float]
DataPoint = tuple[float, float]

GAP: Final = (nan, nan)
"""Between the points of a line, where it is interrupted."""

LABELLED: Final = 30
"""Series of a panel that may get labels: there is no room for more."""


# Axes --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Axis:
    """Limits, title and ticks of an axis; without ``ticks`` they follow from ``log_ticks``."""

    limits: AxisLimits
    title: str = ""
    log: bool = True
    ticks: Sequence[tuple[float, str]] | None = None
    turned: int = 0
    """Degrees by which the ticks' numbers are turned."""
    size: float | None = None
    """Points of the ticks' numbers."""
    numbers: bool = True
    titled: bool = True
    """Whether the title is drawn: of panels beside each other only one needs it."""
    grid: bool = True

    def share(self, value: float) -> float:
        """The place of a value on the axis, from 0 to 1 within it."""
        low, high = self.limits
        if self.log:
            return log10(value / low) / log10(high / low)
        return (value - low) / (high - low)

    def value(self, share: float) -> float:
        """The value at a place."""
        low, high = self.limits
        return float(low * (high / low) ** share) if self.log else low + (high - low) * share

    def marks(self, room: float) -> tuple[Sequence[tuple[float, str]], Sequence[float]]:
        """The ticks with their numbers, for which there is ``room``, and those without."""
        if self.ticks is not None:
            return self.ticks, ()
        numbered, others = (log_ticks if self.log else linear_ticks)(self.limits, room)
        return [(value, tick_text(value)) for value in numbered], others


def log_limits(
    values: Iterable[float], room: float, before: float, after: float, decades: float
) -> AxisLimits:
    """Logarithmic limits around ``values`` with margins in units of ``room``, and a least extent.

    The margins are smaller if they would leave less than a quarter to the values.
    """
    fitting = min(1.0, 0.75 * room / (before + after))
    before, after = before * fitting, after * fitting
    given = list(values)
    low, high = log10(min(given)), log10(max(given))
    short = max(decades - (high - low), 0) / 2
    low, high = low - short, high + short
    scale = (high - low) / (room - before - after)
    return 10 ** (low - before * scale), 10 ** (high + after * scale)


def log_axis(
    title: str,
    values: Iterable[float],
    room: float,
    before: float,
    after: float,
    decades: float = 1.0,
) -> Axis:
    """A logarithmic axis with the limits of ``log_limits``."""
    return Axis(log_limits(values, room, before, after, decades), title)


def log_ticks(limits: AxisLimits, room: float) -> tuple[list[float], list[float]]:
    """Ticks with and without a number: there is room for ``room`` numbers.

    Powers of ten have one, or each second or third; also 2 and 5 times these if they are few.
    """
    low, high = (log10(end) for end in limits)
    few = high - low < min(1.8, room / 3)
    step = max(1, ceil((floor(high + 1e-9) - ceil(low - 1e-9) + 1) / (floor(room) + 1)))
    powers = range(floor(low + 1e-9), floor(high + 1e-9) + 1)

    def ticks(factors: Iterable[int], powers: Iterable[int]) -> list[float]:
        found = (factor * 10.0**power for power in powers for factor in factors)
        return [one for one in found if low - 1e-9 <= log10(one) <= high + 1e-9]

    numbered = ticks((1, 2, 5) if few else (1,), (p for p in powers if p % step == 0))
    every = ticks(range(1, 10) if few else (1, 2, 5), powers)
    return numbered, [one for one in every if one not in numbered]


def linear_ticks(limits: AxisLimits, room: float) -> tuple[list[float], list[float]]:
    """Multiples of 1, 2 or 5 times a power of ten."""
    low, high = min(limits), max(limits)
    power = 10.0 ** floor(log10((high - low) / room))
    step = next(m * power for m in (1, 2, 5, 10) if (high - low) / (m * power) <= room)
    return [i * step for i in range(ceil(low / step), floor(high / step) + 1)], []


def tick_text(value: float) -> str:
    """``10000``, ``1e5``: a longer number would reach the axis' label."""
    if value < 1e5:
        return f"{value:g}"
    exponent = floor(log10(value) + 1e-9)
    return f"{value / 10**exponent:g}e{exponent}"


# Lines, marks and labels -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """A polyline, ``width`` points wide. ``provenance`` and ``name`` are those of a roof."""

    points: Sequence[DataPoint]
    colour: str
    width: float = 0.9
    dash: Dash = "-"
    z: float = 3
    provenance: str = ""
    name: str = ""
    avoided: bool = True
    """Whether labels do not overlap it."""


def roof(
    points: Sequence[DataPoint], provenance: str, colour: str, name: str = "", *, used: bool = True
) -> Line:
    """A roof's line, in the style of its provenance; thin unless ``% of roof`` refers to it."""
    dash, width = PROVENANCE_LINES[provenance]
    width = width if used else min(width, UNUSED_WIDTH)
    return Line(points, colour, width, dash, provenance=provenance, name=name)


@dataclass(frozen=True, slots=True)
class Marks:
    """Markers of ``size`` points, joined by a line if ``dash`` is not empty."""

    points: Sequence[DataPoint]
    colour: str
    marker: str
    size: float
    fill: Fill = "full"
    face: str = ""
    """The colour inside, if it is another; ``none`` is empty."""
    edge: float = 0.9
    dash: Dash = ""
    width: float = 0.0
    around: float = 1.0
    """Points that labels stay away; below 0 they need not."""
    z: float = 4
    name: str = ""
    rows: Sequence[Measurement] = ()


@dataclass(frozen=True, slots=True)
class Bars:
    """Filled boxes, with an edge if it has a colour."""

    boxes: Sequence[tuple[float, float, float, float]]
    """Left, bottom, width and height."""
    colour: str
    edge: str = ""


@dataclass(frozen=True, slots=True)
class Spot:
    """One candidate: a data point, an offset from it in points, and the text's alignment."""

    x: float
    y: float
    dx: float
    dy: float
    ha: str = "center"
    va: str = "center"


@dataclass(frozen=True, slots=True)
class Label:
    """A text, at the first of its spots where it covers nothing.

    If there is none it is left out or, if ``required``, at the spot of least overlap. ``of`` is the
    marker that it belongs to: at no other marker it would be nearer to. Of one ``key`` only the
    first label that has a place is drawn. ``roofs`` are the provenances of roofs, line by line.
    With ``leader``, the radius of its marker in points, the label may be far from it: a thin line
    leads there.
    """

    text: str
    spots: Iterable[Spot]
    colour: str
    size: float | None = None
    of: DataPoint | None = None
    required: bool = False
    rotation: float = 0.0
    align: str = "left"
    key: object = None
    roofs: Sequence[str] = ()
    leader: float | None = None


def around(x: float, y: float, prefer: str) -> Iterator[Spot]:
    """Spots around a marker, nearest first; ``prefer`` is the side, left or right, tried first."""
    side = 1 if prefer == "right" else -1
    for gap in (5.0, 9.0, 15.0, 22.0):
        for sign in (side, -side):
            ha = "left" if sign > 0 else "right"
            yield Spot(x, y, sign * gap, 0, ha)
            yield Spot(x, y, sign * gap * 0.8, gap * 0.6, ha, "bottom")
            yield Spot(x, y, sign * gap * 0.8, -gap * 0.6, ha, "top")
        yield Spot(x, y, 0, gap, va="bottom")
        yield Spot(x, y, 0, -gap, va="top")
    for gap in (30.0, 38.0):
        yield Spot(x, y, side * gap, 0, "left" if side > 0 else "right")


def around_bubble(x: float, y: float, radius: float) -> Iterator[Spot]:
    """Spots around a bubble: beside it, then on rings farther and farther away."""
    for gap in (3.0, *range(12, 420, 12)):
        turns = range(0, 360, 45) if gap < 10 else range(0, 360, 8)
        for turn in sorted(turns, key=lambda turn: (min(turn % 180, -turn % 180), turn)):
            dx, dy = ((radius + gap) * part(radians(turn)) for part in (cos, sin))
            flat, steep = abs(dy) < radius + 2, abs(dx) < 3
            ha = "center" if steep else "left" if dx > 0 else "right"
            yield Spot(x, y, dx, dy, ha, "center" if flat else "bottom" if dy > 0 else "top")


def beside(point: DataPoint, text: str, ink: str, *, tied: bool = False) -> Label:
    """A small label right of a marker or, if that is taken, around it."""
    of = point if tied else None
    return Label(text, around(*point, "right"), ink, theme().small, of)


# Panels ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cell:
    """The place of one panel: its row and column, and its box in inches below the legend."""

    row: int
    column: int
    left: float
    top: float
    width: float
    height: float
    lowest: bool = True
    """Whether no panel is below it."""


@dataclass(slots=True)
class Panel:
    """Axes in a cell, with what is in them; ``above`` is a second x axis at the upper edge."""

    cell: Cell
    x: Axis
    y: Axis
    title: str = ""
    titled: bool = True
    pad: float = 4
    """Points from the upper edge to the title."""
    above: Axis | None = None
    bars: list[Bars] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    marks: list[Marks] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)

    def place(self, x: float, y: float) -> DataPoint:
        """A data point in points of type, from the lower left corner."""
        return 72 * self.cell.width * self.x.share(x), 72 * self.cell.height * self.y.share(y)

    def data(self, px: float, py: float) -> DataPoint:
        """The data point at a place."""
        x, y = px / 72 / self.cell.width, py / 72 / self.cell.height
        return self.x.value(x), self.y.value(y)

    def slope(self, per: float, top: float) -> tuple[DataPoint, DataPoint]:
        """The ends of a line of ``per`` units of y for each of x, from the frame up to ``top``."""
        start, end = max(self.x.limits[0], self.y.limits[0] / per), min(top / per, self.x.limits[1])
        return (start, start * per), (end, end * per)

    def along(
        self, start: DataPoint, end: DataPoint, *, below: bool = False, gap: float = 2.5
    ) -> tuple[float, list[Spot]]:
        """The angle of a line between two data points, and spots above and below it.

        ``below`` tries those below first. ``gap`` is the distance from the line in points.
        """
        (x0, y0), (x1, y1) = self.place(*start), self.place(*end)
        length = max(hypot(x1 - x0, y1 - y0), 1e-9)
        ux, uy = (x1 - x0) / length, (y1 - y0) / length
        spots = []
        for va, sign in (("top", -1), ("bottom", 1)) if below else (("bottom", 1), ("top", -1)):
            for step in (0.5, 0.42, 0.58, 0.34, 0.66, 0.26, 0.74, 0.18, 0.82, 0.1, 0.9):
                x, y = self.data(x0 + step * (x1 - x0), y0 + step * (y1 - y0))
                spots.append(Spot(x, y, -uy * gap * sign, ux * gap * sign, va=va))
        return degrees(atan2(uy, ux)), spots

    def leftward(
        self, start: DataPoint, end: DataPoint, offsets: Iterable[tuple[float, str]]
    ) -> list[Spot]:
        """Spots along a flat line from right to left, at each of the offsets in points."""
        (x0, y), (x1, _) = self.place(*start), self.place(*end)
        return [
            Spot(*self.data(x1 - (x1 - x0) * step / 20, y), -4, dy, "right", va)
            for dy, va in offsets
            for step in range(0, 21, 2)
        ]

    def arrow(self, start: DataPoint, end: DataPoint) -> Sequence[DataPoint]:
        """The line of an arrow between two data points; empty if there is no room."""
        tail, tip = self.place(*start), self.place(*end)
        across, up = tip[0] - tail[0], tip[1] - tail[1]
        length = hypot(across, up)
        head = min(5.0, length / 2)
        if head < 1.5:
            return ()
        ux, uy = across / length, up / length
        sides = [
            (tip[0] - head * ux - s * head * uy, tip[1] - head * uy + s * head * ux)
            for s in (0.5, -0.5)
        ]
        return [self.data(*one) for one in (tail, tip, sides[0], tip, sides[1])]

    def draw_series(
        self,
        lines: Iterable[tuple[Series, Sequence[DataPoint]]],
        styles: Mapping[str, KernelStyle],
        joined: bool = True,
    ) -> None:
        """The markers of series and, if ``joined``, their lines.

        All series of a run and kernel are one line with gaps: a panel may have thousands.
        """
        given = list(lines)
        crowded = sum(len(points) for _, points in given) > CROWDED
        looks: dict[tuple[int, str, float], tuple[list[DataPoint], list[Measurement]]] = {}
        for series, points in given:
            size = 0.5 if crowded else 1.0 if len(points) <= ROOMY else 0.64
            places, rows = looks.setdefault((series.run, series.kernel, size), ([], []))
            places += [GAP] * bool(places and joined)
            places += points
            rows += series.rows
        for (run, kernel, size), (places, rows) in looks.items():
            dash, fill = run_look(run)
            self.marks.append(
                Marks(
                    places,
                    styles[kernel].colour,
                    styles[kernel].marker,
                    theme().marker * size,
                    fill,
                    edge=0.3 if crowded else 0.9,
                    dash=dash if joined else "",
                    width=theme().line,
                    around=1 + theme().marker * (0 if crowded else 1 - size),
                    name=kernel,
                    rows=rows,
                )
            )


ROOMY: Final = 20
"""Points of a series up to which markers have their full size."""

CROWDED: Final = 400
"""Points of a panel from which on markers are half as large."""


def log_panel(
    cell: Cell, x: Axis, y: Axis, precision: str, *, titled: bool = True, own_y: bool = False
) -> Panel:
    """A panel of a grid with common axes: only those at the left and below have titles.

    ``own_y`` says that panels beside each other have different y axes, with numbers each.
    """
    return Panel(
        cell,
        replace(x, numbers=cell.lowest, titled=cell.lowest),
        replace(y, numbers=own_y or not cell.column, titled=not cell.column),
        PRECISIONS[precision].title,
        titled,
    )


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of a legend: a kernel or run with its line and marker or, without, a patch."""

    name: str
    colour: str
    marker: str = ""
    dash: Dash = ""
    fill: Fill = "full"


@dataclass(frozen=True, slots=True)
class Page:
    """A figure: title, legend, ``body`` inches with panels, and notes below them."""

    title: str
    legend: Sequence[Key]
    panels: Sequence[Panel]
    notes: Sequence[str]
    body: float
    width: float


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of figure. ``make`` raises ``UsageError`` if there is nothing to draw.

    ``rank`` orders kinds. ``option`` is that of ``plot`` and the parameter of ``Run.plot``, with
    its ``help`` and, if it has a value, its ``metavar``. ``suits`` says whether the figure belongs
    in a run's folder.
    """

    name: str
    rank: int
    make: Callable[[Wanted], Page]
    option: str = ""
    help: str = ""
    metavar: str = ""
    suits: Callable[[RunData], bool] = lambda run: False


# Text --------------------------------------------------------------------------------------------


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def size_text(row: Measurement) -> str:
    """The size in the notation of ``--sizes`` and ``--shape``, with × for x."""
    return row.problem.size.replace("x", "×")


def slanted_height(texts: Iterable[str], size: float) -> float:
    """Inches that labels of ticks need below the axis, at 45 degrees in type of ``size``."""
    longest = max(map(len, texts), default=0) * 0.56 * size / 72
    return max(0.92, 0.1 + sin(pi / 4) * (longest + size / 72))


def plain(row: Measurement) -> bool:
    """Whether the size is one number, of which there is a logarithm."""
    size = row.problem.size
    return size.isdecimal() and 0 < float(size) < 1e18


def shortened(text: str, size: float, inches: float) -> str:
    """``text`` with "…" in its middle if it may be longer than ``inches`` in type of ``size``."""
    most = characters(size, inches)
    if len(text) <= most:
        return text
    end = (most - 1) // 2
    return f"{text[: most - 1 - end]}…{text[-end:]}"


def characters(size: float, inches: float) -> int:
    """How many characters certainly fit."""
    return int(inches * 72 / (0.56 * size))
