"""CUPTI's activity records: what the GPUs did in this process, and when, through ctypes.

The records' first members have kept their places from CUDA 12 to 13; only those are read.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

from rooflab.devices.cuda.cupti import Cupti
from rooflab.devices.cuda.markers import HostCall, Marker, phases_of, ranges_of
from rooflab.devices.records import CopyKind, RecordedLaunch, Transfer
from rooflab.errors import KernelError, UnavailableError

BUFFER_BYTES: Final = 2**19
"""Of one buffer of records, some 2,000 launches. Mostly a buffer comes back when it is full: while
the program launches, one of its records is not complete."""

MOST_BYTES: Final = 2**30
"""Of all buffers that are full; the records of later ones are dropped, and counted."""

MOST_FREE: Final = 128
"""Buffers that wait to be used, at most; and when nothing is recorded."""

FEW_FREE: Final = 4

OTHER_CLOCK: Final = 0.02
"""A clock that differs by more does not count nanoseconds."""

_MEMCPY, _MEMSET, _KERNEL, _MARKER, _PEER, _CORRELATION = 1, 2, 10, 12, 22, 39
_KINDS: Final = (_MEMCPY, _MEMSET, _KERNEL, _PEER)
_CALLS: Final = (4, 5)
"""Calls of the driver and the runtime, without which launches have no numbers."""

_NUMBERING: Final = (*_CALLS, _CORRELATION, _MARKER)

_SYSTEM_IDS: Final = 1
"""Threads have the system's numbers."""

_FORCED: Final = 1
"""Buffers are given back though some of their records are not complete."""

_NOT_INITIALIZED: Final = 15
"""CUPTI's error without a driver."""

NO_GPU: Final = "there is no NVIDIA GPU here that CUDA can use"

_OWN: Final = 3
"""The kind of our numbers among all external ones."""

_COPIES: Final[dict[int, CopyKind]] = {1: "h2d", 2: "d2h", 3: "h2d", 4: "d2h", 8: "d2d", 9: "host"}
"""CUPTI's kinds of copies; 3 and 4 are from and to arrays. Others are within the device."""


def _record(**members: tuple[int, Any]) -> type[ctypes.Structure]:
    """A structure with these members at these places; all others are left out."""
    fields: list[tuple[str, Any]] = []
    end = 0
    for name, (offset, kind) in members.items():
        if offset > end:
            fields.append((f"_{end}", ctypes.c_uint8 * (offset - end)))
        fields.append((name, kind))
        end = offset + ctypes.sizeof(kind)
    return type("Record", (ctypes.Structure,), {"_pack_": 1, "_fields_": fields})


_U2, _U4, _U8 = ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64
_COPY: Final = {"bytes": (8, _U8), "start": (16, _U8), "end": (24, _U8), "device": (32, _U4)}
_LAYOUTS: Final = {
    _KERNEL: _record(
        registers=(6, _U2),
        start=(16, _U8),
        end=(24, _U8),
        device=(40, _U4),
        stream=(48, _U4),
        grid=(52, _U4 * 3),
        block=(64, _U4 * 3),
        static=(76, _U4),
        dynamic=(80, _U4),
        correlation=(92, _U4),
        name=(104, _U8),
        graph=(156, _U4),
    ),
    _MEMCPY: _record(kind=(4, ctypes.c_uint8), **_COPY, stream=(40, _U4)),
    _MEMSET: _record(**_COPY, stream=(40, _U4)),
    _PEER: _record(**_COPY, stream=(40, _U4)),
    _CORRELATION: _record(kind=(4, _U4), number=(8, _U8), correlation=(16, _U4)),
    _MARKER: _record(flags=(4, _U4), at=(8, _U8), id=(16, _U4), thread=(28, _U4), name=(40, _U8)),
    **{kind: _record(start=(8, _U8), thread=(28, _U4), correlation=(32, _U4)) for kind in _CALLS},
}

_REQUESTED: Final = ctypes.CFUNCTYPE(
    None,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_size_t),
    ctypes.POINTER(ctypes.c_size_t),
)
_COMPLETED: Final = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)


class Records(NamedTuple):
    """Launches in the program's order, copies by start. ``numbers`` are those that were current at
    each launch, ``phases`` the NVTX ranges around the call that made it, if that was asked for.

    ``dropped`` is how many records did not fit in memory.
    """

    launches: list[RecordedLaunch]
    copies: list[Transfer]
    numbers: list[int]
    phases: list[tuple[str, ...]]
    dropped: int


class Activity:
    """Records of everything that GPUs do between ``start`` and ``stop``.

    One at a time can record in a process: another profiler in it ends this one's records.
    """

    def __init__(self, cupti: Cupti) -> None:
        self._cupti, self._library = cupti, cupti.library
        self._buffers: dict[int, ctypes.Array[ctypes.c_uint8]] = {}
        self._kept: dict[int, list[Any]] = {kind: [] for kind in _LAYOUTS}
        self._numbered = self._ignored = False
        self._free: list[ctypes.Array[ctypes.c_uint8]] = []
        self._given_up: list[ctypes.Array[ctypes.c_uint8]] = []  # CUPTI may still write to them
        self._gives_up = False
        self._full: deque[tuple[ctypes.Array[ctypes.c_uint8], int]] = deque()
        self._dropped = 0
        self._began = (0, 0)
        # CUPTI calls them until the process ends: they must live as long.
        self._callbacks = (_REQUESTED(self._requested), _COMPLETED(self._completed))
        _ALIVE.append(self)

    def start(self, *, numbers: bool = False) -> None:
        """``numbers`` begin at once.

        Raises ``UnavailableError`` without a GPU, ``KernelError`` if CUPTI refuses.
        """
        self._do("SetThreadIdType", _SYSTEM_IDS)
        self._do("ActivityRegisterCallbacks", *self._callbacks)
        self._began = (self._stamp(), perf_counter_ns())
        self._numbered = False
        self.resume()
        if numbers:
            self.begin_numbers()

    def resume(self) -> None:
        """Record again, after ``stop``."""
        for kind in _KINDS:
            self._do("ActivityEnable", kind)

    def begin_numbers(self) -> None:
        """Launches get the numbers of ``push``, and NVTX ranges are recorded.

        That costs time in each call. Only what is launched from now on is recorded.
        """
        self._numbered = True
        for kind in _NUMBERING:
            self._do("ActivityEnable", kind)

    def end_numbers(self) -> None:
        """Launches are recorded as before. What was not taken yet is lost."""
        self._numbered = False
        self._disable(_NUMBERING)
        self._read()
        for kind in _NUMBERING:
            self._kept[kind] = []

    def stop(self) -> None:
        """Everything that was launched has to be done, and nothing may be launched meanwhile.

        Otherwise CUPTI would go on to write records of which it has freed a part. It keeps a
        record that is not complete, with all later ones of its thread: those are given up.
        """
        self.flush()
        self._disable((*_KINDS, *(_NUMBERING if self._numbered else ())))
        self._gives_up = True
        try:
            self._do("ActivityFlushAll", _FORCED)
        finally:
            self._gives_up = False
            del self._free[FEW_FREE:]

    def ignore(self) -> None:
        """Keep nothing more of what is recorded."""
        self._ignored = True
        self._full.clear()

    def _disable(self, kinds: Iterable[int]) -> None:
        for kind in kinds:
            with suppress(KernelError):
                self._do("ActivityDisable", kind)

    def _clock(self) -> Callable[[int], int]:
        """From CUPTI's clock to ours: another profiler may have given it one that counts ticks."""
        first, began = self._began
        tick = (perf_counter_ns() - began) / max(1, self._stamp() - first)
        if abs(tick - 1) < OTHER_CLOCK:
            tick = 1.0
        return lambda stamp: began + round((stamp - first) * tick)

    @property
    def kept(self) -> int:
        """How many launches that were called since then have records that were not taken."""
        self._read()
        called = {one.correlation for kind in _CALLS for one in self._kept[kind]}
        return sum(one.correlation in called for one in self._kept[_KERNEL])

    def flush(self) -> None:
        """Take all records that are complete."""
        self._do("ActivityFlushAll", 0)

    def now(self) -> int:
        """The time on the clock of the records that ``taken`` returns, in nanoseconds."""
        return self._clock()(self._stamp())

    def _stamp(self) -> int:
        stamp = ctypes.c_uint64()
        self._do("GetTimestamp", ctypes.byref(stamp))
        return stamp.value

    def push(self, number: int) -> None:
        """What this thread launches from now on has this number."""
        self._do("ActivityPushExternalCorrelationId", _OWN, ctypes.c_uint64(number))

    def pop(self) -> None:
        """It has the number that it had before."""
        last = ctypes.c_uint64()
        self._do("ActivityPopExternalCorrelationId", _OWN, ctypes.byref(last))

    def taken(self) -> Records:
        """All records since the last call of this."""
        self._read()
        kept, self._kept = self._kept, {kind: [] for kind in _LAYOUTS}
        dropped, self._dropped = self._dropped, 0
        own = (one for one in kept[_CORRELATION] if one.kind == _OWN)
        numbers = {one.correlation: one.number for one in own}
        complete = (one for one in kept[_KERNEL] if one.end)
        kernels = sorted(complete, key=lambda one: (one.correlation, one.start))
        ns = self._clock()
        calls = _calls(kept, ns)
        if self._numbered:
            kernels = [one for one in kernels if one.correlation in calls]
        markers = (Marker(m.flags, m.id, m.thread, ns(m.at), m.text) for m in kept[_MARKER])
        phases = phases_of(calls, ranges_of(markers))
        copies = [_copy(_COPIES.get(one.kind, "d2d"), one, ns) for one in kept[_MEMCPY]]
        copies += [_copy("memset", one, ns) for one in kept[_MEMSET]]
        copies += [_copy("peer", one, ns) for one in kept[_PEER]]
        return Records(
            [_launch(one, ns) for one in kernels],
            sorted(copies, key=lambda one: one.start_ns),
            [numbers.get(one.correlation, 0) for one in kernels],
            [phases.get(one.correlation, ()) for one in kernels],
            dropped,
        )

    def _do(self, name: str, *values: Any) -> None:
        if status := getattr(self._library, f"cupti{name}")(*values):
            if status == _NOT_INITIALIZED:
                raise UnavailableError(NO_GPU)
            raise KernelError(f"cupti{name}: {self._cupti.reason(status)}")

    def _requested(self, buffer: Any, size: Any, most: Any) -> None:
        made = self._free.pop() if self._free else (ctypes.c_uint8 * BUFFER_BYTES)()
        address = ctypes.addressof(made)
        self._buffers[address] = made
        buffer[0], size[0], most[0] = address, BUFFER_BYTES, 0

    def _completed(self, _context: Any, _stream: int, buffer: int, _size: int, valid: int) -> None:
        """It is read later: meanwhile the program would wait."""
        made = self._buffers.pop(buffer, None)
        if self._gives_up or made is None:
            self._given_up += [made] if made else []
            if not self._ignored:
                self._keep_all(buffer, valid)
        elif self._ignored:
            self._free.append(made)
        elif self.held < MOST_BYTES:
            self._full.append((made, valid))
        else:
            count = sum(1 for _ in self._records(buffer, valid))
            self._dropped += count  # what is dropped may be taken while they are counted
            self._free.append(made)

    @property
    def held(self) -> int:
        """Bytes of the buffers whose records were not read."""
        return len(self._full) * BUFFER_BYTES

    def _read(self) -> None:
        """The records of all buffers that are full by now, which are then used again.

        Next time there may be twice as many. They are made here, and their pages: in the thread
        that launches each would take half a millisecond.
        """
        count = len(self._full)
        for _ in range(count):
            made, valid = self._full.popleft()
            self._keep_all(ctypes.addressof(made), valid)
            self._free.append(made)
        for _ in range(min(2 * count, MOST_FREE) - len(self._free)):
            self._free.append((ctypes.c_uint8 * BUFFER_BYTES)())
            ctypes.memset(self._free[-1], 0, BUFFER_BYTES)

    def _keep_all(self, buffer: int, valid: int) -> None:
        for address in self._records(buffer, valid):
            kind = ctypes.c_int.from_address(address).value
            if kind in _LAYOUTS:
                self._keep(kind, address)

    def _records(self, buffer: int, valid: int) -> Iterator[int]:
        """Their addresses."""
        record, next_record = ctypes.c_void_p(), self._library.cuptiActivityGetNextRecord
        where, filled = ctypes.c_void_p(buffer), ctypes.c_size_t(valid)
        while not next_record(where, filled, ctypes.byref(record)):
            yield record.value or 0

    def _keep(self, kind: int, address: int) -> None:
        record = _LAYOUTS[kind]
        one = record.from_buffer_copy(ctypes.string_at(address, ctypes.sizeof(record)))
        self._kept[kind].append(one)
        if kind == _KERNEL:
            # Later than when its buffer came; PyTorch's profiler reads names when all is over.
            _name(one.name)
        elif kind == _MARKER:
            one.text = ctypes.string_at(one.name).decode(errors="replace") if one.name else ""


_ALIVE: Final[list[Activity]] = []


def require_gpu() -> None:
    """Raise ``UnavailableError`` unless CUDA has a GPU."""
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuInit(0)
    except OSError:
        failed = 1
    if failed:
        raise UnavailableError(NO_GPU)


def synchronize() -> None:
    """Wait until all GPUs that this process uses have done everything."""
    driver = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return
    for device in range(count.value):
        flags, active = ctypes.c_uint(), ctypes.c_int()
        driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
        if active.value:
            _wait(driver, device)


def _wait(driver: Any, device: int) -> None:
    context = ctypes.c_void_p()
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    driver.cuCtxPushCurrent_v2(context)
    try:
        driver.cuCtxSynchronize()
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(context))
        driver.cuDevicePrimaryCtxRelease_v2(device)


def _calls(kept: Mapping[int, list[Any]], ns: Callable[[int], int]) -> dict[int, HostCall]:
    """By correlation; the runtime's call begins before the driver's that it makes."""
    ordered = sorted((one for kind in _CALLS for one in kept[kind]), key=lambda one: -one.start)
    return {one.correlation: HostCall(one.thread, ns(one.start)) for one in ordered}


def _launch(one: Any, ns: Callable[[int], int]) -> RecordedLaunch:
    grid, block = tuple(one.grid), tuple(one.block)
    return RecordedLaunch(
        kernel=_name(one.name),
        start_ns=ns(one.start),
        end_ns=ns(one.end),
        grid=grid,
        block=block,
        shared_bytes=one.static + one.dynamic,
        registers=one.registers,
        device=one.device,
        stream=one.stream,
        order=one.correlation,
        graph=one.graph,
    )


def _copy(kind: CopyKind, one: Any, ns: Callable[[int], int]) -> Transfer:
    return Transfer(
        kind=kind,
        bytes=one.bytes,
        start_ns=ns(one.start),
        end_ns=ns(one.end),
        device=one.device,
        stream=one.stream,
    )


@cache
def _name(address: int) -> str:
    if not address:
        return "?"
    return demangled(ctypes.string_at(address))


@cache
def demangled(name: bytes) -> str:
    """The name as it stands in C++, as far as the system's C++ library can tell."""
    demangle = _demangler()
    if demangle is None or not name.startswith(b"_Z"):
        return name.decode(errors="replace")
    status = ctypes.c_int()
    made = demangle(name, None, None, ctypes.byref(status))
    if status.value or not made:
        return name.decode(errors="replace")
    text = ctypes.string_at(made).decode(errors="replace")
    ctypes.CDLL(None).free(ctypes.c_void_p(made))
    return text


@cache
def _demangler() -> Callable[..., Any] | None:
    with suppress(OSError, AttributeError):
        function = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
        function.restype = ctypes.c_void_p
        return function
    return None
