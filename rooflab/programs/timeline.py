"""When the launches of one step ran, by their rows. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rooflab.devices.records import RecordedLaunch, Recording, Transfer
from rooflab.model.measurement import Measurement
from rooflab.model.timeline import MOST_LAUNCHES, RecordedStep, StepLaunch
from rooflab.programs.groups import LaunchSet
from rooflab.runs.program import COPIES


def first_step(
    recording: Recording, groups: Sequence[LaunchSet], rows: Sequence[Measurement]
) -> RecordedStep | None:
    """The launches and copies of the first step, from its beginning; None if there is none.

    ``rows`` are those of the recording: first one for each of ``groups``.
    """
    if not recording.windows:
        return None
    window = recording.windows[0]
    row_of = {id(one): i for i, group in enumerate(groups) for one in group.launches}
    others = {row.kernel: i for i, row in enumerate(rows)}
    found = []
    spans: list[RecordedLaunch | Transfer] = [*recording.launches, *recording.copies]
    for one in spans:
        row = (
            row_of.get(id(one)) if isinstance(one, RecordedLaunch) else others.get(COPIES[one.kind])
        )
        if row is not None and window.start_ns <= one.start_ns < window.end_ns:
            start = (one.start_ns - window.start_ns) / 1e3
            found.append(StepLaunch(start, one.ns / 1e3, one.device, one.stream, row))
    found.sort()
    kept = tuple(found[:MOST_LAUNCHES])
    return RecordedStep(kept, window.ns / 1e3, len(found) - len(kept)) if kept else None
