"""Compares two runs, point by point: did anything become faster or slower? Pure.

The rule uses the 95 % intervals of the time in BASE and in NEW and a threshold in percent (0.5 by
default). On one scale, microseconds or cycles, a point is

SLOW       if NEW's interval is above BASE's with a gap of at least the threshold,
FAST       if it is below BASE's with such a gap,
SAME       if the two intervals touch or the times differ by less than the threshold, and both
           intervals are narrow enough to show such a change: half of each is at most the
           threshold, in percent of its own time,
AMBIGUOUS  otherwise: an interval is too wide, or the gap between narrow intervals is below the
           threshold although their times differ by more.

Gap and difference are in percent of the faster time, which is BASE's if NEW is slower. So swapping
the runs swaps FAST and SLOW and changes nothing else.

If both rows have an SM clock, time × clock gives cycles, and the verdict is valid only if
microseconds and cycles agree: a lower clock of the GPU does not make a kernel SLOW, and a higher
clock does not hide that it is slower. If they disagree the point is AMBIGUOUS. It is also AMBIGUOUS
if a row has no interval, if other programs used the cores while it was timed, or if one row was
measured with a cold cache and the other with a warm one. A SLOW or FAST point becomes AMBIGUOUS if
its times differ by at most LAUNCH_SHARE times the difference of an empty launch between the two
processes, or by at most LAUNCH_NOISE of an empty launch: then the kernel need not be the cause.

On the CPU of a virtual machine SLOW and FAST need a gap of UNSEEN_PERCENT too, and SAME a threshold
as high.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isfinite
from statistics import median
from typing import Any, Final

from rooflab.errors import UsageError
from rooflab.model.measurement import CONTENDED, Measurement
from rooflab.runs.manifest import Manifest
from rooflab.runs.store import RunData
from rooflab.workloads import DEFAULT

LAUNCH_SHARE: Final = 3.0
"""The times of a kernel and of an empty launch differ between processes, presumably because the
driver places its structures at other addresses. The kernel's time differs by up to this multiple of
the empty launch's difference, with a margin."""

LAUNCH_NOISE: Final = 0.1
"""Times of the same launch change by up to this share of an empty launch within a process too: a
function of 2.6 µs took 2.8 µs from its fourth measurement on (an H200, 1.6 µs per empty launch)."""

UNSEEN_PERCENT: Final = 100.0
"""Others on the host of a virtual machine take clock, caches and memory, and no counter shows it.
Intervals of unchanged functions were up to 48 % apart (100 pairs, 2 cores of an AMD EPYC)."""

UNSEEN: Final = f"others on a virtual machine's host may change times by {UNSEEN_PERCENT:g} %"

LAUNCH_DIFFERS: Final = 0.02
"""Smallest relative change of an empty launch that is listed as a difference."""

_SOUND: Final = ("ok", "skipped")
# Momentary values, which are not part of a device's configuration.
_MOMENTARY: Final = ("sm_clock", "memory_clock", "clock_current", "power", "temperature")


class Verdict(StrEnum):
    """The result of comparing one point."""

    SLOW = "SLOW"
    AMBIGUOUS = "AMBIGUOUS"
    FAST = "FAST"
    SAME = "SAME"


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between the runs outside their measurements."""

    name: str
    base: str
    new: str


@dataclass(frozen=True, slots=True)
class Point:
    """One point that both runs measured. ``reason`` is why a verdict is AMBIGUOUS.

    ``change_percent`` is NEW's time minus BASE's, in percent of BASE's; ``change_lo_percent`` and
    ``change_hi_percent`` are the smallest and the largest change between the two intervals. They
    are None if a row lacks the times.
    """

    base: Measurement
    new: Measurement
    verdict: Verdict
    reason: str
    change_percent: float | None
    change_lo_percent: float | None
    change_hi_percent: float | None


@dataclass(frozen=True, slots=True)
class StatusChange:
    """One point whose status differs."""

    base: Measurement
    new: Measurement

    @property
    def broken(self) -> bool:
        """Whether the status was ``ok`` and there is no figure now: a regression at any speed."""
        return self.base.status == "ok" and self.new.status not in _SOUND


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """The result of comparing two runs, in the order of BASE's rows.

    ``unmeasured`` counts points that have the same status other than ``ok`` in both.
    """

    base: RunData
    new: RunData
    threshold_percent: float
    differences: list[Difference]
    points: list[Point]
    status_changes: list[StatusChange]
    unmeasured: int
    only_base: list[Measurement]
    only_new: list[Measurement]

    def __repr__(self) -> str:
        found = ", ".join(f"{count} {verdict}" for verdict, count in self.counts.items() if count)
        broken = f", {self.broken} broken" if self.broken else ""
        runs = f"{self.base.path} and {self.new.path}"
        return f"<rooflab.Comparison of {runs}: {found or 'no figures in both'}{broken}>"

    @property
    def counts(self) -> dict[Verdict, int]:
        """Number of points with each verdict."""
        verdicts = [point.verdict for point in self.points]
        return {verdict: verdicts.count(verdict) for verdict in Verdict}

    @property
    def unclear(self) -> int:
        """Number of AMBIGUOUS points whose time increased by the threshold or more.

        Not of those that a virtual machine's host may have changed.
        """
        return sum(
            point.verdict == Verdict.AMBIGUOUS
            and point.reason != UNSEEN
            and (point.change_percent or 0) >= self.threshold_percent
            for point in self.points
        )

    @property
    def broken(self) -> int:
        """Number of points that were ``ok`` and are now incorrect, failed or timed out."""
        return sum(change.broken for change in self.status_changes)


def check_threshold(percent: float | None) -> None:
    """Raise ``UsageError`` if it is none."""
    if percent is not None and not 0 <= percent < inf:
        raise UsageError(f"the threshold cannot be {percent:g}: give 0 or more, in %")


def compare(base: RunData, new: RunData, threshold_percent: float) -> Comparison:
    """Match the points of two runs and judge each.

    If a run has a point twice, its last row counts. Raises ``UsageError`` if the runs are not
    comparable: different devices, cache states or fills, or no point in common.
    """
    check_threshold(threshold_percent)
    a, b = base.manifest.device, new.manifest.device
    _refuse_different("the kind of device", a.kind, b.kind)
    _refuse_different("the device", a.name, b.name)
    refuse_different_data(base, new)
    before = {row.key: row for row in base.measurements}
    after = {row.key: row for row in new.measurements}
    pairs = [(row, after[key]) for key, row in before.items() if key in after]
    if not pairs:
        raise UsageError(_nothing_in_common(before, after))
    measured = [pair for pair in pairs if pair[0].status == pair[1].status == "ok"]
    caches = {(b.cache, n.cache) for b, n in measured}
    if caches and all(b and n and b != n for b, n in caches):
        _refuse_different("cache", *min(caches))
    changes = [StatusChange(b, n) for b, n in pairs if b.status != n.status]
    virtual = any(device.fact("virtual_machine") == "yes" for device in (a, b))
    return Comparison(
        base,
        new,
        threshold_percent,
        list(differences(base, new, measured)),
        [_point(b, n, threshold_percent, virtual) for b, n in measured],
        changes,
        len(pairs) - len(measured) - len(changes),
        [row for key, row in before.items() if key not in after],
        [row for key, row in after.items() if key not in before],
    )


# --- are the runs comparable? ------------------------------------------------------------------


def _refuse_different(what: str, base: object, new: object) -> None:
    """Raise ``UsageError`` if a condition differs."""
    if base != new:
        raise UsageError(
            f"these runs are not comparable: {what} is {base} in BASE and {new} in NEW; "
            "measure one of them again"
        )


def same_device(base: RunData, new: RunData) -> bool:
    """Whether both runs are of devices of one kind and name; they may be two pieces of it."""
    a, b = base.manifest.device, new.manifest.device
    return (a.kind, a.name) == (b.kind, b.name)


def refuse_different_data(base: RunData, new: RunData) -> None:
    """Raise ``UsageError`` if the runs had other inputs, or another state of the cache."""
    a, b = base.manifest.config, new.manifest.config
    # Older runs lack both keys: they had one fill only, and their rows have the cache state.
    _refuse_different("fill", a.get("fill", "uniform"), b.get("fill", "uniform"))
    if "cache" in a and "cache" in b:
        _refuse_different("cache", a["cache"], b["cache"])


def _nothing_in_common(base: Mapping[Any, Measurement], new: Mapping[Any, Measurement]) -> str:
    """A message with the first column in which the runs have no value in common."""
    for name, keys in (("BASE", base), ("NEW", new)):
        if not keys:
            return f"{name} has no rows: nothing was measured there"
    for column, value in _IDENTITY.items():
        before, after = (
            list(dict.fromkeys(value(row) for row in rows.values())) for rows in (base, new)
        )
        if not set(before) & set(after):
            return f"no point in common: {column} is {_some(before)} in BASE, {_some(after)} in NEW"
    return "no point in common: no kernel was measured on the same problem in both runs"


_IDENTITY: Final[dict[str, Callable[[Measurement], object]]] = {
    "workload": lambda row: row.problem.workload,
    "kernel": lambda row: row.kernel,
    "size": lambda row: row.problem.size,
    "precision": lambda row: row.problem.precision,
    "settings": lambda row: row.problem.about,
}
"""The properties that identify a point, from coarse to fine."""


def _some(values: list[Any]) -> str:
    shown = ", ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in values[:4])
    return shown + (", …" if len(values) > 4 else "")


# --- other differences -------------------------------------------------------------------------


def differences(
    base: RunData, new: RunData, measured: list[tuple[Measurement, Measurement]]
) -> Iterator[Difference]:
    """What else differs: environment, settings, and the files and variants of kernels."""
    manifests = base.manifest, new.manifest
    yield from _differing(*map(environment, manifests))
    yield from _differing(*map(_settings, manifests))
    launches = [(b.launch_us, n.launch_us) for b, n in measured if b.launch_us and n.launch_us]
    if launches:
        was, now = (median(column) for column in zip(*launches, strict=True))
        if abs(now / was - 1) > LAUNCH_DIFFERS:
            yield Difference("an empty launch", f"{was:.3g} µs", f"{now:.3g} µs")
    variants: dict[tuple[str, str], tuple[set[str], set[str]]] = {}
    for b, n in measured:
        of_base, of_new = variants.setdefault((b.problem.workload, b.kernel), (set(), set()))
        of_base.add(b.variant)
        of_new.add(n.variant)
    for (workload, name), sides in variants.items():
        records = [m.kernel(workload, name) for m in manifests]
        sources = (record.sha256[:12] if record else "" for record in records)
        yield from _differing(*({f"file of {workload}/{name}": source} for source in sources))
        compilers = [record.compiler if record else "" for record in records]
        if all(compilers):
            given = ({f"compiler of {workload}/{name}": compiler} for compiler in compilers)
            yield from _differing(*given)
        yield from _differing(*({f"variant of {name}": " ".join(sorted(one))} for one in sides))


def environment(manifest: Manifest) -> dict[str, str]:
    """Host, facts of the device, and versions of packages, by name."""
    facts = {
        name.replace("_", " "): f"{fact.value} {fact.unit}".strip()
        for name, fact in manifest.device.facts.items()
        if fact.value is not None and name not in _MOMENTARY
    }
    versions = {f"version of {name}": version for name, version in manifest.versions.items()}
    return {**manifest.host, **facts, **versions}


def _settings(manifest: Manifest) -> dict[str, Any]:
    """What was asked for. At the power limit the heat of each kernel affects the others."""
    timing = manifest.config.get("timing")
    keys = {f"timing.{k}": v for k, v in timing.items()} if isinstance(timing, dict) else {}
    names = sorted(name.removeprefix(f"{DEFAULT}/") for name in manifest.kernels)
    return {"seed": manifest.config.get("seed"), **keys, "kernels of the sweep": ", ".join(names)}


def _differing(base: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    for name in dict.fromkeys([*base, *new]):
        values = (base.get(name), new.get(name))
        before, after = ("–" if value in (None, "") else str(value) for value in values)
        if before != after:
            yield Difference(name, before, after)


# --- the verdict -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Interval:
    """A time and the interval around it, in microseconds or in cycles."""

    time: float
    low: float
    high: float

    def at(self, clock: float) -> Interval:
        """The same in cycles, at a clock in MHz."""
        return Interval(self.time * clock, self.low * clock, self.high * clock)

    def moved(self, time: float) -> Interval:
        """As wide, around another time."""
        return Interval(time, time - self.time + self.low, time - self.time + self.high)


def span(row: Measurement) -> Interval | None:
    """The row's time and interval; None if one is missing or not a possible time."""
    if row.time_us is None or row.time_lo_us is None or row.time_hi_us is None:
        return None
    ends = (row.time_us, row.time_lo_us, row.time_hi_us)
    usable = all(map(isfinite, ends)) and row.time_us > 0
    return Interval(row.time_us, min(ends), max(ends)) if usable else None


def _clocks(base: Measurement, new: Measurement) -> tuple[float, float] | None:
    """The clocks of both rows, of one kind: NVML's if only one row has a counted one."""
    counted = base.nvml_mhz is not None and new.nvml_mhz is not None
    before, after = (row.sm_mhz if counted else row.nvml_mhz or row.sm_mhz for row in (base, new))
    if before and after and 0 < before < inf and 0 < after < inf:
        return before, after
    return None


def _point(base: Measurement, new: Measurement, threshold_percent: float, virtual: bool) -> Point:
    change = None
    if base.time_us and new.time_us:
        percent = 100 * (new.time_us - base.time_us) / base.time_us
        change = percent if isfinite(percent) else None
    before, after = span(base), span(new)
    if not before or not after:
        lacking = [name for name, span in (("BASE", before), ("NEW", after)) if not span]
        reason = f"no interval in {' and '.join(lacking)}"
        return Point(base, new, Verdict.AMBIGUOUS, reason, change, None, None)
    verdict, reason = judge(before, after, threshold_percent)
    if virtual and threshold_percent < UNSEEN_PERCENT:
        large, _ = judge(before, after, UNSEEN_PERCENT)
        if large not in (Verdict.SLOW, Verdict.FAST):
            verdict, reason = Verdict.AMBIGUOUS, UNSEEN
    if doubt := _doubt(base, new, verdict, threshold_percent):
        verdict, reason = Verdict.AMBIGUOUS, doubt
    return Point(base, new, verdict, reason, change, *changes(before, after))


def changes(base: Interval, new: Interval) -> tuple[float | None, float | None]:
    """The smallest and the largest change between two intervals, in percent."""
    if base.low <= 0:  # as runs before 0.2 can have it
        return None, None
    return 100 * (new.low / base.high - 1), 100 * (new.high / base.low - 1)


def _doubt(base: Measurement, new: Measurement, verdict: Verdict, threshold_percent: float) -> str:
    """Why the verdict on times may not be the kernel's; empty if nothing speaks against it."""
    if base.cache and new.cache and base.cache != new.cache:
        return f"cache {base.cache} in BASE, {new.cache} in NEW"
    if busy := [n for n, row in (("BASE", base), ("NEW", new)) if CONTENDED in row.flag_names]:
        return f"other programs used the cores in {' and '.join(busy)}"
    before, after, clocks = span(base), span(new), _clocks(base, new)
    if before and after and clocks and clocks[0] != clocks[1]:
        cycles, _ = judge(before.at(clocks[0]), after.at(clocks[1]), threshold_percent)
        if cycles != verdict:
            return (
                f"{_IN_WORDS[verdict]} in time, {_IN_WORDS[cycles]} in cycles "
                f"({clocks[0]:.0f} → {clocks[1]:.0f} MHz)"
            )
    if verdict in (Verdict.SLOW, Verdict.FAST) and base.launch_us and new.launch_us:
        apart_us = abs((new.time_us or 0) - (base.time_us or 0))
        if apart_us <= LAUNCH_SHARE * abs(new.launch_us - base.launch_us):
            return f"an empty launch changed too: {base.launch_us:.2f} → {new.launch_us:.2f} µs"
        if apart_us <= LAUNCH_NOISE * max(base.launch_us, new.launch_us):
            return f"{apart_us:.2f} µs apart: one launch differs from itself by as much"
    return ""


_IN_WORDS: Final = {
    Verdict.SLOW: "slower",
    Verdict.AMBIGUOUS: "unclear",
    Verdict.FAST: "faster",
    Verdict.SAME: "the same",
}


def judge(base: Interval, new: Interval, threshold_percent: float) -> tuple[Verdict, str]:
    """The verdict on one scale, and the reason if it is AMBIGUOUS."""
    share = threshold_percent / 100
    threshold = share * min(base.time, new.time)
    for gap, verdict in (
        (new.low - base.high, Verdict.SLOW),
        (base.low - new.high, Verdict.FAST),
    ):
        # A threshold of 0 still requires a gap.
        if gap > 0 and gap >= threshold:
            return verdict, ""
    if any((span.high - span.low) / 2 > share * span.time for span in (base, new)):
        return Verdict.AMBIGUOUS, f"interval wider than ±{threshold_percent:g} %"
    touching = new.low <= base.high and base.low <= new.high
    if touching or abs(new.time - base.time) < threshold:
        return Verdict.SAME, ""
    return Verdict.AMBIGUOUS, f"intervals apart, but by less than {threshold_percent:g} %"
