"""CUPTI's records, as bytes in the layout of its structures (cupti_activity.h)."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from ctypes import c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any

import pytest

from rooflab.devices.cuda import activity
from rooflab.devices.cuda.activity import BUFFER_BYTES, Activity, demangled
from rooflab.errors import KernelError, UnavailableError

BEGAN = 5_000_000
"""CUPTI's clock when the records begin; ours says OURS."""

OURS = 9_000_000


def structure(name: str, *fields: tuple[str, Any]) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": fields})


Kernel9 = structure(
    "CUpti_ActivityKernel9",
    ("kind", c_uint32),
    ("cacheConfig", c_uint8),
    ("sharedMemoryConfig", c_uint8),
    ("registersPerThread", c_uint16),
    ("partitionedGlobalCacheRequested", c_uint32),
    ("partitionedGlobalCacheExecuted", c_uint32),
    ("start", c_uint64),
    ("end", c_uint64),
    ("completed", c_uint64),
    ("deviceId", c_uint32),
    ("contextId", c_uint32),
    ("streamId", c_uint32),
    *((name, c_int32) for name in ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")),
    ("staticSharedMemory", c_int32),
    ("dynamicSharedMemory", c_int32),
    ("localMemoryPerThread", c_uint32),
    ("localMemoryTotal", c_uint32),
    ("correlationId", c_uint32),
    ("gridId", c_int64),
    ("name", c_char_p),
    ("reserved0", c_void_p),
    ("queued", c_uint64),
    ("submitted", c_uint64),
    ("launchType", c_uint8),
    ("isSharedMemoryCarveoutRequested", c_uint8),
    ("sharedMemoryCarveoutRequested", c_uint8),
    ("padding", c_uint8),
    ("sharedMemoryExecuted", c_uint32),
    ("graphNodeId", c_uint64),
    ("shmemLimitConfig", c_uint32),
    ("graphId", c_uint32),
    ("pAccessPolicyWindow", c_void_p),
    ("channelID", c_uint32),
    ("channelType", c_uint32),
    *((name, c_uint32) for name in ("clusterX", "clusterY", "clusterZ")),
    ("clusterSchedulingPolicy", c_uint32),
    ("localMemoryTotal_v2", c_uint64),
    ("maxPotentialClusterSize", c_uint32),
    ("maxActiveClusters", c_uint32),
)

SPAN = (("bytes", c_uint64), ("start", c_uint64), ("end", c_uint64))
PLACE = (("deviceId", c_uint32), ("contextId", c_uint32), ("streamId", c_uint32))
GRAPH = (("reserved0", c_void_p), ("graphNodeId", c_uint64), ("graphId", c_uint32))
CHANNEL = (("channelID", c_uint32), ("channelType", c_uint32))
KINDS = (("copyKind", c_uint8), ("srcKind", c_uint8), ("dstKind", c_uint8), ("flags", c_uint8))

Memcpy5 = structure(
    "CUpti_ActivityMemcpy5",
    ("kind", c_uint32),
    *(*KINDS, *SPAN, *PLACE),
    ("correlationId", c_uint32),
    ("runtimeCorrelationId", c_uint32),
    *(*GRAPH, *CHANNEL),
    ("pad2", c_uint32),
)

Memset4 = structure(
    "CUpti_ActivityMemset4",
    ("kind", c_uint32),
    ("value", c_uint32),
    *(*SPAN, *PLACE),
    ("correlationId", c_uint32),
    ("flags", c_uint16),
    ("memoryKind", c_uint16),
    *(*GRAPH, *CHANNEL),
    ("pad2", c_uint32),
)

MemcpyPtoP4 = structure(
    "CUpti_ActivityMemcpyPtoP4",
    ("kind", c_uint32),
    *(*KINDS, *SPAN, *PLACE),
    ("srcDeviceId", c_uint32),
    ("srcContextId", c_uint32),
    ("dstDeviceId", c_uint32),
    ("dstContextId", c_uint32),
    ("correlationId", c_uint32),
    ("pad", c_uint32),
    *(*GRAPH, *CHANNEL),
)

ExternalCorrelation = structure(
    "CUpti_ActivityExternalCorrelation",
    ("kind", c_uint32),
    ("externalKind", c_uint32),
    ("externalId", c_uint64),
    ("correlationId", c_uint32),
    ("reserved", c_uint32),
)

Marker2 = structure(
    "CUpti_ActivityMarker2",
    ("kind", c_uint32),
    ("flags", c_uint32),
    ("timestamp", c_uint64),
    ("id", c_uint32),
    ("objectKind", c_uint32),
    ("processId", c_uint32),
    ("threadId", c_uint32),
    ("pad", c_uint32),
    ("pad2", c_uint32),
    ("name", c_char_p),
    ("domain", c_char_p),
)

Api = structure(
    "CUpti_ActivityAPI",
    ("kind", c_uint32),
    ("cbid", c_uint32),
    ("start", c_uint64),
    ("end", c_uint64),
    ("processId", c_uint32),
    ("threadId", c_uint32),
    ("correlationId", c_uint32),
    ("returnValue", c_uint32),
)

MEMCPY, MEMSET, DRIVER, RUNTIME, KERNEL, MARKER = 1, 2, 4, 5, 10, 12
FORCED = 1
PEER, CORRELATION = 22, 39


def kernel(name: bytes | None = b"k", start: int = 10_000, end: int = 20_000, **more: Any) -> Any:
    grid = {"gridX": 4, "gridY": 3, "gridZ": 2, "blockX": 128, "blockY": 2, "blockZ": 1}
    return Kernel9(kind=KERNEL, name=name, start=start, end=end, **(grid | more))


class Library:
    """CUPTI: its clock, what it was asked for, and the buffers that it fills."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.stamp = BEGAN
        self.fails: dict[str, int] = {}
        self.alive: list[Any] = []
        self.places: dict[int, list[int]] = {}

    def __getattr__(self, name: str) -> Any:
        def call(*values: Any) -> int:
            plain = [getattr(value, "value", value) for value in values]
            self.asked.append((name.removeprefix("cupti"), *plain))
            return self.fails.get(name.removeprefix("cupti"), 0)

        return call

    def cuptiActivityRegisterCallbacks(self, requested: Any, completed: Any) -> int:  # noqa: N802
        self.requested, self.completed = requested, completed
        return self.fails.get("ActivityRegisterCallbacks", 0)

    def cuptiGetTimestamp(self, stamp: Any) -> int:  # noqa: N802
        stamp._obj.value = self.stamp
        return 0

    def cuptiActivityGetNextRecord(self, buffer: Any, valid: Any, record: Any) -> int:  # noqa: N802
        after = record._obj.value or 0
        record._obj.value = next((one for one in self.places[buffer.value] if one > after), None)
        return 0 if record._obj.value else 12

    def buffer(self) -> int:
        """The address of an empty one, as the profiler gives it."""
        address, size, most = c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(99)
        self.requested(ctypes.pointer(address), ctypes.pointer(size), ctypes.pointer(most))
        assert (size.value, most.value) == (BUFFER_BYTES, 0)
        assert address.value
        return address.value

    def fill(self, buffer: int, records: Sequence[Any]) -> None:
        """Records one after the other, as CUPTI leaves them."""
        self.alive += records  # their names
        place, places = buffer, []
        for one in records:
            size = ctypes.sizeof(one)
            ctypes.memmove(place, ctypes.addressof(one), size)
            places.append(place)
            place += size
        self.places[buffer] = places
        self.completed(None, 0, buffer, BUFFER_BYTES, place - buffer)

    def deliver(self, *records: Any) -> None:
        self.fill(self.buffer(), records)


class FakeCupti:
    def __init__(self) -> None:
        self.library = Library()

    def reason(self, status: int) -> str:
        return f"CUPTI_ERROR_{status}"


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setattr(activity, "perf_counter_ns", lambda: OURS)
    activity._name.cache_clear()  # addresses of other tests
    return FakeCupti().library


@pytest.fixture
def records(library: Library, monkeypatch: pytest.MonkeyPatch) -> Activity:
    cupti = FakeCupti()
    cupti.library = library
    made = Activity(cupti)  # type: ignore[arg-type]
    made.start()
    monkeypatch.setattr(activity, "perf_counter_ns", lambda: OURS + 10**9)
    library.stamp += 10**9
    return made


def at(ns: int) -> int:
    """A time of CUPTI's clock on ours."""
    return ns - BEGAN + OURS


def test_a_launch(library: Library, records: Activity) -> None:
    more: dict[str, Any] = {
        "staticSharedMemory": 1024,
        "dynamicSharedMemory": 232_000,
        "registersPerThread": 168,
    }
    library.deliver(kernel(**more, deviceId=3, contextId=9, streamId=17, graphId=55))
    (one,) = records.taken().launches
    assert one.key == ("k", (4, 3, 2), (128, 2, 1))
    assert (one.start_ns, one.end_ns) == (at(10_000), at(20_000))
    assert (one.shared_bytes, one.registers) == (233_024, 168)
    assert (one.device, one.stream, one.graph) == (3, 17, 55)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(1, "h2d"), (2, "d2h"), (3, "h2d"), (4, "d2h"), (5, "d2d"), (8, "d2d"), (9, "host")],
)
def test_a_copy(library: Library, records: Activity, kind: int, name: str) -> None:
    place = {"deviceId": 2, "contextId": 9, "streamId": 7}
    library.deliver(Memcpy5(kind=MEMCPY, copyKind=kind, bytes=2**33, start=5, end=9, **place))
    (one,) = records.taken().copies
    assert (one.kind, one.bytes, one.ns, one.device, one.stream) == (name, 2**33, 4, 2, 7)
    assert one.start_ns == at(5)


def test_a_memset_and_a_copy_between_gpus(library: Library, records: Activity) -> None:
    place = {"deviceId": 1, "contextId": 9, "streamId": 7, "correlationId": 3}
    library.deliver(
        MemcpyPtoP4(kind=PEER, copyKind=10, bytes=100, start=50, end=90, srcDeviceId=6, **place),
        Memset4(kind=MEMSET, value=2**32 - 1, bytes=64, start=20, end=25, **place),
    )
    first, second = records.taken().copies
    assert (first.kind, first.bytes, first.ns) == ("memset", 64, 5)
    assert (first.device, first.stream) == (1, 7)
    assert (second.kind, second.bytes, second.ns) == ("peer", 100, 40)
    assert (second.device, second.stream) == (1, 7)


def test_launches_are_in_the_order_of_the_program(library: Library, records: Activity) -> None:
    """The nodes of a graph, which one call launches, in that of their starts."""
    library.deliver(kernel(b"node 2", 30_000, 40_000, correlationId=8))
    library.deliver(kernel(b"node 1", 10_000, 90_000, correlationId=8))
    library.deliver(kernel(b"first, but it waited", 50_000, 51_000, correlationId=7))
    found = records.taken()
    names = [one.kernel for one in found.launches]
    assert names == ["first, but it waited", "node 1", "node 2"]
    assert [one.order for one in found.launches] == [7, 8, 8]
    assert found.numbers == [0, 0, 0] and found.dropped == 0


def test_what_was_not_timed_and_other_records_are_left_out(
    library: Library, records: Activity
) -> None:
    other = ExternalCorrelation(kind=77, externalId=1)  # of any layout
    library.deliver(other, kernel(b"not timed", 0, 0), kernel())
    assert [one.kernel for one in records.taken().launches] == ["k"]


def test_records_are_taken_once(library: Library, records: Activity) -> None:
    library.deliver(kernel())
    assert len(records.taken().launches) == 1
    assert records.taken() == ([], [], [], [], 0)


def test_launches_have_the_numbers_of_their_calls(library: Library) -> None:
    cupti = FakeCupti()
    cupti.library = library
    records = Activity(cupti)  # type: ignore[arg-type]
    records.start(numbers=True)
    enabled = {call[1] for call in library.asked if call[0] == "ActivityEnable"}
    assert enabled >= {KERNEL, DRIVER, RUNTIME, CORRELATION}
    library.deliver(
        ExternalCorrelation(kind=CORRELATION, externalKind=3, externalId=2**40, correlationId=8),
        ExternalCorrelation(kind=CORRELATION, externalKind=1, externalId=77, correlationId=9),
        *(Api(kind=RUNTIME, threadId=7, start=BEGAN, correlationId=i) for i in (8, 9)),
        kernel(start=1, correlationId=9),
        kernel(start=2, correlationId=8),
    )
    assert records.taken().numbers == [2**40, 0]  # another profiler's are not ours
    records.push(41)
    records.pop()
    assert library.asked[-2] == ("ActivityPushExternalCorrelationId", 3, 41)
    assert library.asked[-1][:2] == ("ActivityPopExternalCorrelationId", 3)
    records.stop()
    disabled = {call[1] for call in library.asked if call[0] == "ActivityDisable"}
    assert disabled == enabled


def test_launches_have_the_nvtx_ranges_around_their_calls(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    cupti = FakeCupti()
    cupti.library = library
    records = Activity(cupti)  # type: ignore[arg-type]
    records.start(numbers=True)
    assert ("SetThreadIdType", 1) in library.asked
    enabled = {call[1] for call in library.asked if call[0] == "ActivityEnable"}
    assert MARKER in enabled
    library.stamp += 10**9
    monkeypatch.setattr(activity, "perf_counter_ns", lambda: OURS + 10**9)
    begin = {"kind": MARKER, "flags": 2, "threadId": 7}
    end = {"kind": MARKER, "flags": 4, "threadId": 7}
    call = {"kind": RUNTIME, "threadId": 7}
    library.deliver(
        Marker2(**begin, id=1, timestamp=BEGAN + 10000, name=b"step"),
        Marker2(**begin, id=2, timestamp=BEGAN + 20000, name=b"forward"),
        Api(**call, start=BEGAN + 30000, correlationId=5),
        Api(kind=DRIVER, threadId=7, start=BEGAN + 31000, correlationId=5),
        Marker2(**end, id=2, timestamp=BEGAN + 40000),
        Api(**call, start=BEGAN + 50000, correlationId=6),
        Marker2(**end, id=1, timestamp=BEGAN + 60000),
        Api(**call, start=BEGAN + 70000, correlationId=8),
        *(kernel(start=100 * i, end=100 * i + 1, correlationId=i) for i in (5, 6, 8)),
    )
    assert records.taken().phases == [("step", "forward"), ("step",), ()]


def test_calls_are_not_recorded_unless_they_are_numbered(
    library: Library, records: Activity
) -> None:
    enabled = [call[1] for call in library.asked if call[0] == "ActivityEnable"]
    assert enabled == [MEMCPY, MEMSET, KERNEL, PEER]


def test_what_was_launched_before_is_left_out_with_numbers(
    library: Library, records: Activity
) -> None:
    """A program may be a second ahead of the device; of what is done then no call was recorded."""
    records.begin_numbers()
    library.deliver(
        kernel(start=100, end=101, correlationId=4),
        Api(kind=RUNTIME, threadId=7, start=BEGAN, correlationId=5),
    )
    assert records.kept == 0
    library.deliver(kernel(b"later", start=102, end=103, correlationId=5))
    assert records.kept == 1
    assert [one.kernel for one in records.taken().launches] == ["later"]
    records.end_numbers()
    library.deliver(kernel(start=104, end=105, correlationId=4))
    assert len(records.taken().launches) == 1


# Names -------------------------------------------------------------------------------------------


def test_names_are_those_of_cpp(library: Library, records: Activity) -> None:
    library.deliver(kernel(b"_Z4gemmILi3EEvPf"), kernel(b"triton_\xff"), kernel(None))
    names = [one.kernel for one in records.taken().launches]
    assert names == ["void gemm<3>(float*)", "triton_\ufffd", "?"]


def test_names_that_cannot_be_demangled_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    assert demangled(b"_Znonsense") == "_Znonsense"
    demangled.cache_clear()
    monkeypatch.setattr(activity, "_demangler", lambda: None)
    assert demangled(b"_Z4gemmPf") == "_Z4gemmPf"
    demangled.cache_clear()


# Buffers -----------------------------------------------------------------------------------------


def test_buffers_are_used_again(library: Library, records: Activity) -> None:
    first = library.buffer()
    second = library.buffer()
    assert first != second
    library.fill(first, [kernel()])
    third = library.buffer()
    assert third not in (first, second)  # the first one was not read yet
    library.fill(second, [kernel()])
    assert records.held == 2 * BUFFER_BYTES
    assert len(records.taken().launches) == 2 and not records.held
    library.fill(third, [])
    assert {library.buffer() for _ in range(4)} >= {first, second}  # and two more, made ahead


def test_records_that_are_not_complete_are_given_up_at_the_end(
    library: Library, records: Activity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUPTI would keep all later ones too; it may write to what it has given back."""
    begun = library.buffer()

    def flush(flag: int) -> int:
        if flag == FORCED:
            library.fill(begun, [kernel(end=0), kernel()])
        return 0

    monkeypatch.setattr(library, "cuptiActivityFlushAll", flush, raising=False)
    records.stop()
    assert len(records.taken().launches) == 1
    assert library.buffer() != begun


def test_what_is_ignored_is_not_kept(library: Library, records: Activity) -> None:
    first = library.buffer()
    records.ignore()
    library.fill(first, [kernel()])
    assert library.buffer() == first and not records.taken().launches


def test_what_waits_to_be_read_is_not_kept_either(library: Library, records: Activity) -> None:
    library.deliver(kernel())
    records.ignore()
    assert not records.held and not records.taken().launches


def test_few_buffers_are_kept_when_nothing_is_recorded(library: Library, records: Activity) -> None:
    for _ in range(2 * activity.MOST_FREE):
        library.deliver(kernel())
    assert len(records.taken().launches) == 2 * activity.MOST_FREE
    records.stop()
    assert len(records._free) == activity.FEW_FREE


def test_a_buffer_of_somebody_else_is_not_kept(library: Library, records: Activity) -> None:
    other = (c_uint8 * 4096)()
    library.fill(ctypes.addressof(other), [kernel()])
    assert library.buffer() != ctypes.addressof(other)
    assert len(records.taken().launches) == 1


def test_records_that_do_not_fit_are_dropped_and_counted(
    library: Library, records: Activity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "MOST_BYTES", BUFFER_BYTES)
    library.deliver(*(kernel(start=i, end=i + 1) for i in range(3)))
    library.deliver(kernel(), kernel())
    found = records.taken()
    assert [one.start_ns for one in found.launches] == [at(0), at(1), at(2)]
    assert found.dropped == 2
    library.deliver(kernel())
    again = records.taken()
    assert (len(again.launches), again.dropped) == (1, 0)


# Clocks ------------------------------------------------------------------------------------------


@pytest.fixture
def clocks(library: Library, records: Activity, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Both clocks go on: ours by ``ns``, CUPTI's by as many ticks."""

    def go_on(ns: int, ticks: float) -> None:
        monkeypatch.setattr(activity, "perf_counter_ns", lambda: OURS + ns)
        library.stamp = BEGAN + round(ns * ticks)

    return go_on


def test_nanoseconds_are_not_scaled(library: Library, records: Activity, clocks: Any) -> None:
    clocks(10**9, ticks=1.01)  # read one after the other
    library.deliver(kernel(start=BEGAN + 1000, end=BEGAN + 3000))
    (one,) = records.taken().launches
    assert (one.start_ns, one.end_ns) == (OURS + 1000, OURS + 3000)


def test_another_clock_is_scaled(library: Library, records: Activity, clocks: Any) -> None:
    clocks(10**9, ticks=0.5)
    library.deliver(kernel(start=BEGAN + 1000, end=BEGAN + 3000), Memset4(kind=MEMSET, end=BEGAN))
    found = records.taken()
    assert [(one.start_ns, one.end_ns) for one in found.launches] == [(OURS + 2000, OURS + 6000)]
    assert found.copies[0].end_ns == OURS
    assert records.now() == OURS + 10**9


# Failures ----------------------------------------------------------------------------------------


def test_without_a_gpu(library: Library) -> None:
    library.fails["ActivityEnable"] = 15
    cupti = FakeCupti()
    cupti.library = library
    with pytest.raises(UnavailableError, match="no NVIDIA GPU here"):
        Activity(cupti).start()  # type: ignore[arg-type]


def test_a_refusal_has_its_name(library: Library, records: Activity) -> None:
    library.fails["ActivityFlushAll"] = 999
    with pytest.raises(KernelError, match="cuptiActivityFlushAll: CUPTI_ERROR_999"):
        records.flush()


def test_kinds_that_cannot_be_stopped_do_not_keep_others(
    library: Library, records: Activity
) -> None:
    library.fails["ActivityDisable"] = 1
    records.stop()
    stopped = [call[1] for call in library.asked if call[0] == "ActivityDisable"]
    assert stopped == [MEMCPY, MEMSET, KERNEL, PEER]


# Waiting for all GPUs ----------------------------------------------------------------------------


class Driver:
    def __init__(self, active: Sequence[int], status: int = 0) -> None:
        self.active, self.status = active, status
        self.calls: list[str] = []
        self.handles = itertools.count(1)

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return self.status

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self.active)
        return 0

    def cuDevicePrimaryCtxGetState(self, device: int, flags: Any, active: Any) -> int:  # noqa: N802
        active._obj.value = self.active[device]
        return 0

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.calls.append(name)


def test_only_gpus_that_are_used_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver([0, 1])
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    activity.synchronize()
    assert driver.calls == [
        "cuDevicePrimaryCtxRetain",
        "cuCtxPushCurrent_v2",
        "cuCtxSynchronize",
        "cuCtxPopCurrent_v2",
        "cuDevicePrimaryCtxRelease_v2",
    ]


def test_without_a_driver_there_is_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver([1], status=100)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    activity.synchronize()
    assert not driver.calls
