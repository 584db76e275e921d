"""Ceilings of a GPU, measured: memory levels, FMA pipes and tensor cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from rooflab.cuda import compiler
from rooflab.device import Device
from rooflab.errors import KernelError
from rooflab.model.roofline import Ceiling, MissingCeiling

SOURCE: Final = Path(__file__).with_suffix(".cu")
WGMMA: Final = Path(__file__).with_name("wgmma.cu")

THREADS: Final = 1024
FMA_THREADS: Final = 512
CHAINS: Final = 16

DRAM_BYTES: Final = 2**31
"""Larger than every L2 cache by a factor of ten and more."""

L2_SHARE: Final = 0.4
"""Part of the L2 cache that is read: a GPU with two partitions caches far lines twice."""

L1_BYTES: Final = 96 * 2**10
"""Per multiprocessor: fits in the L1 cache of every GPU from 7.0 on except 7.5."""

WINDOW_US: Final = 2000.0
WINDOWS: Final = 7


class Microkernels:
    """Kernels of ``ceilings.cu`` and ``wgmma.cu`` on one device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._cupy = device.arrays
        self._arch = compiler.arch_for(str(device.fact("compute_capability")))
        self.multiprocessors = int(device.fact("sm_count") or 1)
        self.out = self._cupy.zeros(2)

    def launch(self, name: str, blocks: int, threads: int, *arguments: Any) -> Callable[[], None]:
        """A launch of the kernel called ``name``."""
        source = WGMMA if name.startswith("wgmma") else SOURCE
        compiled = compiler.compile_file(source, name, (), self._arch)
        function = self._cupy.RawModule(path=str(compiled.cubin)).get_function(name)
        return lambda: function((blocks,), (threads,), arguments)

    def best_us(self, launch: Callable[[], None]) -> float:
        """The shortest of several batches, in microseconds per launch."""
        first = min(self._device.time([launch] * 3).times_us)
        count = max(1, min(64, int(WINDOW_US / max(first, 1.0))))
        times = [self._device.time_batch([launch] * count).times_us[0] for _ in range(WINDOWS)]
        return min(times)


def measure_levels(device: Device, memory: str) -> list[Ceiling | MissingCeiling]:
    """Reading, writing and copying device memory; reading L2, L1 and shared memory; FMA."""
    try:
        return list(_levels(device, memory))
    except KernelError as error:
        return [MissingCeiling("bandwidth", "L2", f"not measured: {error}")]


def _levels(device: Device, memory: str) -> Iterator[Ceiling | MissingCeiling]:
    kernels = Microkernels(device)
    yield from _memory(device, kernels, memory)
    yield from _near_memory(device, kernels)
    yield from _fma(kernels)
    yield from _tensor_cores(device, kernels)


def _bandwidth(key: str, moved: float, time_us: float, formula: str) -> Ceiling:
    rate = moved / time_us * 1e6
    return Ceiling("bandwidth", key, rate, "measured", f"{formula}, best of {WINDOWS} windows")


def _memory(device: Device, kernels: Microkernels, memory: str) -> Iterator[Ceiling]:
    import numpy as np

    cupy = device.arrays
    size = min(DRAM_BYTES, device.free_bytes() // 4) // 16 * 16
    count = np.int64(size // 16)
    source, target = (cupy.zeros(size // 4, np.float32) for _ in range(2))
    blocks = 2 * kernels.multiprocessors
    text = f"of {size / 1e6:.0f} MB"
    read = kernels.launch("read_memory", blocks, THREADS, source, count, np.int32(1), kernels.out)
    write = kernels.launch("write_memory", blocks, THREADS, target, count)
    copies = (
        kernels.launch("copy_memory", blocks, THREADS, target, source, count),
        lambda: cupy.copyto(target, source),
    )
    yield _bandwidth(f"{memory}_read", size, kernels.best_us(read), f"reading {text}")
    yield _bandwidth(f"{memory}_write", size, kernels.best_us(write), f"writing {text}")
    copy_us = min(kernels.best_us(copy) for copy in copies)
    yield _bandwidth(f"{memory}_copy", 2 * size, copy_us, f"copying {text}")


def _near_memory(device: Device, kernels: Microkernels) -> Iterator[Ceiling | MissingCeiling]:
    import numpy as np

    cupy, sms = device.arrays, kernels.multiprocessors
    size = int(device.last_level_cache_bytes() * L2_SHARE) // 2**20 * 2**20
    if size:
        data = cupy.zeros(size // 4, np.float32)
        passes = max(1, 2**34 // size)
        read = kernels.launch(
            *("read_memory", 2 * sms, THREADS),
            *(data, np.int64(size // 16), np.int32(passes), kernels.out),
        )
        formula = f"reading {size / 2**20:.0f} MiB, {passes} times, each block its own lines"
        yield _bandwidth("L2", size * passes, kernels.best_us(read), formula)
    else:
        yield MissingCeiling("bandwidth", "L2", "the size of L2 is unknown")
    count, passes = L1_BYTES // 16, 500
    data = cupy.zeros(sms * L1_BYTES // 4, np.float32)
    read = kernels.launch(
        "read_l1", sms, THREADS, data, np.int32(count), np.int32(passes), kernels.out
    )
    formula = f"reading {L1_BYTES >> 10} KiB per multiprocessor, {passes} times"
    yield _bandwidth("L1", sms * L1_BYTES * passes, kernels.best_us(read), formula)
    passes = 4096
    read = kernels.launch("read_shared", sms, THREADS, np.int32(passes), kernels.out)
    moved = sms * THREADS * 16 * passes
    formula = f"reading shared memory, {passes} times 16 bytes per thread"
    yield _bandwidth("shared", moved, kernels.best_us(read), formula)


def _fma(kernels: Microkernels) -> Iterator[Ceiling]:
    import numpy as np

    blocks = 4 * kernels.multiprocessors
    for precision, number, steps in (("fp32", np.float32, 4096), ("fp64", np.float64, 1024)):
        launch = kernels.launch(
            *(f"fma_{precision}", blocks, FMA_THREADS),
            *(np.int32(steps), number(0.999), number(0.001), kernels.out),
        )
        flops = 2 * CHAINS * steps * blocks * FMA_THREADS
        rate = flops / kernels.best_us(launch) * 1e6
        formula = f"{CHAINS} chains of FMA per thread, {FMA_THREADS} threads, {blocks} blocks"
        yield Ceiling("compute", f"{precision}_fma", rate, "measured", formula)


ONES: Final = {
    "tf32": (8, 0x3F800000),
    "fp16": (16, 0x3C003C00),
    "bf16": (16, 0x3F803F80),
    "fp8": (32, 0x38383838),
    "int8": (32, 0x01010101),
}
"""Products along K in one instruction, and four bytes of ones."""


def _tensor_cores(device: Device, kernels: Microkernels) -> Iterator[Ceiling | MissingCeiling]:
    import numpy as np

    if device.fact("compute_capability") != "9.0":
        reason = "measured on compute capability 9.0 only, by wgmma"
        yield from (MissingCeiling("compute", f"{name}_mma", reason) for name in ONES)
        return
    threads, steps, sms = 256, 4096, kernels.multiprocessors
    for name, (k, ones) in ONES.items():
        number = np.int32 if name == "int8" else np.float32
        out = device.arrays.zeros(sms * threads, number)
        arguments = (np.int32(steps), np.uint32(ones), out)
        launch = kernels.launch(f"wgmma_{name}", sms, threads, *arguments)
        time_us = kernels.best_us(launch)
        if not bool((out == k * steps).all()):
            yield MissingCeiling("compute", f"{name}_mma", "the microkernel's result is wrong")
            continue
        flops = 2 * 64 * 256 * k * steps * 2 * sms
        formula = f"wgmma m64n256k{k} on ones, two warpgroups per multiprocessor"
        yield Ceiling("compute", f"{name}_mma", flops / time_us * 1e6, "measured", formula)
