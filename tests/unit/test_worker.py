"""Several processes start, one measures."""

from __future__ import annotations

import pytest
import synthetic

from rooflab.config import SweepConfig
from rooflab.errors import RooflabError
from rooflab.measure import worker as workers
from rooflab.measure.messages import Job
from rooflab.measure.process import module_path
from rooflab.measure.worker import Worker

CONFIG = SweepConfig.model_validate(
    {"timing": {"warmup_s": 0, "warmup_launches": 1, "min_rounds": 3, "max_rounds": 3}}
)
PROBLEM = synthetic.gemm(8, 8, 8).record


def worker(candidates: int = 1, device: str = "fake:FakeDevice") -> Worker:
    return Worker(Job(device, CONFIG, path=module_path(), candidates=candidates), lambda *_: None)


def test_the_process_with_the_shortest_empty_launch_measures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKE_LAUNCHES_DIFFER", "1")
    with worker(candidates=3) as measuring:
        (outcome,) = measuring.measure(PROBLEM, ["fast"])
        ((*launches_us,),) = measuring.launches_us
    assert outcome.status == "ok"
    assert len(set(launches_us)) == 3
    assert outcome.launch_us == min(launches_us)


def test_a_single_process_is_not_probed() -> None:
    with worker() as measuring:
        (outcome,) = measuring.measure(PROBLEM, ["fast"])
    assert (outcome.status, measuring.launches_us) == ("ok", [])


def test_a_kernel_that_kills_the_process_costs_its_own_row() -> None:
    with worker() as measuring:
        died, fine = measuring.measure(PROBLEM, ["dies", "fast"])
    assert (died.status, died.summary) == ("failed", None)
    assert "the measuring process died of SIGSEGV while verifying" in died.reason
    assert (fine.kernel, fine.status) == ("fast", "ok")


def test_a_device_that_cannot_be_opened_says_so() -> None:
    with (
        worker(device="fake:NoSuchDevice") as measuring,
        pytest.raises(RooflabError, match="no device fake:NoSuchDevice"),
    ):
        measuring.roofline()


def test_processes_that_are_ready_are_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a machine's first run, which measures its levels in between."""
    monkeypatch.setattr(workers, "START_S", 5)
    with worker(candidates=2) as measuring:
        measuring.begin()
        measuring.ready()
        assert measuring.roofline().ceilings
        ((*launches_us,),) = measuring.launches_us
    assert len(launches_us) == 2
