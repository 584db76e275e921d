"""The CPU of this machine: facts from the system's files, ceilings from microkernels."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from math import isclose
from pathlib import Path
from time import perf_counter, perf_counter_ns, process_time, sleep
from typing import Any, Final

from rooflab.devices.base import Device, Launch, Limit, Setting, Shared, Timed
from rooflab.devices.cpu.ceilings import (
    FLOATS,
    Patience,
    derived_compute,
    measure_bandwidth,
    measure_compute,
    measure_levels,
    microkernels,
)
from rooflab.devices.cpu.facts import (
    affinity,
    allowed_cpus,
    available_bytes,
    blas_facts,
    read_facts,
)
from rooflab.errors import KernelError, UnavailableError, UsageError
from rooflab.model.facts import Fact
from rooflab.model.precision import PRECISIONS
from rooflab.model.roofline import MissingCeiling, Roofline

SPIN_CYCLES_LOG2: Final = 26
"""Idle threads of OpenBLAS spin for 2 to this power clock cycles, on cores that the next kernel
needs. NumPy's OpenBLAS has 28, which is 0.1 s at 2.6 GHz."""

IDLE_S: Final = 0.02
IDLE_SHARE: Final = 0.1
"""The process is idle if it uses less than this share of a core during IDLE_S."""

MOST_SPIN_S: Final = 0.4
"""The longest wait for idle threads; some libraries' threads never stop spinning."""

WAKE_S: Final = 0.005

ESCAPE_LAUNCHES: Final = 200
MOST_ESCAPE_S: Final = 0.1
LOOKED_AT: Final = 257
ESCAPE_S: Final = 0.05
"""By then a thread in the background has written something."""
ALL_S: Final = 0.5
"""By then it has written everything, on a busy machine too."""

MAPS: Final = Path("/proc/self/maps")
"""The memory of this process, and what it may do there."""

EARLY: Final = (
    "returns before it has written its results, so that its time would not be that of its work: "
    "wait for them in the launch"
)

BUSY: Final = ("user", "nice", "system", "irq", "softirq", "steal")
"""Kinds of CPU time in which a core does something else than wait; guests are part of ``user``."""


def _company() -> Setting:
    """Whether threads of Python or processes have begun that go on; nothing ends them."""
    threads, children = sys._current_frames().keys(), _has_children()

    def others() -> bool:
        return bool(sys._current_frames().keys() - threads) or _has_children() > children

    return Setting("threads or processes", others, lambda value: None, "go on")


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (ChildProcessError, AttributeError):  # the latter where the system has no such call
        return False
    return True


class CpuDevice(Device):
    """The CPU that this process runs on. ``facts`` and ceilings are read and measured once."""

    id = "cpu"
    kind = "cpu"

    packages = ("numba",)
    measures_roofs = True
    has_threads = True
    needs = "--device cpu"

    def __init__(self, threads: int | None = None) -> None:
        self._root = Path("/")
        self._host = read_facts(self._root, allowed_cpus(), threads)
        usable = int(self._host["usable_cores"].value or 1)
        if threads is not None and not 1 <= threads <= usable:
            raise UsageError(f"--threads {threads}: this process may use 1 to {usable} threads")
        model = self._host["model"].value
        self.name = str(model or platform.processor() or f"{platform.machine()} CPU")
        self._threads = int(self._host["threads"].value or 1)

    @cached_property
    def facts(self) -> dict[str, Fact]:
        """Facts of the host, and NumPy's BLAS library."""
        return {**self._host, **blas_facts(self.arrays)}

    @property
    def arrays(self) -> Any:
        """NumPy."""
        import numpy

        return numpy

    def shared(self, size: int) -> Shared:
        """A file in memory, which has no name."""
        if sys.platform != "linux":
            return super().shared(size)
        from rooflab.devices.cpu.shared import create

        descriptor = create(size)
        return Shared(self.opened(str(descriptor), size), str(descriptor), descriptor)

    def opened(self, handle: str, size: int) -> Any:
        """The file is open in this process; its number is the handle."""
        from rooflab.devices.cpu.shared import mapped

        return self.arrays.frombuffer(mapped(int(handle), size), dtype="uint8")

    def claim(self) -> None:
        """Bind OpenMP's threads to cores, and limit NumPy's BLAS library to ``threads``."""
        os.environ.update(self.environment(os.environ))
        import numpy  # noqa: F401  loads the BLAS library, so that it can be limited
        from threadpoolctl import threadpool_limits

        threadpool_limits(self._threads, user_api="blas")
        self._begin_threads()

    def _begin_threads(self) -> None:
        """OpenMP binds this thread too, and threads that a kernel starts would inherit that."""
        usable = affinity()
        with suppress(UnavailableError):
            peaks, _ = microkernels(self._threads)
            peaks.scatter(self.arrays.empty(64))
        if usable:
            os.sched_setaffinity(0, usable)

    def environment(self, host: Mapping[str, str]) -> dict[str, str]:
        """Variables that bind threads to cores and end their spinning, unless ``host`` sets them.

        The OpenMP runtime reads them when Numba loads it, OpenBLAS when NumPy loads it. Without
        them two threads on one core would wait for each other for scheduler ticks.
        """
        wanted = {
            "OMP_PLACES": "cores",
            "OMP_PROC_BIND": "true",
            "OPENBLAS_THREAD_TIMEOUT": str(SPIN_CYCLES_LOG2),
        }
        return {name: value for name, value in wanted.items() if name not in host}

    def settings(self) -> list[Setting]:
        """The threads of Numba and of every library that ``threadpoolctl`` knows, and company.

        Operands are in the host's memory, where a kernel's threads and processes may write later.
        """
        import numba
        from threadpoolctl import ThreadpoolController

        threads = Setting("Numba's threads", numba.get_num_threads, numba.set_num_threads)
        found = [threads, _company()]
        for one in ThreadpoolController().lib_controllers:
            name = f"the threads of {one.internal_api} {Path(one.filepath).name[:20]}"
            found.append(Setting(name, one.get_num_threads, one.set_num_threads))
        return found

    @cached_property
    def evicts(self) -> bool:
        """Where the processor has an instruction for it, and Numba is there to say so."""
        if platform.machine().lower() not in ("x86_64", "amd64"):
            return False
        try:
            import_module("rooflab.devices.cpu._numba_eviction")
        except ImportError:
            return False
        return True

    def evictor(self, arrays: Sequence[Any]) -> Launch:
        """Every cache line of the arrays is written back and dropped, from all cores' caches."""
        from rooflab.devices.cpu._numba_eviction import evictor

        return evictor(arrays)

    def escapes(self, launch: Launch, outputs: Sequence[Any]) -> str:
        """Whether ``launch`` returns before it has written ``outputs``.

        Threads of Python take turns quickly meanwhile, so that one that computes in the background
        is seldom ready when the launch returns.
        """
        flats = [output.reshape(-1) for output in outputs]
        launch()
        # Methods of arrays: functions of NumPy may be replaced or hooked by the kernel.
        early = [flat.copy() for flat in flats]
        sleep(ESCAPE_S)
        if any(a.tobytes() != b.tobytes() for a, b in zip(early, flats, strict=True)):
            return EARLY
        started, interval = perf_counter(), sys.getswitchinterval()
        looks = [_Look(flat) for flat in flats]
        unwritten = False
        try:
            sys.setswitchinterval(1e-6)
            for _ in range(ESCAPE_LAUNCHES):
                for look in looks:
                    look.mark()
                launch()
                unwritten = any(look.unwritten() for look in looks)
                if unwritten or perf_counter() - started > MOST_ESCAPE_S:
                    break
        finally:
            sys.setswitchinterval(interval)
        return EARLY if unwritten and _all_come(looks) else ""

    def hides(self, outputs: Sequence[Any]) -> bool:
        """Whether a page of ``outputs`` is protected, by what Linux says."""
        if not MAPS.exists():
            return False
        ends = [(rows.ctypes.data, rows[-1].ctypes.data + rows[-1].nbytes) for rows in outputs]
        for line in MAPS.read_text(errors="replace").splitlines():
            places, rights, *_ = line.split()
            start, end = (int(place, 16) for place in places.split("-"))
            if rights[0] != "r" and any(first < end and start < last for first, last in ends):
                return True
        return False

    @cached_property
    def _ceilings(self) -> Roofline:
        patience = Patience()
        results: list[Limit] = [measure_bandwidth(self, self._threads, patience)]
        for precision in PRECISIONS:
            if precision in FLOATS:
                results.append(measure_compute(self, precision, self._threads, patience))
                results.append(derived_compute(self._host, precision))
            else:
                reason = "measured for fp32 and fp64 only"
                results.append(MissingCeiling("compute", precision, reason))
        return Roofline((), memory="DRAM", prefer=("measured", "derived")).with_limits(*results)

    def roofline(self) -> Roofline:
        """Measured and derived ceilings."""
        return self._ceilings

    def remeasure(self) -> Roofline:
        """The ceilings of the machine as it is now: busier or less busy than before."""
        self.__dict__.pop("_ceilings", None)  # the run may have had them from its manifest
        return self._ceilings

    def others_s(self) -> float:
        """All time that is not idle, of the usable CPUs, without this process."""
        import psutil

        busy = 0.0
        for number, cpu in enumerate(psutil.cpu_times(percpu=True)):
            if number in allowed_cpus():
                busy += sum(getattr(cpu, name, 0.0) for name in BUSY)
        own = psutil.Process().cpu_times()
        return busy - own.user - own.system

    def contended(self, others_s: float, wall_s: float) -> bool:
        """Whether others used more than the cores that have no thread, and a tenth of a core.

        A quota lets a process use fewer cores than it may run on: the rest is idle.
        """
        idle = len(allowed_cpus()) - self._threads
        return others_s > (max(0, idle) + 0.1) * wall_s

    def levels(self) -> list[Limit]:
        """Caches, and the ceilings of one thread."""
        return measure_levels(self, self._threads)

    def free_bytes(self) -> int:
        """Available memory in bytes; 1 GiB if the system does not report it."""
        available = available_bytes(self._root)
        return 2**30 if available is None else available

    def last_level_cache_bytes(self) -> int:
        """Total size of the last cache level, over all instances that usable CPUs can reach."""
        return int(self._host["last_level_cache_bytes"].value or 0)

    def time(
        self,
        launches: Sequence[Launch],
        before: Launch | None = None,
        now_ns: Callable[[], int] = perf_counter_ns,
    ) -> Timed:
        """Wall time of each launch in microseconds, from a monotonic clock.

        Nobody can replace the clock meanwhile, since it is an argument. Raises ``KernelError`` if
        times were changed after they were taken.
        """
        times_us, total_us = [], 0.0
        for launch in launches:
            if before:
                before()
            start = now_ns()
            launch()
            times_us.append(one_us := (now_ns() - start) / 1000)
            total_us += one_us
        if not isclose(sum(times_us), total_us):
            raise KernelError("changes the times that were taken of it")
        return Timed(times_us)

    def quiesce(self, launch: Launch) -> None:
        """Wait until all libraries' idle threads stop spinning, then run ``launch`` for WAKE_S.

        Threads are slow for the first milliseconds after a sleep.
        """
        _wait_for_idle_threads()
        woken = perf_counter() + WAKE_S
        launch()
        while perf_counter() < woken:
            launch()

    def synchronize(self) -> None:
        """Do nothing: a launch on the CPU returns when it has ended."""


class _Look:
    """A few places of an output, which are marked before a launch and looked at after it."""

    def __init__(self, flat: Any) -> None:
        count = min(LOOKED_AT, flat.size)
        self._flat = flat
        self._places = [flat.size * i // count for i in range(count - 1)] + [flat.size - 1]
        self._marks = flat.take(self._places)
        self._marks.view("uint8").fill(0xA5)
        self._found = self._marks.copy()

    def mark(self) -> None:
        self._flat[self._places] = self._marks

    def unwritten(self) -> bool:
        self._flat.take(self._places, out=self._found, mode="clip")
        same = self._found.view("uint8") == self._marks.view("uint8")
        return bool(same.reshape(self._found.size, -1).all(axis=1).any())


def _all_come(looks: Sequence[_Look]) -> bool:
    """Whether all places are written at last, within ALL_S."""
    end = perf_counter() + ALL_S
    while any(look.unwritten() for look in looks):
        if perf_counter() > end:
            return False
        sleep(WAKE_S)
    return True


def _wait_for_idle_threads() -> None:
    """Sleep until this process uses no CPU time, at most MOST_SPIN_S."""
    end = perf_counter() + MOST_SPIN_S
    while perf_counter() < end:
        used_s = process_time()
        sleep(IDLE_S)
        if process_time() - used_s < IDLE_SHARE * IDLE_S:
            return
