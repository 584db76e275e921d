"""Variants race on a device whose clock says exactly how fast each is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import fake
import psutil
import pytest
from synthetic import gemm

from rooflab.config import SweepConfig, Timing
from rooflab.devices.base import Device, Launch, Reading, Timed
from rooflab.errors import KernelError
from rooflab.kernels.base import Kernel, Operands, Variant
from rooflab.measure import search
from rooflab.measure.buffers import rotate
from rooflab.measure.protocol import Outcome, Protocol
from rooflab.model.problem import Problem

PROBLEM = gemm(32, 32, 32)


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

        def unsupported(problem: Problem) -> str:
            return f"{name} needs M >= {least_m}" if problem.extents["m"] < least_m else ""

        return Variant(name, prepare, build, unsupported)

    def measure(
        self,
        *variants: Variant,
        problem: Problem = PROBLEM,
        own_clock_s: float = 0.3,
        **more: Any,
    ) -> Outcome:
        self.compiled.clear()
        self.prepared.clear()
        kernel = Kernel(
            "many", "exact", "exact", "", ("fp32",), variants[0].prepare, variants=variants
        )
        timing = Timing(
            warmup_s=0, warmup_launches=1, own_clock_s=own_clock_s, min_rounds=3, max_rounds=3
        )
        config = SweepConfig.model_validate({"timing": timing, **more})
        protocol = Protocol(fake.FakeDevice(), config)
        (outcome,) = protocol.measure(problem, [kernel])
        return outcome


@pytest.fixture(autouse=True)
def rests(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the device was given to cool, which no test waits for."""
    rested: list[float] = []
    monkeypatch.setattr(search, "sleep", rested.append)
    return rested


def test_variants_rest_after_each_round(rests: list[float]) -> None:
    lab = Lab()
    lab.measure(lab.variant("slow", 1e-6), lab.variant("fast", 0.8))
    assert len(rests) == search.ROUNDS + 1 + 2  # the slow one leaves after its first round
    assert max(rests) == search.MOST_REST_S
    assert min(rests) == pytest.approx(search.REST * search.ROUND_US * 1e-6, rel=0.05)


def test_the_fastest_variant_is_measured_and_named() -> None:
    lab = Lab()
    variants = [lab.variant("slow", 0.2), lab.variant("fast", 0.8), lab.variant("medium", 0.5)]
    outcome = lab.measure(*variants)
    assert (outcome.status, outcome.variant) == ("ok", "fast")
    assert sorted(lab.compiled) == ["fast", "medium", "slow"]
    assert outcome.summary is not None
    roofline = fake.FakeDevice().roofline()
    roof = roofline.roof("fp32", PROBLEM.flops, PROBLEM.traffic)
    assert roof is not None
    assert outcome.summary.median == pytest.approx(roof.us / 0.8)


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


def test_the_answer_is_of_one_clock(cache: Path) -> None:
    """Winners at the clock of other variants do not count at their own."""
    lab = Lab()
    variants = [lab.variant("slow", 0.2), lab.variant("fast", 0.8)]
    lab.measure(*variants, own_clock_s=0)
    lab.measure(*variants)
    assert sorted(lab.compiled) == ["fast", "slow"]


def test_the_search_can_be_made_again(cache: Path) -> None:
    lab = Lab()
    variants = [lab.variant("slow", 0.2), lab.variant("fast", 0.8)]
    lab.measure(*variants)
    (record,) = (cache / "variants").iterdir()
    record.write_text('{"times_us": {"slow": 1, "fast": 2}}')
    assert lab.measure(*variants).variant == "slow"
    assert lab.measure(*variants, retune=True).variant == "fast"
    assert lab.measure(*variants).variant == "fast"


def test_variants_by_name(cache: Path) -> None:
    lab = Lab()
    variants = [
        lab.variant(name, share) for name, share in (("a 1", 0.2), ("a 2", 0.3), ("b", 0.8))
    ]
    assert lab.measure(*variants, variant=["a*"]).variant == "a 2"
    assert lab.measure(*variants).variant == "b"
    outcome = lab.measure(*variants, variant=["c"])
    assert (outcome.status, outcome.reason) == (
        "skipped",
        "many has no variant c; it has a 1, a 2, b",
    )


def test_of_many_variants_the_message_names_some() -> None:
    lab = Lab()
    variants = [lab.variant(f"v{i}") for i in range(search.MOST_NAMES + 1)]
    outcome = lab.measure(*variants, variant=["c"])
    assert outcome.reason == f"many has no variant c; it has v0, v1, …, v{search.MOST_NAMES}"


def test_a_race_uses_all_copies_of_the_operands() -> None:
    class Caching(fake.FakeDevice):
        def last_level_cache_bytes(self) -> int:
            return 5 * PROBLEM.operand_bytes

    device, lab = Caching(), Lab()
    rotation = rotate(device, PROBLEM, 0, cold=True)
    assert len(rotation.copies) == 16
    variant = lab.variant("one", ROOF_US / 1400)  # three launches in a turn
    used: set[int] = set()

    def prepare(on: Device, operands: Operands) -> Launch:
        launch = variant.prepare(on, operands)

        def launches() -> None:
            used.add(id(operands))
            launch()

        return launches

    search.race(
        device, [replace(variant, prepare=prepare)], rotation, lambda step: None, own_clock_s=0
    )
    assert len(used) == 15  # five turns, each from where the one before has ended


class Hot(fake.FakeDevice):
    """After 40 ms of one variant without a rest, it takes twice as long if it is fast when cool."""

    lag_us = 40_000
    reasons: frozenset[str] = frozenset()

    def __init__(self) -> None:
        super().__init__()
        self.busy_us = 0.0
        self.last_us = 0.0

    def time_batch(
        self,
        launches: Sequence[Launch],
        before: Launch | None = None,
        *,
        sense: bool = True,
    ) -> Timed:
        timed = super().time_batch(launches, before, sense=sense)
        (us,) = timed.times_us
        self.busy_us = us * len(launches) + (self.busy_us if us == self.last_us else 0)
        self.last_us = us
        hot = self.busy_us > self.lag_us and us < FAST_US
        reading = Reading(reasons=self.reasons)
        return replace(timed, times_us=[2 * us if hot else us], reading=reading)


FAST_US = 140.0


def test_finalists_race_as_they_will_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """`cool` wins the short race, in which the device rests after each round.

    It also wins turns of one batch of 128 launches, which take 15 ms.
    """
    device = Hot()

    def rest(seconds: float) -> None:
        device.busy_us = 0.0

    monkeypatch.setattr(search, "sleep", rest)
    lab = Lab()
    variants = (lab.variant("cool", 0.9), lab.variant("steady", 0.85), lab.variant("slow", 0.2))
    kernel = Kernel("many", "exact", "exact", "", ("fp32",), variants[0].prepare, variants=variants)
    rotation = rotate(device, PROBLEM, 0, cold=False)
    times_us = search.race(device, kernel.variants, rotation, lambda step: None, own_clock_s=0)[0]
    assert min(times_us, key=times_us.__getitem__) == "steady"
    assert times_us["slow"] >= max(times_us["cool"], times_us["steady"])


class Capped(Hot):
    """The same at a power limit, after 200 ms."""

    lag_us = 200_000
    reasons = frozenset({"sw_power_cap"})


@pytest.mark.parametrize(("own_clock_s", "winner"), [(0.3, "steady"), (0.05, "cool")])
def test_finalists_at_a_power_limit_wait_for_the_clock(own_clock_s: float, winner: str) -> None:
    device = Capped()
    lab = Lab()
    variants = (lab.variant("cool", 0.9), lab.variant("steady", 0.85), lab.variant("slow", 0.2))
    kernel = Kernel("many", "exact", "exact", "", ("fp32",), variants[0].prepare, variants=variants)
    rotation = rotate(device, PROBLEM, 0, cold=False)
    times_us = search.race(
        device, kernel.variants, rotation, lambda step: None, own_clock_s=own_clock_s
    )[0]
    assert min(times_us, key=times_us.__getitem__) == winner


class AtLimit(Capped):
    """At a power limit that slows nobody."""

    lag_us = 10**12


@pytest.mark.parametrize(("close", "undecided"), [(0.995, 2), (0.95, 0)])
def test_finalists_that_are_close_have_more_turns(close: float, undecided: int) -> None:
    device, lab = AtLimit(), Lab()
    shares = {"best": 0.9, "close": 0.9 * close, "far": 0.9 * 0.93}
    variants = [lab.variant(name, share) for name, share in shares.items()]
    rotation = rotate(device, PROBLEM, 0, cold=False)
    steps: list[str] = []
    times_us, _ = search.race(device, variants, rotation, steps.append, own_clock_s=0.01)
    assert min(times_us, key=times_us.__getitem__) == "best"
    begun = steps.index("choosing from 3 variants of")
    turns = len(steps) - begun - 2  # behind the race's first line, and a look at the power limit
    assert turns == search.CAPPED_TURNS * (len(shares) + undecided)


def test_long_launches_race_once(rests: list[float]) -> None:
    lab = Lab()
    outcome = lab.measure(lab.variant("first", 0.9e-4), lab.variant("second", 1e-4))
    assert outcome.summary is not None
    assert outcome.summary.median >= search.FINAL_US
    assert outcome.variant == "second"
    assert len(rests) == 2 * (search.LONG_ROUNDS + 1)


@pytest.mark.parametrize("broken", ["compile", "prepare"])
def test_a_variant_that_does_not_work_loses(broken: str) -> None:
    lab = Lab()
    outcome = lab.measure(lab.variant("bad", 0.9, broken=broken), lab.variant("good", 0.3))
    assert (outcome.status, outcome.variant) == ("ok", "good")


def test_none_works() -> None:
    lab = Lab()
    outcome = lab.measure(lab.variant("a", broken="compile"), lab.variant("b", broken="compile"))
    assert outcome.status == "failed"
    assert outcome.reason.startswith("none of the 2 variants of many works on 32; the first:")


def test_variants_that_do_not_support_the_problem_are_left_out() -> None:
    lab = Lab()
    variants = [lab.variant("large", 0.9, least_m=64), lab.variant("any", 0.1)]
    assert lab.measure(*variants).variant == "any"
    assert lab.compiled == ["any"]
    outcome = lab.measure(lab.variant("large", least_m=64), lab.variant("larger", least_m=128))
    assert (outcome.status, outcome.reason) == ("skipped", "large needs M >= 64")


def test_the_answer_is_kept_for_this_user_alone(cache: Path) -> None:
    lab = Lab()
    lab.measure(lab.variant("slow", 0.2), lab.variant("fast", 0.8))
    (record,) = (cache / "variants").iterdir()
    assert (cache / "variants").stat().st_mode & 0o077 == 0
    assert record.suffix == ".json"


def test_an_answer_that_cannot_be_kept_is_searched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("ROOFLAB_CACHE_DIR", str(tmp_path / "file"))
    lab = Lab()
    variants = [lab.variant("slow", 0.2), lab.variant("fast", 0.8)]
    for _ in range(2):
        assert lab.measure(*variants).variant == "fast"
        assert sorted(lab.compiled) == ["fast", "slow"]


@pytest.mark.parametrize(
    "other",
    [
        {"cache": "warm"},
        {"fill": "zeros"},
    ],
)
def test_the_answer_holds_for_its_conditions_only(other: dict[str, Any]) -> None:
    lab = Lab()
    variants = [lab.variant("slow", 0.2), lab.variant("fast", 0.8)]
    lab.measure(*variants)
    lab.measure(*variants, **other)
    assert sorted(lab.compiled) == ["fast", "slow"]


# By the numbers ----------------------------------------------------------------------------------

ROOF_US = 4 * 3 * 32 * 32 / fake.BANDWIDTH * 1e6  # 122.88


class Turns(fake.FakeDevice):
    """Writes down the launches of each turn, which ends when the device rests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.turns: list[int] = []
        self.launches = 0
        self.longest = 0
        monkeypatch.setattr(search, "sleep", self.rest)

    def rest(self, seconds: float) -> None:
        self.turns.append(self.launches)
        self.launches = 0

    def time_batch(
        self, launches: Sequence[Launch], before: Launch | None = None, *, sense: bool = True
    ) -> Timed:
        self.launches += len(launches)
        self.longest = max(self.longest, len(launches))
        return super().time_batch(launches, before, sense=sense)

    def race(self, *shares: float, own_clock_s: float = 0.0) -> dict[str, float]:
        lab = Lab()
        variants = [lab.variant(f"v{i}", share) for i, share in enumerate(shares)]
        rotation = rotate(self, PROBLEM, 0, cold=False)
        return search.race(self, variants, rotation, lambda step: None, own_clock_s=own_clock_s)[0]


@pytest.mark.parametrize(
    ("us", "launches"),
    [
        (150.0, 20),  # 3 ms
        (149.0, 21),
        (0.5, 64),  # at most
        (1400.0, 3),  # at least
        (19_999.0, 3),
        (20_001.0, 1),
    ],
)
def test_a_short_turn_takes_three_milliseconds(
    monkeypatch: pytest.MonkeyPatch, us: float, launches: int
) -> None:
    device = Turns(monkeypatch)
    times_us = device.race(ROOF_US / us)
    assert times_us == {"v0": pytest.approx(us)}
    assert device.turns == [launches] * 6  # of which the first does not count
    assert device.launches == 0


def test_what_is_far_slower_has_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Turns(monkeypatch)
    found = device.race(ROOF_US / 1000, ROOF_US / 1290, ROOF_US / 1310, ROOF_US / 5000)
    assert len(device.turns) == 4 * 2 + 2 * 4
    assert found == {f"v{i}": pytest.approx(us) for i, us in enumerate((1000, 1290, 1310, 5000))}


def test_finalists_have_six_turns_of_thirty_milliseconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each behind a third as many launches, and one more that does not count."""
    device = Turns(monkeypatch)
    device.race(ROOF_US / 1500, ROOF_US / 1600, ROOF_US / 4000)
    assert device.launches == 7 * (20 + 6 + 19 + 6)
    short = Turns(monkeypatch)
    short.race(ROOF_US / 10, ROOF_US / 10.5)
    assert short.launches == 2 * 7 * (512 + 170)  # four batches at most
    assert short.longest == 128


@pytest.mark.parametrize(
    ("times", "left"),
    [
        ({"a": [10.0, 10.2], "b": [10.3, 10.5]}, []),  # decided
        ({"a": [10.0, 10.2], "b": [10.15, 10.5], "c": [10.21, 11.0]}, ["a", "b"]),
        ({"a": [10.0, 10.2], "b": [10.01, 10.21]}, []),  # it does not matter
        ({"a": [10.0] * 14 + [10.2], "b": [10.15] * 15}, []),  # enough
    ],
)
def test_finalists_that_may_be_the_fastest_run_on(
    times: dict[str, list[float]], left: list[str]
) -> None:
    assert search._undecided(times) == left


def test_finalists_that_differ_from_turn_to_turn_have_fifteen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Turns(monkeypatch)
    noise = Random(1)
    plain = device.time_batch
    monkeypatch.setattr(
        device,
        "time_batch",
        lambda *given, **more: scaled_times(plain(*given, **more), noise.uniform(1, 1.03)),
    )
    device.race(ROOF_US / 1500, ROOF_US / 1510)
    assert device.launches == 16 * (20 + 6 + 20 + 6)


def scaled_times(timed: Timed, factor: float) -> Timed:
    return replace(timed, times_us=[us * factor for us in timed.times_us])


@pytest.mark.parametrize(
    ("times", "finalists"),
    [
        ((1000, 1090, 1110, 1500), 2),
        ((1000, 1010, 1020, 1030, 1040, 1050, 1060), 4),
        ((1000, 1200), 0),  # the winner needs no second race
    ],
)
def test_finalists_are_close_and_few(
    monkeypatch: pytest.MonkeyPatch, times: tuple[int, ...], finalists: int
) -> None:
    device = Turns(monkeypatch)
    found = device.race(*(ROOF_US / us for us in times))
    chosen = times[:finalists]
    assert device.launches == sum(7 * (-(-30_000 // us) + -(-30_000 // us) // 3) for us in chosen)
    slowest = max(chosen, default=0)
    assert found == {
        f"v{i}": pytest.approx(us if us in chosen else max(us, slowest))
        for i, us in enumerate(times)
    }


def test_a_failure_names_all_that_was_tried(cache: Path) -> None:
    lab = Lab()
    outcome = lab.measure(lab.variant("a", broken="compile"), lab.variant("b", broken="prepare"))
    assert outcome.reason == (
        "none of the 2 variants of many works on 32; the first: a does not compile"
    )


def test_what_happens_is_told() -> None:
    lab, steps = Lab(), list[str]()
    variants = [lab.variant("a", 0.5), lab.variant("b", broken="compile"), lab.variant("c", 0.4)]
    device = fake.FakeDevice()
    rotation = rotate(device, PROBLEM, 0, cold=False)
    times_us, failures = search.race(device, variants, rotation, steps.append, own_clock_s=0)
    assert steps[:4] == [
        *(f"compiling {i}/3 variants of" for i in (1, 2, 3)),
        "choosing from 2 variants of",
    ]
    assert set(times_us) == {"a", "c"}
    assert failures == {"b": "b does not compile"}


@pytest.mark.parametrize(
    "record",
    [
        "{}",
        "[]",
        "3",
        '{"times_us": {}}',
        '{"times_us": {"gone": 1}}',
        '{"times_us": {"slow": null}}',
    ],
)
def test_a_record_that_says_nothing_is_not_believed(cache: Path, record: str) -> None:
    lab = Lab()
    variants = [lab.variant("slow", 0.2), lab.variant("fast", 0.8)]
    lab.measure(*variants)
    (path,) = (cache / "variants").iterdir()
    path.write_text(record)
    assert lab.measure(*variants).variant in ("fast", "slow")
    if "null" not in record:
        assert sorted(lab.compiled) == ["fast", "slow"]


def test_the_answer_is_of_one_problem_device_and_set_of_variants(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab()
    variants = (lab.variant("slow", 0.2), lab.variant("fast", 0.8))
    lab.measure(*variants)
    changes: list[dict[str, Any]] = [{"n": 33}, {"k": 33}, {"batch": 33}, {"layout": "nt"}]
    problems = [replace(PROBLEM, **change) for change in (*changes, {"beta": 1.0})]
    for problem in problems:
        lab.measure(*variants, problem=problem)
        assert sorted(lab.compiled) == ["fast", "slow"], problem
    # Numbers change no choice of a variant.
    lab.measure(*variants, problem=replace(PROBLEM, alpha=0.5))
    assert lab.compiled == []
    monkeypatch.setattr(fake.FakeDevice, "name", "Another")
    lab.measure(*variants)
    assert sorted(lab.compiled) == ["fast", "slow"]
    lab.measure(*variants, lab.variant("third", 0.1))
    assert sorted(lab.compiled) == ["fast", "slow", "third"]


# Compiling at once -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpus", "free_gb", "memory_gb", "at_once"),
    [
        (8, 100, 3.0, 8),
        (8, 10, 3.0, 3),
        (8, 10, 0.5, 8),
        (8, 1, 3.0, 1),  # at least one, however little memory there is
        (1, 100, 0.5, 1),
    ],
)
def test_memory_bounds_how_many_compile_at_once(
    monkeypatch: pytest.MonkeyPatch, cpus: int, free_gb: float, memory_gb: float, at_once: int
) -> None:
    process = SimpleNamespace(cpu_affinity=lambda: list(range(cpus)))
    memory = SimpleNamespace(available=int(free_gb * 1e9))
    monkeypatch.setattr(psutil, "Process", lambda: process)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    assert search.compilers(memory_gb) == at_once


def test_without_an_affinity_every_cpu_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "Process", SimpleNamespace)
    monkeypatch.setattr(psutil, "cpu_count", lambda: 5)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10**12))
    assert search.compilers(0.5) == 5
    monkeypatch.setattr(psutil, "cpu_count", lambda: None)
    assert search.compilers(0.5) == 1


def test_a_single_variant_needs_no_race(cache: Path) -> None:
    lab = Lab()
    outcome = lab.measure(lab.variant("only", 0.5))
    assert (outcome.status, outcome.variant, lab.compiled) == ("ok", "", [])
    assert not (cache / "variants").exists()
