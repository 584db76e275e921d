"""Devices: what ``--device`` takes, and how to open one."""

from __future__ import annotations

import re

from rooflab.devices.base import Device
from rooflab.errors import UnavailableError, UsageError


def resolve(spec: str) -> tuple[str, str]:
    """The id of the device that ``spec`` means, and why ``auto`` fell back to the CPU, else empty.

    ``spec`` is ``auto``, ``cpu``, ``cuda`` (the first one) or ``cuda:N`` in CUDA's order. Raises
    ``UsageError`` for anything else and ``UnavailableError`` for a GPU that is not there.
    """
    from rooflab.devices import cuda

    if spec == "cpu":
        return "cpu", ""
    if spec == "auto":
        reason = cuda.availability()
        return ("cpu", f"using the CPU: {reason}") if reason else ("cuda:0", "")
    match = re.fullmatch(r"cuda(?::(\d+))?", spec, re.ASCII)
    if not match:
        raise UsageError(
            f"unknown device {spec!r}: type auto, cpu, cuda or cuda:N (list: rooflab devices)"
        )
    if reason := cuda.availability():
        raise UnavailableError(f"{spec} cannot be used: {reason} (or use --device cpu)")
    index = int(match[1] or 0)
    there = [f"cuda:{number}" for number in range(cuda.count())]
    if index >= len(there):
        raise UnavailableError(f"there is no cuda:{index}: this machine has {', '.join(there)}")
    return f"cuda:{index}", ""


def open_device(spec: str) -> Device:
    """Open the device that ``spec`` means; takes and raises what ``resolve`` does."""
    device_id, _ = resolve(spec)
    if device_id == "cpu":
        from rooflab.devices.cpu import CpuDevice

        return CpuDevice()
    from rooflab.devices.cuda import CudaDevice

    return CudaDevice(int(device_id.removeprefix("cuda:")))


def all_ids() -> list[str]:
    """The id of every device that can be opened here."""
    from rooflab.devices import cuda

    return [*(f"cuda:{number}" for number in range(cuda.count())), "cpu"]
