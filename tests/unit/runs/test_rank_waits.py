"""Whom the ranks of a program wait for, in figures and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from profiled import group, other, program

from rooflab.model.collectives import CollectiveLaunch, Collectives
from rooflab.report.ranks import sentences, table
from rooflab.runs.ranks import Ranks, of_runs, ranks_of
from rooflab.runs.store import RunData

REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
GATHER = "ncclDevKernel_AllGather_RING_LL"

STEP_US = 10_000
STEPS = 20


def run(
    durations: Mapping[str, Sequence[float]],
    *,
    gemm_us: float = 5000,
    idle_us: float = 500,
    late_us: float = 0,
    host: int = 0,
    offset_us: float = 0,
) -> RunData:
    """A rank that spends these µs in collectives that end at the same times on all ranks."""
    titles = list(durations)
    rows = [group(name, sum(us), len(us), percent=None) for name, us in durations.items()]
    about = {"collectives_us": 900, "exposed_us": 700} if rows else {}
    made = program(
        group("gemm", gemm_us), *rows, other("(idle)", idle_us), step_us=STEP_US, **about
    )
    order = {row.kernel: i for i, row in enumerate(made.measurements)}
    launches = []
    for step in range(STEPS):
        for title in titles:
            for k, us in enumerate(durations[title]):
                end = step * STEP_US + 3000 * titles.index(title) + 1000 * (k + 1) + late_us
                start, ns = round(1000 * (end - us + offset_us)), round(1000 * us)
                launches.append(CollectiveLaunch(step, order[title], start, ns, ns))
    known = Collectives(STEPS, f"host {host}", -round(1000 * offset_us), tuple(launches))
    return replace(made, communicated=known)


def ranks(*runs: RunData) -> Ranks:
    return ranks_of(dict(enumerate(runs)), len(runs))


def text(found: Ranks) -> str:
    return "\n".join(sentences(found))


def test_the_rank_with_the_shortest_time_comes_last() -> None:
    late = run({REDUCE: [100, 100]}, gemm_us=5600)
    found = ranks(run({REDUCE: [400, 200]}), late, run({REDUCE: [400, 400]}))
    [one] = found.collectives
    assert (one.title, one.reason) == ("AllReduce", "")
    assert one.us == {0: 600, 1: 200, 2: 800}
    assert one.waits_us == pytest.approx({0: 400, 1: 0, 2: 600})
    assert one.caused_us == pytest.approx({0: 0, 1: 500, 2: 0})
    assert found.slowest.number == 1
    said = text(found)
    assert "Rank 1 is waited for: the others wait 500 µs of 10.0 ms (5.0 %) in AllReduce." in said
    assert "gemm alone takes 600 µs more" in said


def test_each_collective_is_judged_alone() -> None:
    first = run({REDUCE: [300], GATHER: [100]})
    second = run({REDUCE: [100], GATHER: [500]}, idle_us=900)
    said = text(ranks(first, second))
    assert said.index("Rank 0 is waited for: rank 1 waits 400 µs") < said.index(
        "Rank 1 is waited for: rank 0 waits 200 µs"
    )
    assert "It idles 900 µs, rank 0 500 µs: its host comes late" in said


def test_nobody_is_waited_for() -> None:
    said = text(ranks(run({REDUCE: [101]}), run({REDUCE: [100]})))
    assert "No rank is waited for: none waits more than 1.00 µs of a step." in said


@pytest.mark.parametrize("offset_us", [0, 7, 1e9 + 0.5])
def test_clocks_of_hosts_differ(offset_us: float) -> None:
    """They are known to within milliseconds; those of one host to within microseconds."""
    first = run({REDUCE: [400, 250, 300]})
    second = run({REDUCE: [100, 150, 50]}, host=1, offset_us=offset_us)
    known = second.collectives()
    assert known
    second = replace(second, communicated=replace(known, epoch_ns=known.epoch_ns + 1_300_000))
    [one] = ranks(first, second).collectives
    assert one.waits_us == pytest.approx({0: 650, 1: 0})


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (run({REDUCE: [100]}), "rank 1 launches it 1 times in a step, rank 0 2 times"),
        (run({GATHER: [100]}), "only rank 0 launches it"),
        (run({REDUCE: [100, 100]}, late_us=400), ""),  # a constant offset of clocks
        (replace(run({REDUCE: [100, 100]}), communicated=None), "rank 1 has no times of single"),
    ],
)
def test_what_cannot_be_told(second: RunData, reason: str) -> None:
    found = ranks(run({REDUCE: [400, 200]}), second)
    one = next(one for one in found.collectives if one.title == "AllReduce")
    assert one.reason.startswith(reason) and bool(one.reason) == bool(reason)
    assert bool(one.waits_us) != bool(reason)
    assert not reason or f"Who is waited for in AllReduce cannot be told: {reason}" in text(found)


def test_launches_of_other_groups_of_ranks_do_not_end_together() -> None:
    it = run({REDUCE: [100, 100]})
    known = it.collectives()
    assert known
    moved = [
        one._replace(start_ns=one.start_ns + 997_000 * i % 5_000_000)
        for i, one in enumerate(known.launches)
    ]
    apart = replace(it, communicated=replace(known, launches=tuple(moved)))
    [one] = ranks(it, apart).collectives
    assert one.reason == "its launches do not end together on all ranks"


def test_one_rank_waits_for_nobody() -> None:
    found = ranks_of({2: run({REDUCE: [100]})}, 4, ["Rank 0 is missing: x."])
    said = text(found)
    assert said.startswith("1 of 4 ranks of train.py. One step takes 10.0 ms.\nRank 0 is missing")
    assert "waited" not in said and "cannot" not in said


def test_ranks_without_collectives() -> None:
    assert "No rank launches a collective" in text(ranks(run({}), run({})))


def test_runs_that_are_no_ranks_of_one_program() -> None:
    first, second = run({}), run({})
    assert of_runs([first, second]) is None
    for number, one in enumerate((first, second)):
        one.manifest.program |= {"rank": number, "ranks": 2}
    found = of_runs([second, first])
    assert found and [one.number for one in found.ranks] == [0, 1]
    assert of_runs([first, first]) is None
    second.manifest.program["ranks"] = 3
    assert of_runs([first, second]) is None
    second.manifest.program |= {"rank": [1], "ranks": 2}
    assert of_runs([first, second]) is None


def test_of_many_ranks_some_are_shown() -> None:
    many = [run({REDUCE: [100 if i == 50 else 400]}) for i in range(60)]
    found = ranks(*many)
    made = table(found)
    cells = list(made.columns[0].cells)
    assert len(cells) == 17 and "50" in cells and cells[-1] == "…"
    assert "Rank 50 is waited for" in text(found)
