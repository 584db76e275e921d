"""Two runs, point by point: did anything become faster or slower? Pure.

The rule, for the 95 % intervals of the time in BASE and in NEW and a threshold in percent
(0.5 by default). On one scale, microseconds or cycles, a point is

SLOW       when NEW's interval lies above BASE's with a gap of at least the threshold,
FAST       when it lies below it with such a gap,
SAME       when the two intervals touch, or the times differ by less than the threshold, and both
           are narrow enough to have shown a change of that size: half of each is within the
           threshold of its own time,
AMBIGUOUS  otherwise: an interval is too wide, or narrow intervals are apart by less than the
           threshold although their times are not.

Gap and change are counted in percent of the faster time, which is BASE's where NEW is slower; so
swapping the runs swaps FAST and SLOW, and changes nothing else.

Where both rows know their SM clock, time × clock gives cycles, and the verdict stands only if
microseconds and cycles agree: a GPU that ran at a lower clock does not make a kernel SLOW, nor
does one that ran at a higher clock hide that it is. Where they disagree the point is AMBIGUOUS.
It is also AMBIGUOUS where a row has no interval, and where one row was measured with a cold cache
and the other with a warm one; and where the times differ by no more than LAUNCH_SHARE times what
an empty launch took in the two processes that measured them, which is not the kernel's doing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isfinite
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from rooflab.errors import UsageError
from rooflab.model.measurement import Measurement
from rooflab.workloads import DEFAULT

if TYPE_CHECKING:
    from rooflab.model.facts import Fact
    from rooflab.runs.manifest import Manifest
    from rooflab.runs.store import Run

LAUNCH_SHARE: Final = 3.0
"""How much more a kernel's time may differ between two processes than an empty launch's, with room:
both come from where the driver has placed things, but not from the same ones."""

LAUNCH_DIFFERS: Final = 0.02
"""A share by which an empty launch may differ without being mentioned."""

_BROKEN: Final = ("incorrect", "failed", "timeout")
# What a device reads at one moment says nothing of how it is set up.
_MOMENTARY: Final = ("sm_clock", "memory_clock", "clock_current", "power", "temperature")


class Verdict(StrEnum):
    """What became of one point."""

    SLOW = "SLOW"
    AMBIGUOUS = "AMBIGUOUS"
    FAST = "FAST"
    SAME = "SAME"


@dataclass(frozen=True, slots=True)
class Difference:
    """Something outside the measurements that is not the same in both runs."""

    name: str
    base: str
    new: str


@dataclass(frozen=True, slots=True)
class Point:
    """One point that both runs measured. ``reason`` says why a verdict is AMBIGUOUS.

    ``change_percent`` is NEW's time less BASE's, in percent of BASE's; ``change_lo_percent`` and
    ``change_hi_percent`` are the least and the most that the two intervals leave possible. They
    are None where a row lacks what they are made from.
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
        """Whether it was right and no longer is: a regression, however fast."""
        return self.base.status == "ok" and self.new.status in _BROKEN


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that is to be said of two runs, in the order of BASE's rows.

    ``unmeasured`` counts points that have the same status in both, and it is not ``ok``.
    """

    base: Run
    new: Run
    threshold_percent: float
    differences: list[Difference]
    points: list[Point]
    status_changes: list[StatusChange]
    unmeasured: int
    only_base: list[Measurement]
    only_new: list[Measurement]

    @property
    def counts(self) -> dict[Verdict, int]:
        """How many points got each verdict."""
        verdicts = [point.verdict for point in self.points]
        return {verdict: verdicts.count(verdict) for verdict in Verdict}

    @property
    def unclear(self) -> int:
        """How many AMBIGUOUS points took longer than before by the threshold or more."""
        return sum(
            point.verdict == Verdict.AMBIGUOUS
            and (point.change_percent or 0) >= self.threshold_percent
            for point in self.points
        )

    @property
    def broken(self) -> int:
        """How many points were ``ok`` and are incorrect, failed or timed out now."""
        return sum(change.broken for change in self.status_changes)


def compare(base: Run, new: Run, threshold_percent: float) -> Comparison:
    """Match the points of two runs and judge each.

    Where a run has a point twice, its last row counts. Raises ``UsageError`` where the runs do not
    compare: another device, another cache state, other data, or no point in common.
    """
    if not 0 <= threshold_percent < inf:
        raise UsageError(f"the threshold {threshold_percent:g} is no change: give 0 or more, in %")
    _refuse_different_conditions(base, new)
    before = {row.key: row for row in base.measurements}
    after = {row.key: row for row in new.measurements}
    pairs = [(row, after[key]) for key, row in before.items() if key in after]
    if not pairs:
        raise UsageError(_nothing_in_common(before, after))
    measured = [pair for pair in pairs if pair[0].status == pair[1].status == "ok"]
    caches = {(b.cache, n.cache) for b, n in measured}
    if caches and all(b and n and b != n for b, n in caches):
        b, n = min(caches)
        raise UsageError(_refusal("cache", b, n))
    changes = [StatusChange(b, n) for b, n in pairs if b.status != n.status]
    return Comparison(
        base,
        new,
        threshold_percent,
        list(_differences(base, new, measured)),
        [_point(b, n, threshold_percent) for b, n in measured],
        changes,
        len(pairs) - len(measured) - len(changes),
        [row for key, row in before.items() if key not in after],
        [row for key, row in after.items() if key not in before],
    )


# --- do the runs compare? ----------------------------------------------------------------------


def _refusal(what: str, base: object, new: object) -> str:
    return (
        f"these runs do not compare: {what} is {base} in BASE and {new} in NEW; "
        "measure one of them again"
    )


def _refuse_different_conditions(base: Run, new: Run) -> None:
    one, other = base.manifest, new.manifest
    conditions = [
        ("the kind of device", one.device.kind, other.device.kind),
        ("the device", one.device.name, other.device.name),
        # Older runs do not say: they knew one fill only, and the rows know their cache state.
        ("fill", one.config.get("fill", "uniform"), other.config.get("fill", "uniform")),
    ]
    if "cache" in one.config and "cache" in other.config:
        conditions.append(("cache", one.config["cache"], other.config["cache"]))
    for what, before, after in conditions:
        if before != after:
            raise UsageError(_refusal(what, before, after))


def _nothing_in_common(
    base: Mapping[tuple[Any, ...], Measurement], new: Mapping[tuple[Any, ...], Measurement]
) -> str:
    """Name the first column in which the runs share nothing."""
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
"""What makes a point, from the coarse to the fine."""


def _some(values: list[Any]) -> str:
    shown = ", ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in values[:4])
    return shown + (", …" if len(values) > 4 else "")


# --- what else differs? ------------------------------------------------------------------------


def _differences(
    base: Run, new: Run, measured: list[tuple[Measurement, Measurement]]
) -> Iterator[Difference]:
    one, other = base.manifest, new.manifest
    before, after = ({**m.host, **_facts(m.device.facts)} for m in (one, other))
    yield from _differing(before, after)
    before, after = ({f"version of {k}": v for k, v in m.versions.items()} for m in (one, other))
    yield from _differing(before, after)
    before, after = (
        {"seed": m.config.get("seed"), **_timing(m.config.get("timing"))} for m in (one, other)
    )
    yield from _differing(before, after)
    before, after = ({"kernels of the sweep": _kernels(m)} for m in (one, other))
    yield from _differing(before, after)
    launches = [(b.launch_us, n.launch_us) for b, n in measured if b.launch_us and n.launch_us]
    if launches:
        was, now = (median(column) for column in zip(*launches, strict=True))
        if abs(now / was - 1) > LAUNCH_DIFFERS:
            yield Difference("an empty launch", f"{was:.2f} µs", f"{now:.2f} µs")
    for workload, name in dict.fromkeys((r.problem.workload, r.kernel) for r, _ in measured):
        records = (m.kernel(workload, name) for m in (one, other))
        sources = (record.sha256[:12] if record else "" for record in records)
        yield from _differing(*({f"source of {workload}/{name}": source} for source in sources))
        pairs = [
            (b.variant, n.variant)
            for b, n in measured
            if (b.problem.workload, b.kernel) == (workload, name)
        ]
        variants = (" ".join(sorted(set(column))) for column in zip(*pairs, strict=True))
        yield from _differing(*({f"variant of {name}": variant} for variant in variants))


def _facts(facts: Mapping[str, Fact]) -> dict[str, str]:
    return {
        name.replace("_", " "): f"{fact.value} {fact.unit}".strip()
        for name, fact in facts.items()
        if fact.value is not None and name not in _MOMENTARY
    }


def _kernels(manifest: Manifest) -> str:
    """Kernels share one clock at the power limit, so a sweep's others change a figure."""
    names = [name.removeprefix(f"{DEFAULT}/") for name in manifest.kernels]
    return ", ".join(sorted(names))


def _timing(timing: Any) -> dict[str, Any]:
    return {f"timing.{k}": v for k, v in timing.items()} if isinstance(timing, dict) else {}


def _differing(base: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    for name in dict.fromkeys([*base, *new]):
        before, after = (_text(values.get(name)) for values in (base, new))
        if before != after:
            yield Difference(name, before, after)


def _text(value: Any) -> str:
    return "–" if value in (None, "") else str(value)


# --- the verdict -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Span:
    """A time and the interval around it, in microseconds or in cycles."""

    time: float
    low: float
    high: float

    def at(self, clock: float) -> _Span:
        return _Span(self.time * clock, self.low * clock, self.high * clock)


def _span(row: Measurement) -> _Span | None:
    """None where a figure is missing or is no time at all."""
    if row.time_us is None or row.time_lo_us is None or row.time_hi_us is None:
        return None
    ends = (row.time_us, row.time_lo_us, row.time_hi_us)
    usable = all(map(isfinite, ends)) and row.time_us > 0
    return _Span(row.time_us, min(ends), max(ends)) if usable else None


def _clock(row: Measurement) -> float | None:
    return row.sm_mhz if row.sm_mhz and 0 < row.sm_mhz < inf else None


def _point(base: Measurement, new: Measurement, threshold_percent: float) -> Point:
    before, after = _span(base), _span(new)
    if not before or not after:
        lacking = [name for name, span in (("BASE", before), ("NEW", after)) if not span]
        reason = f"no interval in {' and '.join(lacking)}"
        return Point(base, new, Verdict.AMBIGUOUS, reason, _change(base, new), None, None)
    verdict, reason = _judge(before, after, threshold_percent)
    clocks = _clock(base), _clock(new)
    if clocks[0] and clocks[1] and clocks[0] != clocks[1]:
        cycles, _ = _judge(before.at(clocks[0]), after.at(clocks[1]), threshold_percent)
        if cycles != verdict:
            reason = (
                f"{_IN_WORDS[verdict]} in time, {_IN_WORDS[cycles]} in cycles "
                f"({clocks[0]:.0f} → {clocks[1]:.0f} MHz)"
            )
            verdict = Verdict.AMBIGUOUS
    if verdict in (Verdict.SLOW, Verdict.FAST) and base.launch_us and new.launch_us:
        explained_us = LAUNCH_SHARE * abs(new.launch_us - base.launch_us)
        if abs(after.time - before.time) <= explained_us:
            reason = f"an empty launch took {base.launch_us:.2f} → {new.launch_us:.2f} µs as well"
            verdict = Verdict.AMBIGUOUS
    if base.cache and new.cache and base.cache != new.cache:
        verdict, reason = Verdict.AMBIGUOUS, f"cache {base.cache} in BASE, {new.cache} in NEW"
    return Point(
        base,
        new,
        verdict,
        reason,
        _change(base, new),
        100 * (after.low - before.high) / before.time,
        100 * (after.high - before.low) / before.time,
    )


_IN_WORDS: Final = {
    Verdict.SLOW: "slower",
    Verdict.AMBIGUOUS: "unclear",
    Verdict.FAST: "faster",
    Verdict.SAME: "the same",
}


def _change(base: Measurement, new: Measurement) -> float | None:
    if not base.time_us or not new.time_us:
        return None
    change = 100 * (new.time_us - base.time_us) / base.time_us
    return change if isfinite(change) else None


def _judge(base: _Span, new: _Span, threshold_percent: float) -> tuple[Verdict, str]:
    """The verdict on one scale, and why where it is AMBIGUOUS."""
    share = threshold_percent / 100
    threshold = share * min(base.time, new.time)
    for gap, verdict in (
        (new.low - base.high, Verdict.SLOW),
        (base.low - new.high, Verdict.FAST),
    ):
        # A threshold of 0 still asks for a gap.
        if gap > 0 and gap >= threshold:
            return verdict, ""
    if any((span.high - span.low) / 2 > share * span.time for span in (base, new)):
        return Verdict.AMBIGUOUS, f"interval wider than ±{threshold_percent:g} %"
    touching = new.low <= base.high and base.low <= new.high
    if touching or abs(new.time - base.time) < threshold:
        return Verdict.SAME, ""
    return Verdict.AMBIGUOUS, f"intervals apart, but by less than {threshold_percent:g} %"
