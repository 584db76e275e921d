"""A deterministic device: kernels compute for real, its clock advances by what they declare.

Its id, ``fake:FakeDevice``, can be given to ``--device``: a worker process then imports this
module, which registers the kernels. FAKE_MEMORY in the environment is the memory that it has; with
FAKE_LAUNCHES_DIFFER an empty launch takes each process another time.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rooflab.devices.base import Device, Fact, Timed
from rooflab.errors import KernelError
from rooflab.measure.buffers import Operands, decode, encode
from rooflab.registry import BUILTIN, Kernel, Launch, Registry
from rooflab.roofline import Ceiling, Roofline

PEAK = 1e9
BANDWIDTH = 1e8


class FakeDevice(Device):
    """1 GFLOP/s, 100 MB/s, 1 GB of memory, and a clock that only its kernels move."""

    id = "fake:FakeDevice"
    kind = "exact"
    name = "Exact 1000"

    def __init__(self) -> None:
        self.clock_us = 0.0
        self.memory = int(os.environ.get("FAKE_MEMORY", 1_000_000_000))

    @property
    def facts(self) -> dict[str, Fact]:
        return {
            "threads": Fact(2, source="the test"),
            "max_clock": Fact(None, reason="an exact device has no clock"),
        }

    @property
    def arrays(self) -> Any:
        return np

    def roofline(self, *, measure: bool) -> Roofline:
        return Roofline(
            ceilings=(
                Ceiling("bandwidth", "DRAM", BANDWIDTH, "measured", "given"),
                Ceiling("compute", "fp32", PEAK, "measured", "given"),
                Ceiling("compute", "fp64", PEAK / 2, "measured", "given", "half of it"),
            ),
            memory="DRAM",
            prefer=("measured", "derived"),
        )

    def free_bytes(self) -> int:
        return self.memory

    def last_level_cache_bytes(self) -> int:
        return 200_000

    def time(
        self, launches: Sequence[Callable[[], None]], before: Callable[[], None] | None = None
    ) -> Timed:
        times = []
        for launch in launches:
            if before:
                before()
            start = self.clock_us
            launch()
            times.append(self.clock_us - start)
        return Timed(times)

    def time_batch(
        self, launches: Sequence[Callable[[], None]], before: Callable[[], None] | None = None
    ) -> Timed:
        times = self.time(launches, None).times_us
        return Timed([sum(times) / len(times)])

    def nothing(self) -> None:
        # As on a GPU, where an empty launch takes one process longer than another.
        if "FAKE_LAUNCHES_DIFFER" in os.environ:
            self.clock_us += os.getpid()

    def synchronize(self) -> None:
        pass

    def release(self) -> None:
        pass


def product(operands: Operands) -> Callable[[], None]:
    """C as it should be, in float64, rounded once."""
    problem, out = operands.problem, operands.problem.precision.output

    def compute() -> None:
        a = decode(np, operands.a, problem.precision.input)
        b = decode(np, operands.b, problem.precision.input)
        a = a.swapaxes(1, 2) if problem.layout[0] == "t" else a
        b = b.swapaxes(1, 2) if problem.layout[1] == "t" else b
        c = problem.alpha * (a @ b)
        if problem.beta:
            c += problem.beta * decode(np, operands.c, out)
        operands.c[...] = encode(np, c, out)

    return compute


def exact(name: str, share: float, spoil: Callable[[Operands], None] | None = None) -> Kernel:
    """A kernel that runs at ``share`` of the roof, and may spoil its result."""

    def prepare(device: Device, operands: Operands) -> Launch:
        assert isinstance(device, FakeDevice)
        problem, compute = operands.problem, product(operands)
        attainable = device.roofline(measure=True).attainable("fp32", problem.intensity)
        assert attainable is not None

        def launch() -> None:
            compute()
            if spoil:
                spoil(operands)
            device.clock_us += problem.flops / (attainable * share) * 1e6

        return launch

    return Kernel(name, "exact", "exact", f"{share:.0%} of the roof", ("fp32", "fp64"), prepare)


def _unbuildable(device: Device, operands: Operands) -> Launch:
    raise KernelError('broken.cu(3): error: identifier "x" is undefined\n    x = 1;\n    ^')


def _dies(device: Device, operands: Operands) -> Launch:
    return lambda: os.kill(os.getpid(), signal.SIGSEGV)


def _hangs(device: Device, operands: Operands) -> Launch:
    def launch() -> None:
        while True:
            signal.pause()

    return launch


def _nan_in_a_corner(operands: Operands) -> None:
    operands.c[-1, -1, -1] = np.nan


def _one_wrong_element(operands: Operands) -> None:
    operands.c[0, 0, 0] += 1


KERNELS = Registry(
    [
        exact("fast", 0.8),
        exact("slow", 0.2),
        exact("nan", 0.9, _nan_in_a_corner),
        exact("wrong", 0.9, _one_wrong_element),
        Kernel("broken", "exact", "exact", "Does not compile", ("fp32",), _unbuildable),
        Kernel("dies", "exact", "exact", "Takes the process with it", ("fp32",), _dies),
        Kernel("hangs", "exact", "exact", "Never returns", ("fp32",), _hangs),
        Kernel(
            "absent",
            "exact",
            "exact",
            "Needs what nobody has",
            ("fp32",),
            _unbuildable,
            unavailable=lambda device: "nobody has it: pip install it",
        ),
    ]
)
for kernel in KERNELS.all():
    BUILTIN.add(kernel)
