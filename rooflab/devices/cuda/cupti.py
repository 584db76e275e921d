"""CUPTI's Range Profiler: hardware counters of a range of launches, through ctypes.

The host half (which metrics a chip has, how many passes they need) works without a GPU. The device
half needs the permission to read counters (https://developer.nvidia.com/ERR_NVGPUCTRPERM).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from rooflab.devices.cuda import install
from rooflab.errors import KernelError, UnavailableError

_SIZE, _POINTER, _INT, _TEXT = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
_TEXTS: Final = ctypes.POINTER(ctypes.c_char_p)
_SHORT, _BYTE, _UINT = ctypes.c_uint16, ctypes.c_uint8, ctypes.c_uint32

_OBJECT: Final = ("object", _POINTER)
_IMAGE: Final = (("image_size", _SIZE), ("image", _POINTER))
_METRICS: Final = (("metrics", _TEXTS), ("count", _SIZE))

_PARAMETERS: Final[dict[str, tuple[tuple[str, Any], ...]]] = {
    "ProfilerInitialize": (),
    "DeviceGetChipName": (("device", _SIZE), ("chip", _TEXT)),
    "ProfilerHostGetSupportedChips": (("count", _SIZE), ("chips", _TEXTS)),
    "ProfilerHostInitialize": (
        *(("type", _INT), ("chip", _TEXT), ("availability", _POINTER)),
        _OBJECT,
    ),
    "ProfilerHostDeinitialize": (_OBJECT,),
    "ProfilerHostGetBaseMetrics": (_OBJECT, ("type", _INT), *_METRICS),
    "ProfilerHostConfigAddMetrics": (_OBJECT, *_METRICS),
    "ProfilerHostGetConfigImageSize": (_OBJECT, ("image_size", _SIZE)),
    "ProfilerHostGetConfigImage": (_OBJECT, *_IMAGE),
    "ProfilerHostGetNumOfPasses": (*_IMAGE, ("passes", _SIZE)),
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
}
"""Members of each function's parameters, after their size and a null pointer (cupti_*.h)."""

_USER_RANGE, _USER_REPLAY = 2, 3
_MOST_PASSES: Final = 100


class Cupti:
    """The library. Raises ``UnavailableError`` if it is not installed."""

    def __init__(self) -> None:
        path = find()
        try:
            for name in ("host", "target"):
                ctypes.CDLL(str(path.with_name(f"libnvperf_{name}.so")), ctypes.RTLD_GLOBAL)
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise UnavailableError(f"CUPTI cannot be loaded: {error}") from error

    def call(self, name: str, /, **values: Any) -> Any:
        """Call ``cupti<name>``; returns its parameters. Raises ``KernelError`` for an error."""
        members = (("size", _SIZE), ("reserved", _POINTER), *_PARAMETERS[name])
        structure = type(name, (ctypes.Structure,), {"_fields_": members})
        last = getattr(structure, members[-1][0])
        parameters = structure(size=last.offset + last.size, **values)
        if status := getattr(self._library, f"cupti{name}")(ctypes.byref(parameters)):
            text = _TEXT()
            self._library.cuptiGetResultString(status, ctypes.byref(text))
            reason = (text.value or b"").decode()
            raise KernelError(f"cupti{name}: {reason or f'error {status}'}")
        return parameters

    @cached_property
    def chips(self) -> list[str]:
        """The chips that this version knows, such as ``GH100``."""
        found = self.call("ProfilerHostGetSupportedChips")
        return [found.chips[i].decode() for i in range(found.count)]

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
        self._cupti = cupti
        self._object = cupti.call("ProfilerHostInitialize", type=0, chip=chip.encode()).object

    def close(self) -> None:
        """Free the object."""
        self._cupti.call("ProfilerHostDeinitialize", object=self._object)

    def metrics(self) -> set[str]:
        """The names of the chip's counters, to which ``.sum`` and others are added."""
        found = self._cupti.call("ProfilerHostGetBaseMetrics", object=self._object, type=0)
        return {found.metrics[i].decode() for i in range(found.count)}

    def configure(self, metrics: Sequence[str]) -> tuple[Any, int]:
        """The configuration of these metrics, and the passes that they need."""
        call, names = self._cupti.call, _names(metrics)
        count = len(metrics)
        call("ProfilerHostConfigAddMetrics", object=self._object, metrics=names, count=count)
        size = call("ProfilerHostGetConfigImageSize", object=self._object).image_size
        image = (_BYTE * size)()
        where = {"image_size": size, "image": ctypes.addressof(image)}
        call("ProfilerHostGetConfigImage", object=self._object, **where)
        return image, int(call("ProfilerHostGetNumOfPasses", **where).passes)

    def evaluate(self, metrics: Sequence[str], data: Any) -> dict[str, float]:
        """The values of the first range in ``data``."""
        values = (ctypes.c_double * len(metrics))()
        self._cupti.call(
            "ProfilerHostEvaluateToGpuValues",
            object=self._object,
            metrics=_names(metrics),
            count=len(metrics),
            image=ctypes.addressof(data),
            image_size=len(data),
            range=0,
            values=ctypes.addressof(values),
        )
        return dict(zip(metrics, values, strict=True))


def _names(metrics: Sequence[str]) -> Any:
    return (_TEXT * len(metrics))(*(name.encode() for name in metrics))


class RangeProfiler:
    """Counters of one set of metrics on the current context; a context manager."""

    def __init__(self, cupti: Cupti, host: Host, metrics: Sequence[str]) -> None:
        self._cupti, self._host, self.metrics = cupti, host, tuple(metrics)
        self._config, self.passes = host.configure(metrics)

    def __enter__(self) -> RangeProfiler:
        context = _POINTER()
        ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(context))
        if not context:
            raise KernelError("there is no CUDA context to count in")
        self._object = self._cupti.call("RangeProfilerEnable", context=context.value).object
        size = self._cupti.call(
            "RangeProfilerGetCounterDataSize",
            object=self._object,
            metrics=_names(self.metrics),
            count=len(self.metrics),
            ranges=1,
            nodes=1,
        ).image_size
        self._data = (_BYTE * size)()
        return self

    def __exit__(self, *error: object) -> None:
        self._cupti.call("RangeProfilerDisable", object=self._object)

    def measure(self, work: Callable[[], None]) -> dict[str, float]:
        """The metrics' values over ``work``, which is run once per pass."""
        call, data = self._cupti.call, self._data
        image = {"image_size": len(data), "image": ctypes.addressof(data)}
        call("RangeProfilerCounterDataImageInitialize", object=self._object, **image)
        call(
            "RangeProfilerSetConfig",
            object=self._object,
            config_size=len(self._config),
            **{"config": ctypes.addressof(self._config), **image, "range": _USER_RANGE},
            replay=_USER_REPLAY,
            ranges=1,
            levels=1,
            lowest=1,
            target=1,
        )
        for _ in range(_MOST_PASSES):
            call("RangeProfilerStart", object=self._object)
            call("RangeProfilerPushRange", object=self._object, name=b"range")
            work()
            call("RangeProfilerPopRange", object=self._object)
            if call("RangeProfilerStop", object=self._object).all_passes:
                break
        call("RangeProfilerDecodeData", object=self._object)
        return self._host.evaluate(self.metrics, data)
