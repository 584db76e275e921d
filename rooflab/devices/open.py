"""Devices: the values of ``--device``, and how to open a device."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from rooflab.devices.base import Device
from rooflab.errors import UnavailableError, UsageError

_CUSTOM = re.compile(r"(?!cuda:)([A-Za-z_][\w.]*):([A-Za-z_]\w*)", re.ASCII)
"""``module:Class``: the user's own device."""


ALL: Final = "all"
"""Every GPU of a host."""

ALL_THREADS: Final = "all"
"""As many CPU threads as there are physical cores that this process may use."""


def resolve(spec: str) -> tuple[str, str]:
    """The id of the device for ``spec``, and why ``auto`` means the CPU, else an empty text.

    ``spec`` is ``auto``, ``cpu``, ``cuda`` (the first one), ``cuda:N`` in CUDA's order, or
    ``module:Class`` for a subclass of ``Device`` that Python can import. Raises
    ``UsageError`` for anything else and ``UnavailableError`` for a missing GPU.
    """
    from rooflab.devices.cuda import device as cuda

    if spec == "cpu" or _CUSTOM.fullmatch(spec):
        return spec, ""
    if spec == "auto":
        reason = cuda.availability()
        short = reason if len(reason) <= 65 else "no usable GPU (why: rooflab doctor)"
        return ("cpu", f"using the CPU: {short}") if reason else ("cuda:0", "")
    match = re.fullmatch(r"cuda(?::(\d+))?", spec, re.ASCII)
    if not match:
        raise UsageError(
            f"unknown device {spec[:40]!r}: type auto, cpu, cuda or cuda:N (list: rooflab devices)"
        )
    if reason := cuda.availability():
        raise UnavailableError(f"{spec} cannot be used: {reason} (or use --device cpu)")
    index = int(match[1] or 0)
    there = [f"cuda:{number}" for number in range(cuda.count())]
    if index >= len(there):
        raise UnavailableError(f"there is no cuda:{index}: this machine has {', '.join(there)}")
    return f"cuda:{index}", ""


def thread_counts(values: Sequence[object]) -> list[int]:
    """Numbers of CPU threads, each once; ``all`` is one per physical core, the default.

    Raises ``UsageError`` for a value that is neither a whole number nor ``all``.
    """
    from rooflab.devices.cpu.device import CpuDevice

    counts = []
    for value in values:
        if value == ALL_THREADS:
            counts.append(int(CpuDevice().fact("threads") or 1))
        elif re.fullmatch(r"-?\d{1,9}", str(value), re.ASCII):
            counts.append(int(str(value)))
        else:
            raise UsageError(f"--threads {str(value)[:40]!r}: give a number, or {ALL_THREADS}")
    return list(dict.fromkeys(counts))


def is_builtin(device_id: str) -> bool:
    """Whether an id is that of a GPU or of the CPU, not of a user's class."""
    return bool(re.fullmatch(r"cpu|cuda:\d+", device_id, re.ASCII))


def open_device(spec: str, threads: int | None = None) -> Device:
    """Open the device for ``spec``, with the values and errors of ``resolve``.

    ``threads`` is the number of threads on a CPU; the default is one per physical core.
    """
    device_id, _ = resolve(spec)
    if device_id == "cpu":
        from rooflab.devices.cpu.device import CpuDevice

        return CpuDevice(threads)
    if threads is not None:
        raise UsageError(f"--threads is for --device cpu, not for {device_id}")
    if custom := _CUSTOM.fullmatch(device_id):
        return _custom(*custom.groups())
    from rooflab.devices.cuda.device import CudaDevice

    return CudaDevice(int(device_id.removeprefix("cuda:")))


def all_ids() -> list[str]:
    """The id of every device that can be opened here."""
    from rooflab.devices.cuda import device as cuda

    return [*(f"cuda:{number}" for number in range(cuda.count())), "cpu"]


def affinity() -> frozenset[int]:
    """The CPUs that rooflab may use, before any library bound its threads."""
    from rooflab.devices.cpu import facts

    return facts.allowed_cpus()


def _custom(module: str, name: str) -> Device:
    try:
        found = getattr(import_module(module), name)
        if not (isinstance(found, type) and issubclass(found, Device)):
            raise UsageError(f"{module}:{name} is not a rooflab.devices.base.Device")
        return found()
    except UsageError:
        raise
    except (ImportError, AttributeError) as error:
        raise UsageError(f"no device {module}:{name}: {error}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a user's module may raise anything
        raise UsageError(
            f"no device {module}:{name}: {type(error).__name__}: {str(error)[:200]}"
        ) from error
