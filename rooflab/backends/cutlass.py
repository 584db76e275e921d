"""NVIDIA's CUTLASS: templates of GEMM kernels, compiled here without a host compiler.

A file of kernels/cutlass/ names a CUTLASS kernel by a few macros, and each line of ``variants`` in
its header is one choice of them. Its cubin holds two entries (see kernels/include/
cutlass_plan.cuh)::

    plan(Problem, bytes of Params, Report)   one thread builds what CUTLASS's host code would
    gemm(Params)                             CUTLASS's kernel

``plan`` runs once for a problem. Binding a set of operands then means to write their addresses, and
on Hopper their TMA descriptors, into a copy of the bytes.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np  # noqa: TID253  discover() alone imports this module
from pydantic import BaseModel, ConfigDict, Field, field_validator  # noqa: TID253

from rooflab.backends import cuda, cutlass_headers, nvrtc
from rooflab.devices.base import Device
from rooflab.errors import KernelError
from rooflab.measure.buffers import Operands
from rooflab.problem import LAYOUTS, Problem
from rooflab.registry import Kernel, Launch, Variant
from rooflab.resources import kernels_dir

OPTIONS: Final = (
    *cutlass_headers.OPTIONS,
    "-diag-suppress=177,20044",  # about variables of its asserts, and constants of its classes
)

PARAMS_LIMIT: Final = 4096
"""Bytes of kernel parameters that every driver takes."""

RASTER: Final = {"auto": 0, "m": 1, "n": 2}


# The headers of our files ------------------------------------------------------------------------


class Choice(BaseModel):
    """One variant. Names in capitals are macros; the others are chosen at run time, at no cost.

    ``splits`` divides K among blocks, ``swizzle`` is how many rows of tiles are walked together,
    and ``raster`` the direction. ``precisions`` are those that the variant is for, all by default;
    ``access_bytes`` is as in the header, where the variant asks for more.
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, int]

    name: str = Field(min_length=1)
    precisions: list[str] = Field([])
    access_bytes: int = Field(0, strict=True, ge=0)
    splits: cuda.Count = 1
    swizzle: cuda.Count = 1
    raster: Literal["auto", "m", "n"] = "auto"

    @property
    def macros(self) -> dict[str, int]:
        """What the file is compiled with."""
        return self.__pydantic_extra__ or {}


class Header(BaseModel):
    """The TOML table at the top of a .cu file; ``examples`` say what to write.

    ``access_bytes`` is the size of the accesses along rows, of which every row's length must be a
    multiple; 0 where any length will do. ``k_major`` are precisions whose A and B must both be
    contiguous along K, which is layout nt. ``compute_capability`` is the only one that will do,
    ``min_compute_capability`` the lowest.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str = Field(examples=['title = "CUTLASS 2.x, FP16"'])
    teaches: str = Field(examples=['teaches = "what this file shows"'])
    order: float = Field(examples=["order = 1"])
    precisions: list[str] = Field(min_length=1, examples=['precisions = ["fp16"]'])
    variants: list[Choice] = Field(
        min_length=1, examples=['variants = [{ name = "128x128", TILE_M = 128, TILE_N = 128 }]']
    )
    k_major: list[str] = Field([], examples=['k_major = ["tf32"]'])
    access_bytes: int = Field(16, strict=True, ge=0, examples=["access_bytes = 16"])
    compute_capability: str = Field("", examples=['compute_capability = "9.0"'])
    min_compute_capability: str = Field(
        "8.0", pattern=r"^\d+\.\d$", examples=['min_compute_capability = "8.0"']
    )

    @field_validator("variants")
    @classmethod
    def _told_apart(cls, variants: list[Choice]) -> list[Choice]:
        names = [variant.name for variant in variants]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two are called {', '.join(twice)}")
        for variant in variants:
            if wrong := [
                name for name in variant.macros if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name)
            ]:
                raise ValueError(f"{variant.name}: {', '.join(wrong)} is no key and no macro")
        return variants


@dataclass(frozen=True)
class CutlassKernel:
    """A .cu file of kernels/cutlass/ and its header."""

    source: Path
    header: Header

    @property
    def name(self) -> str:
        """What ``--kernel`` calls it: the file's stem."""
        return self.source.stem

    def as_kernel(self) -> Kernel:
        """The registration."""
        return Kernel(
            name=self.name,
            backend="cutlass",
            device_kind="cuda",
            title=self.header.title,
            precisions=tuple(self.header.precisions),
            layouts=LAYOUTS,
            teaches=self.header.teaches,
            source=self.source,
            variant=self.header.variants[0].name,
            variants=tuple(
                Variant(
                    name=choice.name,
                    prepare=partial(self.prepare_variant, choice),
                    compile=partial(self.compile_for, choice),
                    objection=partial(self.variant_objection, choice),
                )
                for choice in self.header.variants
            ),
            prepare=self.prepare,
            unavailable=self.unavailable,
            objection=self.objection,
        )

    def unavailable(self, device: Device | None) -> str:
        """Why this kernel cannot run on ``device``, empty if it can."""
        if device is None:
            from rooflab.devices import cuda as devices

            return devices.availability()
        present = cuda.compute_capability(device)
        if not present:
            return f"{device.name} does not tell its compute capability"
        if (only := self.header.compute_capability) and present != only:
            return f"{self.name} needs compute capability {only} alone, {device.name} has {present}"
        if cuda.version(present) < cuda.version(least := self.header.min_compute_capability):
            return f"{self.name} needs compute capability {least}, {device.name} has {present}"
        return nvrtc.compiler_unavailable() or cutlass_headers.unavailable()

    def objection(self, problem: Problem) -> str:
        """Why this kernel does not take ``problem``, empty if it does."""
        precision, layout = problem.precision, problem.layout
        if precision.name in self.header.k_major and layout != "nt":
            return (
                f"{self.name} takes {precision.title} in layout nt only: Hopper's tensor cores "
                "read operands of this type along K"
            )
        return _needs_multiples(self.name, self.header.access_bytes, problem)

    def variant_objection(self, choice: Choice, problem: Problem) -> str:
        """Why this variant does not take ``problem``, which the kernel takes; empty if it does."""
        if choice.precisions and problem.precision.name not in choice.precisions:
            return f"{choice.name} is for {', '.join(choice.precisions)}"
        if choice.splits > 1 and problem.batch > 1:
            return f"{choice.name} splits K of one pair of matrices, batch is {problem.batch}"
        return _needs_multiples(choice.name, choice.access_bytes, problem)

    def prepare(self, device: Device, operands: Operands) -> Launch:
        """The launch of the first variant that takes the problem."""
        for choice in self.header.variants:
            if not self.variant_objection(choice, operands.problem):
                return self.prepare_variant(choice, device, operands)
        raise KernelError(f"{self.name} has no variant for {operands.problem.precision.title}")

    def prepare_variant(self, choice: Choice, device: Device, operands: Operands) -> Launch:
        """Compile (or find) the cubin, plan the problem once, bind the operands."""
        return _plan(self, choice, device, operands.problem).bind(operands)

    def compile_for(self, choice: Choice, device: Device, problem: Problem) -> None:
        """Put the cubin into the cache on disk."""
        _compiled(self, choice, device, problem)


def _needs_multiples(name: str, access_bytes: int, problem: Problem) -> str:
    """That a row of A, B or C is no whole number of accesses; empty where all are."""
    precision, layout = problem.precision, problem.layout
    rows = (
        ("K" if layout[0] == "n" else "M", precision.input.bytes),
        ("N" if layout[1] == "n" else "K", precision.input.bytes),
        ("N", precision.output.bytes),
    )
    for extent, element_bytes in rows:
        multiple = max(1, access_bytes // element_bytes)
        if (given := getattr(problem, extent.lower())) % multiple:
            return f"{name} needs {extent} to be a multiple of {multiple}, it is {given}"
    return ""


def shipped_kernels() -> list[Kernel]:
    """Every .cu in kernels/cutlass/, in its files' order."""
    files = [read_file(path) for path in sorted((kernels_dir() / "cutlass").glob("*.cu"))]
    return [file.as_kernel() for file in sorted(files, key=lambda file: file.header.order)]


def read_file(path: Path) -> CutlassKernel:
    """The file and its header, checked. Raises ``UsageError`` with all that is wrong with it."""
    return CutlassKernel(path, cuda.read_header(path, Header))


# Compiling --------------------------------------------------------------------------------------


def compile_kernel(
    kernel: CutlassKernel,
    choice: Choice,
    precision: str,
    layout: str,
    arch: str,
    *,
    reads_c: bool = False,
) -> nvrtc.Compiled:
    """The cubin of one variant, precision and layout for ``arch``, such as ``sm_90a``.

    ``reads_c`` where beta is not 0: a kernel that need not load C can do without the code for it.
    Needs no GPU, may be called from several threads at once, and raises ``KernelError``.
    """
    headers = cutlass_headers.usable()
    options = [
        *OPTIONS,
        *cuda.problem_macros(precision, layout),
        f"-DROOFLAB_READS_C={int(reads_c)}",
        *cuda.macro_options(choice.macros),
    ]
    compiled = nvrtc.compile_file(kernel.source, "gemm", options, arch, (headers,))
    cuda.note_build(
        kernel.name,
        variant=choice.name,
        precision=precision,
        layout=layout,
        arch=arch,
        cutlass=headers.version,
        source_sha256=nvrtc.source_sha256(kernel.source),
        registers=compiled.registers,
        spill_bytes=compiled.spill_bytes,
    )
    return compiled


def _compiled(
    kernel: CutlassKernel, choice: Choice, device: Device, problem: Problem
) -> nvrtc.Compiled:
    """The cubin for ``problem`` on ``device``."""
    arch = nvrtc.arch_for(cuda.compute_capability(device))
    precision, reads_c = problem.precision.name, problem.beta != 0
    return compile_kernel(kernel, choice, precision, problem.layout, arch, reads_c=reads_c)


# What the device reports -------------------------------------------------------------------------

MAGIC: Final = 0x524C4301
"""Of the report's layout: REPORT_MAGIC in kernels/include/cutlass_plan.cuh."""

_PROBLEM: Final = np.dtype(
    [
        ("M", "i4"),
        ("N", "i4"),
        ("K", "i4"),
        ("batch", "i4"),
        ("alpha", "f4"),
        ("beta", "f4"),
        ("A", "u8"),
        ("B", "u8"),
        ("C", "u8"),
        ("workspace", "u8"),
        ("multiprocessors", "i4"),
        ("active_clusters", "i4"),
        ("splits", "i4"),
        ("swizzle", "i4"),
        ("raster", "i4"),
    ],
    align=True,
)

_POINTER: Final = np.dtype([("offset", "u4"), ("operand", "u4")])

_DESCRIPTOR: Final = np.dtype(
    [
        ("offset", "u4"),
        ("operand", "u4"),
        ("data_type", "u4"),
        ("rank", "u4"),
        ("swizzle", "u4"),
        ("box", "u4", 5),
        ("extents", "u8", 5),
        ("strides", "u8", 4),
    ]
)

REPORT: Final = np.dtype(
    [
        ("magic", "u4"),
        ("takes_problem", "u4"),
        ("params_bytes", "u4"),
        ("shared_bytes", "u4"),
        ("threads", "u4"),
        ("grid", "u4", 3),
        ("cluster", "u4", 3),
        ("pointers", "u4"),
        ("descriptors", "u4"),
        ("reserved", "u4"),
        ("workspace_bytes", "u8"),
        ("zeroed_offset", "u8"),
        ("zeroed_bytes", "u8"),
        ("pointer", _POINTER, 4),
        ("descriptor", _DESCRIPTOR, 4),
    ]
)
"""The struct of that name in kernels/include/cutlass_plan.cuh."""

DESCRIPTOR_BYTES: Final = 128
DESCRIPTOR_ALIGNMENT: Final = 64
"""Of CUtensorMap, in Params and where the driver writes it (CUDA driver API, "Tensor Map Object
Management")."""


def check_report(report: Any, what: str) -> None:
    """Raises ``KernelError`` where the ``report`` of a plan cannot be acted upon.

    It would then be about another version of CUTLASS or of our files: to launch with parameters
    that are not what the kernel takes them for may write anywhere.
    """
    mistake = _mistake(report)
    if not mistake:
        return
    found = cutlass_headers.library()
    raise KernelError(
        f"{what} cannot be launched: {mistake}; CUTLASS {found.version if found else '?'} is "
        f"installed, {cutlass_headers.tested()} is tested: {cutlass_headers.INSTALL}"
    )


def _mistake(report: Any) -> str:
    if report["magic"] != MAGIC:
        return f"its plan reports {int(report['magic']):#x} instead of {MAGIC:#x}"
    size = int(report["params_bytes"])
    if not 0 < size <= PARAMS_LIMIT:
        return f"its parameters have {size} bytes, {PARAMS_LIMIT} are possible"
    grid, threads = [int(extent) for extent in report["grid"]], int(report["threads"])
    if min(grid) < 1 or max(grid[1:]) > cuda.MAX_GRID_YZ or not 0 < threads <= cuda.MAX_THREADS:
        return f"its grid is {'x'.join(map(str, grid))} blocks of {threads} threads"
    if report["zeroed_offset"] + report["zeroed_bytes"] > report["workspace_bytes"]:
        return "its counters lie outside of its workspace"
    if report["pointers"] > 4 or report["descriptors"] > 4:
        return f"it has {report['pointers']} addresses and {report['descriptors']} descriptors"
    taken: list[tuple[int, int]] = []
    patches = [("address", 8, 8, one) for one in report["pointer"][: report["pointers"]]] + [
        ("TMA descriptor", DESCRIPTOR_BYTES, DESCRIPTOR_ALIGNMENT, one)
        for one in report["descriptor"][: report["descriptors"]]
    ]
    for name, length, alignment, one in patches:
        start, operand = int(one["offset"]), int(one["operand"])
        if operand > 2:
            return f"its {name} is that of operand {operand}"
        if start % alignment or start + length > size:
            return f"its {name} of {'ABC'[operand]} is at {start} of {size} bytes"
        if any(start < end and begin < start + length for begin, end in taken):
            return f"its {name} of {'ABC'[operand]} at {start} overlaps another"
        taken.append((start, start + length))
    if not any(operand == 2 for _, _, _, one in patches for operand in [int(one["operand"])]):
        return "it says nothing of C"
    for one in report["descriptor"][: report["descriptors"]]:
        rank, swizzle = int(one["rank"]), int(one["swizzle"])
        if not 1 <= rank <= 5 or swizzle > 3 or not all(1 <= n <= 256 for n in one["box"][:rank]):
            return f"its TMA descriptor has {rank} dimensions, swizzle {swizzle}, box {one['box']}"
    return ""


# Planning and launching --------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """How one problem is launched: Params without operands, and where these go."""

    what: str
    function: Any
    params: bytes
    report: Any
    workspace: Any | None

    def bind(self, operands: Operands) -> Launch:
        """The launch on these operands."""
        import cupy

        cuda_errors = (cupy.cuda.driver.CUDADriverError, cupy.cuda.runtime.CUDARuntimeError)
        report = self.report
        addresses = [array.data.ptr for array in (operands.a, operands.b, operands.c)]
        params = np.frombuffer(bytearray(self.params), np.uint8)
        for one in report["pointer"][: report["pointers"]]:
            start = int(one["offset"])
            params[start : start + 8].view(np.uint64)[0] = addresses[one["operand"]]
        for one in report["descriptor"][: report["descriptors"]]:
            start = int(one["offset"])
            params[start : start + DESCRIPTOR_BYTES] = encode_tiled(one, addresses[one["operand"]])

        grid = tuple(int(extent) for extent in report["grid"])
        block = (int(report["threads"]),)
        arguments = (params.view(f"V{params.size}"),)
        shared_bytes, function = int(report["shared_bytes"]), self.function
        clear = self._clear()

        # `alive` keeps what the parameters point to.
        def launch(alive: object = (operands, self.workspace)) -> None:
            try:
                if clear:
                    clear()
                function(grid, block, arguments, shared_mem=shared_bytes)
            except cuda_errors as error:
                raise KernelError(f"{self.what} cannot be launched: {error}") from error

        return launch

    def _clear(self) -> Callable[[], None] | None:
        """What fills the counters with zeros; None where there are none to fill."""
        if not self.report["zeroed_bytes"]:
            return None
        import cupy

        assert self.workspace is not None
        runtime, stream = cupy.cuda.runtime, cupy.cuda.get_current_stream
        start = self.workspace.data.ptr + int(self.report["zeroed_offset"])
        size = int(self.report["zeroed_bytes"])
        return lambda: runtime.memsetAsync(start, 0, size, stream().ptr)


_modules: dict[tuple[str, ...], Any] = {}
_plans: dict[tuple[str, ...], tuple[Problem, Plan]] = {}
"""The last problem's plan of each kernel: all sets of operands of a measurement ask for it."""


def _plan(kernel: CutlassKernel, choice: Choice, device: Device, problem: Problem) -> Plan:
    """How ``problem`` is launched; found once for it."""
    import cupy

    precision, layout = problem.precision.name, problem.layout
    key = (str(kernel.source), choice.name, device.id, precision, layout)
    planned, plan = _plans.get(key, (None, None))
    if plan and planned == problem:
        return plan
    what = f"{kernel.name} {choice.name}"
    compiled = _compiled(kernel, choice, device, problem)
    try:
        module_key = (str(compiled.cubin), device.id)
        if module_key not in _modules:
            _modules[module_key] = cupy.RawModule(path=str(compiled.cubin))
        module = _modules[module_key]
        plan = _make_plan(what, module, device, choice, problem)
    except (cupy.cuda.driver.CUDADriverError, cupy.cuda.runtime.CUDARuntimeError) as error:
        raise KernelError(f"{what} cannot be loaded on {device.name}: {error}") from error
    shared_bytes = int(plan.report["shared_bytes"])
    cuda.note_build(
        kernel.name,
        variant=choice.name,
        precision=precision,
        layout=layout,
        arch=compiled.arch,
        shared_bytes=shared_bytes,
    )
    _plans[key] = (problem, plan)
    return plan


def _make_plan(what: str, module: Any, device: Device, choice: Choice, problem: Problem) -> Plan:
    cupy = device.arrays
    params_out = cupy.zeros(PARAMS_LIMIT, dtype="uint8")
    report_out = cupy.zeros(REPORT.itemsize, dtype="uint8")
    function, gemm = module.get_function("plan"), module.get_function("gemm")

    def ask(workspace: Any | None, active_clusters: int) -> Any:
        asked = np.zeros(1, _PROBLEM)
        for name in ("m", "n", "k"):
            asked[name.upper()] = getattr(problem, name)
        for name in ("batch", "alpha", "beta"):
            asked[name] = getattr(problem, name)
        asked["multiprocessors"] = device.fact("sm_count")
        asked["active_clusters"] = active_clusters
        asked["splits"], asked["swizzle"] = choice.splits, choice.swizzle
        asked["raster"] = RASTER[choice.raster]
        asked["workspace"] = workspace.data.ptr if workspace is not None else 0
        # Addresses that are aligned as the operands', which are written into Params later.
        asked["A"] = asked["B"] = asked["C"] = params_out.data.ptr
        function((1,), (1,), (asked.view(f"V{_PROBLEM.itemsize}"), params_out, report_out))
        return report_out.get().view(REPORT)[0]

    report = ask(None, 0)
    check_report(report, what)
    if not report["takes_problem"]:
        raise KernelError(f"{what} does not take {problem.shape} {problem.layout}: CUTLASS refuses")
    shared_bytes, limit = int(report["shared_bytes"]), device.fact("shared_memory_per_block")
    if limit is not None and shared_bytes > int(limit):
        raise KernelError(
            f"{what} needs {shared_bytes} bytes of shared memory, {device.name} has {limit}"
        )
    if shared_bytes > cuda.STATIC_SHARED_LIMIT:
        gemm.max_dynamic_shared_size_bytes = shared_bytes
    clusters = 0
    if max(report["cluster"]) > 1:
        clusters = active_clusters(gemm.kernel.ptr, report)
        report = ask(None, clusters)
    workspace = None
    if needed := int(report["workspace_bytes"]):
        workspace = cupy.zeros(needed, dtype="uint8")
        report = ask(workspace, clusters)
    check_report(report, what)
    params = params_out.get().tobytes()[: int(report["params_bytes"])]
    return Plan(what, gemm, params, report, workspace)


# TMA descriptors ---------------------------------------------------------------------------------

_L2_PROMOTION_128B: Final = 2
"""What CUTLASS asks for; interleaving and NaN for what lies outside it does without (0)."""


def encode_tiled(descriptor: Any, address: int) -> Any:
    """The 128 bytes of the CUtensorMap that ``descriptor``, of a report, asks for at ``address``.

    Raises ``KernelError`` where the driver has none or refuses.
    """
    rank = int(descriptor["rank"])
    buffer = np.zeros(DESCRIPTOR_BYTES + DESCRIPTOR_ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % DESCRIPTOR_ALIGNMENT
    aligned = buffer[start : start + DESCRIPTOR_BYTES]
    extents, strides, box = (
        np.ascontiguousarray(descriptor[name]) for name in ("extents", "strides", "box")
    )
    steps = np.ones(5, np.uint32)
    status = _driver_encode()(
        aligned.ctypes.data,
        int(descriptor["data_type"]),
        rank,
        address,
        *(array.ctypes.data for array in (extents, strides, box, steps)),
        0,
        int(descriptor["swizzle"]),
        _L2_PROMOTION_128B,
        0,
    )
    if status:
        raise KernelError(
            f"the driver refuses a TMA descriptor (CUDA error {status}) of {extents[:rank]} "
            f"elements at {address:#x}, strides {strides[: rank - 1]} bytes, box {box[:rank]}"
        )
    return aligned


def _driver_encode() -> Any:
    pointer, number = ctypes.c_void_p, ctypes.c_uint
    return _driver(
        "cuTensorMapEncodeTiled", (pointer, number, number, *[pointer] * 5, *[number] * 4)
    )


# Clusters ----------------------------------------------------------------------------------------


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig (CUDA driver API, "Data Types")."""

    _fields_ = (
        *((f"grid_{axis}", ctypes.c_uint) for axis in "xyz"),
        *((f"block_{axis}", ctypes.c_uint) for axis in "xyz"),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


def active_clusters(function: int, report: Any) -> int:
    """How many clusters of the CUfunction ``function`` the device holds at once.

    Multiprocessors of different GPCs form no cluster, so that some may be left over: a persistent
    kernel that counted on them would start its last clusters when all others have ended.
    """
    config = _LaunchConfig(
        *(int(extent) for extent in report["cluster"]),
        *(int(report["threads"]), 1, 1, int(report["shared_bytes"])),
    )
    found = ctypes.c_int()
    pointer = ctypes.c_void_p
    status = _driver("cuOccupancyMaxActiveClusters", (pointer, pointer, pointer))(
        ctypes.addressof(found), function, ctypes.addressof(config)
    )
    if status:
        raise KernelError(
            "the driver cannot say how many clusters fit the device at once (CUDA error "
            f"{status} of cuOccupancyMaxActiveClusters)"
        )
    return found.value


@cache
def _driver(name: str, argument_types: tuple[Any, ...]) -> Any:
    """The function of that name in CUDA's driver interface, which returns an error's number."""
    library = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        function = getattr(ctypes.CDLL(library), name)
    except (OSError, AttributeError) as error:
        raise KernelError(f"CUTLASS on Hopper needs {name} of a CUDA 12 driver: {error}") from error
    function.argtypes, function.restype = argument_types, ctypes.c_uint
    return function
