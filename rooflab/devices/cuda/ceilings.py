"""Ceilings of a GPU, measured: memory levels, FMA pipes and tensor cores.

Each memory ceiling is checked with hardware counters where they can be read: the bytes must come
from the level that is measured, and none from the levels below it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rooflab.devices.base import Counters, Device, Launch, Limit
from rooflab.devices.cuda import compiler
from rooflab.errors import UnavailableError
from rooflab.model.roofline import Ceiling, MissingCeiling

SOURCE: Final = Path(__file__).with_suffix(".cu")
WGMMA: Final = Path(__file__).with_name("wgmma.cu")

FIRST: Final = {SOURCE: "read_memory", WGMMA: "wgmma_tf32"}
"""A kernel in each file, by which the compiler's cache knows it."""

THREADS: Final = 1024
FMA_THREADS: Final = 512
CHAINS: Final = 16
TENSOR_THREADS: Final = 256

DRAM_BYTES: Final = 2**31
"""Larger than every L2 cache by a factor of ten and more."""

L2_SHARE: Final = 0.4
"""Part of the L2 cache that is read: a GPU with two partitions caches far lines twice."""

L1_BYTES: Final = 96 * 2**10
"""Per multiprocessor: fits in the L1 cache of every GPU from 7.0 on except 7.5."""

WINDOW_US: Final = 2000.0
WINDOWS: Final = 7

FOUND: Final = 0.95
"""Least part of the bytes that counters must find at the level, and most that they may not."""


class Microkernels:
    """Kernels of ``ceilings.cu`` and ``wgmma.cu`` on one device."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.multiprocessors = int(device.fact("sm_count") or 1)
        self.out = device.arrays.zeros(2)
        self.uncounted = ""
        """Why counters cannot be read, empty if they can."""
        arch = compiler.arch_for(str(device.fact("compute_capability")))
        sources = [SOURCE, WGMMA] if arch.startswith("sm_90") else [SOURCE]
        with ThreadPoolExecutor(len(sources)) as pool:  # each takes a second
            built = pool.map(
                lambda each: compiler.compile_file(each, FIRST[each], (), arch), sources
            )
            modules = [device.arrays.RawModule(path=str(one.cubin)) for one in built]
        self._modules = dict(zip(sources, modules, strict=True))
        # Counters make it slow to load code: load all of it before.
        for source, module in self._modules.items():
            module.get_function(FIRST[source])
        device.time([device.nothing])

    def launch(self, name: str, blocks: int, threads: int, *arguments: Any) -> Launch:
        """A launch of the kernel called ``name``."""
        source = WGMMA if name.startswith("wgmma") else SOURCE
        function = self._modules[source].get_function(name)
        return lambda: function((blocks,), (threads,), arguments)

    def best(self, launch: Launch) -> tuple[float, float | None]:
        """The shortest batch: microseconds per launch, and the SM clock in MHz meanwhile."""
        first = min(self.device.time([launch] * 3).times_us)
        count = max(1, min(64, int(WINDOW_US / max(first, 1.0))))
        windows = [self.device.time_batch([launch] * count) for _ in range(WINDOWS)]
        best = min(windows, key=lambda window: window.times_us[0])
        return best.times_us[0], best.reading.sm_mhz if best.reading else None

    def count(self, launch: Launch) -> Counters | None:
        """Counters of one launch, None if they cannot be read; then ``uncounted`` says why."""
        if self.uncounted:
            return None
        try:
            return self.device.count([launch])
        except UnavailableError as error:
            self.uncounted = str(error)
            return None


def measure_levels(device: Device, memory: str) -> list[Limit]:
    """Reading, writing and copying device memory; L2, L1 and shared memory; FMA; tensor cores.

    ``memory`` is the name of device memory; the best of its three rates is its measured ceiling.
    """
    try:
        kernels = Microkernels(device)
        return [
            *_memory(kernels, memory),
            *_near(kernels),
            *_fma(kernels),
            *_tensor_cores(kernels),
            _launch(device),
        ]
    except Exception as error:  # a ceiling that cannot be measured must not end a sweep
        first = str(error).partition("\n")[0]
        reason = f"not measured: {first or type(error).__name__}"
        return [MissingCeiling("bandwidth", key, reason) for key in (memory, "L2", "L1", "shared")]


# Memory ------------------------------------------------------------------------------------------


def _memory(kernels: Microkernels, memory: str) -> list[Limit]:
    import numpy as np

    device = kernels.device
    size = min(DRAM_BYTES, device.free_bytes() // 4) // 16 * 16
    if size < 4 * device.last_level_cache_bytes():
        reason = f"not measured: {size / 1e6:.0f} MB of free memory do not exceed the cache"
        return [MissingCeiling("bandwidth", memory, reason)]
    count = np.int64(size // 16)
    source, target = (device.arrays.zeros(size // 4, np.float32) for _ in range(2))
    grid = (2 * kernels.multiprocessors, THREADS)
    launches: dict[str, tuple[Launch, int]] = {
        "read": (kernels.launch("read_memory", *grid, source, count, np.int32(1), kernels.out), 1),
        "write": (kernels.launch("write_memory", *grid, target, count), 1),
        "copy": (lambda: device.arrays.copyto(target, source), 2),  # the driver's
    }
    limits = [
        _bandwidth(kernels, f"{memory}_{how}", launch, times * size, f"{how} {size / 1e6:.0f} MB")
        for how, (launch, times) in launches.items()
    ]
    found = [limit for limit in limits if isinstance(limit, Ceiling)]
    if found:
        best = max(found, key=lambda limit: limit.value)
        rates = ", ".join(f"{limit.key} {limit.amount}" for limit in found)
        limits.insert(0, replace(best, key=memory, formula=f"the highest of {rates}"))
    return limits


def _near(kernels: Microkernels) -> Iterator[Limit]:
    """L2, L1 and shared memory."""
    import numpy as np

    zeros, sms, out = kernels.device.arrays.zeros, kernels.multiprocessors, kernels.out
    size = int(kernels.device.last_level_cache_bytes() * L2_SHARE) // 2**20 * 2**20
    if size:
        passes = max(1, 2**34 // size)
        arguments = (zeros(size // 4, np.float32), np.int64(size // 16), np.int32(passes), out)
        read = kernels.launch("read_memory", 2 * sms, THREADS, *arguments)
        formula = f"read {size / 2**20:.0f} MiB {passes} times, each block its own lines"
        yield _bandwidth(kernels, "L2", read, size * passes, formula)
    else:
        yield MissingCeiling("bandwidth", "L2", "the size of L2 is unknown")
    data, passes = zeros(sms * L1_BYTES // 4, np.float32), 500
    count = np.int32(L1_BYTES // 16)
    read = kernels.launch("read_l1", sms, THREADS, data, count, np.int32(passes), out)
    formula = f"read {L1_BYTES >> 10} KiB per multiprocessor {passes} times"
    yield _bandwidth(kernels, "L1", read, sms * L1_BYTES * passes, formula)
    passes = 4096
    read = kernels.launch("read_shared", sms, THREADS, np.int32(passes), out)
    formula = f"read shared memory {passes} times, 16 bytes per thread"
    yield _bandwidth(kernels, "shared", read, sms * THREADS * 16 * passes, formula)


def _bandwidth(kernels: Microkernels, key: str, launch: Launch, moved: int, formula: str) -> Limit:
    """``moved`` bytes over the shortest time; missing if counters contradict it."""
    us, sm_mhz = kernels.best(launch)
    counters, formula = kernels.count(launch), f"{formula}, best of {WINDOWS}"
    ceiling = Ceiling("bandwidth", key, moved / us * 1e6, "measured", formula, sm_mhz=sm_mhz)
    if counters is None:
        return replace(ceiling, caveat=f"not checked with counters: {kernels.uncounted}")
    if wrong := contradiction(key, moved, counters):
        return MissingCeiling("bandwidth", key, wrong)
    return replace(ceiling, formula=f"{formula}; counters agree")


def contradiction(key: str, moved: int, counters: Counters) -> str:
    """What counters say against a ceiling of ``moved`` bytes; empty if they agree."""
    levels = {"L1": counters.l1_bytes, "L2": counters.l2_bytes, "DRAM": counters.dram_bytes}
    own = "" if key == "shared" else key if key in levels else "DRAM"
    if own and (found := levels[own]) is not None and found < FOUND * moved:
        return f"counters found {found / moved:.0%} of the bytes at {own}"
    below = {"L2": ("DRAM",), "L1": ("L2", "DRAM"), "shared": ("L2", "DRAM")}.get(key, ())
    for level in below:
        found = levels[level]
        if found is not None and found > (1 - FOUND) * moved:
            return f"counters found {found / moved:.0%} of the bytes at {level}"
    return ""


def _launch(device: Device) -> Ceiling:
    count = 64
    batches = [device.time_batch([device.nothing] * count) for _ in range(WINDOWS)]
    us = min(batch.times_us[0] for batch in batches)
    formula = f"an empty kernel, {count} launches back to back, best of {WINDOWS}"
    return Ceiling("launch", "launch", us * 1e-6, "measured", formula)


# Arithmetic --------------------------------------------------------------------------------------


def _fma(kernels: Microkernels) -> Iterator[Ceiling]:
    import numpy as np

    blocks = 4 * kernels.multiprocessors
    formula = f"{CHAINS} chains of FMA per thread, {FMA_THREADS} threads, {blocks} blocks"
    for precision, number, steps in (("fp32", np.float32, 4096), ("fp64", np.float64, 1024)):
        arguments = (np.int32(steps), number(0.999), number(0.001), kernels.out)
        launch = kernels.launch(f"fma_{precision}", blocks, FMA_THREADS, *arguments)
        flops = 2 * CHAINS * steps * blocks * FMA_THREADS
        yield _compute(f"{precision}_fma", flops, kernels.best(launch), formula)


ONES: Final = {
    "tf32": (8, 0x3F800000),
    "fp16": (16, 0x3C003C00),
    "bf16": (16, 0x3F803F80),
    "fp8": (32, 0x38383838),
    "int8": (32, 0x01010101),
}
"""Products along K in one instruction, and four bytes of ones."""

CHECKED_STEPS: Final = 32
"""Few enough that the sums are exact: the tensor cores add products of FP8 with 14 bits."""


def _tensor_cores(kernels: Microkernels) -> Iterator[Limit]:
    import numpy as np

    device, sms, steps = kernels.device, kernels.multiprocessors, 4096
    if device.fact("compute_capability") != "9.0":
        reason = "measured on compute capability 9.0 only, by wgmma"
        yield from (MissingCeiling("compute", f"{name}_mma", reason) for name in ONES)
        return
    for name, (k, ones) in ONES.items():
        number = np.int32 if name == "int8" else np.float32
        out = device.arrays.zeros(sms * TENSOR_THREADS, number)

        def run(steps: int, name: str = name, ones: int = ones, out: Any = out) -> Any:
            arguments = (np.int32(steps), np.uint32(ones), out)
            return kernels.launch(f"wgmma_{name}", sms, TENSOR_THREADS, *arguments)

        best = kernels.best(run(steps))
        run(CHECKED_STEPS)()
        # Compared on the host: CuPy would compile a comparison for each type.
        if not bool((out.get() == k * CHECKED_STEPS).all()):
            yield MissingCeiling("compute", f"{name}_mma", "the microkernel's result is wrong")
            continue
        formula = f"wgmma m64n256k{k} on ones, two warpgroups per multiprocessor"
        yield _compute(f"{name}_mma", 2 * 64 * 256 * k * steps * 2 * sms, best, formula)


def _compute(key: str, flops: int, best: tuple[float, float | None], formula: str) -> Ceiling:
    us, sm_mhz = best
    formula += f", at {sm_mhz:.0f} MHz" if sm_mhz else ""
    return Ceiling("compute", key, flops / us * 1e6, "measured", formula, sm_mhz=sm_mhz)
