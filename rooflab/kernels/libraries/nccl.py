"""NVIDIA's NCCL through CuPy: collectives among the GPUs of one host, by one process."""

from __future__ import annotations

from functools import cache, partial
from typing import Any, Final

from rooflab.devices.base import Device, Launch
from rooflab.devices.cuda.device import availability
from rooflab.kernels.base import Group, Operands
from rooflab.kernels.libraries.cuda import guarded
from rooflab.kernels.registry import register
from rooflab.model.precision import PRECISIONS

NUMBERS: Final = tuple(
    one.name
    for one in PRECISIONS.values()
    if one.input.nccl and one.input == one.multiply == one.output
)


def unavailable(device: Device | None) -> str:
    """Why NCCL cannot run, empty if it can."""
    if device is None:
        return availability()
    return missing() or (f"{device.name} is the only GPU here" if device.group_size == 1 else "")


def missing() -> str:
    """How to install NCCL, empty if it is there; needs CuPy."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy's warning has the same advice, in many lines
        from cupy.cuda import nccl, runtime
    if nccl.available:
        return ""
    version = runtime.runtimeGetVersion() // 1000
    return f"NCCL is not installed: pip install nvidia-nccl-cu{version}"


def _launch(call: str, device: Device, operands: Operands) -> Launch:
    """A ``call`` of the library for each GPU, in one group."""
    from cupy.cuda import nccl

    assert isinstance(operands, Group)
    problem = operands.problem
    number = getattr(nccl, problem.precision.input.nccl)
    operation = (nccl.NCCL_SUM,) if call == "allReduce" else ()
    communicators = _communicators(tuple(int(m.device.id.split(":")[1]) for m in operands.members))
    calls = []
    for communicator, member in zip(communicators, operands.members, strict=True):
        x, y = member.operands.x, member.operands.y
        arguments = (x.data.ptr, y.data.ptr, x.size, number, *operation, member.stream.ptr)
        calls.append(partial(getattr(communicator, call), *arguments))

    def group() -> None:
        nccl.groupStart()
        for one in calls:
            one()
        nccl.groupEnd()

    return guarded(group, nccl.NcclError, f"NCCL refuses {problem.size}", alive=operands)


for _workload, _title, _call in (
    ("allreduce", "NCCL's all-reduce", "allReduce"),
    ("allgather", "NCCL's all-gather", "allGather"),
):
    register(
        "nccl",
        backend="nccl",
        device_kind="cuda",
        workload=_workload,
        title=_title,
        precisions=NUMBERS,
        unavailable=unavailable,
        library=True,
    )(partial(_launch, _call))


@cache
def _communicators(indices: tuple[int, ...]) -> list[Any]:
    """One for each GPU, made once: it takes seconds."""
    from cupy.cuda import nccl

    made: list[Any] = nccl.NcclCommunicator.initAll(list(indices))
    return made
