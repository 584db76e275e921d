"""How a function is timed: by the host if it waits or works elsewhere; copies; held results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rooflab.devices.base import MAX_BATCH, MarkedLaunch, Timed
from rooflab.functions import call
from rooflab.functions.call import Arguments, Call
from rooflab.functions.subject import Called

CACHE = 50_000


class Clock:
    """Seconds that pass where a test lets them, and a microsecond at each look."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now


clock = Clock()


@pytest.fixture(autouse=True)
def _exact_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rooflab.functions.subject.perf_counter", clock)


class Gpu:
    """As much of a device as a subject asks; ``ends_s`` after a call its work ends."""

    kind = "cuda"
    evicts = False

    def __init__(self, *, waits: bool = False, event_us: float = 5.0, ends_s: float = 0.0) -> None:
        self.arrays, self._waits, self._event_us, self._ends_s = np, waits, event_us, ends_s
        self.until, self.takes = 0.0, MAX_BATCH

    def work(self, *given: Any) -> Any:
        self.until = max(self.until, clock.now) + self._ends_s
        return given[0] + 1 if given else None

    def synchronize(self) -> None:
        clock.now = max(clock.now, self.until)

    def queued(self, launch: Callable[[], None], host_us: float, most: int) -> int:
        assert host_us > 0
        return 0 if self._waits else min(most, self.takes)

    def time(self, launches: list[Any], before: Any = None) -> Timed:
        for launch in launches:
            launch()
        self.synchronize()
        return Timed([self._event_us] * len(launches))

    def last_level_cache_bytes(self) -> int:
        return CACHE

    def free_bytes(self) -> int:
        return 10**9


def subject(device: Gpu, *given: Any, cold: bool = True) -> Called:
    arguments = Arguments(given)
    operands = call.operands(arguments.leaves, arguments.leaves)
    problem = Call(n=1, counts="", arrays=operands)
    return Called(device, problem, device.work, arguments, cold=cold)  # type: ignore[arg-type]


def test_a_call_that_waits_is_timed_by_the_host() -> None:
    for device, gated in ((Gpu(), True), (Gpu(waits=True), False)):
        one = subject(device, np.ones(10))
        assert MarkedLaunch.of(one.launch).gated == gated
        assert one.queues
        assert (MarkedLaunch.of(one.launch).wait is None) == gated
    closure = subject(Gpu(waits=True))
    assert closure.flush is not None
    assert not closure.queues  # each call has its own flush


def test_a_call_that_works_elsewhere_is_timed_by_the_host() -> None:
    elsewhere = subject(Gpu(ends_s=3e-3), np.ones(10))
    assert not MarkedLaunch.of(elsewhere.launch).gated
    here = subject(Gpu(ends_s=3e-3, event_us=3000.0), np.ones(10))
    assert MarkedLaunch.of(here.launch).gated


def test_copies_exceed_the_cache_three_times() -> None:
    array = np.ones(1000)
    one = subject(Gpu(), array)
    size = 2 * array.nbytes  # the argument and the result
    assert len(one.launches) == -(-3 * CACHE // size) + 1
    assert (one.cache, one.rotates, one.flush) == ("cold", True, None)
    addresses = {id(given.leaves[0]) for given in one._arguments}
    assert len(addresses) == len(one.launches)
    assert id(array) not in addresses
    warm = subject(Gpu(), array, cold=False)
    assert (warm.cache, len(warm.launches), warm.flush) == ("warm", 1, None)
    assert warm.fits_cache


def test_results_are_held_until_their_place_comes_again() -> None:
    one = subject(Gpu(), np.ones(1000))
    for launch in one.launches:
        launch()
    assert one._held
    assert len({id(result) for result in one._held}) == len(one.launches)


@pytest.mark.parametrize("count", [1, 3])
def test_what_autograd_keeps_is_not_held(count: int) -> None:
    class Tensor(np.ndarray):
        grad_fn = "backward"

    class Autograd(Gpu):
        def work(self, *given: Any) -> Any:
            return [given[0].view(Tensor)] * count

    assert subject(Autograd(), np.ones(1000))._held is None


def test_what_a_function_names_is_not_cold_by_rotation() -> None:
    array, weights, little = np.ones(1000), np.ones(1000), np.ones(3)
    device = Gpu()

    def made(function: Callable[..., Any]) -> Called:
        operands = call.operands([array], [array])
        problem = Call(n=1, counts="", arrays=operands)
        given: Any = device
        return Called(given, problem, function, Arguments((array,)), cold=True)

    named = made(lambda a: a + weights)
    assert (named.rotates, len(named.launches), named.cache) == (False, 1, "cold")
    assert named.flush is not None
    assert made(lambda a: a + little[0]).rotates


def test_views_with_gaps_need_the_memory_of_their_gaps() -> None:
    class Small(Gpu):
        def free_bytes(self) -> int:
            return 4 * 40 * 8000

    column = np.ones((1000, 100))[:, 0]
    assert not subject(Small(), column).rotates
    assert subject(Small(), column.copy()).rotates


def test_a_slow_call_is_called_twice_and_timed_by_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rooflab.functions import subject as module

    monkeypatch.setattr(module, "LONG_US", 2e4)
    calls: list[float] = []

    class Slow(Gpu):
        def work(self, *given: Any) -> Any:
            calls.append(clock.now)
            clock.now += 0.03

        def queued(self, launch: Callable[[], None], host_us: float, most: int) -> int:
            raise AssertionError("no gate is held for so long")

    one = subject(Slow(), np.ones(10))
    assert len(calls) == 2
    assert not MarkedLaunch.of(one.launch).gated
    calls.clear()
    ends = Gpu(ends_s=0.03, event_us=3e4)
    launched = ends.work

    def counted(*given: Any) -> Any:
        calls.append(0.0)
        return launched(*given)

    monkeypatch.setattr(ends, "work", counted)
    assert MarkedLaunch.of(subject(ends, np.ones(10)).launch).gated
    assert len(calls) <= 6


def test_as_many_calls_are_together_as_the_queue_takes() -> None:
    """Whatever the host needs for each; as far as it was tried."""
    device = Gpu()
    assert MarkedLaunch.of(subject(device, np.ones(10)).launch).depth == 1
    device.takes = 20
    assert MarkedLaunch.of(subject(device, np.ones(10)).launch).depth == 2 * 128 // 20 + 1
    slow = Gpu(event_us=2000)
    assert MarkedLaunch.of(subject(slow, np.ones(10)).launch).depth == 128 // 5 + 1
