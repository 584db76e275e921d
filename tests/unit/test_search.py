"""Variants race on a device whose clock says exactly how fast each is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import fake
import pytest
from rooflab.device import Device
from rooflab.problem import Problem

from rooflab.config import SweepConfig, Timing
from rooflab.errors import KernelError
from rooflab.measure import search
from rooflab.measure.buffers import Operands
from rooflab.measure.protocol import Outcome, Protocol
from rooflab.registry import Kernel, Launch, Variant

PROBLEM = Problem(32, 32, 32)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROOFLAB_CACHE_DIR", str(tmp_path))
    return tmp_path


class Lab:
    """Variants that write down when they are compiled and prepared."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.prepared: list[str] = []

    def variant(
        self, name: str, share: float = 0.5, *, broken: str = "", least_m: int = 0
    ) -> Variant:
        kernel = fake.exact(name, share)

        def build(device: Device, problem: Problem) -> None:
            self.compiled.append(name)
            if broken == "compile":
                raise KernelError(f"{name} does not compile")

        def prepare(device: Device, operands: Operands) -> Launch:
            self.prepared.append(name)
            if broken == "prepare":
                raise KernelError(f"{name} cannot be launched")
            return kernel.prepare(device, operands)

        def objection(problem: Problem) -> str:
            return f"{name} needs M >= {least_m}" if problem.m < least_m else ""

        return Variant(name, prepare, build, objection)

    def measure(self, *variants: Variant, problem: Problem = PROBLEM) -> Outcome:
        self.compiled.clear()
        self.prepared.clear()
        kernel = Kernel(
            "many", "exact", "exact", "", ("fp32",), variants[0].prepare, variants=variants
        )
        timing = Timing(warmup_s=0, warmup_launches=1, min_rounds=2, max_rounds=2)
        protocol = Protocol(fake.FakeDevice(), SweepConfig(timing=timing))
        (outcome,) = protocol.measure(problem, [kernel])
        return outcome


def test_variants_rest_after_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr(search, "sleep", rests.append)
    lab = Lab()
    lab.measure(lab.variant("slow", 1e-6), lab.variant("fast", 0.8))
    assert len(rests) == 2 * (search.ROUNDS + 1)
    assert max(rests) == search.MOST_REST_S
    assert min(rests) == pytest.approx(search.REST * search.ROUND_US * 1e-6, rel=0.05)


def test_the_fastest_variant_is_measured_and_named() -> None:
    lab = Lab()
    variants = [lab.variant("slow", 0.2), lab.variant("fast", 0.8), lab.variant("medium", 0.5)]
    outcome = lab.measure(*variants)
    assert (outcome.status, outcome.variant) == ("ok", "fast")
    assert sorted(lab.compiled) == ["fast", "medium", "slow"]
    assert outcome.summary is not None
    roofline = fake.FakeDevice().roofline(measure=True)
    assert outcome.summary.median == pytest.approx(
        PROBLEM.flops / (0.8 * (roofline.attainable("fp32", PROBLEM.intensity) or 0)) * 1e6
    )


def test_the_answer_is_remembered_by_problem(cache: Path) -> None:
    lab = Lab()
    variants = [lab.variant("slow", 0.2), lab.variant("fast", 0.8)]
    lab.measure(*variants)
    (record,) = (cache / "variants").iterdir()
    assert set(json.loads(record.read_text())["times_us"]) == {"slow", "fast"}
    assert lab.measure(*variants).variant == "fast"
    assert (lab.compiled, set(lab.prepared)) == ([], {"fast"})
    lab.measure(*variants, problem=replace(PROBLEM, m=33))
    assert sorted(lab.compiled) == ["fast", "slow"]
    record.write_text("{")
    assert lab.measure(*variants).variant == "fast"
    assert sorted(lab.compiled) == ["fast", "slow"]


@pytest.mark.parametrize("broken", ["compile", "prepare"])
def test_a_variant_that_does_not_work_loses(broken: str) -> None:
    lab = Lab()
    outcome = lab.measure(lab.variant("bad", 0.9, broken=broken), lab.variant("good", 0.3))
    assert (outcome.status, outcome.variant) == ("ok", "good")


def test_none_works() -> None:
    lab = Lab()
    outcome = lab.measure(lab.variant("a", broken="compile"), lab.variant("b", broken="compile"))
    assert outcome.status == "failed"
    assert outcome.reason.startswith("none of the 2 variants of many works on 32x32x32; the first:")


def test_objections_leave_variants_out() -> None:
    lab = Lab()
    variants = [lab.variant("large", 0.9, least_m=64), lab.variant("any", 0.1)]
    assert lab.measure(*variants).variant == "any"
    assert lab.compiled == ["any"]
    outcome = lab.measure(lab.variant("large", least_m=64), lab.variant("larger", least_m=128))
    assert (outcome.status, outcome.reason) == ("skipped", "large needs M >= 64")
