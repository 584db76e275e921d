"""CUPTI's Range Profiler: hardware counters of a range of launches, through ctypes.

The host half (which metrics a chip has, how many passes they need) works without a GPU. The device
half needs the permission to read counters (https://developer.nvidia.com/ERR_NVGPUCTRPERM).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache, cached_property, partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

from rooflab.devices.base import Counters, Launch
from rooflab.devices.cuda import install
from rooflab.devices.cuda.counters import FORBIDDEN, choose, interpret
from rooflab.errors import KernelError, UnavailableError

PATIENCE_S: Final = 20.0
PAUSE_S: Final = 0.2
"""How long to wait for other programs that count, and how often to look."""

_SIZE, _POINTER, _INT, _TEXT = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
_TEXTS: Final = ctypes.POINTER(ctypes.c_char_p)
_SHORT, _BYTE, _UINT = ctypes.c_uint16, ctypes.c_uint8, ctypes.c_uint32

_OBJECT: Final = ("object", _POINTER)
_IMAGE: Final = (("image_size", _SIZE), ("image", _POINTER))
_METRICS: Final = (("metrics", _TEXTS), ("count", _SIZE))

_PARAMETERS: Final[dict[str, tuple[tuple[str, Any], ...]]] = {
    "ProfilerInitialize": (),
    "DeviceGetChipName": (("device", _SIZE), ("chip", _TEXT)),
    "ProfilerHostInitialize": (
        *(("type", _INT), ("chip", _TEXT), ("availability", _POINTER)),
        _OBJECT,
    ),
    "ProfilerHostGetBaseMetrics": (_OBJECT, ("type", _INT), *_METRICS),
    "ProfilerHostConfigAddMetrics": (_OBJECT, *_METRICS),
    "ProfilerHostGetConfigImageSize": (_OBJECT, ("image_size", _SIZE)),
    "ProfilerHostGetConfigImage": (_OBJECT, *_IMAGE),
    "ProfilerHostEvaluateToGpuValues": (
        *(_OBJECT, ("image", _POINTER), ("image_size", _SIZE), ("range", _SIZE)),
        *(*_METRICS, ("values", _POINTER)),
    ),
    "RangeProfilerEnable": (("context", _POINTER), _OBJECT),
    "RangeProfilerDisable": (_OBJECT,),
    "RangeProfilerGetCounterDataSize": (
        *(_OBJECT, *_METRICS, ("ranges", _SIZE), ("nodes", _UINT)),
        ("image_size", _SIZE),
    ),
    "RangeProfilerCounterDataImageInitialize": (_OBJECT, *_IMAGE),
    "RangeProfilerSetConfig": (
        *(_OBJECT, ("config_size", _SIZE), ("config", _POINTER), *_IMAGE, ("range", _INT)),
        *(("replay", _INT), ("ranges", _SIZE), ("levels", _SHORT), ("lowest", _SHORT)),
        *(("pass_index", _SIZE), ("target", _SHORT)),
    ),
    "RangeProfilerStart": (_OBJECT,),
    "RangeProfilerStop": (
        *(_OBJECT, ("pass_index", _SIZE), ("target", _SIZE)),
        ("all_passes", _BYTE),
    ),
    "RangeProfilerPushRange": (_OBJECT, ("name", _TEXT)),
    "RangeProfilerPopRange": (_OBJECT,),
    "RangeProfilerDecodeData": (_OBJECT, ("dropped", _SIZE)),
    "RangeProfilerGetCounterDataInfo": (
        *(("image", _POINTER), ("image_size", _SIZE), ("ranges", _SIZE)),
    ),
}
"""Members of each function's parameters, after their size and a null pointer (cupti_*.h)."""

_AUTO_RANGE, _USER_RANGE = 1, 2
_KERNEL_REPLAY, _USER_REPLAY = 2, 3
_MOST_PASSES: Final = 100


class Cupti:
    """The library. Raises ``UnavailableError`` if it is not installed."""

    def __init__(self) -> None:
        path = find()
        try:
            for name in ("host", "target"):
                ctypes.CDLL(str(path.with_name(f"libnvperf_{name}.so")), ctypes.RTLD_GLOBAL)
            self.library = ctypes.CDLL(str(path))
        except OSError as error:
            raise UnavailableError(f"CUPTI cannot be loaded: {error}") from error

    def call(self, name: str, /, **values: Any) -> Any:
        """Call ``cupti<name>``; returns its parameters. Raises ``KernelError`` for an error."""
        members = (("size", _SIZE), ("reserved", _POINTER), *_PARAMETERS[name])
        structure = type(name, (ctypes.Structure,), {"_fields_": members})
        last = getattr(structure, members[-1][0])
        parameters = structure(size=last.offset + last.size, **values)
        if status := getattr(self.library, f"cupti{name}")(ctypes.byref(parameters)):
            raise KernelError(f"cupti{name}: {self.reason(status)}")
        return parameters

    def reason(self, status: int) -> str:
        """The name of an error."""
        text = _TEXT()
        self.library.cuptiGetResultString(status, ctypes.byref(text))
        return (text.value or b"").decode() or f"error {status}"

    def chip(self, device: int) -> str:
        """The chip of a device; needs a GPU."""
        self.call("ProfilerInitialize")
        return str(self.call("DeviceGetChipName", device=device).chip.decode())


def find() -> Path:
    """In NVIDIA's packages, else in the toolkit; raises ``UnavailableError``."""
    patterns = [(entry, f"nvidia/*/{folder}") for entry in sys.path for folder in ("lib", "lib64")]
    patterns += [("/usr/local/cuda", folder) for folder in ("extras/CUPTI/lib64", "lib64")]
    for root, folder in patterns:
        if found := sorted(Path(root).glob(f"{folder}/libcupti.so.1?")):
            return found[-1]
    raise UnavailableError(f"there is no CUPTI: {install.line('cupti')}")


class Host:
    """The host half for one chip."""

    def __init__(self, cupti: Cupti, chip: str) -> None:
        made = cupti.call("ProfilerHostInitialize", type=0, chip=chip.encode())
        self._call = partial(cupti.call, object=made.object)

    def metrics(self) -> set[str]:
        """The names of the chip's counters, to which ``.sum`` and others are added."""
        found = self._call("ProfilerHostGetBaseMetrics", type=0)
        return {found.metrics[i].decode() for i in range(found.count)}

    def configure(self, metrics: Sequence[str]) -> Any:
        """The configuration of these metrics."""
        self._call("ProfilerHostConfigAddMetrics", **_names(metrics))
        image = (_BYTE * self._call("ProfilerHostGetConfigImageSize").image_size)()
        self._call("ProfilerHostGetConfigImage", **_image(image))
        return image

    def evaluate(self, metrics: Sequence[str], data: Any) -> dict[str, float]:
        """The values of the first range in ``data``."""
        values = (ctypes.c_double * len(metrics))()
        wanted = {**_names(metrics), **_image(data), "range": 0}
        self._call("ProfilerHostEvaluateToGpuValues", **wanted, values=ctypes.addressof(values))
        return dict(zip(metrics, values, strict=True))


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _names(metrics: Sequence[str]) -> dict[str, Any]:
    names = (_TEXT * len(metrics))(*(name.encode() for name in metrics))
    return {"metrics": names, "count": len(metrics)}


def _image(data: Any) -> dict[str, int]:
    return {"image_size": len(data), "image": ctypes.addressof(data)}


class RangeProfiler:
    """Counters of one set of metrics on the current context; a context manager."""

    def __init__(self, cupti: Cupti, host: Host, metrics: Sequence[str]) -> None:
        self._cupti, self._host, self.metrics = cupti, host, tuple(metrics)
        self._config = host.configure(metrics)

    def __enter__(self) -> RangeProfiler:
        self._context = _POINTER()
        _driver().cuCtxGetCurrent(ctypes.byref(self._context))
        if not self._context:
            raise KernelError("there is no CUDA context to count in")
        made = self._cupti.call("RangeProfilerEnable", context=self._context.value)
        self._call = partial(self._cupti.call, object=made.object)
        wanted = {**_names(self.metrics), "ranges": 1, "nodes": 1}
        self._data = (_BYTE * self._call("RangeProfilerGetCounterDataSize", **wanted).image_size)()
        return self

    def __exit__(self, *error: object) -> None:
        _driver().cuCtxPushCurrent_v2(self._context)  # perhaps in another thread
        try:
            self._call("RangeProfilerDisable")
        finally:
            _driver().cuCtxPopCurrent_v2(ctypes.byref(_POINTER()))

    def _configure(self, range: int, replay: int) -> None:  # noqa: A002  CUPTI's word
        self._call("RangeProfilerCounterDataImageInitialize", **_image(self._data))
        config = {"config_size": len(self._config), "config": ctypes.addressof(self._config)}
        modes = {"range": range, "replay": replay}
        once = dict.fromkeys(("ranges", "levels", "lowest", "target"), 1)
        self._call("RangeProfilerSetConfig", **config, **_image(self._data), **modes, **once)

    def measure(self, work: Launch) -> dict[str, float]:
        """The metrics' values over ``work``, which is run once per pass."""
        self.begin()
        for _ in range(_MOST_PASSES):
            self.enter()
            work()
            if self.leave():
                break
        return self.values()

    def begin(self) -> None:
        """Before the passes of other work."""
        self._configure(_USER_RANGE, _USER_REPLAY)

    def enter(self) -> None:
        """A pass begins."""
        self._call("RangeProfilerStart")
        self._call("RangeProfilerPushRange", name=b"range")

    def leave(self) -> bool:
        """It ends; whether it was the last one."""
        self._call("RangeProfilerPopRange")
        return bool(self._call("RangeProfilerStop").all_passes)

    def values(self) -> dict[str, float]:
        """Of the passes since ``begin``."""
        self._call("RangeProfilerDecodeData")
        return self._host.evaluate(self.metrics, self._data)

    def start_replay(self) -> None:
        """The next launch will be replayed, with its memory restored, as often as needed."""
        self._configure(_AUTO_RANGE, _KERNEL_REPLAY)
        self._call("RangeProfilerStart")

    def end_replay(self) -> dict[str, float] | None:
        """The values of that launch; None if there was none."""
        self._call("RangeProfilerStop")
        self._call("RangeProfilerDecodeData")
        info = self._cupti.call("RangeProfilerGetCounterDataInfo", **_image(self._data))
        return self._host.evaluate(self.metrics, self._data) if info.ranges else None


class Counting:
    """Counts on the current context. It stays prepared until ``stop``: preparing takes 0.1 s."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._active = ExitStack()

    def count(self, launches: Sequence[Launch]) -> Counters:
        """Counters of one launch: the mean over all of them, which run once per pass.

        Raises ``UnavailableError`` without CUPTI or permission.
        """

        def work() -> None:
            for launch in launches:
                launch()

        try:
            return interpret(self._measured(work), len(launches))
        except KernelError as error:
            forbidden = "INSUFFICIENT_PRIVILEGES" in str(error)
            text = FORBIDDEN if forbidden else f"no counters: {error}"
            raise UnavailableError(text) from error

    def _measured(self, work: Launch) -> dict[str, float]:
        """One program at a time can count on a GPU: wait for others."""
        patient_until = monotonic() + PATIENCE_S
        while True:
            try:
                return self._prepared.measure(work)
            except KernelError as error:
                if "HARDWARE_BUSY" not in str(error) or monotonic() > patient_until:
                    raise
                self.stop()
                sleep(PAUSE_S)

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
        return profiler(Cupti(), self._device)


def profiler(cupti: Cupti, device: int, *others: str) -> RangeProfiler:
    """For the chip's metrics that ``interpret`` knows, and ``others``."""
    host = Host(cupti, cupti.chip(device))
    return RangeProfiler(cupti, host, [*choose(host.metrics()), *others])
