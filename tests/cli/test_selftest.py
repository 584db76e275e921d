"""selftest: its output, what it concludes from figures, what it finds on an exact device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import fake
import pytest
from commands import Rooflab

from rooflab import selftest
from rooflab.devices.base import Reading, Timed
from rooflab.devices.registry import open_device
from rooflab.errors import UsageError
from rooflab.functions.selftest import cold, judge_cold
from rooflab.kernels.base import Kernel
from rooflab.kernels.registry import Registry
from rooflab.measure.statistics import Summary
from rooflab.selftest import Property, verdict


def select(*names: str) -> list[Kernel]:
    return fake.KERNELS.select(names, "exact", "gemm")


(FAST,) = select("fast")


def test_selftest(rooflab: Rooflab) -> None:
    code, out, err = rooflab("selftest", "--device", "fake:FakeDevice")
    assert (code, err) == (0, "")
    assert out == EXPECTED


EXPECTED = """\
Exact 1000 (fake:FakeDevice), kernel fast

  check         measured                                  limit         result
 ──────────────────────────────────────────────────────────────────────────────
  gate          not needed                                –             –
  timer floor   an empty launch takes 0.00 µs alone,      10 µs         passed
                0.00 µs in a batch; timed one by one
                from 500 µs on
  clocks        no sensors                                –             –
  A/A fp32 64   0.00 % apart; intervals of ±0.00 %        0.5 %; ±5 %   passed
                overlap
  cold cache    rotated 655.4 µs, flushed 655.4 µs:       5 %           passed
                +0.0 %

differences of 0.1 % or more can be resolved here, within one sweep"""


def test_a_kernel_that_is_wrong(rooflab: Rooflab, monkeypatch: pytest.MonkeyPatch) -> None:
    (wrong,) = select("wrong")
    monkeypatch.setattr(selftest, "choose", lambda device, registry: wrong)
    code, out, _ = rooflab("selftest", "--device", "fake:FakeDevice")
    assert code == 1
    assert "failed" in out
    assert out.splitlines()[-1] == "not fit to compare kernels (A/A fp32 64): see: rooflab doctor"


def test_a_device_that_is_not_there(rooflab: Rooflab) -> None:
    code, out, err = rooflab("selftest", "--device", "gpu")
    assert (code, out) == (2, "")
    assert err.startswith("error: unknown device 'gpu'")


def summary(median: float, half: float) -> Summary:
    return Summary(320, 10, median, median - half, median + half, median, median, median)


@pytest.mark.parametrize(
    ("a", "b", "ok", "found", "resolution"),
    [
        ((100, 0.3), (100.2, 0.1), True, "0.20 % apart; intervals of ±0.30 % overlap", 0.3),
        ((100, 0.1), (100.4, 0.35), True, "0.40 % apart; intervals of ±0.35 % overlap", 0.4),
        ((100, 1), (100.6, 1), False, "0.60 % apart; intervals of ±1.00 % overlap", 1.0),
        ((100, 0.1), (100.4, 0.1), False, "0.40 % apart; intervals of ±0.10 % do not overlap", 0.4),
        ((100, 6), (100, 1), False, "0.00 % apart; intervals of ±6.00 % overlap", 6.0),
        # One step of a timer that ticks.
        ((100, 0), (100.05, 0), True, "0.05 % apart; intervals of ±0.00 % overlap", 0.05),
    ],
)
def test_a_kernel_against_itself(
    a: tuple[float, float], b: tuple[float, float], ok: bool, found: str, resolution: float
) -> None:
    for one, other in ((a, b), (b, a)):
        check = selftest.judge_same("A/A", summary(*one), summary(*other))
        assert (check.ok, check.found) == (ok, found)
        assert check.resolution == pytest.approx(resolution)


def test_cold_cache() -> None:
    assert selftest.judge_cache(104.9, 100).ok
    check = selftest.judge_cache(90, 100)
    assert check.ok is False
    assert check.found == "rotated 90.0 µs, flushed 100.0 µs: -10.0 %"


def test_timer_floor() -> None:
    check = selftest.judge_floor(3.2, 1.3, 500)
    assert check.ok
    assert check.found.endswith("timed one by one from 500 µs on")
    assert selftest.judge_floor(11, 1.3, 20).ok is False


def test_gate() -> None:
    assert selftest.judge_gate(True, 5.6, 15).ok
    assert selftest.judge_gate(True, 15, 15).ok is False
    check = selftest.judge_gate(False, 5.6, 15)
    assert check.ok is False
    assert "did not wait" in check.found
    assert "CUDA_LAUNCH_BLOCKING" in check.remedy


def test_clocks() -> None:
    steady = [Reading(sm_mhz=mhz, power_w=mhz / 4) for mhz in (1900, 1980, 1980)]
    check = selftest.judge_clocks(steady)
    assert check.ok
    assert check.found == "SM 1900/1980/1980 MHz, 475/495/495 W, no power cap"
    capped = [replace(steady[0], reasons=frozenset({"sw_power_cap"})), steady[1]]
    check = selftest.judge_clocks(capped)
    assert check.ok
    assert check.found.endswith("power cap active 50 % of the time")
    assert selftest.judge_clocks([]).found == "no sensors"
    assert selftest.judge_clocks([Reading(power_w=100)]).ok is None


def test_clocks_that_move_and_clocks_held_down() -> None:
    check = selftest.judge_clocks([Reading(sm_mhz=1700), Reading(sm_mhz=1980)])
    assert check.ok is False
    assert check.remedy.startswith("wait until the GPU is idle")
    check = selftest.judge_clocks([Reading(sm_mhz=1980, reasons=frozenset({"hw_thermal"}))])
    assert check.ok is False
    assert check.found == "SM 1980/1980/1980 MHz, no power cap, throttled: hw_thermal"
    assert check.remedy.startswith("check the GPU's cooling")


def test_verdict_names_what_can_be_told_apart() -> None:
    good = [Property("gate", "not needed"), Property("x", "", ok=True, resolution=0.1)]
    worst = Property("y", "", ok=True, resolution=0.21)
    assert verdict([*good, worst]) == (
        True,
        "differences of 0.3 % or more can be resolved here, within one sweep",
    )
    assert verdict([replace(worst, resolution=0.3)])[1].startswith("differences of 0.3 %")
    assert verdict([replace(worst, resolution=0.0)])[1].startswith("differences of 0.1 %")


def test_verdict_says_what_is_wrong_and_each_remedy_once() -> None:
    checks = [
        Property("gate", "", ok=True),
        Property("A/A fp32 1024", "", ok=False, remedy="close it", resolution=3.0),
        Property("cold cache", "", ok=False, remedy="close it"),
        Property("clocks", "", ok=False, remedy="cool it"),
    ]
    assert verdict(checks) == (
        False,
        "not fit to compare kernels (A/A fp32 1024, cold cache, clocks): close it; cool it",
    )


def test_verdict_without_a_measurement() -> None:
    passed, sentence = verdict([Property("A/A fp32 64", "skipped: needs 9 GB")])
    assert not passed
    assert sentence.startswith("not fit")


def test_a_wrong_kernel_and_one_that_cannot_be_built_are_findings() -> None:
    (wrong, broken) = select("wrong", "broken")
    same = {c.name: c for c in selftest.run(fake.FakeDevice(), wrong)}["A/A fp32 64"]
    assert same.ok is False
    assert same.found.startswith("incorrect: ")
    checks = {c.name: c for c in selftest.run(fake.FakeDevice(), broken)}
    assert checks["clocks"].found == 'broken.cu(3): error: identifier "x" is undefined'
    assert not verdict(list(checks.values()))[0]


class Biased(fake.FakeDevice):
    """After a flush of the cache its kernels take ``flushed_share`` of their time."""

    flushed_share = 1.0

    def time(
        self, launches: Sequence[Callable[[], None]], before: Callable[[], None] | None = None
    ) -> Timed:
        share = self.flushed_share if before else 1.0
        return Timed([share * time_us for time_us in super().time(launches, before).times_us])


def test_a_flush_that_costs_a_tenth_is_noticed() -> None:
    device = Biased()
    device.flushed_share = 1.1
    checks = {check.name: check for check in selftest.run(device, FAST)}
    assert checks["cold cache"].ok is False
    assert checks["A/A fp32 64"].ok


def test_too_little_memory_to_rotate_is_no_failure() -> None:
    device = fake.FakeDevice()
    device.memory = 400_000
    checks = {check.name: check for check in selftest.run(device, FAST)}
    assert checks["cold cache"].found == "not compared: too little memory to rotate"
    assert checks["cold cache"].ok is None


class Sensed(fake.FakeDevice):
    """Has sensors, and the gate of a GPU, which it can be told not to honour."""

    stream = object()
    gated = True

    def time(
        self, launches: Sequence[Callable[[], None]], before: Callable[[], None] | None = None
    ) -> Timed:
        times = super().time(launches, before).times_us
        return Timed(times, self.gated, Reading(sm_mhz=1980, power_w=500))

    def time_batch(
        self,
        launches: Sequence[Callable[[], None]],
        before: Callable[[], None] | None = None,
        *,
        sense: bool = True,
    ) -> Timed:
        return replace(super().time_batch(launches), reading=Reading(sm_mhz=1980, power_w=500))


def test_nothing_is_tried_behind_a_broken_gate() -> None:
    device = Sensed()
    device.gated = False
    (check,) = selftest.run(device, FAST)
    assert (check.name, check.ok) == ("gate", False)


def test_sensors_are_read_while_it_works() -> None:
    clocks = selftest._clocks(Sensed(), FAST, selftest.SHORT, 0)
    assert clocks.found == "SM 1980/1980/1980 MHz, 500/500/500 W, no power cap"


def test_choosing_a_kernel() -> None:
    device = fake.FakeDevice()
    assert selftest.choose(device, fake.KERNELS) is FAST
    device.kind = "cpu"
    first = replace(FAST, name="first", device_kind="cpu")
    blas = replace(first, name="blas", library=True)
    assert selftest.choose(device, Registry([first, blas])) is blas
    (absent,) = select("absent")
    with pytest.raises(UsageError, match="no kernel can run on fake:FakeDevice"):
        selftest.choose(fake.FakeDevice(), Registry([absent]))


@pytest.mark.parametrize(("cold_us", "ok"), [(10.5, True), (10.4, False)])
def test_a_cold_function_is_slower(cold_us: float, ok: bool) -> None:
    check = judge_cold(2**21, cold_us, 10.0)
    assert check.ok == ok
    assert check.found == f"-x of 2.1 MB takes {cold_us:g} µs cold, 10 µs warm"


def test_functions_are_cold_here() -> None:
    check = cold(open_device("cpu"))
    assert check.ok is not None or "unknown size" in check.found
    assert "takes" in check.found or "unknown size" in check.found
