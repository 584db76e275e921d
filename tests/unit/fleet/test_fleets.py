"""Folders of fleets: what is read, what is missing, and what is said about them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic
from rich.console import Console

from rooflab.errors import UsageError
from rooflab.fleet.interference import costs
from rooflab.fleet.outliers import Rating
from rooflab.fleet.runs import Assessment, Fleet, Resource, accused, assess, load_fleet, resources
from rooflab.fleet.text import sentences, short_names, show, tables, to_json
from rooflab.model.measurement import Measurement
from rooflab.runs.store import MANIFEST, MEASUREMENTS, RunWriter

SLOW = {"compute": 0.04}
LARGE, FLAT = (4096, 4096, 4096), (1, 14336, 4096)
BOUNDS = {"compute": [(LARGE, "fp16"), ((8192, 8192, 8192), "fp16")], "dram": [(FLAT, "fp16")]}


def rows(random: np.random.Generator, slow: Mapping[str, float], **other: Any) -> list[Measurement]:
    """A sweep whose process has 0.3 % of noise; ``slow`` resources take longer."""
    made = []
    for bound, problems in BOUNDS.items():
        for shape, precision in problems:
            factor = (1 + slow.get(bound, 0.0)) * float(np.exp(random.normal(0, 0.003)))
            tflops = (700.0 if bound == "compute" else 4.0) / factor
            one = synthetic.row("cublas", shape, precision, tflops, synthetic.h200_roofline())
            assert one.bound == bound
            figures = {"time_lo_us": (one.time_us or 0) * 0.999, "launch_us": 1.3}
            figures |= {"time_hi_us": (one.time_us or 0) * 1.001, "power_w": 690.0, "temp_c": 61.0}
            figures["sm_mhz"] = 1455 / factor
            made.append(replace(one, **{**figures, **other}))
    return made


def write(folder: Path, measurements: list[Measurement], points: int = 3) -> None:
    run = synthetic.run("NVIDIA H200", synthetic.h200_roofline(), [], points=points)
    folder.mkdir(parents=True)
    with RunWriter(folder, run.manifest) as writer:
        for row in measurements:
            writer.append(row, [[1.0]])


def name(i: int) -> str:
    return f"node-{i:02}"


def fleet(
    folder: Path,
    count: int = 8,
    processes: int = 3,
    slow: Mapping[int, Mapping[str, float]] | None = None,
) -> Path:
    random = np.random.default_rng(11)
    for i in range(count):
        for process in range(1, processes + 1):
            suffix = f".{process}" if process > 1 else ""
            write(folder / "members" / (name(i) + suffix), rows(random, (slow or {}).get(i, {})))
    return folder


def screen(found: Assessment, width: int = 80) -> str:
    stream = StringIO()
    show(found, Console(file=stream, width=width))
    return stream.getvalue()


# Reading -----------------------------------------------------------------------------------------


def test_repeats_belong_to_their_member(tmp_path: Path) -> None:
    found = load_fleet(fleet(tmp_path, 2))
    assert [(one.name, len(one.runs), one.missing) for one in found.members] == [
        ("node-00", 3, ()),
        ("node-01", 3, ()),
    ]
    assert [run.path.name for run in found.members[0].runs] == ["node-00", "node-00.2", "node-00.3"]


def test_ten_repeats_are_in_order(tmp_path: Path) -> None:
    for suffix in (".10", "", ".2", ".1", ".02"):
        write(tmp_path / "members" / f"a{suffix}", rows(np.random.default_rng(1), {}))
    members = {m.name: [run.path.name for run in m.runs] for m in load_fleet(tmp_path).members}
    assert members == {"a": ["a", "a.2", "a.10"], "a.1": ["a.1"], "a.02": ["a.02"]}


def test_what_is_missing_is_listed(tmp_path: Path) -> None:
    fleet(tmp_path, 6, 2)
    members = tmp_path / "members"
    (members / "node-01" / MANIFEST).unlink()
    (members / "node-02.2" / MANIFEST).write_text("{")
    text = (members / "node-03" / MEASUREMENTS).read_text().splitlines(keepends=True)
    (members / "node-03" / MEASUREMENTS).write_text("".join(text[:2]))
    for folder in (members / "node-04", members / "node-04.2"):
        broken = (folder / MEASUREMENTS).read_text().replace(",ok,,", ",failed,no memory,", 1)
        (folder / MEASUREMENTS).write_text(broken)
    (members / "notes.txt").write_text("not a folder")
    found = load_fleet(tmp_path, expected=["node-00", "node-99"])
    lines = "\n".join(found.remarks)
    assert f"node-01: nothing was measured (no {MANIFEST})" in lines
    assert "node-02: process 2: " in lines
    assert "node-03: 1 of 3 points are measured; to continue: rooflab sweep --resume" in lines
    assert "node-04: 1 point is failed: no memory" in lines
    assert "node-99: nothing was measured" in lines
    assert "node-00: " not in lines and "node-05: " not in lines
    assert {one.member for one in assess(found).standings} == {name(i) for i in range(6)}


def test_fewer_processes_and_points_than_others(tmp_path: Path) -> None:
    fleet(tmp_path, 3, 2)
    write(tmp_path / "members" / "node-09", rows(np.random.default_rng(2), {})[:1], points=1)
    found = load_fleet(tmp_path)
    (last,) = (member for member in found.members if member.name == "node-09")
    assert last.missing == (
        "1 of 2 processes",
        "without cublas gemm fp16 1x14336x4096, cublas gemm fp16 8192",
    )


@pytest.mark.parametrize("content", [None, "members"])
def test_a_folder_without_members(tmp_path: Path, content: str | None) -> None:
    if content:
        (tmp_path / content).mkdir()
    with pytest.raises(UsageError, match="members"):
        load_fleet(tmp_path)
    with pytest.raises(UsageError, match="has measured anything"):
        load_fleet(tmp_path / "no\0thing")


def test_a_fleet_without_rows(tmp_path: Path) -> None:
    (tmp_path / "members" / "a").mkdir(parents=True)
    with pytest.raises(UsageError, match="nothing to compare"):
        assess(load_fleet(tmp_path))


# Resources ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "title"),
    [
        ({}, "FP16 compute"),
        ({"bound": "dram"}, "DRAM"),
        ({"bound": "dram", "flags": "noisy;l2_resident"}, "L2"),
        ({"bound": "l2"}, "L2"),
        ({"bound": "h2d"}, "PCIe"),
        ({"bound": "d2h_pageable"}, "PCIe"),
        ({"bound": "peer"}, "PEER"),
        ({"bound": ""}, "other points"),
        ({"time_us": 4.0}, "launch"),
        ({"time_us": 4.0, "launch_us": float("inf")}, "FP16 compute"),
        ({"time_us": 4.0, "launch_us": None}, "FP16 compute"),
    ],
)
def test_a_point_accuses_a_resource(change: dict[str, Any], title: str) -> None:
    row = rows(np.random.default_rng(0), {})[0]
    assert accused(replace(row, **change)).title == title


def test_the_members_vote_on_a_resource(tmp_path: Path) -> None:
    found = load_fleet(fleet(tmp_path, 3, 1))
    run = found.members[0].runs[0]
    other = replace(run, measurements=[replace(row, bound="dram") for row in run.measurements])
    changed = Fleet(found.path, (replace(found.members[0], runs=(other,)), *found.members[1:]))
    assert list(resources(changed)) == [Resource("compute", "fp16"), Resource("dram")]
    assert resources(changed) == resources(found)


def test_different_devices_are_not_compared(tmp_path: Path) -> None:
    found = load_fleet(fleet(tmp_path, 4, 3, {3: SLOW}))
    member = found.members[3]
    runs = tuple(synthetic.with_device(run, name="NVIDIA H100") for run in member.runs)
    mixed = assess(Fleet(found.path, (*found.members[:3], replace(member, runs=runs))))
    assert mixed.outliers == []
    assert "FP16 compute of NVIDIA H100" in screen(mixed)


# The verdict -------------------------------------------------------------------------------------


def test_a_slow_member_is_named(tmp_path: Path) -> None:
    found = assess(load_fleet(fleet(tmp_path, slow={3: SLOW})))
    (one,) = found.outliers
    assert (one.member, one.resource) == ("node-03", Resource("compute", "fp16"))
    assert one.finding.verdict == Rating.SLOW
    assert one.level["sm_mhz"] == pytest.approx(1455 / 1.04, rel=0.01)
    assert one.others["sm_mhz"] == pytest.approx(1455, rel=0.01)
    assert one.level["roof_percent"] == pytest.approx(70.8 / 1.04, rel=0.01)
    lines = sentences(found)
    assert lines[0] == "8 members, 2 resources: 1 slow, 0 fast."
    assert lines[1].startswith("node-03 is ")
    assert " slower than the median of the others in FP16 compute; noise between" in lines[1]
    assert "690 W (others 690), 61 °C (others 61)." in lines[1]
    assert next(s.member for s in found.standings) == "node-03"


def test_a_point_that_its_resource_does_not_show(tmp_path: Path) -> None:
    found = load_fleet(fleet(tmp_path, 8, slow={2: {"compute": 0.04}}))
    member = found.members[2]
    runs = []
    for run in member.runs:
        first, *rest = run.measurements
        others = [
            replace(row, time_us=row.time_us / 1.04, time_lo_us=None) if row.time_us else row
            for row in rest
        ]
        runs.append(replace(run, measurements=[first, *others]))
    members = list(found.members)
    members[2] = replace(member, runs=tuple(runs))
    verdict = assess(Fleet(found.path, tuple(members)), 2.5)
    assert [spot.finding.member for spot in verdict.outlying_spots] == ["node-02"]
    assert any("cublas gemm fp16 4096, layout nn (FP16 compute)" in x for x in sentences(verdict))


def test_two_members(tmp_path: Path) -> None:
    lines = sentences(assess(load_fleet(fleet(tmp_path, 2, slow={1: SLOW}))))
    assert lines[0] == "2 members, 2 resources: no outlier."
    (undecided,) = (line for line in lines if line.startswith("Undecided"))
    assert "two members have no majority, so either may be odd: node-01 +" in undecided
    assert "node-00" not in undecided


def test_two_members_without_repeats(tmp_path: Path) -> None:
    lines = sentences(assess(load_fleet(fleet(tmp_path, 2, 1, slow={1: SLOW}))))
    assert "the noise between processes is unknown (use --repeats 3): node-01 +" in lines[1]
    assert lines[-1] == "The noise between processes needs repeats of some members."


def test_one_member(tmp_path: Path) -> None:
    found = assess(load_fleet(fleet(tmp_path, 1, 1)))
    assert sentences(found) == ["1 member, 2 resources: there is nothing to compare with."]
    assert "node-00" in screen(found)
    json.loads(to_json(found))


def test_without_repeats(tmp_path: Path) -> None:
    lines = sentences(assess(load_fleet(fleet(tmp_path, 6, 1))))
    assert lines[0] == "6 members, 2 resources: no outlier."
    assert "shows differences above" in lines[-1]


@pytest.mark.parametrize("threshold", [-1.0, float("nan"), float("inf")])
def test_thresholds_that_make_no_sense(tmp_path: Path, threshold: float) -> None:
    with pytest.raises(UsageError, match="threshold"):
        assess(load_fleet(fleet(tmp_path, 2, 1)), threshold)


# Output ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("processes", [1, 3])
def test_tables_fit_the_screen(tmp_path: Path, width: int, processes: int) -> None:
    found = assess(
        load_fleet(fleet(tmp_path, slow={3: SLOW, 5: {"dram": -0.05}}, processes=processes))
    )
    stream = StringIO()
    for table in tables(found):
        Console(file=stream, width=width).print(table)
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    for i in range(8):
        assert sum(name(i) in line for line in lines) == 2
    assert not any("…  " in line for line in lines)
    assert any("node-03" in line and "SLOW" in line for line in lines)


def test_long_names_stay_apart() -> None:
    names = [f"cluster-rack-7-GPU-{i:08x}-1234-5678-9abc-def012345678" for i in range(20)]
    short = short_names(names)
    assert len(set(short.values())) == 20
    assert max(map(len, short.values())) <= 20
    assert short_names(["a", "b"]) == {"a": "a", "b": "b"}
    assert short_names(["a" * 40]) == {"a" * 40: "a" * 8 + "…"}
    hosts = [f"host{h}-GPU-{g}aaaaaaa-1234-5678" for h in range(3) for g in range(4)]
    assert len(set(short_names(hosts).values())) == 12


def test_even_members_of_a_large_fleet_are_left_out(tmp_path: Path) -> None:
    found = assess(load_fleet(fleet(tmp_path, 12, 2, {11: SLOW})))
    stream = StringIO()
    Console(file=stream, width=80).print(tables(found, most=4)[0])
    text = stream.getvalue()
    assert "node-11" in text and "… 8 more" in text
    assert text.count("node-") == 4


def test_text_from_runs_is_escaped(tmp_path: Path) -> None:
    fleet(tmp_path, 3, 2, {0: SLOW})
    for suffix in ("", ".2"):
        folder = tmp_path / "members" / f"node-00{suffix}"
        folder.rename(folder.with_name(f"[red]x[bold]\x1b[31m{suffix}"))
    text = screen(assess(load_fleet(tmp_path)))
    assert "[red]x[bold]" in text
    assert "\x1b" not in text


ABSURD: dict[str, Any] = {
    "time_lo_us": float("nan"),
    "time_hi_us": -1.0,
    "roof_percent": float("inf"),
    "tflops": float("nan"),
    "gbps": -5.0,
    "sm_mhz": 1e300,
    "power_w": float("nan"),
    "temp_c": -1e9,
    "launch_us": float("inf"),
}


@pytest.mark.parametrize("time_us", [0.0, -1.0, float("inf"), float("nan"), 1e14])
def test_damaged_files_do_no_harm(tmp_path: Path, time_us: float) -> None:
    whole = load_fleet(fleet(tmp_path, slow={3: SLOW}))
    member = whole.members[1]
    runs = [
        replace(run, measurements=[replace(x, time_us=time_us, **ABSURD) for x in run.measurements])
        for run in member.runs
    ]
    damaged = replace(member, runs=tuple(runs))
    found = assess(Fleet(whole.path, (whole.members[0], damaged, *whole.members[2:])))
    accused = {one.member for one in found.outliers}
    assert accused - {"node-01"} == {"node-03"}
    assert ("node-01" in accused) == (time_us == 1e14)
    lines = screen(found).splitlines()
    end = next(i for i, line in enumerate(lines) if " members, 2 resources" in line)
    assert max(map(len, lines[:end])) <= 80
    json.loads(to_json(found))


def test_impossible_parameters_do_no_harm(tmp_path: Path) -> None:
    folder = fleet(tmp_path, slow={3: SLOW})
    for path in sorted((folder / "members").iterdir())[:4]:
        table = path / MEASUREMENTS
        lines = table.read_text().splitlines(keepends=True)
        alpha = lines[0].split(",").index("alpha")
        cells = lines[1].split(",")
        cells[alpha] = "nan"
        table.write_text("".join([lines[0], ",".join(cells), *lines[2:]]))
    found = assess(load_fleet(folder))
    assert [one.member for one in found.outliers] == ["node-03"]
    json.loads(to_json(found))
    assert screen(found)


def beside(folder: Path, cost: float) -> Fleet:
    """Four members, three processes alone and one together with all, which costs node-02 more."""
    fleet(folder, 4, processes=3)
    random = np.random.default_rng(1)
    for i in range(4):
        slow = {"compute": cost if i == 2 else 0.0}
        write(folder / "members" / f"{name(i)}.together", rows(random, slow))
        write(folder / "members" / f"{name(i)}.with-cuda-1", rows(random, {}))
    return load_fleet(folder)


def test_what_neighbours_cost(tmp_path: Path) -> None:
    found = beside(tmp_path, 0.05)
    together = [one for one in costs(found) if one.phase == "together"]
    assert len(together) == 2 * 4  # resources and members
    worst = max(together, key=lambda one: one.difference)
    assert (worst.member, worst.resource.title) == (name(2), "FP16 compute")
    assert worst.low is not None and worst.high is not None
    assert worst.low < 0.05 < worst.high
    assert worst.proven
    mhz, alone, *_ = worst.sensors.values()
    assert mhz is not None and alone is not None
    assert mhz < alone
    assert sum(one.proven for one in costs(found)) <= 3  # one in twenty of the others by chance
    text = screen(assess(found))
    assert "all together, against alone" in text
    assert f"All together, FP16 compute on {name(2)}: +" in text
    assert "With cuda-1: no change beyond the noise." in text
    assert len(json.loads(to_json(assess(found)))["phases"]) == len(costs(found))


def test_phases_without_repeats_have_no_interval(tmp_path: Path) -> None:
    fleet(tmp_path, 2, processes=1)
    write(tmp_path / "members" / f"{name(0)}.together", rows(np.random.default_rng(1), {}))
    assert [(one.member, one.low, one.proven) for one in costs(load_fleet(tmp_path))] == [
        (name(0), None, False),
        (name(0), None, False),
    ]


def test_json_has_everything(tmp_path: Path) -> None:
    found = assess(load_fleet(fleet(tmp_path, slow={3: SLOW})))
    content = json.loads(to_json(found))
    (one,) = content["outliers"]
    assert (one["member"], one["resource"], one["verdict"]) == ("node-03", "FP16 compute", "SLOW")
    assert one["sentence"] == content["sentences"][1]
    assert len(content["resources"]) == 16 and len(content["points"]) == 24
    first = content["resources"][0]
    assert first["low"] < first["difference"] < first["high"]
    assert first["noise"]["repeats"] < 0.01
    assert first["level"]["power_w"] == 690
    assert content["members"][0] == {"name": "node-00", "processes": 3, "missing": []}
    assert content["points"][0]["parameters"]["m"] == 4096
