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
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

from rooflab.devices.base import Device
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
from rooflab.devices.cuda.nvcc import Nvcc
from rooflab.errors import KernelError, LaunchError, UsageError
from rooflab.files import kernel_name, kernels_dir
from rooflab.kernels.base import Kernel, Launch, LaunchShape, Operands, Variant
from rooflab.kernels.cuda_file import arguments, expression, padding, tensor_maps
from rooflab.kernels.cuda_file.header import MAX_CLUSTER, MAX_THREADS, Header, Map, read_header
from rooflab.kernels.cuda_file.header import Variant as Choice
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import Problem

MAX_GRID_X: Final = 2**31 - 1
MAX_GRID_YZ: Final = 65535
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
        # CUTLASS's headers are used in a way that only NVRTC supports: all functions on the device.
        self.nvcc = None if header.needs else nvcc
        self.builds = Builds()
        self._functions: dict[tuple[object, ...], Any] = {}
        self._plan: tuple[object, Any] | None = None
        # As long as a launch uses them: all variants and buffer copies share them on a stream.
        self._padded: WeakValueDictionary[object, padding.Copies] = WeakValueDictionary()

    def as_kernel(self) -> Kernel:
        """The registration."""
        header = self.header
        planned = header.launch == "plan"
        return Kernel(
            name=self.name,
            backend="cutlass" if planned else "cuda",
            device_kind="cuda",
            title=header.title or self.name,
            precisions=tuple(header.precisions),
            prepare=self.prepare,
            workload=header.workload,
            choices=header.choices,
            teaches=header.teaches,
            source=self.source,
            variant=header.all_variants[0].title,
            variants=tuple(map(self._variant, header.variants)),
            unavailable=self.unavailable,
            unsupported=self.unsupported,
            launch_shape=self.launch_shape,
            fingerprint=self.fingerprint,
            compiler=self.compiler_title,
            builds=self.builds.records,
            memory_gb=PLAN_GB if planned else 0.5,
        )

    def _variant(self, choice: Choice) -> Variant:
        return Variant(
            name=choice.title,
            prepare=partial(self.prepare_variant, choice),
            compile=partial(self.compile_for, choice),
            unsupported=partial(self.variant_unsupported, choice),
        )

    def compiler_title(self) -> str:
        """Name and version of the compiler."""
        return self.nvcc.title if self.nvcc else compiler.title()

    def fingerprint(self) -> str:
        """Sources, compiler and libraries."""
        versions: list[object] = [self.compiler_title()]
        versions += [self._libraries()[0].version] if self.header.needs else []
        return f"{compiler.source_sha256(self.source)} {versions}"

    # Can it run? --------------------------------------------------------------------------------

    def unavailable(self, device: Device | None) -> str:
        """Why this kernel cannot run on ``device``, empty if it can."""
        if device is None:
            return availability()
        present = compute_capability(device)
        if not present:
            return f"{device.name} does not report its compute capability"
        if (only := self.header.compute_capability) and present != only:
            return (
                f"{self.name} requires exactly compute capability {only}, "
                f"{device.name} has {present}"
            )
        if version(present) < version(needed := self.header.min_compute_capability):
            return f"{self.name} needs compute capability {needed}, {device.name} has {present}"
        return compiler.unavailable() or self.unavailable_headers()

    def unsupported(self, problem: Problem) -> str:
        """Why this kernel does not support ``problem``, empty if it does."""
        header, extents = self.header, problem.extents
        for name, multiple in header.constraints.items():
            if (given := extents[name.lower()]) % multiple:
                return f"{self.name} needs {name} to be a multiple of {multiple}, it is {given}"
        for name, most in header.limits.items():
            if (given := extents[name.lower()]) > most:
                return f"{self.name} supports {name} up to {most}, it is {given}"
        if problem.index_type == "int32" and (large := max(extents.values())) >= 2**31:
            return f"{self.name} counts in 32 bits: {large} is too many"
        precision = problem.precision
        if precision.name in header.k_major and problem.settings.get("layout", "nt") != "nt":
            return (
                f"{self.name} supports {precision.title} in layout nt only: Hopper's tensor cores "
                "read operands of this type along K"
            )
        if header.launch == "plan":
            from rooflab.kernels.cutlass import rows

            return rows.misaligned(self.name, header.access_bytes, problem)
        # The number of multiprocessors only limits the grid: any number is correct here.
        return self._grid_unsupported(problem, self.grid(problem, header.all_variants[0], 1))

    def _grid_unsupported(self, problem: Problem, grid: tuple[int, ...]) -> str:
        leading = math.prod(problem.grid_extents[: -len(self.header.tile)])
        if leading > 1 and not self.header.batched:
            return f"{self.name} computes one of a batch at a time, batch is {leading}"
        limits = (MAX_GRID_X, MAX_GRID_YZ, MAX_GRID_YZ)
        for axis, blocks, most in zip("xyz", grid, limits, strict=True):
            if blocks > most:
                return f"{self.name} needs {blocks} blocks along {axis}, CUDA allows {most}"
        return self._maps_unsupported(problem)

    def _maps_unsupported(self, problem: Problem) -> str:
        operands = {operand.name: operand for operand in problem.operands}
        for one in self.header.tensor_maps:
            operand, rank = operands[one.operand], len(one.box)
            if reason := tensor_maps.refusal(operand, rank, padded=one.padded):
                return f"{self.name}: {reason}"
        return ""

    def variant_unsupported(self, choice: Choice, problem: Problem) -> str:
        """Why a variant does not support ``problem``, which the kernel supports."""
        if choice.precisions and problem.precision.name not in choice.precisions:
            return f"{choice.title} is for {', '.join(choice.precisions)}"
        from rooflab.kernels.cutlass import rows

        if reason := rows.misaligned(choice.title, choice.access_bytes, problem):
            return reason
        if self.header.launch != "plan":
            return self._grid_unsupported(problem, self.grid(problem, choice, 1))
        if choice.splits > 1 and problem.extents["batch"] > 1:
            batch = problem.extents["batch"]
            return f"{choice.title} splits K of one pair of matrices, batch is {batch}"
        return ""

    def unavailable_headers(self) -> str:
        """Why the library headers that the file includes cannot be used, empty if they can."""
        return cutlass_headers.unavailable() if self.header.needs else ""

    def uncompilable(self) -> str:
        """Why nothing can be compiled here, empty if it can: nvcc needs no CuPy."""
        return ("" if self.nvcc else compiler.unavailable()) or self.unavailable_headers()

    # Compiling ----------------------------------------------------------------------------------

    def compile(self, problem: Problem, choice: Choice, arch: str) -> compiler.Compiled:
        """The cubin for ``problem``'s precision and choices and ``arch``, such as ``sm_90a``.

        Needs no GPU, may be called from several threads at once, and raises ``KernelError``.
        """
        planned = self.header.launch == "plan"
        macros = {
            f"ROOFLAB_PRECISION_{problem.precision.name.upper()}": 1,
            **problem.macros,
            **_reads(problem),
            **choice.macros,
        }
        options = [f"-D{name}={value}" for name, value in macros.items()]
        options += cutlass_headers.OPTIONS if self.header.needs else ()
        options += PLAN_OPTIONS if planned else ()
        options += self.header.options
        entry = "gemm" if planned else self.header.entry
        compiled = compiler.compile_file(
            self.source, entry, options, arch, self._libraries(), self.nvcc
        )
        if not planned:
            self._check_parameters(compiled, problem)
            if reason := refusal(self._launched(compiled, problem, choice)):
                what = f"{entry} {choice.title}".strip()
                raise LaunchError(f"{self.source}: {what} cannot be launched: {reason}")
        self.builds.note(
            self._build(problem, choice, arch),
            compiler=compiled.compiler,
            registers=compiled.registers,
            spill_bytes=compiled.spill_bytes,
            shared_bytes=compiled.static_shared_bytes + self.dynamic_shared(problem, choice),
            source_sha256=compiler.source_sha256(self.source),
        )
        return compiled

    def _check_parameters(self, compiled: compiler.Compiled, problem: Problem) -> None:
        """Raise ``KernelError`` if the entry takes others than those that it would be given.

        CUDA copies arguments byte for byte and would not notice.
        """
        taken = parameter_bytes(compiled.cubin.read_bytes(), self.header.entry)
        if taken is not None and (other := arguments.mismatch(taken, problem, self.header)):
            raise KernelError(f"{self.source}: {self.header.entry} {other}")

    def _launched(self, compiled: compiler.Compiled, problem: Problem, choice: Choice) -> Launched:
        """What is known of a launch."""
        return Launched(
            block=self.block(problem, choice),
            bounds=launch_bounds(compiled.cubin.read_bytes(), self.header.entry),
            registers=compiled.registers,
            static_bytes=compiled.static_shared_bytes,
            dynamic_bytes=self.dynamic_shared(problem, choice),
            barrier=compiled.grid_barrier,
            compute_capability=compiler.capability_of(compiled.arch),
        )

    def block(self, problem: Problem, choice: Choice) -> tuple[int, ...]:
        """Threads in x, y and z; empty if a plan gives them."""
        return self._amounts(self.header.block, self._values(problem, choice, 1))

    def dynamic_shared(self, problem: Problem, choice: Choice) -> int:
        """Bytes of dynamic shared memory per block that the header states."""
        (count,) = self._amounts([self.header.shared_bytes], self._values(problem, choice, 1))
        return count

    def note_shared(
        self, problem: Problem, choice: Choice, device: Device, shared_bytes: int
    ) -> None:
        """Record the dynamic shared memory that a plan needs."""
        arch = compiler.arch_for(compute_capability(device))
        self.builds.note(self._build(problem, choice, arch), shared_bytes=shared_bytes)

    def compile_for(self, choice: Choice, device: Device, problem: Problem) -> None:
        """Put the cubin into the cache on disk."""
        self.compile(problem, choice, compiler.arch_for(compute_capability(device)))

    def _libraries(self) -> tuple[compiler.Library, ...]:
        return (cutlass_headers.usable(),) if self.header.needs else ()

    def _build(self, problem: Problem, choice: Choice, arch: str) -> dict[str, str]:
        words = {k: v for k, v in problem.settings.items() if isinstance(v, str)}
        return {
            "variant": choice.title,
            "precision": problem.precision.name,
            **words,
            "arch": arch,
        }

    def load(self, device: Device, problem: Problem, choice: Choice, entry: str) -> Any:
        """A function of the cubin on ``device``; loaded once for all buffer copies."""
        import cupy

        roles = tuple(operand.role for operand in problem.operands)
        macros = tuple(problem.macros.items())
        key = (device.id, problem.precision.name, macros, roles, choice.title, entry)
        if key not in self._functions:
            arch = compiler.arch_for(compute_capability(device))
            compiled = self.compile(problem, choice, arch)
            try:
                module = cupy.RawModule(path=str(compiled.cubin))
                self._functions[key] = module.get_function(entry)
            except cupy.cuda.driver.CUDADriverError as error:
                raise KernelError(f"{self.source} cannot be loaded for {arch}: {error}") from error
        return self._functions[key]

    # Launching ----------------------------------------------------------------------------------

    def prepare(self, device: Device, operands: Operands) -> Launch:
        """The launch of the first variant that supports the problem."""
        for choice in self.header.all_variants:
            if not self.variant_unsupported(choice, operands.problem):
                return self.prepare_variant(choice, device, operands)
        raise KernelError(f"{self.name} has no variant for {operands.problem.precision.title}")

    def prepare_variant(self, choice: Choice, device: Device, operands: Operands) -> Launch:
        """Compile (or find) the cubin, load it, bind the arguments; returns the launch."""
        if self.header.launch == "plan":
            from rooflab.kernels.cutlass.plan import make_plan

            # All buffer copies of a measurement use the same plan. An older plan and its workspace
            # are dropped.
            key = (choice.title, device.id, operands.problem)
            if self._plan is None or self._plan[0] != key:
                self._plan = None
                self._plan = (key, make_plan(self, choice, device, operands.problem))
            launch: Launch = self._plan[1].bind(operands)
            return launch
        return self._bind(choice, device, operands)

    def _bind(self, choice: Choice, device: Device, operands: Operands) -> Launch:
        import cupy

        driver_error = cupy.cuda.driver.CUDADriverError
        problem = operands.problem
        function = self.load(device, problem, choice, self.header.entry)
        multiprocessors = int(device.fact("sm_count") or 1)
        values = self._values(problem, choice, multiprocessors)
        block = self.block(problem, choice)
        if math.prod(block) > MAX_THREADS or min(block) < 1:
            given = "x".join(map(str, block))
            raise KernelError(f"{self.source}: a block of {given} threads is not possible")
        grid = self.grid(problem, choice, multiprocessors)
        shared_bytes, early = self._amounts(
            [self.header.shared_bytes, self.header.early_launch], values
        )
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
        bound = arguments.bind(operands, self._maps(problem, values), padded)
        attributes = self._attributes(values, bool(early))
        if attributes:
            grid = self._resident(function, grid, block, shared_bytes, attributes)
            start = driver.launcher(
                function.kernel.ptr, grid, block, shared_bytes, bound, attributes
            )

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
        return padding.PaddedLaunch(launch, operands, padded, padding.copy_rows)

    def _resident(
        self,
        function: Any,
        grid: tuple[int, int, int],
        block: tuple[int, ...],
        shared_bytes: int,
        attributes: dict[int, tuple[int, ...]],
    ) -> tuple[int, int, int]:
        """``grid`` without clusters that would start only after others have ended, if blocks loop.

        A cluster cannot span GPCs, so that some multiprocessors may be left over.
        """
        cluster = attributes.get(driver.CLUSTER_DIMENSION)
        if not cluster or not self.header.blocks_per_sm:
            return grid
        active = driver.active_clusters(
            function.kernel.ptr, cluster, block, shared_bytes, attributes
        )
        return (min(grid[0], max(1, active) * cluster[0]), *grid[1:])

    def _attributes(self, values: dict[str, int], early: bool) -> dict[int, tuple[int, ...]]:
        """Launch attributes that CuPy does not set."""
        attributes: dict[int, tuple[int, ...]] = {}
        if cluster := self._amounts(self.header.cluster, values):
            if math.prod(cluster) > MAX_CLUSTER or min(cluster) < 1:
                raise KernelError(f"{self.source}: a cluster of {cluster} blocks is not possible")
            if math.prod(cluster) > 1:
                attributes[driver.CLUSTER_DIMENSION] = (*cluster, 1, 1)[:3]
        if early:
            attributes[driver.PROGRAMMATIC_STREAM_SERIALIZATION] = (1,)
        return attributes

    def _maps(self, problem: Problem, values: dict[str, int]) -> list[tuple[Map, driver.TensorMap]]:
        """The TMA descriptors that the header asks for."""
        operands = {operand.name: operand for operand in problem.operands}
        made = []
        for one in self.header.tensor_maps:
            operand, box = operands[one.operand], self._amounts(one.box, values)
            if mistake := tensor_maps.box_mistake(box, one.swizzle, operand.type):
                raise KernelError(f"{self.source}: header: tensor_maps: {mistake} (got {box})")
            tensor_map = tensor_maps.tensor_map(
                operand, box, one.swizzle, one.promotion, problem.precision
            )
            made.append((one, tensor_map))
        return made

    def grid(self, problem: Problem, choice: Choice, multiprocessors: int) -> tuple[int, int, int]:
        """Blocks in x, y and z."""
        values = self._values(problem, choice, multiprocessors)
        tile = self._amounts(self.header.tile, values)
        extents = problem.grid_extents
        tile = (*[1] * (len(extents) - len(tile)), *tile)
        blocks = [-(-extent // max(1, step)) for extent, step in zip(extents, tile, strict=False)]
        limit, shared = self.header.blocks_per_sm, self.header.blocks_per_tile
        per_sm, per_tile = self._amounts([limit, shared], values)
        if self.header.flat:
            blocks = [math.prod(blocks)]
        blocks[-1] *= max(1, per_tile)
        cluster = self._amounts(self.header.cluster, values)
        for axis, step in enumerate(cluster[: len(blocks)], start=1):
            blocks[-axis] = -(-blocks[-axis] // step) * step
        per_tile = math.lcm(max(1, per_tile), *cluster[:1])
        if per_sm:
            most = max(1, per_sm * multiprocessors // per_tile) * per_tile
            blocks[-1] = min(blocks[-1], most)
        x, y, z = (*reversed(blocks), 1, 1)[:3]
        return x, y, z

    def launch_shape(
        self, problem: Problem, variant: str, multiprocessors: int
    ) -> LaunchShape | None:
        """The shape of a variant by its title; None for plans and for kernels whose blocks loop."""
        header = self.header
        choices = [one for one in header.all_variants if one.title == variant]
        if header.launch == "plan" or header.blocks_per_sm or not choices:
            return None
        blocks = math.prod(self.grid(problem, choices[0], multiprocessors))
        return LaunchShape(blocks, math.prod(self.block(problem, choices[0])))

    def _values(self, problem: Problem, choice: Choice, multiprocessors: int) -> dict[str, int]:
        """The values of the names in the header's arithmetic."""
        named = {name: getattr(problem, name, None) for name in problem.arguments}
        return {
            **problem.extents,
            **{name: value for name, value in named.items() if type(value) is int},
            **{
                name: value
                for name, value in {**problem.macros, **choice.macros}.items()
                if type(value) is int
            },
            "input_bytes": problem.precision.input.bytes,
            "output_bytes": problem.precision.output.bytes,
            "multiprocessors": multiprocessors,
        }

    def _amounts(self, amounts: list[int | str], values: dict[str, int]) -> tuple[int, ...]:
        try:
            return tuple(expression.evaluate(amount, values) for amount in amounts)
        except ValueError as error:
            raise KernelError(f"{self.source}: header: {error}") from error


def _reads(problem: Problem) -> dict[str, int]:
    """Whether each output is also read: a kernel for outputs that are not needs no code for it."""
    return {
        f"ROOFLAB_READS_{operand.name.upper()}": int(operand.read)
        for operand in problem.operands
        if operand.written
    }


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
    from rooflab.workloads import find

    file = read_file(path, nvcc)
    if file.uncompilable():
        return
    header, kind = file.header, find(file.header.workload)
    words = {name: choices[0] for name, choices in header.choices.items()}
    problem = kind.smallest(PRECISIONS[header.precisions[0]], **words)
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


def version(text: str) -> tuple[int, ...]:
    """``"9.0"`` → ``(9, 0)``, so that versions compare as numbers."""
    return tuple(int(part) for part in text.split("."))
