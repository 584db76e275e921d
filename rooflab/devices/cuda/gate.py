"""Kernels that time others: a gate that holds a stream, and stamps of the SM clock.

Without the gate a short kernel waits for Python between two launches, and event times measure the
host. NVBench's blocking kernel is the same idea. NVML's clock is too high while the tensor cores
are busy, so a kernel that runs on all multiprocessors writes their cycle counters and the global
timer before and after a window of launches, outside the events that time it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

LIMIT_NS: Final = 2_000_000_000
"""The gate opens by itself after this time, so that a blocking launch cannot hang the sweep."""

SHORTEST_US: Final = 200.0
"""Shorter windows give no clock: counter and timer are not read at exactly the same time."""

SLOTS: Final = 1024
"""More than the numbers of multiprocessors, which may have gaps."""

BLOCKS_PER_SM: Final = 4
"""Enough that the scheduler places a block on every multiprocessor; the first one writes."""

_SOURCE: Final = r"""
extern "C" __global__ void gate(volatile int* state, unsigned long long limit_ns) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    while (state[0] == 0) {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        if (now - start > limit_ns) {
            state[1] = 1;
            return;
        }
    }
}

extern "C" __global__ void nothing() {}

extern "C" __global__ void stamp(unsigned long long* stamps, unsigned slots) {
    unsigned sm;
    unsigned long long time;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    const unsigned long long cycles = clock64();
    if (threadIdx.x == 0 && sm < slots && atomicCAS(&stamps[2 * sm], 0ull, cycles) == 0) {
        stamps[2 * sm + 1] = time;
    }
}
"""


class Gate:
    """One gate, for one stream at a time.

    ``state`` is two integers in pinned host memory, which the device reads directly: whether the
    host has opened the gate, and whether the gate has stopped waiting.
    """

    def __init__(self, cupy: Any) -> None:
        import numpy as np

        module = cupy.RawModule(code=_SOURCE)
        self._gate, self._nothing = module.get_function("gate"), module.get_function("nothing")
        self._memory = cupy.cuda.alloc_pinned_memory(8)
        self._state = np.frombuffer(self._memory, np.int32, 2)
        self._integer = np.uint64
        self._address = self._integer(self._memory.ptr)
        # Launch once now: loading a module behind a closed gate could wait for the gate.
        self.close()
        self.open()
        self.nothing()
        cupy.cuda.get_current_stream().synchronize()

    def close(self, limit_ns: int = LIMIT_NS) -> None:
        """Hold everything launched on the current stream from now on."""
        self._state[:] = 0
        self._gate((1,), (1,), (self._address, self._integer(limit_ns)))

    def open(self) -> None:
        """Let the held launches run."""
        self._state[0] = 1

    @property
    def gave_up(self) -> bool:
        """Whether the gate opened by itself. Valid after synchronizing."""
        return bool(self._state[1])

    def nothing(self) -> None:
        """Launch an empty kernel. A pair of events around it measures the timer's floor."""
        self._nothing((1,), (1,), ())


class SmClock:
    """Stamps of one window at a time, on the current stream."""

    def __init__(self, cupy: Any, multiprocessors: int) -> None:
        import numpy as np

        self._stamp = cupy.RawModule(code=_SOURCE).get_function("stamp")
        self._stamps = cupy.zeros((2, SLOTS, 2), np.uint64)
        self._grid = (BLOCKS_PER_SM * multiprocessors,)
        self._slots = np.uint32(SLOTS)
        # Launch now: loading the code behind a closed gate would wait for the gate.
        self.start()
        self.stop()
        self.window()

    def start(self) -> None:
        """The window begins."""
        self._stamps.fill(0)
        self._stamp(self._grid, (1,), (self._stamps[0], self._slots))

    def stop(self) -> None:
        """The window ends."""
        self._stamp(self._grid, (1,), (self._stamps[1], self._slots))

    def window(self) -> Window | None:
        """What was counted. Valid after synchronizing."""
        return window(self._stamps.get())


@dataclass(frozen=True, slots=True)
class Window:
    """Medians over the multiprocessors: their clock in MHz, and how many cycles it was."""

    mhz: float
    cycles: float


def window(stamps: Any) -> Window | None:
    """From cycles and nanoseconds (2, multiprocessors, 2); None without any."""
    import numpy as np

    before, after = stamps.astype(np.int64)
    written = (before[:, 1] > 0) & (after[:, 1] > before[:, 1])
    cycles, ns = (after[written] - before[written]).T
    if not written.any():
        return None
    return Window(float(np.median(cycles / ns)) * 1e3, float(np.median(cycles)))
