"""Counts launches on a GPU with CUPTI."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rooflab.cuda.counters import choose, interpret
from rooflab.cuda.cupti import Cupti, Host, RangeProfiler
from rooflab.device import Counters
from rooflab.errors import KernelError, UnavailableError

FORBIDDEN: Final = (
    "the driver does not permit reading counters: load the kernel module nvidia with "
    "NVreg_RestrictProfilingToAdminUsers=0, or run as root "
    "(https://developer.nvidia.com/ERR_NVGPUCTRPERM)"
)


class Counting:
    """The chip's metrics, configured once. Raises ``UnavailableError`` without CUPTI."""

    def __init__(self, device: int) -> None:
        try:
            self._cupti = Cupti()
            self._host = Host(self._cupti, self._cupti.chip(device))
            metrics = choose(self._host.metrics())
            self._profiler = RangeProfiler(self._cupti, self._host, metrics)
        except KernelError as error:
            raise _unavailable(error) from error

    def count(self, launches: Sequence[Callable[[], None]]) -> Counters:
        """Counters of one launch: the mean over all of them, which run once per pass."""

        def work() -> None:
            for launch in launches:
                launch()

        try:
            with self._profiler as profiler:
                return interpret(profiler.measure(work), len(launches))
        except KernelError as error:
            raise _unavailable(error) from error


def _unavailable(error: KernelError) -> UnavailableError:
    forbidden = "INSUFFICIENT_PRIVILEGES" in str(error)
    return UnavailableError(FORBIDDEN if forbidden else f"no counters: {error}")
