"""Kernels from .cu files: header → registration, cubin → launch.

The leading block comment is a TOML table, ``header.Header``. The entry is launched with the
arguments of its workload, such as ``(int M, int N, int K, Accumulate alpha, const Input* A,
const Input* B, Accumulate beta, Output* C)`` for gemm, on tightly packed row-major arrays.
Outputs hold NaN before a launch. ``gridDim`` is the number of tiles along the workload's grid
extents, x last; ``blocks_per_sm`` limits it for kernels that loop.

Each precision, and each choice of a setting such as ``layout``, is compiled separately. The macros
are ``ROOFLAB_PRECISION_<NAME>``, those of the problem and those of the variant, and for each output
``ROOFLAB_READS_<NAME>``, 1 if it is also read, such as C if beta is not 0;
kernels/include/types.cuh and gemm.cuh define types and accessors from them.

A file with ``launch = "plan"`` is a CUTLASS kernel, whose parameters ``kernels.cutlass`` builds.
A file with a ``launcher`` has host code of its own, which nvcc builds into a library. It is loaded
only by the process that measures, and treated like a kernel of a Python file.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

from rooflab.devices.base import Device, Launch
from rooflab.devices.cuda import compiler, cutlass_headers, driver
from rooflab.devices.cuda.device import availability
from rooflab.devices.cuda.launches import (
    Builds,
    Launched,
    launch_bounds,
    likely_cause,
    parameter_bytes,
    refusal,
)
from rooflab.devices.cuda.nvcc import Nvcc, choose, driver_version
from rooflab.errors import KernelError, LaunchError, UnavailableError, UsageError
from rooflab.files import kernel_name, kernels_dir
from rooflab.kernels.base import Kernel, LaunchShape, Operands, Variant
from rooflab.kernels.cuda_file import arguments, host, padding, tensor_maps
from rooflab.kernels.cuda_file.geometry import Geometry
from rooflab.kernels.cuda_file.header import MAX_THREADS, Configuration, Header, read_header
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import Problem
from rooflab.workloads import find

MAX_GRID: Final = {"x": 2**31 - 1, "y": 65535, "z": 65535}
"""Largest gridDim (CUDA C++ Programming Guide, "Compute Capabilities")."""

WITHOUT_GPU: Final = "9.0"
"""The compute capability for which nvcc checks a file: no other has more shared memory."""

PLAN_GB: Final = 3.0
"""Memory that compiling a CUTLASS collective takes."""

PLAN_OPTIONS: Final = ("-diag-suppress=177,20044",)
"""Suppresses warnings about variables of CUTLASS's asserts and constants of its classes."""


class CudaFile:
    """A .cu file, its header, and the functions loaded from it. It lives as long as its kernel."""

    def __init__(self, source: Path, header: Header, nvcc: Nvcc | None = None) -> None:
        self.source = source
        self.name: Final = kernel_name(source)
        """Its name in ``--kernel``."""
        self.header = header
        self.planned: Final = header.launch == "plan"
        # Without host code CUTLASS's headers are used in a way that only NVRTC supports: all
        # functions on the device.
        self.nvcc = None if header.needs and not header.launcher else nvcc
        self.builds = Builds()
        self._functions: dict[tuple[object, ...], tuple[Any, compiler.Compiled]] = {}
        self._plan: tuple[object, Any] | None = None
        # As long as a launch uses them: all variants and buffer copies share them on a stream.
        self._padded: WeakValueDictionary[object, padding.Copies] = WeakValueDictionary()

    def as_kernel(self) -> Kernel:
        """The registration."""
        header = self.header
        variants = tuple(
            Variant(
                name=config.title,
                prepare=partial(self.prepare_variant, config),
                compile=partial(self.compile_for, config),
                unsupported=partial(self.variant_unsupported, config),
            )
            for config in header.variants
        )
        return Kernel(
            name=self.name,
            backend="cutlass" if self.planned else "cuda",
            device_kind="cuda",
            title=header.title or self.name,
            precisions=tuple(header.precisions),
            prepare=self.prepare,
            workload=header.workload,
            choices=header.choices,
            teaches=header.teaches,
            source=self.source,
            variant=header.all_variants[0].title,
            variants=variants,
            unavailable=self.unavailable,
            unfit=self.unfit,
            unsupported=self.unsupported,
            launch_shape=self.launch_shape,
            fingerprint=self.fingerprint,
            compiler=self.compiler_title,
            builds=self.builds.records,
            memory_gb=PLAN_GB if self.planned or (header.needs and header.launcher) else 0.5,
            composed=bool(header.launcher),
            untrusted=bool(header.launcher),
        )

    def compiler_title(self) -> str:
        """Name and version of the compiler."""
        if self._lacks_nvcc():
            return ""
        return self.nvcc.title if self.nvcc else compiler.title()

    def fingerprint(self) -> str:
        """Sources, compiler and libraries."""
        versions = [self.compiler_title(), *(one.version for one in self._libraries())]
        return f"{compiler.source_sha256(self.source)} {versions}"

    def geometry(
        self,
        problem: Problem,
        config: Configuration,
        multiprocessors: int = 1,
        compiled: compiler.Compiled | None = None,
    ) -> Geometry:
        """The launch; the number of multiprocessors only limits the grid."""
        return Geometry(self.source, self.header, problem, config, multiprocessors, compiled)

    def launch_shape(
        self, problem: Problem, variant: str, multiprocessors: int
    ) -> LaunchShape | None:
        """The shape of a variant by its title; None if blocks loop, or if others launch it."""
        header = self.header
        found = [one for one in header.all_variants if one.title == variant]
        loops = header.blocks or header.blocks_per_sm
        if self.planned or header.launcher or loops or not found:
            return None
        geometry = self.geometry(problem, found[0], multiprocessors)
        return LaunchShape(math.prod(geometry.grid), geometry.threads)

    # Can it run? --------------------------------------------------------------------------------

    def unavailable(self, device: Device | None) -> str:
        """Why this kernel cannot run on ``device``, empty if it can."""
        if device is None:
            return availability()
        present = compute_capability(device)
        if not present:
            return f"{device.name} does not report its compute capability"
        if reason := self.unfit(present):
            return f"{reason}, {device.name} has {present}"
        return compiler.unavailable() or self.uncompilable(driver_version(device))

    def unfit(self, capability: str) -> str:
        """Why it cannot run with this compute capability, empty if it can."""
        if (only := self.header.compute_capability) and capability != only:
            return f"{self.name} requires exactly compute capability {only}"
        if version(capability) < version(needed := self.header.min_compute_capability):
            return f"{self.name} needs compute capability {needed}"
        return ""

    def _lacks_nvcc(self) -> bool:
        return bool(self.header.launcher) and not self.nvcc

    def uncompilable(self, driver: str | None = None) -> str:
        """Why nothing can be compiled here, empty if it can: nvcc needs no CuPy.

        Nothing will run if ``driver`` is None; else it is its CUDA version.
        """
        if self._lacks_nvcc():
            try:
                choose("nvcc", driver)
            except UnavailableError as error:
                return f"only nvcc compiles a launcher: {error}"
            return "only nvcc compiles a launcher: leave out --compiler nvrtc"
        lacking = "" if self.nvcc else compiler.unavailable()
        return lacking or (cutlass_headers.unavailable() if self.header.needs else "")

    def unsupported(self, problem: Problem) -> str:
        """Why this kernel does not support ``problem``, empty if it does."""
        return next(self._refusals(problem), "")

    def _refusals(self, problem: Problem) -> Iterator[str]:
        header, extents, precision = self.header, problem.extents, problem.precision
        for name, multiple in header.constraints.items():
            if (given := extents[name.lower()]) % multiple:
                yield f"{self.name} needs {name} to be a multiple of {multiple}, it is {given}"
        for name, most in header.limits.items():
            if (given := extents[name.lower()]) > most:
                yield f"{self.name} supports {name} up to {most}, it is {given}"
        if problem.index_type == "int32" and (large := max(extents.values())) >= 2**31:
            yield f"{self.name} counts in 32 bits: {large} is too many"
        if precision.name in header.k_major and problem.settings.get("layout", "nt") != "nt":
            yield (
                f"{self.name} supports {precision.title} in layout nt only: Hopper's tensor cores "
                "read operands of this type along K"
            )
        yield from _misaligned(self.name, header.access_bytes, problem)
        if header.launcher:
            if reason := host.refusal(problem, header):
                yield f"{self.name} {reason}"
        elif not self.planned:
            yield from self._grid_refusals(problem, header.all_variants[0])

    def _grid_refusals(self, problem: Problem, config: Configuration) -> Iterator[str]:
        leading = math.prod(problem.grid_extents[: -(len(self.header.tile) or 2)])
        if leading > 1 and not self.header.batched:
            yield f"{self.name} computes one of a batch at a time, batch is {leading}"
        grid = self.geometry(problem, config).grid
        for (axis, most), blocks in zip(MAX_GRID.items(), grid, strict=True):
            if blocks > most:
                yield f"{self.name} needs {blocks} blocks along {axis}, CUDA allows {most}"
        operands = {operand.name: operand for operand in problem.operands}
        for one in self.header.tensor_maps:
            operand, rank = one.view(operands[one.operand]), len(one.box)
            if reason := tensor_maps.refusal(operand, rank, padded=one.padded):
                yield f"{self.name}: {reason}"

    def variant_unsupported(self, config: Configuration, problem: Problem) -> str:
        """Why a variant does not support ``problem``, which the kernel supports."""
        return next(self._variant_refusals(config, problem), "")

    def _variant_refusals(self, config: Configuration, problem: Problem) -> Iterator[str]:
        if config.precisions and problem.precision.name not in config.precisions:
            yield f"{config.title} is for {', '.join(config.precisions)}"
        yield from _misaligned(config.title, config.access_bytes, problem)
        if not self.planned:
            if not self.header.launcher:
                yield from self._grid_refusals(problem, config)
        elif config.splits > 1 and (batch := problem.extents["batch"]) > 1:
            yield f"{config.title} splits K of one pair of matrices, batch is {batch}"

    # Compiling ----------------------------------------------------------------------------------

    def compile(self, problem: Problem, config: Configuration, arch: str) -> compiler.Compiled:
        """The cubin for ``problem``'s precision and choices and ``arch``, such as ``sm_90a``.

        Needs no GPU, may be called from several threads at once, and raises ``KernelError``.
        """
        macros = {
            f"ROOFLAB_PRECISION_{problem.precision.name.upper()}": 1,
            **problem.macros,
            # A kernel for outputs that are not read needs no code for it.
            **{
                f"ROOFLAB_READS_{operand.name.upper()}": int(operand.read)
                for operand in problem.operands
                if operand.written
            },
            **config.macros,
        }
        options = [f"-D{name}={value}" for name, value in macros.items()]
        if self.header.launcher:
            compiled = self._compile_host(problem, options, arch)
        else:
            options += cutlass_headers.OPTIONS if self.header.needs else ()
            options += PLAN_OPTIONS if self.planned else ()
            compiled = compiler.compile_file(
                self.source,
                "gemm" if self.planned else self.header.entry,
                [*options, *self.header.options],
                arch,
                self._libraries(),
                self.nvcc,
                shared_bytes=self.header.shared_expression,
            )
            if not self.planned:
                self._check(compiled, problem, config)
        dynamic_bytes = self.geometry(problem, config, compiled=compiled).shared_bytes
        self.note(
            problem,
            config,
            arch,
            compiler=compiled.compiler,
            registers=compiled.registers,
            spill_bytes=compiled.spill_bytes,
            shared_bytes=compiled.static_shared_bytes + dynamic_bytes,
            source_sha256=compiler.source_sha256(self.source),
        )
        return compiled

    def _compile_host(self, problem: Problem, options: list[str], arch: str) -> compiler.Compiled:
        """The library of the file and of the call of its launcher."""
        if not self.nvcc:
            raise KernelError(f"{self.source}: {self.uncompilable()}")
        folder = self.source.resolve().parent
        linked = [folder / name for name in self.header.libraries]
        paths = [f"-Xlinker=-rpath={path.parent}" for path in linked]
        options += [*self.header.options, *map(str, linked), *dict.fromkeys(paths)]
        text = host.text(problem, self.header)
        return compiler.compile_host(self.source, text, options, arch, self._libraries(), self.nvcc)

    def _check(self, compiled: compiler.Compiled, problem: Problem, config: Configuration) -> None:
        """Raise ``KernelError`` if the entry takes other parameters, or cannot be launched.

        CUDA copies arguments byte for byte and would not notice.
        """
        entry, cubin = self.header.entry, compiled.cubin.read_bytes()
        taken = parameter_bytes(cubin, compiled.entry)
        if taken is not None and (other := arguments.mismatch(taken, problem, self.header)):
            raise KernelError(f"{self.source}: {entry} {other}")
        geometry = self.geometry(problem, config, compiled=compiled)
        if reason := geometry.cluster_refusal:
            raise LaunchError(f"{self.source}: {entry} {reason}")
        known = Launched(
            block=geometry.block,
            bounds=launch_bounds(cubin, compiled.entry),
            registers=compiled.registers,
            static_bytes=compiled.static_shared_bytes,
            dynamic_bytes=geometry.shared_bytes,
            barrier=compiled.grid_barrier,
            compute_capability=compiler.capability_of(compiled.arch),
        )
        if reason := refusal(known):
            what = f"{entry} {config.title}".strip()
            raise LaunchError(f"{self.source}: {what} cannot be launched: {reason}")

    def note(self, problem: Problem, config: Configuration, arch: str, **found: Any) -> None:
        """Add to the record of a compilation what was ``found``."""
        words = {k: v for k, v in problem.settings.items() if isinstance(v, str)}
        build = {"variant": config.title, "precision": problem.precision.name, **words}
        self.builds.note({**build, "arch": arch}, **found)

    def compile_for(self, config: Configuration, device: Device, problem: Problem) -> None:
        """Put the cubin into the cache on disk."""
        self.compile(problem, config, arch_of(device))

    def _libraries(self) -> tuple[compiler.Library, ...]:
        return (cutlass_headers.usable(),) if self.header.needs else ()

    def load(
        self, device: Device, problem: Problem, config: Configuration, entry: str = ""
    ) -> tuple[Any, compiler.Compiled]:
        """A function of the cubin on ``device``, or of the library of host code, and the build.

        It is the header's if ``entry`` is empty; loaded once for all buffer copies.
        """
        import cupy

        roles = tuple(operand.role for operand in problem.operands)
        macros = tuple(problem.macros.items())
        key = (device.id, problem.precision.name, macros, roles, config.title, entry)
        if key not in self._functions:
            arch = arch_of(device)
            compiled = self.compile(problem, config, arch)
            try:
                if self.header.launcher:
                    function = host.load(compiled.cubin, problem, self.header)
                else:
                    module = cupy.RawModule(path=str(compiled.cubin))
                    function = module.get_function(entry or compiled.entry)
            except (cupy.cuda.driver.CUDADriverError, OSError) as error:
                raise KernelError(f"{self.source} cannot be loaded for {arch}: {error}") from error
            self._functions[key] = function, compiled
        return self._functions[key]

    # Launching ----------------------------------------------------------------------------------

    def prepare(self, device: Device, operands: Operands) -> Launch:
        """The launch of the first variant that supports the problem."""
        for config in self.header.all_variants:
            if not self.variant_unsupported(config, operands.problem):
                return self.prepare_variant(config, device, operands)
        raise KernelError(f"{self.name} has no variant for {operands.problem.precision.title}")

    def prepare_variant(self, config: Configuration, device: Device, operands: Operands) -> Launch:
        """Compile (or find) the cubin, load it, bind the arguments; returns the launch."""
        if self.header.launcher:
            return self._bind_host(config, device, operands)
        if not self.planned:
            return self._bind(config, device, operands)
        from rooflab.kernels.cutlass.plan import make_plan

        # All buffer copies of a measurement use the same plan. An older plan and its workspace
        # are dropped.
        key = (config.title, device.id, operands.problem)
        if self._plan is None or self._plan[0] != key:
            self._plan = None
            self._plan = (key, make_plan(self, config, device, operands.problem))
        launch: Launch = self._plan[1].bind(operands)
        return launch

    def _bind_host(self, config: Configuration, device: Device, operands: Operands) -> Launch:
        import cupy

        function, _ = self.load(device, operands.problem, config)
        told = f"{self.source}: {self.header.launcher}"
        stream, own = ctypes.c_void_p(), device.stream.ptr
        given = host.values(operands, self.header, stream)
        follows = stream in given

        def launch(alive: Operands = operands) -> None:
            stream.value = cupy.cuda.get_current_stream().ptr
            if not follows and stream.value != own:
                raise KernelError(f"{told} {host.NO_STREAM}")
            if status := function(*given):
                error = cupy.cuda.runtime.CUDARuntimeError(status)
                raise KernelError(f"{told} returned {status}: {likely_cause(str(error))}")

        return launch

    def _bind(self, config: Configuration, device: Device, operands: Operands) -> Launch:
        import cupy

        driver_error = cupy.cuda.driver.CUDADriverError
        problem = operands.problem
        function, compiled = self.load(device, problem, config)
        multiprocessors = int(device.fact("sm_count") or 1)
        geometry = self.geometry(problem, config, multiprocessors, compiled)
        grid, block, shared_bytes = geometry.grid, geometry.block, geometry.shared_bytes
        if math.prod(block) > MAX_THREADS or min(block) < 1:
            given = "x".join(map(str, block))
            raise KernelError(f"{self.source}: a block of {given} threads is not possible")
        known = Launched(
            block=block,
            dynamic_bytes=shared_bytes,
            compute_capability=compute_capability(device),
        )
        if shared_bytes:  # together with static shared memory any amount may exceed the limit
            try:
                function.max_dynamic_shared_size_bytes = shared_bytes
            except driver_error as error:
                why = likely_cause(str(error), known)
                raise KernelError(
                    f"{self.source} needs {shared_bytes} bytes of shared memory: {why}"
                ) from error
        place = (device.id, problem, cupy.cuda.get_current_stream().ptr)
        if not (padded := self._padded.get(place)):
            padded = padding.copies(device, problem, self.header.tensor_maps)
            self._padded[place] = padded
        bound = arguments.bind(operands, geometry.tensor_maps, padded)
        if attributes := geometry.attributes:
            shape = (block, shared_bytes)
            cluster = attributes.get(driver.CLUSTER_DIMENSION)
            if cluster and self.header.blocks_per_sm:
                # A cluster cannot span GPCs, so that some multiprocessors may be left over: blocks
                # that loop do not wait for others to end.
                active = driver.active_clusters(function.kernel.ptr, cluster, *shape, attributes)
                grid = (min(grid[0], max(1, active) * cluster[0]), *grid[1:])
            start = driver.launcher(function.kernel.ptr, grid, *shape, bound, attributes)

        # `alive` keeps the memory of the operands allocated: a TMA descriptor has its address only.
        def launch(alive: Operands = operands) -> None:
            try:
                if attributes:
                    start(cupy.cuda.get_current_stream().ptr)
                else:
                    function(grid, block, bound, shared_mem=shared_bytes)
            except driver_error as error:
                why = likely_cause(str(error), known)
                raise KernelError(f"{self.source} cannot be launched: {why}") from error

        if not padded:
            return launch
        return padding.padded_launch(launch, operands, padded, padding.copy_rows)


def _misaligned(name: str, access_bytes: int, problem: Problem) -> Iterator[str]:
    """Which operand's rows are not multiples of the access size."""
    for operand in problem.operands:
        multiple = max(1, access_bytes // operand.type.bytes)
        if (given := operand.shape[-1]) % multiple:
            same = (one for one in reversed(problem.sizes) if problem.extents[one] == given)
            extent = next(same, f"the last extent of {operand.name}")
            shown = extent.upper() if len(extent) == 1 else extent
            yield f"{name} needs {shown} to be a multiple of {multiple}, it is {given}"


# Files -------------------------------------------------------------------------------------------


def read_file(path: Path, nvcc: Nvcc | None = None) -> CudaFile:
    """The file and its header, checked. Raises ``UsageError`` with all errors of the header.

    It will be compiled by ``nvcc``, or by NVRTC if that is None.
    """
    return CudaFile(path, read_header(path), nvcc)


def shipped_kernels(nvcc: Nvcc | None = None) -> list[Kernel]:
    """Every .cu in kernels/, rung by rung within each workload."""
    files = [read_file(path, nvcc) for path in sorted(kernels_dir().rglob("*.cu"))]
    return [file.as_kernel() for file in sorted(files, key=lambda file: file.header.rung)]


def check_file(path: Path, nvcc: Nvcc | None = None) -> None:
    """Compile a file without a GPU; raises ``UsageError`` with the compiler's first error.

    Compiles the first precision for a device that the header allows, by ``nvcc`` or, if that is
    None, NVRTC. Does nothing if there is no compiler.
    """
    file = read_file(path, nvcc)
    if file.uncompilable():
        return
    header = file.header
    words = {name: choices[0] for name, choices in header.choices.items()}
    problem = find(header.workload).smallest(PRECISIONS[header.precisions[0]], **words)
    needed = header.compute_capability or header.min_compute_capability
    least = WITHOUT_GPU if nvcc else compiler.oldest()
    arch = compiler.arch_for(max(needed, least, key=version))
    try:
        file.compile(problem, header.all_variants[0], arch)
    except KernelError as error:
        raise UsageError(str(error)) from error


def compute_capability(device: Device) -> str:
    """Such as ``"9.0"``, empty if the device does not report it."""
    return str(device.fact("compute_capability") or "")


def arch_of(device: Device) -> str:
    """The architecture to compile for, such as ``sm_90a``."""
    return compiler.arch_for(compute_capability(device))


def version(text: str) -> tuple[int, ...]:
    """``"9.0"`` → ``(9, 0)``, so that versions compare as numbers."""
    return tuple(int(part) for part in text.split("."))
