"""The collectives among a program's launches: when each ran, and what ran beside it."""

from __future__ import annotations

import platform
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from time import perf_counter_ns, time_ns

from rooflab.devices.records import Cut, RecordedLaunch, Recording, busy_ns
from rooflab.model.collectives import CollectiveLaunch, Collectives, collective_of
from rooflab.programs.groups import LaunchSet
from rooflab.programs.session import Findings

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def clock() -> str:
    """The name of the clock of launches: processes of one host that was started once share it."""
    try:
        return f"{platform.node()} {_BOOT.read_text().strip()}"
    except OSError:
        return platform.node()


def epoch_ns() -> int:
    """What that clock lacks to nanoseconds since 1970."""
    return time_ns() - perf_counter_ns()


def collectives(found: Findings, groups: Sequence[LaunchSet]) -> Collectives | None:
    """Of all steps that were recorded, with the numbers of their ``groups``; None without any."""
    named = cache(collective_of)
    kernels = found.recording.launches
    windows = found.recording.windows
    starts = [window.start_ns for window in windows]
    rows = {id(one): i for i, group in enumerate(groups) for one in group.launches}
    others = merged_cuts((one.start_ns, one.end_ns) for one in kernels if not named(one.kernel))
    made = [
        CollectiveLaunch(
            max(0, bisect_right(starts, one.start_ns) - 1),
            rows[id(one)],
            restored(one.start_ns, found.cuts),
            one.ns,
            one.ns - _overlap(one, others),
        )
        for one in kernels
        if named(one.kernel) and id(one) in rows
    ]
    return Collectives(len(windows), clock(), epoch_ns(), tuple(made)) if made else None


def communication(recording: Recording) -> dict[str, float]:
    """Microseconds of a step in which a collective ran, and in which no other kernel did."""
    named = cache(collective_of)
    ours = [one for one in recording.launches if named(one.kernel)]
    others = [one for one in recording.launches if not named(one.kernel)]
    if not ours:
        return {}
    each = 1e3 * len(recording.windows)
    exposed = busy_ns(recording.launches) - busy_ns(others)
    return {"collectives_us": busy_ns(ours) / each, "exposed_us": exposed / each}


def restored(ns: int, cuts: Sequence[Cut]) -> int:
    """The time of the clock, of a time from which earlier ``cuts`` are taken out."""
    for start, end in sorted(cuts):
        if ns >= start:
            ns += end - start
    return ns


def merged_cuts(cuts: Iterable[Cut]) -> list[Cut]:
    """The same time without overlaps, in order."""
    found: list[Cut] = []
    for start, end in sorted(cuts):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def _overlap(one: RecordedLaunch, spans: Sequence[Cut]) -> int:
    """The time of a launch in which one of the spans ran; they are in order and apart."""
    total = 0
    first = max(0, bisect_right(spans, (one.start_ns, one.start_ns)) - 1)
    for start, end in spans[first:]:
        if start >= one.end_ns:
            break
        total += max(0, min(end, one.end_ns) - max(start, one.start_ns))
    return total
