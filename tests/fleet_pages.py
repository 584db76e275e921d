"""Fleets for tests of their page, made of the rows of one measured run, and their records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from measured import LADDER
from pages import HOSTILE, hostile_run
from synthetic import with_device

from rooflab.fleet.page.page import to_html
from rooflab.fleet.record import MemberRecord, Record
from rooflab.fleet.runs import Fleet, Member, accused, assess
from rooflab.model.facts import Fact
from rooflab.model.measurement import Measurement
from rooflab.runs.store import RunData, load

SLOW = {3: {"compute": 0.041}, 5: {"dram": 0.13, "compute": -0.03}}


def process(run: RunData, random: Random, slow: Mapping[str, float]) -> RunData:
    """``run`` again: rows vary by 0.3 %, those of ``slow`` kinds of resources take longer."""
    noise: dict[object, float] = {}
    rows = []
    for row in run.measurements:
        resource = accused(row)
        factor = 1 + slow.get(resource.kind, 0.0)
        factor *= 1 + noise.setdefault(resource, random.gauss(0, 0.003))
        rows.append(slower(row, factor))
    return replace(run, measurements=rows)


def slower(row: Measurement, factor: float) -> Measurement:
    times = ("time_us", "time_lo_us", "time_hi_us")
    changed = {name: value * factor for name in times if (value := getattr(row, name))}
    return replace(row, **changed, sm_mhz=1455 / factor, power_w=690.0, temp_c=61.0)


def versioned(run: RunData, driver: str) -> RunData:
    driver_version = Fact(value=driver, unit="", source="NVML")
    facts = run.manifest.device.facts | {"driver_version": driver_version}
    return with_device(run, facts=facts)


def fleet(
    count: int,
    processes: int = 3,
    slow: Mapping[int, Mapping[str, float]] = SLOW,
    base: RunData | None = None,
    every: int = 3,
) -> Fleet:
    """Members of one run's rows, of which each ``every``-th counts."""
    random = Random(7)
    run = base or load(LADDER)
    run = replace(run, measurements=run.measurements[::every])
    run = replace(run, manifest=run.manifest.model_copy(update={"points": len(run.measurements)}))
    members = [
        Member(
            name(i),
            tuple(
                versioned(process(run, random, slow.get(i, {})), "565.57" if i == 3 else "570.86")
                for _ in range(processes)
            ),
        )
        for i in range(count)
    ]
    return Fleet(Path("results/20261122T193435Z-fleet"), tuple(members))


def name(i: int) -> str:
    return f"node-{i // 8:02}-GPU-{(i * 2654435761) % 2**32:08x}-93ab-11cd-0aa1-9b8e7c"


def sweep(fleet: Fleet, processes: Sequence[MemberRecord] = (), **other: Any) -> Record:
    """Its record: every process is done, unless ``processes`` say more."""
    done = [
        MemberRecord(name=f"{member.name}.{i}" if i > 1 else member.name, host=member.name[:7],
                     device="NVIDIA H200", status="done")
        for member in fleet.members
        for i, _ in enumerate(member.runs, 1)
    ]  # fmt: skip
    given: dict[str, Any] = {
        "created": datetime(2026, 11, 22, 19, 34, tzinfo=UTC),
        "command": ["rooflab", "fleet", "sweep", "--hosts", "a,b", "--launch", "ssh {host}"],
        "repeats": max(len(member.runs) for member in fleet.members),
        "members": {one.name: one for one in (*done, *processes)},
    }
    return Record(**{"launch": "local", "hosts": [], "device": "all", **given, **other})


def lossy(count: int = 6) -> tuple[Fleet, Record]:
    """A fleet in which one member was refused, one is lost and one has fewer rows."""
    whole = fleet(count)
    first, second, *rest = whole.members
    run = replace(first.runs[0], measurements=first.runs[0].measurements[:5])
    told = "5 of 32 points are measured; to continue: rooflab sweep --resume /home/me/x"
    members = (
        replace(first, runs=(run, *first.runs[1:]), missing=(told,)),
        replace(second, runs=(), missing=("nothing was measured (no manifest.json)",)),
        *rest,
    )
    refused = [
        MemberRecord(name="node-77-cuda-0", host="node-77", device="cuda:0", status="refused",
                     reason="rooflab 0.0.9 there, 0.1.0 here"),
        MemberRecord(name=f"{second.name}.2", host="node-00", device="NVIDIA H200", status="lost",
                     reason="ssh ended: 255"),
    ]  # fmt: skip
    found = replace(whole, members=members)
    return found, sweep(found, refused)


def hostile(folder: Path, count: int = 5) -> tuple[Fleet, Record]:
    """A fleet whose every text holds scripts and quotes."""
    base = load(hostile_run(folder))
    made = fleet(count, base=base, every=1)
    members = tuple(
        replace(member, name=f"{i} {HOSTILE}", missing=(HOSTILE,), runs=tuple(
            versioned(run, f"{i} {HOSTILE}") for run in member.runs))
        for i, member in enumerate(made.members)
    )  # fmt: skip
    found = replace(made, path=Path(f"results/{HOSTILE.replace('/', '-')}"), members=members)
    told = [
        MemberRecord(name=f"{i} {HOSTILE}", host=f"{i % 2} {HOSTILE}", device=HOSTILE,
                     status=HOSTILE, reason=HOSTILE)
        for i in range(count + 1)
    ]  # fmt: skip
    return found, sweep(found, command=[HOSTILE, HOSTILE], processes=told)


def page(found: Fleet, record: Record | None = None) -> str:
    """The page of a fleet."""
    return to_html(assess(found), record or sweep(found))
