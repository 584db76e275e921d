"""No cheat is accepted by ``rooflab judge``, unless it takes as long as honest work; that is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cheats import table

import rooflab
from rooflab.judging.verdict import Decision

pytestmark = pytest.mark.slow

AS_LONG = 0.4
"""A submission that takes this share of the honest one's time has not saved the work: meanwhile
other programs may have had half of the processor."""


def some(sweep: table.Sweep, *names: str) -> table.Sweep:
    """Each takes two seconds: one of each kind."""
    cheats = {name: sweep.cheats[name] for name in names}
    return replace(sweep, cheats=cheats, honest=sweep.honest[:2])


SWEEPS = {
    "add": some(
        table.ADD,
        *("memo_pointer", "if_poisoned", "first_launches", "every_other", "skips_at_random"),
        *("knows_its_caller", "one_late", "last_operands", "half", "no_last_element", "adds_to_c"),
    ),
    "gemm": some(
        *(table.GEMM, "replays", "knows_the_inputs", "remembers_in_rounds", "tf32", "no_corner"),
    ),
    "inputs": some(table.INPUTS, "works_in_a", "touches_b_later"),
    "outside": some(table.OUTSIDE, "past_end", "before_start", "far_away", "reads_past_end"),
    "late": some(table.LATE, "by_profiler", "late_array", "from_reference"),
    "patches": some(
        table.PATCHES,
        *("clock_of_time", "timing_method", "blind_verify", "own_reference", "own_tolerance"),
        *("finds_the_protocol", "known_numbers", "same_inputs"),
    ),
    "crashes": some(table.CRASHES, "exits", "interrupts", "raises_later"),
}


SMALL, LARGER = 5_000, 200_000
"""Elements: adding few of them takes no longer than an empty launch on a busy machine."""


def judged(sweep: table.Sweep, name: str) -> rooflab.Measurement:
    sizes = sweep.sizes[-1:]
    if sweep.workload == "add" and sizes and sizes[0] < SMALL:
        sizes = (LARGER,)
    found: Decision = rooflab.judge(
        sweep.pattern(name),
        sweep.workload,
        f"cheats.quick:{sweep.device}",
        parameters=dict(sweep.more),
        **({"shapes": sweep.shapes[-1]} if sweep.shapes else {"sizes": sizes[0]}),
    )
    return found.problems[0].row


def saves_work(sweep: table.Sweep, cheat: str, honest_us: float) -> bool:
    """Whether it is accepted in less time than honest work takes."""
    row = judged(sweep, cheat)
    return row.status == "ok" and (row.time_us or 0.0) < AS_LONG * honest_us


@pytest.mark.parametrize("name", SWEEPS)
def test_no_cheat_is_accepted(name: str, elsewhere: Path) -> None:
    sweep = SWEEPS[name]
    honest = [judged(sweep, one) for one in sweep.honest]
    assert [row.reason for row in honest if row.status != "ok"] == []
    honest_us = honest[0].time_us or 0.0
    found = [cheat for cheat in sweep.cheats if saves_work(sweep, cheat, honest_us)]
    if found:  # other programs may have slowed the honest one down
        honest_us = judged(sweep, sweep.honest[0]).time_us or 0.0
        found = [cheat for cheat in found if saves_work(sweep, cheat, honest_us)]
    assert not found
