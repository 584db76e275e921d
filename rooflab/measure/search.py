"""The fastest variant of a kernel for one problem: compiled in parallel, raced, remembered."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from itertools import cycle, islice
from math import ceil
from pathlib import Path
from random import Random
from statistics import median
from time import sleep
from typing import Final

from rooflab.backends import nvrtc
from rooflab.devices import affinity
from rooflab.devices.base import Device
from rooflab.errors import KernelError
from rooflab.measure.buffers import Operands
from rooflab.problem import Problem
from rooflab.registry import Kernel, Launch, Variant
from rooflab.resources import cache_dir, replace_file

ROUNDS: Final = 5
ROUND_US: Final = 3000.0
MOST_LAUNCHES: Final = 64
"""A round has so many launches at most, for kernels of any length at least three."""

REST: Final = 3.0
MOST_REST_S: Final = 0.02
"""After a round the device rests so many times as long, at most so many seconds. At a power limit
all variants would run at the clock that they bring about together, and the one that needs the least
power would get nothing for it."""


def choose(
    device: Device, kernel: Kernel, sets: Sequence[Operands], progress: Callable[[str], None]
) -> Variant:
    """The variant to measure on the problem of ``sets``, which are used in turn.

    The answer is kept on disk, by device, driver, problem and the kernel's sources. ``progress`` is
    told what happens. Raises ``KernelError`` where no variant can be built and launched, or where
    one has left the device unusable.
    """
    problem = sets[0].problem
    willing = [variant for variant in kernel.variants if not variant.objection(problem)]
    record = cache_dir() / "variants" / f"{_key(device, kernel, problem)}.json"
    if known := _remembered(record, willing):
        return known
    times_us, failures = race(device, willing, sets, progress)
    if not times_us:
        raise KernelError(
            f"none of the {len(willing)} variants of {kernel.name} works on {problem.shape}; "
            f"the first: {next(iter(failures.values()))}"
        )
    _remember(record, times_us, failures)
    best = min(times_us, key=times_us.__getitem__)
    return next(variant for variant in willing if variant.name == best)


def race(
    device: Device,
    variants: Sequence[Variant],
    sets: Sequence[Operands],
    progress: Callable[[str], None],
) -> tuple[dict[str, float], dict[str, str]]:
    """Microseconds per launch by variant, and what went wrong with those that have none.

    Raises ``KernelError`` where one has left the device unusable.
    """
    failures: dict[str, str] = {}
    built = _compiled(device, sets[0].problem, variants, failures, progress)
    progress(f"choosing from {len(built)} variants of")
    return _raced(device, built, sets, failures), failures


def _compiled(
    device: Device,
    problem: Problem,
    variants: Sequence[Variant],
    failures: dict[str, str],
    progress: Callable[[str], None],
) -> list[Variant]:
    """Those that could be built, in their order."""
    with ThreadPoolExecutor(len(affinity()) or os.cpu_count() or 1) as pool:
        waiting = {pool.submit(one.compile, device, problem): one for one in variants}
        for done, future in enumerate(as_completed(waiting), 1):
            try:
                future.result()
            except KernelError as error:
                failures[waiting[future].name] = str(error)
            progress(f"compiling {done}/{len(variants)} variants of")
    return [variant for variant in variants if variant.name not in failures]


def _raced(
    device: Device,
    variants: Sequence[Variant],
    sets: Sequence[Operands],
    failures: dict[str, str],
) -> dict[str, float]:
    """Microseconds per launch: the median over rounds in which all take turns.

    In an order of its own each: who follows a slow kernel finds a GPU that has rested.
    """
    runners: dict[str, list[Launch]] = {}
    counts: dict[str, int] = {}
    for variant in variants:
        try:
            launches = [variant.prepare(device, operands) for operands in sets]
            launches[0]()  # loads its code, which could wait for a closed gate
            device.synchronize()
            (launch_us,) = device.time(launches[:1]).times_us
        except (KernelError, MemoryError) as error:
            failures[variant.name] = str(error)
            device.synchronize()  # raises where the device is lost
            continue
        runners[variant.name] = launches
        counts[variant.name] = max(3, min(MOST_LAUNCHES, ceil(ROUND_US / max(launch_us, 1.0))))
    times_us: dict[str, list[float]] = {name: [] for name in runners}
    random = Random(0)
    # The first round warms up and is not counted.
    for turn in range(ROUNDS + 1):
        for name in random.sample(list(runners), len(runners)):
            launches = runners[name]
            start = turn * counts[name] % len(launches)
            batch = list(islice(cycle(launches), start, start + counts[name]))
            timed = device.time_batch(batch).times_us
            times_us[name] += timed if turn else []
            sleep(min(MOST_REST_S, REST * timed[0] * len(batch) * 1e-6))
    return {name: median(timed) for name, timed in times_us.items()}


# What is remembered -----------------------------------------------------------------------------


def _key(device: Device, kernel: Kernel, problem: Problem) -> str:
    """A hash of what the answer depends on."""
    parts = (
        *(device.name, device.fact("driver_version"), device.fact("cuda_runtime_version")),
        *(kernel.name, [variant.name for variant in kernel.variants]),
        nvrtc.source_sha256(kernel.source) if kernel.source else "",
        *(problem.shape, problem.precision.name, problem.layout, problem.beta != 0),
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
    """Write the record in one step; where that is not possible, the next sweep searches again."""
    content = json.dumps({"times_us": times_us, "failures": failures}, indent=1)
    with suppress(OSError):
        record.parent.mkdir(parents=True, exist_ok=True)
        replace_file(record, content.encode())
