"""The fastest variant of a kernel for one problem: compiled in parallel, raced, cached on disk.

A short race with rests leaves out the slow ones. The finalists then run without rests, as a sweep
runs them: at a power limit the clock of a variant depends on how much it needs, and follows it in
some tenths of a second.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import cycle, islice
from math import ceil
from pathlib import Path
from random import Random
from statistics import median
from time import sleep
from typing import Final

import psutil

from rooflab.config import SweepConfig
from rooflab.devices.base import LEAST_BATCHES, MAX_BATCH, Device, Launch
from rooflab.errors import KernelError, RooflabError
from rooflab.files import cache_dir, private_folder, write_atomic
from rooflab.kernels.base import Kernel, Variant
from rooflab.measure.buffers import Rotation
from rooflab.measure.energy import settle
from rooflab.model.problem import Problem

Times = dict[str, float]
"""Microseconds by variant."""

Rounds = dict[str, list[float]]

ROUNDS: Final = 5
ROUND_US: Final = 3000.0
MOST_LAUNCHES: Final = 64
"""Most launches of a variant in a short round; there are at least three."""

SLOW_US: Final = 20_000.0
"""From this time on a round has one launch at least."""

REST: Final = 3.0
MOST_REST_S: Final = 0.02
"""After a short round the device idles for REST × the round's time, at most MOST_REST_S, so that
all begin at the same clock."""

FAR: Final = 1.3
"""A variant this factor slower than the fastest has one short round only."""

CLOSE: Final = 1.1
MOST_FINALISTS: Final = 4
"""Finalists: within this factor of the fastest, and so many."""

FINAL_US: Final = 30_000.0
"""A round of a finalist, after a third of that untimed, with at most LEAST_BATCHES batches, as a
round of such short launches has in a sweep."""

LEAST_FINAL_ROUNDS, MORE_FINAL_ROUNDS, MOST_FINAL_ROUNDS = 6, 3, 15
ALIKE: Final = 1.002
"""Rounds of finalists, and so many more of those of which one was as fast as the slowest of the
best one; none if their medians are within this factor."""

CAPPED_TURNS: Final = 2
ROUNDS_OF_A_TURN: Final = 2
"""Turns of finalists at a power limit, with so many rounds each, after the time in which the clock
settles."""

UNDECIDED: Final = 1.02
MOST_UNDECIDED: Final = 3
"""There a round differs from the next by 1 to 2 %. So finalists within this factor of the fastest,
and so many, have as many turns again."""

MOST_NAMES: Final = 32
"""Variants that a message names."""

LONG_ROUNDS: Final = 3
"""Rounds of variants whose launches take FINAL_US or longer. Rests are short beside them, so that
there is no second race."""


def choose(
    device: Device,
    kernel: Kernel,
    rotation: Rotation,
    config: SweepConfig,
    progress: Callable[[str], None],
) -> Variant:
    """The variant to measure on the problem of ``rotation``, whose copies are used in turn.

    The result is cached on disk, by device, driver, problem, cache mode, fill, variants and the
    kernel's code; ``config.retune`` searches again. ``progress`` is called with the current step.
    Raises ``KernelError`` if no variant can be built and launched, or if one has made the device
    unusable.
    """
    problem = rotation.problem
    able = [
        variant for variant in named(kernel, config.variant) if not variant.unsupported(problem)
    ]
    record = cache_dir() / "variants" / f"{_key(device, kernel, able, problem, config)}.json"
    known = None if config.retune else _remembered(record, able)
    if known:
        return known
    own_clock_s = config.timing.own_clock_s
    times_us, failures = race(
        device, able, rotation, progress, kernel.memory_gb, own_clock_s=own_clock_s
    )
    if not times_us:
        raise KernelError(
            f"none of the {len(able)} variants of {kernel.name} works on {problem.size}; "
            f"the first: {next(iter(failures.values()))}"
        )
    _remember(record, times_us, failures)
    best = min(times_us, key=times_us.__getitem__)
    return next(variant for variant in able if variant.name == best)


def named(kernel: Kernel, patterns: Sequence[str]) -> list[Variant]:
    """The variants of these names or globs; all without any."""
    return [
        variant
        for variant in kernel.variants
        if not patterns or any(fnmatchcase(variant.name, pattern) for pattern in patterns)
    ]


def lacks(kernel: Kernel, patterns: Sequence[str]) -> str:
    """Why a kernel with variants has none of these, empty if it has one."""
    if not kernel.variants or named(kernel, patterns):
        return ""
    names = [variant.name for variant in kernel.variants]
    some = names if len(names) <= MOST_NAMES else [*names[:2], "…", names[-1]]
    return f"{kernel.name} has no variant {', '.join(patterns)}; it has {', '.join(some)}"


def race(
    device: Device,
    variants: Sequence[Variant],
    rotation: Rotation,
    progress: Callable[[str], None],
    memory_gb: float = 0.5,
    *,
    own_clock_s: float,
) -> tuple[Times, dict[str, str]]:
    """Microseconds per launch by variant, and the message of each variant that failed.

    Compiling one takes ``memory_gb``. At a power limit a finalist runs for ``own_clock_s`` before
    each of its turns. Raises ``KernelError`` if one has made the device unusable.
    """
    one = _Race(device, rotation, progress, own_clock_s)
    return one.run(one.compiled(variants, memory_gb)), one.failures


def compilers(memory_gb: float) -> int:
    """Number of parallel compilations: one per usable CPU, fewer if memory is short."""
    process = psutil.Process()
    cpus = len(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else psutil.cpu_count()
    return max(1, min(cpus or 1, int(psutil.virtual_memory().available / (memory_gb * 1e9))))


class _Race:
    """Variants of a kernel, which are launched on the same copies of the operands."""

    def __init__(
        self,
        device: Device,
        rotation: Rotation,
        progress: Callable[[str], None],
        own_clock_s: float,
    ) -> None:
        self._device, self._rotation = device, rotation
        self._progress, self._own_clock_s = progress, own_clock_s
        self.failures: dict[str, str] = {}
        self._launches: dict[str, list[Launch]] = {}
        """By variant, one for each copy."""

    def compiled(self, variants: Sequence[Variant], memory_gb: float) -> list[Variant]:
        """The variants that could be built, in their order."""
        device, problem = self._device, self._rotation.problem
        with ThreadPoolExecutor(compilers(memory_gb)) as pool:
            waiting = {pool.submit(one.compile, device, problem): one for one in variants}
            for done, future in enumerate(as_completed(waiting), 1):
                try:
                    future.result()
                except RooflabError as error:
                    self.failures[waiting[future].name] = str(error)
                self._progress(f"compiling {done}/{len(variants)} variants of")
        return [variant for variant in variants if variant.name not in self.failures]

    def run(self, variants: Sequence[Variant]) -> Times:
        """Microseconds per launch of the finalists, else of all: the median over rounds."""
        self._progress(f"choosing from {len(variants)} variants of")
        launch_us = self._prepared(variants)
        if not launch_us:
            return {}
        counts = {n: _count(us, ROUND_US, MOST_LAUNCHES) for n, us in launch_us.items()}
        long = min(launch_us.values()) >= FINAL_US
        first = self._rounds(counts, 1, after=_rest)
        near = {name: counts[name] for name in _fastest(_medians(first), FAR, len(counts))}
        more = self._rounds(near, (LONG_ROUNDS if long else ROUNDS) - 1, after=_rest, warm=True)
        times_us = _decided(_medians(first), _medians(_joined(first, more)))
        last = _fastest(times_us, CLOSE, MOST_FINALISTS)
        if long or len(last) < 2:
            return times_us
        return _decided(times_us, self._finals({name: times_us[name] for name in last}))

    def _prepared(self, variants: Sequence[Variant]) -> Times:
        """Microseconds of one launch of each."""
        device, times_us = self._device, {}
        for variant in variants:
            try:
                launches = [variant.prepare(device, copy) for copy in self._rotation.copies]
                launches[0]()  # loads its code, which could wait for a closed gate
                device.synchronize()
                (launch_us,) = device.time(launches[:1]).times_us
            except (KernelError, MemoryError) as error:
                self.failures[variant.name] = str(error) or type(error).__name__
                device.synchronize()  # raises if the device is lost
                continue
            self._launches[variant.name] = launches
            times_us[variant.name] = max(launch_us, 1.0)
        return times_us

    def _finals(self, times_us: Times) -> Times:
        """Microseconds per launch without rests, by variant, at the clock of a sweep."""
        most = LEAST_BATCHES * MAX_BATCH
        counts = {name: _count(us, FINAL_US, most) for name, us in times_us.items()}

        def settled(name: str) -> bool:
            self._progress(f"choosing from {len(counts)} variants of")  # it is alive
            queue, us = cycle(self._launches[name]), times_us[name]
            return settle(self._device, lambda n: list(islice(queue, n)), us, self._own_clock_s)

        def begun(name: str) -> None:
            self._run(name, 0, max(1, counts[name] // 3))

        # Others at a power limit are slower than they seem, and so no winners.
        if not settled(min(times_us, key=times_us.__getitem__)):
            timed = self._rounds(counts, LEAST_FINAL_ROUNDS, before=begun)
            while len(left := _undecided(timed)) > 1:
                again = {name: counts[name] for name in left}
                more = self._rounds(again, MORE_FINAL_ROUNDS, before=begun, warm=True)
                timed |= _joined(timed, more)
            return _medians(timed)

        def raced(names: Iterable[str]) -> Rounds:
            some = {name: counts[name] for name in names}
            return self._rounds(
                some, CAPPED_TURNS, before=settled, warm=True, each=ROUNDS_OF_A_TURN
            )

        timed = raced(counts)
        settled_us = _medians(timed)
        last = _fastest(settled_us, UNDECIDED, MOST_UNDECIDED)
        if len(last) < 2:
            return settled_us
        return _decided(settled_us, _medians(_joined(timed, raced(last))))

    def _rounds(
        self,
        counts: Mapping[str, int],
        turns: int,
        *,
        before: Callable[[str], object] = lambda name: None,
        after: Callable[[float], None] = lambda work_us: None,
        warm: bool = False,
        each: int = 1,
    ) -> Rounds:
        """Microseconds per launch in each round; all variants take turns, of ``each`` rounds.

        The order differs in each turn: after a slow kernel the GPU is cooler and clocks higher.
        Unless all are ``warm``, a first turn warms up and is not counted. Before a turn ``before``
        is called with the variant's name, after a round ``after`` with its microseconds.
        """
        times_us: Rounds = {name: [] for name in counts}
        random = Random(0)
        for turn in range(warm, turns + 1):
            for name in random.sample(list(counts), len(counts)):
                before(name)
                for number in range(turn * each, (turn + 1) * each):
                    us = self._run(name, number * counts[name], counts[name])
                    times_us[name] += [us] if turn else []
                    after(us * counts[name])
        return times_us

    def _run(self, name: str, start: int, count: int) -> float:
        """Microseconds per launch: the median over batches, the buffer copies used in turn."""
        launches = self._launches[name]
        start %= len(launches)
        queue = islice(cycle(launches), start, start + count)
        batches = iter(lambda: list(islice(queue, MAX_BATCH)), [])
        return median(self._device.time_batch(batch).times_us[0] for batch in batches)


def _fastest(times_us: Times, factor: float, most: int) -> list[str]:
    """Variants within ``factor`` of the fastest one, and ``most`` of them."""
    best = min(times_us.values(), default=0.0)
    close = [name for name, us in times_us.items() if us <= factor * best]
    return sorted(close, key=times_us.__getitem__)[:most]


def _undecided(timed: Rounds) -> list[str]:
    """Variants that may be the fastest: more rounds may tell."""
    times_us = _medians(timed)
    best = min(times_us, key=times_us.__getitem__)
    slowest = max(timed[best])
    near = [name for name, each in timed.items() if min(each) <= slowest]
    alike = all(times_us[name] <= ALIKE * times_us[best] for name in near)
    return [] if alike or len(timed[best]) >= MOST_FINAL_ROUNDS else near


def _decided(times_us: Times, again: Times) -> Times:
    """The times of a second race; what was not in it is slower than its winner."""
    slowest = max(again.values())
    return {name: again.get(name, max(us, slowest)) for name, us in times_us.items()}


def _count(us: float, round_us: float, most: int) -> int:
    """Launches of a round."""
    return max(1 if us >= SLOW_US else 3, min(most, ceil(round_us / us)))


def _medians(timed: Rounds) -> Times:
    return {name: median(times_us) for name, times_us in timed.items()}


def _joined(timed: Rounds, again: Rounds) -> Rounds:
    """All rounds of those that were timed again."""
    return {name: timed[name] + times_us for name, times_us in again.items()}


def _rest(work_us: float) -> None:
    sleep(min(MOST_REST_S, REST * work_us * 1e-6))


# The cache on disk ------------------------------------------------------------------------------


def _key(
    device: Device,
    kernel: Kernel,
    variants: Sequence[Variant],
    problem: Problem,
    config: SweepConfig,
) -> str:
    """A hash of everything that can change the result."""
    roles = [operand.role for operand in problem.operands]
    words = [value for value in problem.settings.values() if isinstance(value, str)]
    parts = (
        *(device.name, device.fact("driver_version"), device.fact("cuda_runtime_version")),
        *(kernel.name, [variant.name for variant in variants], kernel.fingerprint()),
        *(problem.workload, problem.extents, problem.precision.name, words, roles),
        *(config.cache, config.fill, config.timing.own_clock_s),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _remembered(record: Path, variants: Sequence[Variant]) -> Variant | None:
    try:
        times_us = json.loads(record.read_text(encoding="utf-8"))["times_us"]
        best = min(times_us, key=times_us.__getitem__)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return next((variant for variant in variants if variant.name == best), None)


def _remember(record: Path, times_us: dict[str, float], failures: dict[str, str]) -> None:
    """Write the record atomically; if that fails, the next sweep searches again."""
    content = json.dumps({"times_us": times_us, "failures": failures}, indent=1)
    with suppress(OSError, RooflabError):
        write_atomic(private_folder(record.parent) / record.name, content.encode())
