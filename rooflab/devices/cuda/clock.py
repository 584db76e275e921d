"""The SM clock while kernels run: cycles over nanoseconds, counted on every multiprocessor.

NVML's clock is too high while the tensor cores are busy. So a kernel that runs on all
multiprocessors writes their cycle counters and the global timer before and after a window of
launches, outside the events that time it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

SHORTEST_US: Final = 200.0
"""Shorter windows give no clock: counter and timer are not read at exactly the same time."""

SLOTS: Final = 1024
"""More than the numbers of multiprocessors, which may have gaps."""

BLOCKS_PER_SM: Final = 4
"""Enough that the scheduler places a block on every multiprocessor; the first one writes."""

_SOURCE: Final = r"""
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
