"""NVIDIA GPUs, through CuPy and NVML."""

from __future__ import annotations

import os
import uuid
import warnings
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cached_property, partial
from importlib.util import find_spec
from itertools import permutations
from math import prod
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Final

from rooflab.devices.base import (
    Costs,
    Counters,
    Device,
    Launch,
    Limit,
    MarkedLaunch,
    Reading,
    Setting,
    Shared,
    Timed,
)
from rooflab.devices.cuda import driver, install, links, numa, peaks
from rooflab.devices.cuda.cupti import Counting
from rooflab.devices.cuda.gate import SHORTEST_US, Gate, SmClock, Window
from rooflab.devices.cuda.install import first_line
from rooflab.devices.cuda.launches import likely_cause
from rooflab.devices.cuda.links import Peer
from rooflab.devices.cuda.nvml import Nvml
from rooflab.errors import KernelError, UnavailableError
from rooflab.model.facts import Fact
from rooflab.model.roofline import Ceiling, MissingCeiling, Roofline

QUEUE: Final = 32
"""Launches timed one by one behind one gate, three or four entries each in the stream's queue."""

LEAST_HELD_US: Final = 5000.0
HELD: Final = 10.0
QUEUED: Final = 2.0
"""A gate is held for so long, for so many times what the launch keeps the host busy, and for so
many times what all launches do."""

ESCAPE_S: Final = 0.02
"""By then a launch that does not wait for the gate has written to its outputs."""

LEAST_FREE: Final = 0.4
"""The part of free memory that a kernel must leave to others."""

SHARED_PAGE: Final = 2**21
"""CUDA divides memory of this size among smaller allocations (CUDA C++ Programming Guide,
"Interprocess Communication")."""

LIMITS: Final = {"stack size": 0, "printf buffer": 1, "heap size": 2, "persisting L2": 6}
"""Limits by their numbers in CUDA's ``cudaLimit``."""

PROPERTIES: Final = {
    "sm_count": ("multiProcessorCount", ""),
    "memory_total": ("totalGlobalMem", "B"),
    "l2_cache": ("l2CacheSize", "B"),
    "shared_memory_per_block": ("sharedMemPerBlockOptin", "B"),
}
"""Facts, their names in ``cudaDeviceProp``, and their units."""

OUTSIDE: Final = "launches outside the given stream"
EARLY: Final = (
    "has not queued all of its work when it returns, so that its time would not be that of its "
    "work: wait for threads, and join streams, in the launch"
)

BLOCKS: Final = (
    "the launch waits for the device: it synchronizes or copies to the host, so that its time "
    "would be the host's; return without waiting"
)


def availability() -> str:
    """Why no CUDA device can be used and what to do, in one line; empty if one can."""
    return CudaDevice.probe()[1]


def count() -> int:
    """Number of usable CUDA devices."""
    return CudaDevice.probe()[0]


def _driver_too_old(runtime: Any) -> str:
    nvml = Nvml()
    if nvml.reason:
        return nvml.reason
    supported = nvml.cuda_version or "of an unknown version"
    needed = runtime.runtimeGetVersion() // 1000
    line = f"the driver supports CUDA {supported}, this CuPy needs {needed}.x: update the driver"
    if needed == 13 and supported.startswith("12."):
        cupy = " ".join(install.installed_cupy())
        line += f", or pip uninstall {cupy}, then {_install_line(nvml)}"
    return line


def _install_line(nvml: Nvml) -> str:
    """The command that installs a CuPy for this driver."""
    return install.line("cuda13" if nvml.cuda_version.startswith("13") else "cuda12")


def _import_cupy() -> Any:
    """The module ``cupy``; raises ``UnavailableError`` with the command that fixes it."""
    installed = install.installed_cupy()
    if len(installed) > 1:
        raise UnavailableError(
            f"{' and '.join(installed)} cannot be installed together: "
            f"pip uninstall {' '.join(installed)}, then {_install_line(Nvml())}"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import cupy
    except Exception as error:  # a broken installation can raise anything: missing library, ABI, …
        nvml = Nvml()
        if find_spec("cupy") is None:
            then = f"; then: {nvml.reason}" if nvml.reason else ""
            raise UnavailableError(f"CuPy is missing: {_install_line(nvml)}{then}") from error
        raise UnavailableError(
            f"CuPy cannot be imported ({first_line(error)}): {_install_line(nvml)} "
            "--force-reinstall"
        ) from error
    return cupy


def _counted(
    reading: Reading | None, window: Window | None, times_us: Sequence[float]
) -> Reading | None:
    """``reading`` with the clock that was counted, if the window was long enough."""
    counts = window and sum(times_us) >= SHORTEST_US
    return replace(reading or Reading(), sm_mhz=window.mhz) if window and counts else reading


class CudaDevice(Device):
    """One NVIDIA GPU, or one MIG instance of it, by CUDA's index.

    Raises ``UnavailableError`` if CuPy or the device is missing. Opening it makes it CUDA's
    current device in this thread.
    """

    kind = "cuda"
    packages = (
        *("cupy-cuda12x", "cupy-cuda13x", "nvidia-ml-py", "nvidia-cutlass", "nvmath-python"),
        *("nvidia-cublas", "nvidia-cublas-cu12"),
    )
    candidates = None
    compiles_arrays = True
    levels_apart = True  # counters make it slow to load code
    has_own_memory = True
    numbered = True
    needs = "an NVIDIA GPU (see: rooflab doctor)"
    memories = "L1, L2 and shared memory"
    parallelism = "give each thread more independent work, or run more warps at once"
    costs = Costs(
        start_s=3.5,
        levels_s=15.0,
        row_s=0.3,
        checked_bytes_per_s=1e12,
        flops=2e13,
        bytes_per_s=1e12,
        steady=True,
    )

    @classmethod
    def probe(cls) -> tuple[int, str]:
        """All GPUs that CUDA finds."""
        try:
            runtime = _import_cupy().cuda.runtime
        except UnavailableError as error:
            return 0, str(error)
        try:
            if devices := int(runtime.getDeviceCount()):
                return devices, ""
        except runtime.CUDARuntimeError as error:
            name = str(error).partition(":")[0]
            if name == "cudaErrorInsufficientDriver":
                return 0, _driver_too_old(runtime)
            if name != "cudaErrorNoDevice":
                return 0, f"CUDA does not start ({first_line(error)}): run nvidia-smi to see why"
        if (setting := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
            return 0, f"CUDA_VISIBLE_DEVICES={setting!r} hides every GPU: unset it"
        return 0, "CUDA finds no GPU: run nvidia-smi to see why"

    def __init__(self, index: int, nvml: Nvml | None = None, root: Path = Path("/")) -> None:
        devices, reason = self.probe()
        if index >= devices:
            raise UnavailableError(
                f"cuda:{index} cannot be used: {reason or f'CUDA finds {devices} (from cuda:0)'}"
            )
        self._cupy = _import_cupy()
        self._index = index
        self._devices = devices
        self._root = root
        self._nvml = nvml or Nvml()
        self._events: list[tuple[Any, Any]] = []
        self._queues: list[Any] = []
        self._group: list[CudaDevice] = [self]
        self._uuid = ""
        self.id = f"cuda:{index}"
        self.name = str(self.fact("name"))

    @cached_property
    def facts(self) -> dict[str, Fact]:
        """CUDA's and NVML's properties, from when the device was opened."""
        runtime = self._cupy.cuda.runtime
        with self._cuda_errors():
            properties = runtime.getDeviceProperties(self._index)
            bus_id = runtime.deviceGetPCIBusId(self._index)
            versions = {
                "Runtime": runtime.runtimeGetVersion(),
                "Driver": runtime.driverGetVersion(),
            }
        # CuPy cuts the 16 bytes at the first zero among them; a shorter UUID is useless.
        raw_uuid = properties.get("uuid", b"")
        self._uuid = str(uuid.UUID(bytes=raw_uuid)) if len(raw_uuid) == 16 else ""
        capability = f"{properties['major']}.{properties['minor']}"
        cuda = {
            "name": Fact(properties["name"].decode(), source="cudaDeviceProp.name"),
            "compute_capability": Fact(capability, source="cudaDeviceProp.major, minor"),
        }
        for name, (member, unit) in PROPERTIES.items():
            value, source = properties.get(member), f"cudaDeviceProp.{member}"
            reason = "" if value is not None else f"{source}: not reported"
            cuda[name] = Fact(value, unit, source, reason)
        cuda["pci_bus_id"] = Fact(bus_id, source="cudaDeviceGetPCIBusId")
        cuda["numa_node"] = numa.node_fact(self._root, bus_id)
        for what, version in versions.items():
            text = f"{version // 1000}.{version % 1000 // 10}"
            cuda[f"cuda_{what.lower()}_version"] = Fact(text, source=f"cuda{what}GetVersion")
        if self._peer:
            text = f"cuda:{self._peer.index} at {self._peer.bus_id}"
            cuda["peer"] = Fact(text, source="the next GPU; cudaDeviceGetPCIBusId")
        # CUDA's values have priority: they describe the device that kernels run on. A MIG instance
        # has a different name and memory than its GPU.
        return cuda | self._nvml.facts_of(bus_id, self._uuid) | cuda

    @cached_property
    def _peer(self) -> Peer | None:
        """The next GPU, None if this is the only one."""
        if self._devices < 2:
            return None
        index = (self._index + 1) % self._devices
        runtime = self._cupy.cuda.runtime
        try:
            bus_id = runtime.deviceGetPCIBusId(index)
        except runtime.CUDARuntimeError:
            bus_id = "an unknown bus id"
        return Peer(self._index, index, bus_id)

    @cached_property
    def arrays(self) -> Any:
        """The module ``cupy``. The first use creates a context and a stream, both current.

        The stream is not the default stream, which cannot be passed to PyTorch. It is a blocking
        stream, so that launches on the default stream are ordered with it. Raises
        ``UnavailableError`` if CUDA reports an error.
        """
        try:
            with self._cuda_errors():
                self._cupy.cuda.Device(self._index).use()
                # Entered and never left: after use(), leaving another stream's context would make
                # the null stream current.
                self._current = ExitStack()
                self._current.enter_context(self._cupy.cuda.Stream())
        except KernelError as error:
            raise UnavailableError(f"{error}: run nvidia-smi to see why") from error
        return self._cupy

    def roofline(self) -> Roofline:
        """Derived ceilings."""
        limits = links.derive_links(self)
        if self._peer and self._handle is None:
            reason = self._nvml.reason or "NVML lists no such GPU"
            limits.append(MissingCeiling("bandwidth", "PEER", reason))
        elif self._peer:
            limits.append(links.derive_peer(self._nvml, self._handle, self._peer))
        return peaks.derive(self.facts, peaks.load_table()).with_limits(*limits)

    def count(self, launches: Sequence[Launch]) -> Counters | None:
        """CUPTI's counters of one launch."""
        self.synchronize()  # there must be a context
        return self._counting.count(launches)

    @cached_property
    def _counting(self) -> Counting:
        return Counting(self._index)

    def levels(self) -> list[Limit]:
        """Measured: device memory, L2, L1, shared memory, FMA, tensor cores."""
        from rooflab.devices.cuda.ceilings import measure_levels

        return measure_levels(self, self.roofline().memory)

    def links(self) -> list[Limit]:
        """Measured: to and from the host, and to the next GPU."""
        peer = links.measure_peer(self, self._peer) if self._peer else []
        return [*links.measure_links(self), *peer]

    @property
    def senses(self) -> bool:
        """Whether NVML knows this GPU."""
        return self._sample is not None

    def free_bytes(self) -> int:
        """Free device memory, and unused memory in CuPy's pool."""
        with self._cuda_errors():
            free, _ = self.arrays.cuda.runtime.memGetInfo()
        return int(free) + int(self._cupy.get_default_memory_pool().free_bytes())

    def last_level_cache_bytes(self) -> int:
        """Size of L2."""
        return int(self.fact("l2_cache") or 0)

    def time(self, launches: Sequence[Launch], before: Launch | None = None) -> Timed:
        """Microseconds between a pair of events around each launch, QUEUE at a time behind a gate.

        Raises ``KernelError`` if a launch fails. The times include the overhead of the events.
        """
        alone = [[launch] for launch in launches]
        depth = max((MarkedLaunch.of(launch).depth for launch in launches), default=1)
        most = max(1, QUEUE // depth)
        parts = [self._timed(alone[i : i + most], before) for i in range(0, len(alone), most)]
        times_us = [time_us for part in parts for time_us in part.times_us]
        reading = parts[-1].reading if parts else None
        return Timed(times_us, all(part.gated for part in parts), reading)

    def time_alone(self, launch: Launch, before: Launch | None) -> Timed:
        """Between a pair of events behind a gate of its own."""
        return self._timed([[launch]], before, sense=False)

    def time_batch(
        self, launches: Sequence[Launch], before: Launch | None = None, *, sense: bool = True
    ) -> Timed:
        """The mean of at most MAX_BATCH launches between one pair of events, behind a gate."""
        timed = self._timed([launches], before, sense)
        return replace(timed, times_us=[timed.times_us[0] / len(launches)])

    def _timed(
        self, groups: Sequence[Sequence[Launch]], before: Launch | None, sense: bool = True
    ) -> Timed:
        """One time per group of launches. All of them must fit in the stream's queue."""
        self._counting.stop()
        # A launch that would fill the queue, or that blocks the host, cannot be behind a gate.
        if not all(MarkedLaunch.of(launch).gated for group in groups for launch in group):
            return self._timed_by_host(groups, before)
        cuda, stream = self.arrays.cuda, self.stream
        while len(self._events) < len(groups):
            self._events.append((cuda.Event(), cuda.Event()))
        pairs = self._events[: len(groups)]
        with self._cuda_errors():
            counter = self._clock if sense else None  # loading its code would wait for the gate
            self._gate.close()
            try:
                if counter:
                    counter.start()
                for group, (start, end) in zip(groups, pairs, strict=True):
                    if before:
                        before()
                    start.record(stream)
                    for launch in group:
                        launch()
                    end.record(stream)
                if counter:
                    counter.stop()
            finally:
                self._gate.open()
            # Sample the sensors while the device works: afterwards it is idle.
            reading = self._sample() if self._sample and sense else None
            stream.synchronize()
            times_us = [cuda.get_elapsed_time(start, end) * 1e3 for start, end in pairs]
            window = self._clock.window() if sense else None
        stretch = self._stretch(window, sum(times_us)) if window and not before else 0.0
        return Timed(times_us, not self._gate.gave_up, _counted(reading, window, times_us), stretch)

    def _timed_by_host(self, groups: Sequence[Sequence[Launch]], before: Launch | None) -> Timed:
        """One time per group of launches, from an idle device to an idle device."""
        times_us = []
        with self._cuda_errors():
            self._clock.start()
            for group in groups:
                if before:
                    before()
                self.stream.synchronize()
                started = perf_counter()
                for launch in group:
                    launch()
                if wait := MarkedLaunch.of(group[-1]).wait:
                    wait()
                self.stream.synchronize()
                times_us.append((perf_counter() - started) * 1e6)
            self._clock.stop()
            reading = self._sample() if self._sample else None
            self.stream.synchronize()
            window = self._clock.window()
        return Timed(times_us, False, _counted(reading, window, times_us))

    def _stretch(self, window: Window, window_us: float) -> float:
        """Cycles at the highest clock, relative to the time between events; 0 if unknown."""
        mhz = self.fact("sm_clock_max")
        least_us = window.cycles / float(mhz) if mhz else 0.0
        return least_us / window_us if least_us >= SHORTEST_US and window_us else 0.0

    @cached_property
    def stream(self) -> Any:
        """The stream that ``arrays`` created, with ``ptr`` and ``__cuda_stream__``."""
        return self.arrays.cuda.get_current_stream()

    def queues(self, count: int) -> list[Any]:
        """Streams that do not wait for the default stream; the same ones each time."""
        while len(self._queues) < count:
            self._queues.append(self.arrays.cuda.Stream(non_blocking=True))
        return self._queues[:count]

    def on(self, queue: Any) -> AbstractContextManager[Any]:
        """The stream is CuPy's current one meanwhile."""
        stream: AbstractContextManager[Any] = queue
        return stream

    def host_array(self, shape: tuple[int, ...], dtype: str, *, pinned: bool) -> Any:
        """On the GPU's NUMA node if it is known; page-locked (cudaHostAlloc) if ``pinned``."""
        import numpy as np

        cuda = self.arrays.cuda  # creates its context, whose threads must not be bound
        with numa.near(self._root, self.fact("numa_node")):
            if not pinned:
                array = np.empty(shape, dtype)
                array.fill(0)  # so that all pages exist
                return array
            size = prod(shape) * np.dtype(dtype).itemsize
            try:
                memory = cuda.alloc_pinned_memory(size)
            except Exception as error:
                raise UnavailableError(
                    f"the host refuses {size / 1e9:.3g} GB of pinned memory, about "
                    f"{self._pinned_that_fits(size) / 1e9:.3g} GB would fit: use --host pageable "
                    f"or a smaller problem ({first_line(error)})"
                ) from error
            return np.frombuffer(memory, dtype, prod(shape)).reshape(shape)

    def _pinned_that_fits(self, size: int) -> int:
        """The largest half, quarter, ... of ``size`` bytes that the host gives."""
        while size := size // 2:
            try:
                self.arrays.cuda.alloc_pinned_memory(size)
            except Exception:
                continue
            self.arrays.get_default_pinned_memory_pool().free_all_blocks()
            return size
        return 0

    def copy(self, target: Any, source: Any, queue: Any) -> None:
        """cudaMemcpyAsync; from or to pageable memory it blocks the host."""
        stream = queue or self.stream
        pointers = [_pointer(array) for array in (target, source)]
        default = self.arrays.cuda.runtime.memcpyDefault
        self.arrays.cuda.runtime.memcpyAsync(*pointers, target.nbytes, default, stream.ptr)

    def mark(self, queue: Any, *, timed: bool = False) -> Any:
        """A CUDA event."""
        event = self.arrays.cuda.Event(disable_timing=not timed)
        event.record(queue or self.stream)
        return event

    def elapsed_us(self, first: Any, second: Any) -> float:
        """cudaEventElapsedTime, whose resolution is about 0.5 µs."""
        return float(self.arrays.cuda.get_elapsed_time(first, second)) * 1e3

    def wait(self, queue: Any, event: Any) -> None:
        """cudaStreamWaitEvent."""
        (queue or self.stream).wait_event(event)

    @property
    def group_size(self) -> int:
        """All GPUs that CUDA sees."""
        return self._devices

    def group(self, count: int) -> list[Device]:
        """CUDA's next GPUs, after the last one the first; with direct access if they allow it."""
        if count > self._devices:
            raise UnavailableError(
                f"this machine has {self._devices} GPU{'s' * (self._devices > 1)}: give --gpus "
                f"{self._devices} or less"
            )
        while len(self._group) < count:
            index = (self._index + len(self._group)) % self._devices
            self._group.append(CudaDevice(index, self._nvml, self._root))
        members = self._group[:count]
        indices = [one._index for one in members]
        for one in members:
            with one.active():
                links.enable_peers(self._cupy.cuda.runtime, one._index, indices)
        return list(members)

    def routes(self) -> dict[tuple[str, str], list[Limit]]:
        """Derived from NVLink, and measured one way and both ways, for each pair of GPUs."""
        routes: dict[tuple[str, str], list[Limit]] = {}
        self.group(self._devices)
        for one, other in permutations(self._group, 2):
            peer = Peer(one._index, other._index, str(other.fact("pci_bus_id")))
            with one.active():
                routes[one.id, other.id] = links.measure_peer(one, peer)
            if one._handle is not None:
                routes[one.id, other.id].insert(0, links.derive_peer(self._nvml, one._handle, peer))
        return routes

    @contextmanager
    def active(self) -> Iterator[None]:
        """The GPU is CUDA's current device meanwhile."""
        with self._cupy.cuda.Device(self._index):
            self.arrays.cuda.runtime.setDevice(self._index)  # its first use makes a context
            yield

    def capture(self, work: Launch) -> Launch:
        """A CUDA graph, captured from the main stream and all that join it.

        CuPy refuses calls of cuBLAS meanwhile (github.com/cupy/cupy, issue 6290).
        """
        with self._cuda_errors():
            self.stream.begin_capture()
            try:
                work()
            except Exception as error:
                with suppress(Exception):  # streams that did not join are an error of their own
                    self.stream.end_capture()
                reason = first_line(error)
                raise UnavailableError(f"no CUDA graph: {reason}; leave out --graph") from error
            graph = self.stream.end_capture()
        return lambda: graph.launch(self.stream)

    @contextmanager
    def checking(self) -> Iterator[None]:
        """CuPy's own reductions: those by CUB take three times as long to compile."""
        core = self.arrays._core
        before = core.get_reduction_accelerators()
        core.set_reduction_accelerators([])
        try:
            yield
        finally:
            core.set_reduction_accelerators(before)

    def settings(self) -> list[Setting]:
        """Memory, CuPy's allocator, stream and modes, and the limits of the device."""
        from cupy_backends.cuda.libs import cublas

        cuda, runtime = self.arrays.cuda, self.arrays.cuda.runtime
        handle, stream = cuda.device.get_cublas_handle(), self.stream.ptr
        pool = self.arrays.get_default_memory_pool()
        least = self.free_bytes() * LEAST_FREE
        found = [
            Setting(
                "memory of the device",
                lambda: self.free_bytes() >= least,
                lambda enough: None,
                lambda old, new: f"is kept: {self.free_bytes() / 1e9:.3g} GB are free",
            ),
            Setting("CuPy's allocator", cuda.get_allocator, cuda.set_allocator, "is replaced"),
            Setting(
                "the limit of CuPy's memory pool",
                pool.get_limit,
                lambda size: pool.set_limit(size=size),
            ),
            Setting(
                "the current stream", cuda.get_current_stream, lambda one: one.use(), "is replaced"
            ),
            Setting(
                "cuBLAS's math mode of CuPy",
                partial(cublas.getMathMode, handle),
                partial(cublas.setMathMode, handle),
            ),
            Setting(
                "what stays in L2 (the stream's access policy window)",
                partial(driver.l2_window, stream),
                partial(driver.set_l2_window, stream),
                "is set",
            ),
        ]
        several: list[tuple[str, Any, Any, Any]] = [
            (f"the device's {name}", runtime.deviceGetLimit, runtime.deviceSetLimit, limit)
            for name, limit in LIMITS.items()
        ]
        with suppress(ImportError, AttributeError):  # it has no public name
            from cupy import _core as sums

            several += [
                (
                    f"CuPy's type of sums of {kind}",
                    sums.get_compute_type,
                    sums.set_compute_type,
                    kind,
                )
                for kind in ("float16", "float32", "float64")
            ]
        return found + [
            Setting(name, partial(read, key), partial(write, key))
            for name, read, write, key in several
        ]

    def escapes(self, launch: Launch, outputs: Sequence[Any]) -> str:
        """Whether ``outputs`` change while the gate still holds the stream, or after it has ended.

        They are compared on a second stream, which does not wait for the gate. Raises
        ``KernelError`` if the launch does not return before the gate opens by itself.
        """
        side = self.arrays.cuda.Stream(non_blocking=True)
        before = [output.copy() for output in outputs]

        def changed(before: Sequence[Any]) -> bool:
            with side:
                pairs = zip(before, outputs, strict=True)
                return any(bool((a.view("uint8") != b.view("uint8")).any()) for a, b in pairs)

        early = [output.copy() for output in outputs]
        self.synchronize()
        changed(before)  # loads the code of the comparison, which could wait for the gate
        with self._cuda_errors():
            self._gate.close()
            try:
                launch()
                for copy, output in zip(early, outputs, strict=True):
                    self.copy(copy, output, None)
                if self._gate.gave_up:
                    raise KernelError(BLOCKS)
                sleep(ESCAPE_S)
                escaped = changed(before)
            finally:
                self._gate.open()
        self.synchronize()
        sleep(ESCAPE_S)
        self.synchronize()
        if escaped:
            return OUTSIDE
        return EARLY if changed(early) else ""

    def queued(self, launch: Launch, host_us: float, most: int) -> int:
        """Those that return before a gate opens by itself."""
        self.synchronize()
        limit_us = max(LEAST_HELD_US, HELD * host_us) + QUEUED * most * host_us
        with self._cuda_errors():
            self._gate.close(int(limit_us * 1e3))
            count = 0
            try:
                while count < most:
                    launch()
                    if self._gate.gave_up:
                        break
                    count += 1
            finally:
                self._gate.open()
            self.synchronize()
        return count

    def nothing(self) -> None:
        """An empty kernel."""
        self._gate.nothing()

    def observed(self, precision: str, sm_mhz: float) -> Ceiling | None:
        """The derived formula at ``sm_mhz``."""
        ceilings, _ = peaks.compute_ceilings(
            self.facts, peaks.load_table(), clock_mhz=sm_mhz, provenance="observed"
        )
        return next((ceiling for ceiling in ceilings if ceiling.key == precision), None)

    def missing_telemetry(self) -> str:
        """Which sensors NVML does not report, and why."""
        if self._handle is None:
            reason = self._nvml.reason or "NVML lists no such GPU"
            return f"no clocks, power and temperature: {reason}"
        return self._nvml.missing_telemetry(self._handle)

    def energy_j(self) -> float | None:
        """NVML's total-energy counter: joules since the driver was loaded."""
        return self._nvml.energy_joules(self._handle) if self._handle is not None else None

    @cached_property
    def _gate(self) -> Gate:
        return Gate(self.arrays)

    @cached_property
    def _clock(self) -> SmClock:
        return SmClock(self.arrays, int(self.fact("sm_count") or 1))

    @cached_property
    def _handle(self) -> Any:
        return self._nvml.find(str(self.fact("pci_bus_id")), self._uuid)

    @cached_property
    def _sample(self) -> Callable[[], Reading] | None:
        return self._nvml.sampler(self._handle) if self._handle is not None else None

    def synchronize(self) -> None:
        """Wait for the device; raises ``KernelError`` with CUDA's error and its likely cause."""
        with self._cuda_errors():
            self.arrays.cuda.runtime.deviceSynchronize()

    def release(self) -> None:
        """Free the unused blocks of CuPy's memory pools."""
        self._cupy.get_default_memory_pool().free_all_blocks()
        self._cupy.get_default_pinned_memory_pool().free_all_blocks()

    def shared(self, size: int) -> Shared:
        """Memory of CUDA's own, in whole pages: of a page that is shared all can be read."""
        cuda = self.arrays.cuda
        whole = -(-size // SHARED_PAGE) * SHARED_PAGE
        with self._cuda_errors():
            memory = cuda.Memory(whole)
            handle = cuda.runtime.ipcGetMemHandle(memory.ptr)
        return Shared(self._bytes(memory, size), b64encode(handle).decode())

    def opened(self, handle: str, size: int) -> Any:
        """It stays open until this process ends."""
        cuda = self.arrays.cuda
        with self._cuda_errors():
            address = cuda.runtime.ipcOpenMemHandle(b64decode(handle))
        return self._bytes(cuda.UnownedMemory(address, size, None), size)

    def _bytes(self, memory: Any, size: int) -> Any:
        pointer = self.arrays.cuda.MemoryPointer(memory, 0)
        return self.arrays.ndarray((size,), dtype="uint8", memptr=pointer)

    @contextmanager
    def _cuda_errors(self) -> Iterator[None]:
        cuda = self._cupy.cuda
        try:
            yield
        except (cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError) as error:
            why = likely_cause(first_line(error))
            raise KernelError(f"CUDA on cuda:{self._index}: {why}") from error


def _pointer(array: Any) -> int:
    """The address of an array's first element, on the device or the host."""
    return int(array.data.ptr if hasattr(array.data, "ptr") else array.ctypes.data)
