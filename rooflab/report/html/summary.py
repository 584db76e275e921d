"""The three sentences that matter: the best row, the largest gain, what is uncertain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rooflab.model.measurement import BATCH_TIMED, Measurement
from rooflab.report.explain import Explanation, gain, time_text, verdict_sentence
from rooflab.report.html.markup import Markup, element, section
from rooflab.report.html.points import Content, Entry, number
from rooflab.report.text import digits, label, speed

ON_THE_ROOF = 100.5
"""Percent of the roof up to which a row is believed: a median has an error of 0.5 %."""


def summary(content: Content, explained: Sequence[tuple[Entry, Explanation]]) -> Markup:
    """The section."""
    lines = (_best(content), _gain(content, explained), _uncertain(content))
    items = [element("li", element("strong", f"{head}: "), text) for head, text in lines]
    return section("summary", "Summary", element("ul", *items))


def _owner(content: Content, entry: Entry) -> str:
    return f" ({content.names[entry.run]})" if content.several else ""


def _best(content: Content) -> tuple[str, str]:
    """The row that is closest to its roof and not above it."""
    measured = content.measured
    if not measured:
        return "Best", "no row has figures."
    believed = [e for e in measured if 0 < (e.row.roof_percent or 0) <= ON_THE_ROOF]
    if not believed:
        best = max(measured, key=lambda entry: number(entry.row.tflops) or 0)
        return "Best", f"{_reached(content, best)}; no row has a roof to compare it with."
    best = max(believed, key=lambda entry: entry.row.roof_percent or 0)
    share = digits(best.row.roof_percent, 3)
    return "Closest to its roof", f"{_reached(content, best)}, {share} % of its roof."


def _reached(content: Content, entry: Entry) -> str:
    return f"{label(entry.row)}{_owner(content, entry)} reached {speed(entry.row)}"


def _gain(content: Content, explained: Sequence[tuple[Entry, Explanation]]) -> tuple[str, str]:
    """The largest gain of the fastest kernels: that a slower one can be replaced is no news."""
    title = "Most to gain"
    fastest = [pair for pair in explained if pair[1].faster is None]
    if not fastest:
        return title, "unknown: no row in device memory can be explained."
    sure = [pair for pair in fastest if not pair[1].doubt]
    if not sure:
        return title, "unknown: no time is well known; measure again on a machine of your own."
    entry, one = max(sure, key=lambda pair: pair[1].gain_us)
    now, then = one.evidence.time_us, one.verdict.reachable_us
    if one.gain_us <= 0:
        return title, "nothing that is known: the fastest kernel of each problem is at its limit."
    return title, (
        f"of the fastest kernels, {label(entry.row)}{_owner(content, entry)}: "
        f"{time_text(now)} could be {time_text(then)}{gain(now, then)}. "
        f"{verdict_sentence(one)} Try: {one.step}."
    )


def _uncertain(content: Content) -> tuple[str, str]:
    """Rows without figures, and flags that are caveats."""
    rows = [entry.row for entry in content.entries]
    counts = Counter(row.status for row in rows if row.status != "ok")
    damaged = sum(row.status == "ok" for row in rows) - len(content.measured)
    parts = [f"{count} {status}" for status, count in counts.items()]
    parts += [f"{damaged} with impossible figures"] * bool(damaged)
    parts += [f"{count} flagged {flag}" for flag, count in _flags(rows).items()]
    missing = sum(max(0, run.manifest.points - len(run.measurements)) for run in content.runs)
    parts += [f"{missing} not measured yet"] * bool(missing)
    if parts:
        return "Uncertain", f"of {len(rows)} rows, {', '.join(parts)}."
    return "Uncertain", f"nothing: all {len(rows)} rows were verified, and none has a caveat."


def _flags(rows: Sequence[Measurement]) -> Counter[str]:
    return Counter(flag for row in rows for flag in row.flag_names if flag != BATCH_TIMED)
