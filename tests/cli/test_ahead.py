"""Processes that are started before the plan is made: used by the first jobs, or ended."""

from __future__ import annotations

import threading
from pathlib import Path

import psutil
import pytest

from rooflab.config import SweepConfig
from rooflab.worker import process
from rooflab.worker.messages import Done, Job
from rooflab.worker.printed import Printed

JOB = Job("cpu", SweepConfig())


def children() -> set[int]:
    found = psutil.Process().children()
    return {one.pid for one in found if one.status() != psutil.STATUS_ZOMBIE}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, starting: object) -> None:
    """A file that shows a driver is there; processes are real."""
    monkeypatch.setattr(process, "NVIDIA", ("/dev/null",))
    monkeypatch.setattr(process, "allowed_cpus", lambda: frozenset(range(2)))
    monkeypatch.setattr(starting, "real", True)


@pytest.mark.usefixtures("driver")
def test_the_first_job_takes_it(tmp_path: Path) -> None:
    before = children()
    printed = Printed(tmp_path / "printed.txt")
    with process.ahead("auto"):
        (started,) = children() - before
        first = process.begin(JOB, printed)
        assert children() - before == {started}
        second = process.begin(JOB, printed)
        assert len(children() - before) == 2
        for one in (first, second):
            assert isinstance(one.receive(process.START_S), Done)
    assert started in children()  # whoever has it ends it
    for one in (first, second):
        one.kill()
    assert children() == before


@pytest.mark.parametrize(("cpus", "count"), [(1, 1), (6, 2), (100, 6)])
@pytest.mark.usefixtures("driver")
def test_a_third_of_the_processors_start_one_each(
    cpus: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "allowed_cpus", lambda: frozenset(range(cpus)))
    before = children()
    with process.ahead("auto"):
        assert len(children() - before) == count
        process.end_ahead()
        assert children() == before


@pytest.mark.usefixtures("driver")
def test_nobody_takes_it_without_its_environment() -> None:
    before = children()
    with process.ahead("cuda:0"):
        (unused,) = children() - before
        other = process.begin(Job("cpu", SweepConfig(), environment={"ROOFLAB": "1"}), None)
        (taken,) = children() - before - {unused}
        process.end_ahead()  # nobody will take it
        assert children() - before == {taken}
        other.kill()
    assert children() == before


@pytest.mark.usefixtures("driver")
def test_a_users_file_may_change_what_it_would_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    before = children()
    with process.ahead("auto"):
        with process.loading():
            pass
        assert len(children() - before) == 1
        with process.loading():
            monkeypatch.setenv("ROOFLAB_TEST", "1")
        assert children() == before


@pytest.mark.usefixtures("driver")
def test_each_thread_has_its_own() -> None:
    before = children()
    with process.ahead("auto"):
        one = children() - before
        other = threading.Thread(target=_start_and_end)
        other.start()
        other.join()
        assert children() - before == one


def _start_and_end() -> None:
    with process.ahead("auto"):
        pass


def test_what_cannot_start_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch, starting: object
) -> None:
    def fails(*command: object, **how: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(starting, "Popen", fails)
    known = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(EOFError, match="Permission denied"):
            process.Process({})
    assert len(list(Path("/proc/self/fd").iterdir())) == known


@pytest.mark.parametrize("device", ["cpu", "fake:Exact", "all", "cuda:0,cuda:1", "cudalike:D"])
@pytest.mark.usefixtures("driver")
def test_other_devices_do_not_need_it(device: str) -> None:
    before = children()
    with process.ahead(device):
        assert children() == before


def test_nor_does_a_machine_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "NVIDIA", ("/nowhere",))
    before = children()
    with process.ahead("auto"):
        assert children() == before
