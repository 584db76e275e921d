"""Launches CUTLASS kernels without a host compiler.

The cubin of a file with ``launch = "plan"`` has two entries (see
kernels/include/cutlass_plan.cuh)::

    plan(Problem, bytes of Params, Report)   one thread builds the parameters, like host code
    gemm(Params)                             CUTLASS's kernel

``plan`` runs once per problem. Binding operands writes their addresses, and on Hopper their TMA
descriptors, into a copy of the bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np  # noqa: TID253  imported late itself

from rooflab.devices.base import Device, Launch
from rooflab.devices.cuda.driver import TENSOR_MAP_BYTES, TensorMap, active_clusters, encode
from rooflab.errors import KernelError
from rooflab.kernels.base import Operands
from rooflab.kernels.cuda_file.header import Configuration
from rooflab.kernels.cuda_file.kernel import CudaFile, arch_of
from rooflab.kernels.cuda_file.tensor_maps import PROMOTIONS
from rooflab.kernels.cutlass.report import PARAMS_LIMIT, PROBLEM, REPORT, check_report
from rooflab.model.problem import Problem

RASTER: Final = {"auto": 0, "m": 1, "n": 2}

STATIC_SHARED_LIMIT: Final = 48 * 1024
"""Bytes of shared memory per block above which a kernel must opt in."""


def _cuda_errors() -> tuple[type[Exception], ...]:
    import cupy

    return (cupy.cuda.driver.CUDADriverError, cupy.cuda.runtime.CUDARuntimeError)


@dataclass(frozen=True)
class LaunchPlan:
    """The launch of one problem: Params without operands, and the places of the operands in it."""

    what: str
    function: Any
    params: bytes
    report: Any
    workspace: Any | None

    def bind(self, operands: Operands) -> Launch:
        """The launch on these operands."""
        cuda_errors, report = _cuda_errors(), self.report
        addresses = [array.data.ptr for array in (operands.a, operands.b, operands.c)]
        params = np.frombuffer(bytearray(self.params), np.uint8)
        for pointer in report["pointer"][: report["pointers"]]:
            start = int(pointer["offset"])
            params[start : start + 8].view(np.uint64)[0] = addresses[pointer["operand"]]
        for descriptor in report["descriptor"][: report["descriptors"]]:
            start, address = int(descriptor["offset"]), addresses[descriptor["operand"]]
            params[start : start + TENSOR_MAP_BYTES] = encode(_tensor_map(descriptor), address)

        grid = tuple(int(extent) for extent in report["grid"])
        block = (int(report["threads"]),)
        arguments = (params.view(f"V{params.size}"),)
        shared_bytes, function = int(report["shared_bytes"]), self.function
        clear = self._clear()

        # `alive` keeps the memory of the parameters' addresses allocated.
        def launch(alive: object = (operands, self.workspace)) -> None:
            try:
                if clear:
                    clear()
                function(grid, block, arguments, shared_mem=shared_bytes)
            except cuda_errors as error:
                raise KernelError(f"{self.what} cannot be launched: {error}") from error

        return launch

    def _clear(self) -> Callable[[], None] | None:
        """A function that fills the counters with zeros; None if there are none."""
        if not self.report["zeroed_bytes"]:
            return None
        import cupy

        assert self.workspace is not None
        runtime, stream = cupy.cuda.runtime, cupy.cuda.get_current_stream
        start = self.workspace.data.ptr + int(self.report["zeroed_offset"])
        size = int(self.report["zeroed_bytes"])
        return lambda: runtime.memsetAsync(start, 0, size, stream().ptr)


def _tensor_map(descriptor: Any) -> TensorMap:
    """A report's descriptor."""
    rank = int(descriptor["rank"])
    return TensorMap(
        int(descriptor["data_type"]),
        tuple(descriptor["extents"].tolist()[:rank]),
        tuple(descriptor["strides"].tolist()[: rank - 1]),
        tuple(descriptor["box"].tolist()[:rank]),
        int(descriptor["swizzle"]),
        PROMOTIONS[128],  # as CUTLASS has it
    )


def make_plan(
    file: CudaFile, config: Configuration, device: Device, problem: Problem
) -> LaunchPlan:
    """The plan of one variant of a file for ``problem``; raises ``KernelError``."""
    what = f"{file.name} {config.title}"
    try:
        return _make_plan(what, file, config, device, problem)
    except _cuda_errors() as error:
        raise KernelError(f"{what} cannot be loaded on {device.name}: {error}") from error


def _make_plan(
    what: str, file: CudaFile, config: Configuration, device: Device, problem: Problem
) -> LaunchPlan:
    cupy, extents, settings = device.arrays, problem.extents, problem.settings
    params_out = cupy.zeros(PARAMS_LIMIT, dtype="uint8")
    report_out = cupy.zeros(REPORT.itemsize, dtype="uint8")
    function, gemm = (file.load(device, problem, config, entry)[0] for entry in ("plan", "gemm"))

    def run_plan(workspace: Any | None, active_clusters: int) -> Any:
        request = np.zeros(1, PROBLEM)
        request["M"], request["N"], request["K"] = extents["m"], extents["n"], extents["k"]
        request["batch"] = extents["batch"]
        request["alpha"], request["beta"] = settings["alpha"], settings["beta"]
        request["multiprocessors"] = device.fact("sm_count")
        request["active_clusters"] = active_clusters
        request["splits"], request["swizzle"] = config.splits, config.swizzle
        request["raster"] = RASTER[config.raster]
        request["workspace"] = workspace.data.ptr if workspace is not None else 0
        # Addresses aligned like the operands'; bind() writes the operands' addresses into Params.
        request["A"] = request["B"] = request["C"] = params_out.data.ptr
        function((1,), (1,), (request.view(f"V{PROBLEM.itemsize}"), params_out, report_out))
        return report_out.get().view(REPORT)[0]

    report = run_plan(None, 0)
    check_report(report, what)
    if not report["takes_problem"]:
        size = f"{problem.size} {problem.settings['layout']}"
        raise KernelError(f"{what} does not support {size}: CUTLASS refuses it")
    shared_bytes, limit = int(report["shared_bytes"]), device.fact("shared_memory_per_block")
    if limit is not None and shared_bytes > int(limit):
        raise KernelError(
            f"{what} needs {shared_bytes} bytes of shared memory, {device.name} has {limit}"
        )
    if shared_bytes > STATIC_SHARED_LIMIT:
        gemm.max_dynamic_shared_size_bytes = shared_bytes
    file.note(problem, config, arch_of(device), shared_bytes=shared_bytes)
    clusters = 0
    if max(report["cluster"]) > 1:
        cluster = [int(extent) for extent in report["cluster"]]
        block = (int(report["threads"]),)
        clusters = active_clusters(gemm.kernel.ptr, cluster, block, shared_bytes, {})
        report = run_plan(None, clusters)
    workspace = None
    if needed := int(report["workspace_bytes"]):
        workspace = cupy.zeros(needed, dtype="uint8")
        report = run_plan(workspace, clusters)
    check_report(report, what)
    params = params_out.get().tobytes()[: int(report["params_bytes"])]
    return LaunchPlan(what, gemm, params, report, workspace)
