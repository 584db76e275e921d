"""sweep --threads: a run for each number of threads, one after the other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import Rooflab, joined

from rooflab import api, engine
from rooflab.devices.base import Device
from rooflab.devices.cpu.device import CpuDevice
from rooflab.errors import UsageError
from rooflab.options import Chosen
from rooflab.planning import Plan
from rooflab.runs import store

ADD = ("sweep", "add", "-k", "numpy", "--sizes", "1000", "-p", "fp32", "--device", "cpu")
FAST = ("sweep", "-k", "fast", "-p", "fp32", "--sizes", "32")
EVERY = int(CpuDevice().fact("threads") or 1)
"""Threads of ``all``."""


def with_threads(plan: Plan, threads: int | None) -> Plan:
    return replace(plan, config=plan.config.model_copy(update={"threads": threads}))


@pytest.fixture
def interrupted() -> set[int]:
    """The numbers of threads at which Ctrl-C is typed."""
    return set()


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch, interrupted: set[int]) -> list[int | None]:
    """An exact device that takes any number of threads; the list has those that have begun."""
    make_plan, execute, begun = api.make_plan, engine.execute, []

    def planned(given: Chosen, device: str) -> tuple[Plan, Device]:
        others = {name: value for name, value in given.options.items() if name != "threads"}
        plan, target = make_plan(given._replace(options=others), device)
        return with_threads(plan, given.options.get("threads")), target

    def executed(plan: Plan, *arguments: Any, **words: Any) -> store.RunData:
        begun.append(plan.config.threads)
        if plan.config.threads in interrupted:
            raise KeyboardInterrupt
        return execute(with_threads(plan, None), *arguments, **words)

    monkeypatch.setattr(api, "make_plan", planned)
    monkeypatch.setattr(engine, "execute", executed)
    return begun


def folders() -> list[str]:
    return sorted(map(str, Path("results").glob("*")), key=lambda path: (len(path), path))


def test_each_value_is_a_run_and_the_command_to_compare_them_comes_last(
    rooflab: Rooflab, cores: list[int | None]
) -> None:
    code, out, err = rooflab(
        "sweep", "-k", "fast", "-p", "fp32", "--sizes", "32", "--threads", "1,3"
    )
    assert (code, cores) == (0, [1, 3])
    assert [line for line in out.splitlines() if "thread" in line] == ["1 thread", "3 threads"]
    assert err.splitlines()[-1] == (
        f"compare them, a GPU's run last: rooflab compare {' '.join(folders())}"
    )


def test_one_value_is_a_run_as_ever(rooflab: Rooflab, cores: list[int | None]) -> None:
    code, out, err = rooflab(*FAST, "--threads", "2,2", "--threads", "2")
    assert (code, cores) == (0, [2])
    assert "thread" not in out + err


def test_a_wrong_kernel_fails_every_run_and_the_command(
    rooflab: Rooflab, cores: list[int | None]
) -> None:
    code, _, _ = rooflab("sweep", "-k", "nan", "-p", "fp32", "--sizes", "32", "--threads", "1,2")
    assert (code, cores, len(folders())) == (3, [1, 2], 2)


def test_an_interrupt_ends_them_all(
    rooflab: Rooflab, cores: list[int | None], interrupted: set[int]
) -> None:
    interrupted.add(2)
    code, _, err = rooflab(*FAST, "--threads", "1,2,3,4")
    assert (code, cores) == (130, [1, 2])
    assert err.splitlines()[-2:] == [
        "error: interrupted before anything was measured",
        "warning: not measured: 3 and 4 threads",
    ]


def test_all_is_one_per_core_and_counts_once(rooflab: Rooflab) -> None:
    code, out, _ = rooflab(*ADD, "--threads", f"{EVERY},all", "--dry-run")
    assert code == 0
    assert "runs" not in joined(out)
    several = {1, EVERY}
    code, out, _ = rooflab(*ADD, "--threads", "1,all", "--dry-run")
    assert code == 0
    wanted = (
        f"2 runs, with 1 and {EVERY} threads; each: 1 point; " if len(several) > 1 else "1 point;"
    )
    assert wanted in joined(out)
    assert not Path("results").exists()


@pytest.mark.parametrize("value", ["", "x", "1,", "1.5", "one", "9" * 5000, "²"])
def test_what_is_no_number_gets_one_line(rooflab: Rooflab, value: str) -> None:
    code, out, err = rooflab(*ADD, "--threads", value)
    assert (code, out) == (2, "")
    assert err.startswith("error: --threads '")
    assert err.endswith("': give a number, or all")


@pytest.mark.parametrize("value", ["0", "-1", "1,4096", "all,0"])
def test_too_few_and_too_many_get_one_line_before_anything_runs(
    rooflab: Rooflab, value: str
) -> None:
    code, out, err = rooflab(*ADD, f"--threads={value}")
    assert (code, out) == (2, "")
    assert f"error: --threads {value.split(',')[-1]}: this process may use" in joined(err)
    assert not Path("results").exists()


@pytest.mark.parametrize("value", ["all", "1", "1,2"])
def test_other_devices_have_no_threads(rooflab: Rooflab, value: str) -> None:
    code, _, err = rooflab("sweep", "-k", "fast", "--threads", value)
    assert (code, err) == (2, "error: --threads is for --device cpu, not for fake:FakeDevice")


def test_a_run_is_continued_with_its_own_threads(rooflab: Rooflab) -> None:
    code, _, err = rooflab("sweep", "--resume", "run", "--threads", "1,2")
    assert code == 2
    assert "--resume uses the run's settings" in err


def test_threads_of_a_file_are_those_of_the_device() -> None:
    Path("mine.toml").write_text('workload = "add"\nsizes = 1000\n[cpu]\nthreads = 1\n')
    _, device = api.make_plan(Chosen("add", "mine.toml", {}), "cpu")
    assert device.fact("threads") == 1
    _, device = api.make_plan(Chosen("add", "mine.toml", {"threads": EVERY}), "cpu")
    assert device.fact("threads") == EVERY


@pytest.mark.parametrize(("threads", "count"), [("all", EVERY), (1, 1), ("1", 1), (None, None)])
def test_python_takes_a_number_or_all(
    monkeypatch: pytest.MonkeyPatch, threads: int | str | None, count: int | None
) -> None:
    class PlannedError(Exception):
        pass

    def execute(plan: Plan, *arguments: object) -> None:
        raise PlannedError(plan.config.threads)

    monkeypatch.setattr(engine, "execute", execute)
    with pytest.raises(PlannedError) as planned:
        api.sweep("add", kernels="numpy", sizes=1000, device="cpu", threads=threads)
    assert planned.value.args == (count,)


@pytest.mark.parametrize("threads", [[1, 2], 1.5, True, "many"])
def test_python_refuses_anything_else(threads: Any) -> None:
    with pytest.raises(UsageError, match="give a number, or all"):
        api.sweep("add", kernels="numpy", sizes=1000, device="cpu", threads=threads)


@pytest.mark.slow
def test_a_cpu_is_measured_with_each_number_of_threads(rooflab: Rooflab) -> None:
    assert rooflab(*ADD, "--rounds", "3", "--threads", "1,all")[0] == 0
    runs = [store.load(Path(folder)) for folder in folders()]
    facts = [run.manifest.device.facts["threads"].value for run in runs]
    assert facts == list(dict.fromkeys([1, EVERY]))
    assert [run.manifest.config["threads"] for run in runs] == facts
