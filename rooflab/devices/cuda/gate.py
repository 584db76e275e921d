"""A kernel that holds a CUDA stream until the host has queued all launches to be timed.

Without it a short kernel waits for Python between two launches, and event times measure the host.
NVBench's blocking kernel is the same idea.
"""

from __future__ import annotations

from typing import Any, Final

LIMIT_NS: Final = 2_000_000_000
"""The gate opens by itself after this time, so that a blocking launch cannot hang the sweep."""

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
        self._arguments = (np.uint64(self._memory.ptr), np.uint64(LIMIT_NS))
        # Launch once now: loading a module behind a closed gate could wait for the gate.
        self.close()
        self.open()
        self.nothing()
        cupy.cuda.get_current_stream().synchronize()

    def close(self) -> None:
        """Hold everything launched on the current stream from now on."""
        self._state[:] = 0
        self._gate((1,), (1,), self._arguments)

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
