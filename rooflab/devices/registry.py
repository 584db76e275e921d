"""Devices: the values of ``--device``, and how to open a device."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from contextlib import chdir
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final

from rooflab.devices.base import Device
from rooflab.errors import UnavailableError, UsageError

_log = logging.getLogger(__name__)

_CUSTOM = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)", re.ASCII)
"""``module:Class``: the user's own device."""

ALL: Final = "all"
"""Every GPU of a host."""

ALL_THREADS: Final = "all"
"""As many CPU threads as there are physical cores that this process may use."""


@cache
def kinds() -> dict[str, type[Device]]:
    """The class of each kind that ``--device`` takes by name, in the order of ``auto``.

    Packages add kinds by entry points in the group ``rooflab.devices``, which name a class.
    """
    from rooflab.devices.cpu.device import CpuDevice
    from rooflab.devices.cuda.device import CudaDevice

    return {one.kind: one for one in (CudaDevice, *installed("rooflab.devices"), CpuDevice)}


def class_of(kind: str) -> type[Device]:
    """The class of a kind that is installed or was imported; ``Device`` of one that is unknown."""
    return {**Device.of_kind, **kinds()}.get(kind, Device)


@cache
def installed(group: str) -> tuple[Any, ...]:
    """What packages name by entry points in a group. One that fails is left out with a warning."""
    loaded = []
    for entry in entry_points(group=group):
        try:
            with chdir("."):
                loaded.append(entry.load())
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a package's import may raise anything
            package = entry.dist.name if entry.dist else entry.value
            _log.warning(
                "the %s of %s cannot be loaded (%s: %s): fix or pip uninstall %s",
                *(group.partition(".")[2], package, type(error).__name__, error, package),
            )
    return tuple(loaded)


def resolve(spec: str) -> tuple[str, str]:
    """The id of the device for ``spec``, and why ``auto`` means the CPU, else an empty text.

    ``spec`` is ``auto``, ``cpu``, ``cuda`` (the first one), ``cuda:N`` in CUDA's order, or
    ``module:Class`` for a subclass of ``Device`` that Python can import. Raises
    ``UsageError`` for anything else and ``UnavailableError`` for a missing GPU.
    """
    if spec == "auto":
        return _first()
    named = re.fullmatch(r"(\w+)(?::(\d+))?", spec, re.ASCII)
    device = kinds().get(named[1]) if named else None
    if not named or not device or (named[2] and not device.numbered):
        if _CUSTOM.fullmatch(spec) and not is_builtin(spec):
            return spec, ""
        raise UsageError(
            f"unknown device {spec[:40]!r}: type auto, cpu, cuda or cuda:N (list: rooflab devices)"
        )
    if reason := device.probe()[1]:
        raise UnavailableError(f"{spec} cannot be used: {reason} (or use --device cpu)")
    there = _ids(device)
    wanted = f"{named[1]}:{int(named[2])}" if named[2] else there[0]
    if wanted not in there:
        raise UnavailableError(f"there is no {wanted}: this machine has {', '.join(there)}")
    return wanted, ""


def _first() -> tuple[str, str]:
    """The first device that can be used, and why it is the CPU."""
    reasons = []
    for device in kinds().values():
        _, reason = device.probe()
        if not reason:
            break
        reasons.append(reason if len(reason) <= 65 else "no usable GPU (why: rooflab doctor)")
    note = f"using the CPU: {reasons[0]}" if reasons and device.kind == "cpu" else ""
    return _ids(device)[0], note


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
    """Whether an id is that of a known kind, not of a user's class."""
    return device_id.partition(":")[0] in kinds()


def open_device(spec: str, threads: int | None = None) -> Device:
    """Open the device for ``spec``, with the values and errors of ``resolve``.

    ``threads`` is the number of threads on a CPU; the default is one per physical core.
    """
    device_id, _ = resolve(spec)
    kind, _, name = device_id.partition(":")
    known = kinds().get(kind)
    if threads is not None and not (known and known.has_threads):
        raise UsageError(f"--threads is for --device cpu, not for {device_id}")
    if known is None:
        return _custom(kind, name)
    opened: Any = known
    device: Device = opened(*[int(name or 0)] * known.numbered, *[threads] * known.has_threads)
    return device


def all_ids() -> list[str]:
    """The id of every device that can be opened here."""
    return [one for device in kinds().values() for one in _ids(device)]


def _ids(device: type[Device]) -> list[str]:
    count, _ = device.probe()
    return [f"{device.kind}:{i}" if device.numbered else device.kind for i in range(count)]


def _custom(module: str, name: str) -> Device:
    try:
        found = getattr(import_module(module), name)
        if not (isinstance(found, type) and issubclass(found, Device)):
            raise UsageError(f"{module}:{name} is not a rooflab.devices.base.Device")
        return found()
    except (UsageError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a user's module may raise anything
        usual = isinstance(error, (ImportError, AttributeError))
        told = str(error) if usual else f"{type(error).__name__}: {str(error)[:200]}"
        raise UsageError(f"no device {module}:{name}: {told}") from error
