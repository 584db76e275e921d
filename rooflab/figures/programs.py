"""What the pictures of a program's run share: its groups, what binds them, colours, names. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Final

from rooflab.errors import UsageError
from rooflab.figures.model import Key, Page, Panel, number, shortened
from rooflab.figures.page import BELOW, page_width, run_conditions
from rooflab.figures.palette import mixed
from rooflab.figures.selection import Wanted, possible
from rooflab.figures.style import theme
from rooflab.model.diagnosis import LEANS
from rooflab.model.measurement import Measurement
from rooflab.model.precision import precision_name
from rooflab.model.roofline import COMPUTE
from rooflab.runs import program
from rooflab.runs.program import Program
from rooflab.runs.store import RunData

MEMORY: Final = "memory"
CLOCK: Final = "clock"
LATENCY: Final = "latency"
UNRATED: Final = "unrated"
UNKNOWN: Final = "unknown"
COPIES: Final = "copies"
IDLE: Final = "idle"

BINDS: Final = {
    COMPUTE: "compute-bound",
    MEMORY: "memory-bound",
    LATENCY: f"below {100 * LEANS:.0f} % of its roof",
    UNRATED: "roof unknown",
    UNKNOWN: "work unknown",
    COPIES: "copies",
}
"""What binds a group, by the names of a legend."""

TAKES: Final = {
    COMPUTE: "at compute roofs",
    MEMORY: "at memory roofs",
    CLOCK: "lower clock",
    LATENCY: "above the roofs",
    UNRATED: "roof unknown",
    UNKNOWN: "work unknown",
    COPIES: "copies",
    IDLE: "idle",
}
"""What the parts of a step are, by the names of a legend."""

_FAMILIES: Final = {COMPUTE: 0, MEMORY: 1, LATENCY: 3, COPIES: 2}
"""The hues, by their place in the palette."""

LONGEST_OPERATION: Final = 14
"""Characters of an operation's name that stands before its kernel's."""

SHORT: Final = 12
"""Characters of a template's argument that is a part of a kernel's name in a figure."""

LONGEST: Final = 1e15
"""No step takes so many microseconds."""

NEGLIGIBLE: Final = 0.001
"""A part of the time of all groups that is too small to be drawn."""

MOST: Final = 200
"""Groups that have a place in a figure."""

# What the names of libraries' kernels have in common says nothing about one of them.
_NOISE: Final = re.compile(r"_(?:sm\d+\w?|generated|fort|native|tst|knob)(?=_)")
_ENDINGS: Final = re.compile(r"(?:CUDA)?(?:KernelImpl|Functor)|_kernel(?:_cuda)?$")


# Groups ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TimedGroup:
    """One row of a program's run. ``us`` is its time in one step, ``share`` its part of that."""

    row: Measurement
    us: float
    share: float

    @property
    def launched(self) -> bool:
        """Whether it is one of kernels: rows of other time have names in parentheses."""
        return self.graph or program.is_launched(self.row)

    @property
    def graph(self) -> bool:
        """Whether it is a whole CUDA graph, whose kernels have rows too, with times only."""
        return self.row.kernel.startswith("(CUDA graph")

    @property
    def binds(self) -> str:
        """What binds it: a roof of which it reaches LEANS, else latency."""
        if self.row.kernel == program.IDLE:
            return IDLE
        if not self.launched:
            return COPIES
        reached = amount(self.row.observed_percent) or amount(self.row.roof_percent)
        if not self.row.bound or not reached:
            known = self.row.roof_us is None and program.known_by(self.row)
            return UNRATED if known else UNKNOWN
        return self.roof if reached >= 100 * LEANS else LATENCY

    @property
    def roof(self) -> str:
        """The roof that it is under."""
        return COMPUTE if self.row.bound == COMPUTE else MEMORY

    @property
    def parts(self) -> list[tuple[str, float]]:
        """Its microseconds in a step: at its roof, more at a lower clock, more above that."""
        if self.binds in (IDLE, COPIES, UNRATED, UNKNOWN):
            return [(self.binds, self.us)]
        best = min(1.0, amount(self.row.roof_percent) / 100)
        clocked = min(1.0, max(best, amount(self.row.observed_percent) / 100))
        found = [(self.roof, best), (CLOCK, clocked - best), (LATENCY, 1 - clocked)]
        return [(part, of * self.us) for part, of in found if of > 0]

    @property
    def name(self) -> str:
        """A few words: what launched it, if that is short and the kernel does not say it, and it.

        ``mm: nvjet_128x256_NTN #2``
        """
        operation = self.row.backend.partition(",")[0].rpartition("::")[2].strip(" _")
        said = not operation or _plain(operation) in _plain(self.kernel)
        if said or len(operation) > LONGEST_OPERATION or not self.launched:
            return self.shortened(26)
        before = f"{operation}: "
        return before + self.shortened(26 - len(before) // 2)

    @property
    def kernel(self) -> str:
        """Its kernel in short."""
        return brief(self.row.kernel) if self.launched else self.row.kernel.strip("()")

    def shortened(self, most: int) -> str:
        """The kernel in so many characters, and the group's number."""
        part = self.row.problem.settings.get("part")
        which = f" #{part}" if isinstance(part, int) and 0 < part < MOST else ""
        return shortened_end(self.kernel, most) + which


def _plain(text: str) -> str:
    return text.replace("_", "").casefold()


def amount(value: float | None) -> float:
    """A number from a file, 0 if it is unknown or impossible."""
    return value if value is not None and isfinite(value) and 0 < value < LONGEST else 0.0


def brief(kernel: str) -> str:
    """What tells a kernel from others: what a general one is made for, else the function's name.

    The only argument of a template stays, if it is a short one.
    """
    head, _, inside = kernel.partition("<")
    first = inside.rstrip(">").partition(",")[0]
    if program.GENERAL.search(head) and re.fullmatch(r"[A-Za-z_]\w*", first):
        return _ENDINGS.sub("", first).strip("_") or first
    name = _NOISE.sub("", head).rpartition("::")[2]
    alone = re.fullmatch(r"\w+>", inside) and len(inside) <= SHORT
    return f"{name}<{inside}" if name and alone else name or kernel


def shortened_end(text: str, most: int) -> str:
    """``text`` with at most so many characters, of which the last quarter is its end."""
    if len(text) <= most:
        return text
    end = most // 4
    return f"{text[: most - 1 - end]}…{text[-end:]}"


def step_us(run: RunData) -> float:
    """Microseconds of a step, 0 if they are not known."""
    return amount(Program.of(run).figure("step_us"))


def groups(run: RunData) -> list[TimedGroup]:
    """The rows that take time, the longest first."""
    whole = step_us(run) or sum(amount(row.total_us) for row in run.ok) or 1.0
    found = [TimedGroup(row, us, us / whole) for row in run.ok if (us := amount(row.total_us))]
    return sorted(found, key=lambda group: -group.us)


def once(found: Sequence[TimedGroup]) -> list[TimedGroup]:
    """All time once: that of a graph, of which more is known, in place of that of its kernels."""
    graphs = [one for one in found if one.graph and one.binds != UNKNOWN]
    unknown = sum(one.us for one in found if one.binds == UNKNOWN and not one.graph)
    kept = max(0.0, 1 - sum(one.us for one in graphs) / unknown) if unknown else 0.0
    if not graphs:
        return [one for one in found if not one.graph]
    return [
        replace(one, us=kept * one.us, share=kept * one.share) if one.binds == UNKNOWN else one
        for one in found
        if one in graphs or not one.graph
    ]


def chosen(wanted: Wanted, runs: int = 1) -> list[list[TimedGroup]]:
    """The groups of each of so many programs' runs; raises ``UsageError`` if they are others."""
    for run in wanted.runs:
        if not program.is_program(run.measurements):
            raise UsageError(f"{run.path} is no run of a program: rooflab profile makes one")
    if len(wanted.runs) != runs:
        one = runs == 1
        raise UsageError(
            "this figure is of one program: name one run, or two with --changes"
            if one
            else "--changes needs two runs of a program: the one before, and the one after"
        )
    names = [precision_name(name) for name in wanted.precisions or ()]
    found = [groups(run) for run in wanted.runs]
    if names:
        found = [[one for one in some if one.row.problem.precision in names] for some in found]
    for run, some in zip(wanted.runs, found, strict=True):
        if not any(one.binds != IDLE for one in some):
            what = f"no row of {', '.join(names)}" if names else "no row with a time"
            raise UsageError(f"{run.path} has {what}, so there is nothing to draw")
    return found


def notable(found: Sequence[TimedGroup]) -> list[TimedGroup]:
    """Those that are not too small to be drawn."""
    there = [one for one in found if one.binds != IDLE][:MOST]
    whole = sum(one.us for one in there)
    return [one for one in there if one.us >= NEGLIGIBLE * whole]


def has_place(group: TimedGroup, least: float) -> bool:
    """Whether a group has a place on a roofline, with at least so many FLOPs per byte."""
    row = group.row
    return possible(row.tflops) and possible(row.intensity) and (row.intensity or 0) >= least


# Colours and words -------------------------------------------------------------------------------


def colour(part: str) -> str:
    """Of a part of a step, or of what binds a group."""
    style = theme()
    if part in _FAMILIES:
        return style.palette.shades[_FAMILIES[part]][style.palette.bold]
    if part == CLOCK:
        return mixed(colour(COMPUTE), style.palette.background, 0.5)
    if part == UNRATED:
        return mixed(style.muted, style.palette.background, 0.5)
    return style.muted if part == UNKNOWN else style.grid


def look(part: str) -> tuple[str, str]:
    """The colour and the edge of its bar."""
    return colour(part), theme().muted if part == IDLE else theme().palette.background


def legend(binds: Iterable[str]) -> list[Key]:
    """What the colours of groups mean that these bind."""
    there = set(binds)
    return [Key(text, colour(name)) for name, text in BINDS.items() if name in there]


def tint(part: str) -> str:
    """A paler shade: the inside of a bubble."""
    return mixed(colour(part), theme().palette.background, 0.45)


def time_text(us: float) -> str:
    """``30.4 ms``."""
    for unit, scale in (("s", 1e6), ("ms", 1e3)):
        if us >= scale:
            return f"{number(us / scale)} {unit}"
    return f"{number(us)} µs"


def percent(share: float) -> str:
    """``9.1 %`` of a share of 0.091."""
    return f"{100 * share:.0f} %" if share >= 0.0995 else f"{100 * share:.2g} %"


def title(runs: Sequence[RunData], what: str) -> str:
    """``NVIDIA H200 — step of train.py, 30.4 ms: roofline``."""
    devices = " and ".join(dict.fromkeys(run.manifest.device.name for run in runs))
    names = dict.fromkeys(program_name(run) for run in runs)
    times = " → ".join(time_text(step_us(run)) for run in runs if step_us(run))
    return f"{devices} — {' → '.join(names)}{', ' if times else ''}{times}: {what}"


def program_name(run: RunData) -> str:
    """Its file's name, or the name of the function."""
    name = str(run.manifest.program.get("name") or "program")
    return shortened(name.rstrip("/").rpartition("/")[2], theme().type, 2.4)


def page(
    runs: Sequence[RunData],
    what: str,
    keys: Sequence[Key],
    panels: Sequence[Panel],
    notes: Iterable[str] = (),
    *,
    below: float = BELOW,
    wide: bool = False,
) -> Page:
    """The page of a figure: ``notes``, then the conditions of the runs.

    ``wide`` pages are as wide as the style's. The lowest of the ``panels`` is the last.
    """
    found = [*filter(None, notes), *(() if theme().brief else map(run_conditions, runs))]
    body = panels[-1].cell.top + panels[-1].cell.height + below
    width = theme().width if wide else page_width(1)
    return Page(title(runs, what), keys, panels, list(dict.fromkeys(found)), body, width)


def left_out(found: Sequence[TimedGroup], drawn: Iterable[TimedGroup]) -> Iterator[str]:
    """What is not in a roofline, and why."""
    there, seen = {id(one) for one in drawn}, {id(one) for one in notable(found)}
    rest = [one for one in found if id(one) not in there and one.binds != IDLE]
    large = [one for one in rest if id(one) in seen]
    unrated = [one for one in large if one.binds == UNRATED]
    unknown = [one for one in large if one.binds != UNRATED]
    small = [one for one in rest if id(one) not in seen]
    reasons = ("Without FLOPs, and no roof is known", "Of unknown work", "Too small to draw")
    for text, some in zip(reasons, (unrated, unknown, small), strict=True):
        if some:
            share, count = percent(sum(one.share for one in some)), len(some)
            yield f"{text}: {count} group{'s' * (count > 1)}, {share} of the step."


def nothing(run: RunData) -> UsageError:
    """That no group has a place in a roofline."""
    return UsageError(
        f"{run.path} has no group whose work is known, so there is no roofline: profile with "
        "counters, or draw --step"
    )
