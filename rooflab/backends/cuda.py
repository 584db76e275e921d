"""A .cu file becomes a kernel: header → registration, cubin → launch.

The file's leading block comment is a TOML table, `Header`. Its entry is launched as::

    extern "C" __global__ void entry(int M, int N, int K,
                                     Accumulate alpha, const Input* A, const Input* B,
                                     Accumulate beta, Output* C)

on row-major, tightly packed matrices: C = alpha·op(A)·op(B) + beta·C. ``gridDim`` is (tiles along
N, tiles along M, batch); a batched kernel moves its pointers by ``blockIdx.z`` matrices itself.
``beta == 0`` means that C must not be read: it holds NaN.

Each pair of precision and layout is a compilation of its own, told apart by the macros
``ROOFLAB_PRECISION_<NAME>`` and ``ROOFLAB_TRANSPOSE_A`` / ``ROOFLAB_TRANSPOSE_B`` = 0 or 1, which
kernels/include/gemm.cuh turns into types and accessors. A file that takes one precision and one
layout may ignore them and write ``const float* A``.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import (  # noqa: TID253  discover() alone imports this module
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from rooflab.backends import cutlass_headers, nvrtc
from rooflab.devices.base import Device
from rooflab.errors import KernelError, UsageError
from rooflab.measure.buffers import Operands
from rooflab.problem import LAYOUTS, PRECISIONS, Problem
from rooflab.registry import Kernel, Launch, Variant
from rooflab.resources import kernels_dir

MAX_GRID_YZ: Final = 65535
"""Largest gridDim.y and gridDim.z (CUDA C++ Programming Guide, "Compute Capabilities")."""

MAX_THREADS: Final = 1024
"""Most threads in a block (same source)."""

STATIC_SHARED_LIMIT: Final = 48 * 1024
"""Bytes of shared memory per block beyond which a kernel must opt in (same source)."""

Macros = Mapping[str, int | str]

Count = Annotated[int, Field(strict=True, gt=0)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]


class Header(BaseModel):
    """The TOML table at the top of a .cu file; ``examples`` say what to write.

    ``tile`` is the rows and columns of C that one block computes, ``shared_bytes`` its dynamic
    shared memory. Of ``variants``, each a table of -D macros, the fastest is searched for.
    ``constraints`` names the extents that must be multiples of a number; ``needs`` the headers of
    others that the file includes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    entry: Name = Field(examples=['entry = "mine"'])
    precisions: list[str] = Field(min_length=1, examples=['precisions = ["fp32"]'])
    layouts: list[str] = Field(min_length=1, examples=['layouts = ["nn"]'])
    block: list[Count] = Field(min_length=1, max_length=3, examples=["block = [32, 32]"])
    tile: list[Count] = Field(min_length=2, max_length=2, examples=["tile = [32, 32]"])
    title: str = Field("", examples=['title = "Mine"'])
    teaches: str = Field("", examples=['teaches = "what this file shows"'])
    rung: float = Field(float("inf"), strict=True, examples=["rung = 4"])
    shared_bytes: int = Field(0, strict=True, ge=0, examples=["shared_bytes = 65536"])
    batched: bool = Field(False, strict=True, examples=["batched = true"])
    min_compute_capability: str = Field(
        "5.0", pattern=r"^\d+\.\d$", examples=['min_compute_capability = "9.0"']
    )
    variants: list[dict[Name, int | str]] = Field([], examples=["variants = [{ STAGES = 3 }]"])
    constraints: dict[str, Count] = Field({}, examples=["constraints = { K = 8 }"])
    needs: list[Literal["cutlass"]] = Field([], examples=['needs = ["cutlass"]'])

    @field_validator("precisions", "layouts", "constraints")
    @classmethod
    def _known(cls, names: Any, info: ValidationInfo) -> Any:
        known = {"precisions": tuple(PRECISIONS), "layouts": LAYOUTS, "constraints": tuple("MNK")}[
            str(info.field_name)
        ]
        if unknown := [name for name in names if name not in known]:
            raise ValueError(f"{', '.join(unknown)} is not one of {', '.join(known)}")
        return names

    @field_validator("block")
    @classmethod
    def _not_too_many(cls, block: list[int]) -> list[int]:
        if (threads := math.prod(block)) > MAX_THREADS:
            raise ValueError(f"{threads} threads are more than the {MAX_THREADS} of a block")
        return block


@dataclass(frozen=True)
class CudaKernel:
    """A .cu file and its header."""

    source: Path
    header: Header

    @property
    def name(self) -> str:
        """What ``--kernel`` calls it: the file's stem."""
        return self.source.stem

    @property
    def choices(self) -> list[Macros]:
        """The compile-time parameters of each variant; without variants there are none to set."""
        return list(self.header.variants) or [{}]

    def as_kernel(self) -> Kernel:
        """The registration."""
        return Kernel(
            name=self.name,
            backend="cuda",
            device_kind="cuda",
            title=self.header.title or self.name,
            precisions=tuple(self.header.precisions),
            layouts=tuple(self.header.layouts),
            teaches=self.header.teaches,
            source=self.source,
            variant=_name(self.choices[0]),
            variants=tuple(
                Variant(
                    name=_name(macros),
                    prepare=partial(self.prepare, macros=macros),
                    compile=partial(self.compile_for, macros),
                )
                for macros in self.header.variants
            ),
            prepare=self.prepare,
            unavailable=self.unavailable,
            objection=self.objection,
        )

    def unavailable(self, device: Device | None) -> str:
        """Why this kernel cannot run on ``device``, empty if it can."""
        if device is None:
            from rooflab.devices import cuda

            return cuda.availability()
        needed, present = self.header.min_compute_capability, compute_capability(device)
        if not present:
            return f"{device.name} does not tell its compute capability"
        if version(present) < version(needed):
            return f"{self.name} needs compute capability {needed}, {device.name} has {present}"
        reason = nvrtc.compiler_unavailable()
        if not reason and "cutlass" in self.header.needs:
            reason = cutlass_headers.unavailable()
        return reason

    def objection(self, problem: Problem) -> str:
        """Why this kernel does not take ``problem``, empty if it does."""
        if problem.batch > 1 and not self.header.batched:
            return (
                f"{self.name} multiplies one pair of matrices at a time, batch is {problem.batch}"
            )
        for extent, multiple in self.header.constraints.items():
            if (given := getattr(problem, extent.lower())) % multiple:
                return f"{self.name} needs {extent} to be a multiple of {multiple}, it is {given}"
        _, rows, matrices = self._grid(problem)
        for blocks, along in ((rows, f"M = {problem.m}"), (matrices, f"batch = {problem.batch}")):
            if blocks > MAX_GRID_YZ:
                return f"{self.name} needs {blocks} blocks for {along}, CUDA allows {MAX_GRID_YZ}"
        return ""

    def compile_for(self, macros: Macros, device: Device, problem: Problem) -> None:
        """Put the cubin into the cache on disk."""
        arch = nvrtc.arch_for(compute_capability(device))
        compile_kernel(self, problem.precision.name, problem.layout, arch, macros)

    def prepare(self, device: Device, operands: Operands, macros: Macros | None = None) -> Launch:
        """Compile (or find) the cubin, load it, bind the arguments; returns the launch.

        The variant is the first unless ``macros`` chooses one.
        """
        import cupy
        import numpy as np

        driver_error = cupy.cuda.driver.CUDADriverError
        problem, shared_bytes = operands.problem, self.header.shared_bytes
        macros = self.choices[0] if macros is None else macros
        function = _load(self, device, problem.precision.name, problem.layout, macros)

        # A kernel's parameters are copied byte for byte, so each scalar must have its exact type.
        scalar = np.float64 if problem.precision.accumulate.name == "fp64" else np.float32
        extents = (np.int32(problem.m), np.int32(problem.n), np.int32(problem.k))
        a, b, c = operands.a, operands.b, operands.c
        arguments = (*extents, scalar(problem.alpha), a, b, scalar(problem.beta), c)
        grid, block = self._grid(problem), tuple(self.header.block)

        def launch() -> None:
            try:
                function(grid, block, arguments, shared_mem=shared_bytes)
            except driver_error as error:
                raise KernelError(f"{self.source} cannot be launched: {error}") from error

        return launch

    def _grid(self, problem: Problem) -> tuple[int, int, int]:
        rows, columns = self.header.tile
        return -(-problem.n // columns), -(-problem.m // rows), problem.batch


def shipped_kernels() -> list[Kernel]:
    """Every .cu in kernels/ and in the folders of further ladders, rung by rung."""
    paths = [path for path in kernels_dir().rglob("*.cu") if path.parent.name != "cutlass"]
    files = [read_file(path) for path in sorted(paths)]
    return [file.as_kernel() for file in sorted(files, key=lambda file: file.header.rung)]


def load_file(path: Path) -> Kernel:
    """The kernel in a .cu file anywhere. Raises ``UsageError`` that says what to write."""
    return read_file(path).as_kernel()


# Headers ----------------------------------------------------------------------------------------


Table = TypeVar("Table", bound=BaseModel)


def read_file(path: Path) -> CudaKernel:
    """The file and its header, checked. Raises ``UsageError`` with all that is wrong with it."""
    return CudaKernel(path, read_header(path, Header))


def read_header(path: Path, model: type[Table]) -> Table:
    """The TOML table in the file's leading comment; the ``model``'s fields have examples.

    Raises ``UsageError`` with all that is wrong with it.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"kernel file {path} cannot be read: {reason}") from error
    comment = re.match(r"\s*/\*(.*?)\*/", text, re.DOTALL)
    needed = [
        _example(model, name) for name, field in model.model_fields.items() if field.is_required()
    ]
    if not comment:
        raise UsageError(
            f"{path} has no header: begin it with a block comment that holds a TOML table, as in "
            f"{kernels_dir() / 'naive.cu'}; needed are {', '.join(needed)}"
        )
    lines_above = "\n" * text.count("\n", 0, comment.start(1))  # so that TOML's line numbers fit
    try:
        table = tomllib.loads(lines_above + comment[1])
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f"{path}: the leading comment is not a TOML table: {error}; write lines such as "
            f"{', '.join(needed)}"
        ) from error
    try:
        return model.model_validate(table)
    except ValidationError as error:
        mistakes = {one["loc"][0]: _mistake(model, dict(one)) for one in reversed(error.errors())}
        raise UsageError(f"{path}: header: {'; '.join(reversed(mistakes.values()))}") from error


def _example(model: type[BaseModel], key: str) -> str:
    return str((model.model_fields[key].examples or [key])[0])


def _mistake(model: type[BaseModel], error: dict[str, Any]) -> str:
    """One of pydantic's errors in the header's own words."""
    key = error["loc"][0]
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(key), list(model.model_fields), n=1)
        known = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(model.model_fields)}"
        return f"{key!r} is not a key, {known}"
    if error["type"] == "missing" and len(error["loc"]) == 1:
        return f"{key!r} is missing, write {_example(model, key)}"
    reason = error["msg"].removeprefix("Value error, ")
    return f"{key}: {reason} (got {error['input']!r}), write {_example(model, key)}"


# Loading ---------------------------------------------------------------------------------------

_functions: dict[tuple[str, ...], Any] = {}


def _load(kernel: CudaKernel, device: Device, precision: str, layout: str, macros: Macros) -> Any:
    """The kernel's function on ``device``; loaded once, since every set of operands asks for it."""
    import cupy

    key = (str(kernel.source), device.id, precision, layout, _name(macros))
    if key in _functions:
        return _functions[key]
    arch = nvrtc.arch_for(compute_capability(device))
    compiled = compile_kernel(kernel, precision, layout, arch, macros)
    try:
        function = cupy.RawModule(path=str(compiled.cubin)).get_function(kernel.header.entry)
        if kernel.header.shared_bytes > STATIC_SHARED_LIMIT:
            function.max_dynamic_shared_size_bytes = kernel.header.shared_bytes
    except cupy.cuda.driver.CUDADriverError as error:
        raise KernelError(f"{kernel.source} cannot be loaded for {arch}: {error}") from error
    _functions[key] = function
    return function


# Compiling --------------------------------------------------------------------------------------

_compiled: dict[tuple[str, ...], dict[str, int | str]] = {}


def compile_kernel(
    kernel: CudaKernel, precision: str, layout: str, arch: str, macros: Macros | None = None
) -> nvrtc.Compiled:
    """The cubin of one precision and layout for ``arch``, such as ``sm_90a``.

    The variant is the first unless ``macros`` chooses one. Needs no GPU, may be called from several
    threads at once, and raises ``KernelError``.
    """
    macros = kernel.choices[0] if macros is None else macros
    options = [*problem_macros(precision, layout), *macro_options(macros)]
    libraries: tuple[nvrtc.Library, ...] = ()
    if "cutlass" in kernel.header.needs:
        libraries = (cutlass_headers.usable(),)
        options += cutlass_headers.OPTIONS
    compiled = nvrtc.compile_file(kernel.source, kernel.header.entry, options, arch, libraries)
    note_build(
        kernel.name,
        variant=_name(macros),
        precision=precision,
        layout=layout,
        arch=arch,
        source_sha256=nvrtc.source_sha256(kernel.source),
        registers=compiled.registers,
        spill_bytes=compiled.spill_bytes,
        shared_bytes=compiled.static_shared_bytes + kernel.header.shared_bytes,
    )
    return compiled


def problem_macros(precision: str, layout: str) -> list[str]:
    """The options that tell a file its precision and layout."""
    return [
        f"-DROOFLAB_PRECISION_{precision.upper()}=1",
        f"-DROOFLAB_TRANSPOSE_A={int(layout[0] == 't')}",
        f"-DROOFLAB_TRANSPOSE_B={int(layout[1] == 't')}",
    ]


def _name(macros: Macros) -> str:
    """What a row calls the variant."""
    return ",".join(f"{name}={value}" for name, value in macros.items())


def macro_options(macros: Macros) -> list[str]:
    """``-DNAME=value`` for each of a variant's macros."""
    return [f"-D{name}={value}" for name, value in macros.items()]


def note_build(
    kernel: str, *, variant: str, precision: str, layout: str, arch: str, **found: int | str
) -> None:
    """Keep what a manifest will say of one build; what is said twice of it is put together."""
    key = {"precision": precision, "layout": layout, "arch": arch}
    build = _compiled.setdefault(
        (kernel, variant, *key.values()), {"variant": variant, **key} if variant else {**key}
    )
    build.update(found)


def compiled_info() -> dict[str, list[dict[str, int | str]]]:
    """By kernel, what a manifest keeps of each build so far.

    ``registers`` and ``spill_bytes`` are per thread, ``shared_bytes`` (static and dynamic) per
    block.
    """
    builds: dict[str, list[dict[str, int | str]]] = {}
    for (name, *_), build in _compiled.items():
        builds.setdefault(name, []).append(build)
    return builds


def compute_capability(device: Device) -> str:
    """Such as ``"9.0"``, empty where the device does not tell it."""
    return str(device.fact("compute_capability") or "")


def version(text: str) -> tuple[int, ...]:
    """``"9.0"`` → ``(9, 0)``, so that versions compare as numbers do."""
    return tuple(int(part) for part in text.split("."))
