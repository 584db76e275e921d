"""Counts launches on a GPU with CUPTI."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Final

from rooflab.devices.base import Counters
from rooflab.devices.cuda.counters import choose, interpret
from rooflab.devices.cuda.cupti import Cupti, Host, RangeProfiler
from rooflab.errors import KernelError, UnavailableError

FORBIDDEN: Final = (
    "the driver does not permit reading counters: load the kernel module nvidia with "
    "NVreg_RestrictProfilingToAdminUsers=0, or run as root "
    "(https://developer.nvidia.com/ERR_NVGPUCTRPERM)"
)


class Counting:
    """Counts on the current context. It stays prepared until ``stop``: preparing takes 0.1 s."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._active = ExitStack()

    def count(self, launches: Sequence[Callable[[], None]]) -> Counters:
        """Counters of one launch: the mean over all of them, which run once per pass.

        Raises ``UnavailableError`` without CUPTI or permission.
        """

        def work() -> None:
            for launch in launches:
                launch()

        try:
            return interpret(self._prepared.measure(work), len(launches))
        except KernelError as error:
            forbidden = "INSUFFICIENT_PRIVILEGES" in str(error)
            text = FORBIDDEN if forbidden else f"no counters: {error}"
            raise UnavailableError(text) from error

    def stop(self) -> None:
        """Before anything is timed."""
        self.__dict__.pop("_prepared", None)
        self._active.close()

    @cached_property
    def _prepared(self) -> RangeProfiler:
        return self._active.enter_context(self._profiler)

    @cached_property
    def _profiler(self) -> RangeProfiler:
        """For the metrics of the chip, which are configured once."""
        cupti = Cupti()
        host = Host(cupti, cupti.chip(self._device))
        return RangeProfiler(cupti, host, choose(host.metrics()))
