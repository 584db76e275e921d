"""Several processes start, one measures."""

from __future__ import annotations

import pytest
from rooflab.problem import Problem

from rooflab.config import SweepConfig
from rooflab.measure.worker import Job, Worker

CONFIG = SweepConfig.model_validate(
    {"timing": {"warmup_s": 0, "warmup_launches": 1, "min_rounds": 2, "max_rounds": 2}}
)


def test_the_process_with_the_shortest_empty_launch_measures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKE_LAUNCHES_DIFFER", "1")
    job = Job("fake:FakeDevice", CONFIG, candidates=3)
    with Worker(job, lambda *_: None) as worker:
        (outcome,) = worker.measure(Problem(8, 8, 8), ["fast"])
        ((*launches_us,),) = worker.launches_us
    assert outcome.status == "ok"
    assert len(set(launches_us)) == 3
    assert outcome.launch_us == min(launches_us)


def test_a_single_process_is_not_probed() -> None:
    with Worker(Job("fake:FakeDevice", CONFIG), lambda *_: None) as worker:
        (outcome,) = worker.measure(Problem(8, 8, 8), ["fast"])
    assert (outcome.status, worker.launches_us) == ("ok", [])
