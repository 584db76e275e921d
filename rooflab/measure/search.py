"""The fastest variant of a kernel for one problem: compiled in parallel, timed, cached on disk."""

from __future__ import annotations

import hashlib
import json
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

import psutil

from rooflab.config import SweepConfig
from rooflab.device import Device
from rooflab.errors import KernelError, RooflabError
from rooflab.files import cache_dir, private_folder, write_atomic
from rooflab.kernels import Kernel, Launch, Variant
from rooflab.measure.buffers import Rotation
from rooflab.model.problem import Problem

ROUNDS: Final = 5
ROUND_US: Final = 3000.0
MOST_LAUNCHES: Final = 64
"""Most launches of a variant in a round; there are at least three."""

REST: Final = 3.0
MOST_REST_S: Final = 0.02
"""After a round the device idles for REST × the round's time, at most MOST_REST_S. Without it all
variants share one clock at a power limit, and a variant that needs less power gains nothing."""


def choose(
    device: Device,
    kernel: Kernel,
    rotation: Rotation,
    config: SweepConfig,
    progress: Callable[[str], None],
) -> Variant:
    """The variant to measure on the problem of ``rotation``, whose copies are used in turn.

    The result is cached on disk, by device, driver, problem, cache mode, fill and the kernel's
    code. ``progress`` is called with the current step. Raises ``KernelError`` if no variant can be
    built and launched, or if one has made the device unusable.
    """
    problem = rotation.problem
    able = [variant for variant in kernel.variants if not variant.unsupported(problem)]
    record = cache_dir() / "variants" / f"{_key(device, kernel, problem, config)}.json"
    if known := _remembered(record, able):
        return known
    times_us, failures = race(device, able, rotation, progress, kernel.memory_gb)
    if not times_us:
        raise KernelError(
            f"none of the {len(able)} variants of {kernel.name} works on {problem.size}; "
            f"the first: {next(iter(failures.values()))}"
        )
    _remember(record, times_us, failures)
    best = min(times_us, key=times_us.__getitem__)
    return next(variant for variant in able if variant.name == best)


def race(
    device: Device,
    variants: Sequence[Variant],
    rotation: Rotation,
    progress: Callable[[str], None],
    memory_gb: float = 0.5,
) -> tuple[dict[str, float], dict[str, str]]:
    """Microseconds per launch by variant, and the message of each variant that failed.

    Compiling one takes ``memory_gb``. Raises ``KernelError`` if one has made the device unusable.
    """
    failures: dict[str, str] = {}
    built = _compiled(device, rotation.problem, variants, failures, progress, memory_gb)
    progress(f"choosing from {len(built)} variants of")
    return _raced(device, built, rotation, failures), failures


def _compiled(
    device: Device,
    problem: Problem,
    variants: Sequence[Variant],
    failures: dict[str, str],
    progress: Callable[[str], None],
    memory_gb: float,
) -> list[Variant]:
    """The variants that could be built, in their order."""
    with ThreadPoolExecutor(compilers(memory_gb)) as pool:
        waiting = {pool.submit(variant.compile, device, problem): variant for variant in variants}
        for done, future in enumerate(as_completed(waiting), 1):
            try:
                future.result()
            except RooflabError as error:
                failures[waiting[future].name] = str(error)
            progress(f"compiling {done}/{len(variants)} variants of")
    return [variant for variant in variants if variant.name not in failures]


def compilers(memory_gb: float) -> int:
    """Number of parallel compilations: one per usable CPU, fewer if memory is short."""
    process = psutil.Process()
    cpus = len(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else psutil.cpu_count()
    return max(1, min(cpus or 1, int(psutil.virtual_memory().available / (memory_gb * 1e9))))


def _raced(
    device: Device,
    variants: Sequence[Variant],
    rotation: Rotation,
    failures: dict[str, str],
) -> dict[str, float]:
    """Microseconds per launch: the median over rounds in which all variants take turns.

    The order differs in each round: after a slow kernel the GPU is cooler and clocks higher.
    """
    runners: dict[str, list[Launch]] = {}
    counts: dict[str, int] = {}
    for variant in variants:
        try:
            launches = [variant.prepare(device, operands) for operands in rotation.copies]
            launches[0]()  # loads its code, which could wait for a closed gate
            device.synchronize()
            (launch_us,) = device.time(launches[:1]).times_us
        except (KernelError, MemoryError) as error:
            failures[variant.name] = str(error) or type(error).__name__
            device.synchronize()  # raises if the device is lost
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


# The cache on disk ------------------------------------------------------------------------------


def _key(device: Device, kernel: Kernel, problem: Problem, config: SweepConfig) -> str:
    """A hash of everything that can change the result."""
    roles = [operand.role for operand in problem.operands]
    words = [value for value in problem.settings.values() if isinstance(value, str)]
    parts = (
        *(device.name, device.fact("driver_version"), device.fact("cuda_runtime_version")),
        *(kernel.name, [variant.name for variant in kernel.variants], kernel.fingerprint()),
        *(problem.workload, problem.extents, problem.precision.name, words, roles),
        *(config.cache, config.fill),
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
