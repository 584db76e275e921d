"""NVIDIA's cuBLASLt through nvmath-python: the algorithms that its heuristics propose, raced.

cuBLAS runs one algorithm, chosen by rules. cublasLtMatmulAlgoGetHeuristic returns several, the most
promising first. Here each is a variant, and rooflab's search finds the fastest one. FP8 exists only
in cuBLASLt, and so do scales of blocks (``block_gemm``) and epilogues (``linear``).

Operands change places as in ``libraries.cublas``, because the library is column-major.
"""

from __future__ import annotations

import weakref
from functools import cache, lru_cache, partial
from importlib.util import find_spec
from typing import Any, Final

from rooflab.devices.base import Device, Launch
from rooflab.devices.cuda.launches import Builds
from rooflab.errors import KernelError
from rooflab.kernels.base import Kernel, Operands, Variant
from rooflab.kernels.libraries import cublas
from rooflab.kernels.libraries.cuda import (
    guarded,
    multiples,
    require_tensor_cores,
    scales_of_128,
)
from rooflab.kernels.registry import BUILTIN
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import Problem
from rooflab.workloads.quantised import GROUP

MOST_ALGORITHMS: Final = 128
"""More than the heuristics return: all of theirs are raced."""

WORKSPACE_BYTES: Final = 32 * 2**20
"""cuBLAS's own on Hopper (cuBLAS, "cublasSetWorkspace")."""

FP8_LAYOUT: Final = "nt"
FP8_MULTIPLE: Final = 16
"""FP8 needs operands that are contiguous along K (A transposed, B not, in the library's
column-major view), and 16-byte rows (cuBLAS, "cublasLtMatmul")."""

SCALES: Final = {
    "A": ("w_scales", "BLK128x128_32F"),
    "B": ("x_scales", "VEC128_32F"),
}
"""By operand of the library: our operand with its scales, and their mode (cuBLAS, "1D and 2D Block
Scaling for FP8", for compute capability 9.0)."""

EPILOGUES: Final = {"bias": "BIAS", "gelu": "GELU_BIAS"}
"""The library's names. A bias is for rows of its result, by columns: those are columns of ours; its
type is that of results (cuBLAS, "cublasLtEpilogue_t" and "cublasLtMatmulDescAttributes_t")."""

ANYWHERE: Final = 256
"""An address of scales or a bias, for heuristics: they do not read it."""


def unavailable(device: Device | None) -> str:
    """Why cuBLASLt cannot run on ``device``, empty if it can."""
    if reason := cublas.unavailable(device):
        return reason
    if find_spec("nvmath") is None:
        from rooflab.devices.cuda import install

        return f"nvmath-python is not installed: {install.line('cublaslt')}"
    return ""


def unsupported(problem: Problem) -> str:
    """Why cuBLASLt does not compute ``problem`` in its precision, empty if it does."""
    if problem.precision.name != "fp8":
        return cublas.unsupported(problem)
    if problem.settings["layout"] != FP8_LAYOUT:
        return f"cuBLASLt supports FP8 in layout {FP8_LAYOUT} only"
    for name in ("n", "k"):
        if (given := problem.extents[name]) % FP8_MULTIPLE:
            return f"cuBLASLt in FP8 needs {name.upper()} to be a multiple of 16, it is {given}"
    return ""


def no_such_epilogue(problem: Problem) -> str:
    """Why cuBLASLt does not compute a linear layer, empty if it does."""
    if problem.settings["epilogue"] not in EPILOGUES:
        return "cuBLASLt has no epilogue that multiplies two products, as SwiGLU does"
    return cublas.unsupported(problem)


class AlgorithmPlan:
    """The descriptors of a problem, and the algorithms that the heuristics propose for it."""

    def __init__(self, problem: Problem, handle: int, fast: bool) -> None:
        from nvmath import CudaDataType, bindings

        self.library = bindings.cublasLt
        self.handle = handle
        precision = problem.precision
        layout = str(problem.settings.get("layout", FP8_LAYOUT))
        of_a, of_b = (letter == "t" for letter in layout)
        self.scalar = "float64" if precision.accumulate.name == "fp64" else "float32"
        self.operation = self._make(
            "matmul_desc",
            bindings.cublas.ComputeType[precision.compute.removeprefix("CUBLAS_")],
            CudaDataType["CUDA_R_64F" if self.scalar == "float64" else "CUDA_R_32F"],
            TRANSA=of_b,
            TRANSB=of_a,
            FAST_ACCUM=fast,
        )
        self.pointers = {**self._scales(problem), **self._epilogue(problem)}
        self.point(dict.fromkeys(self.pointers, ANYWHERE))
        matrices = [one for one in problem.operands if one.name not in self.pointers.values()]
        self.names = [one.name for one in matrices]
        self.a, self.b, self.c = (
            self._matrix(one.shape, CudaDataType[one.type.cuda]) for one in matrices
        )
        self.algorithms = self._propose()

    def _scales(self, problem: Problem) -> dict[str, str]:
        """Scales by their attributes, after setting their modes."""
        names = [one.name for one in problem.operands]
        used = {key: one for key, one in SCALES.items() if one[0] in names}
        for key, (_, mode) in used.items():
            value = self.library.MatmulMatrixScale[mode]
            self._set("matmul_desc", self.operation, f"{key}_SCALE_MODE", value)
        return {f"{key}_SCALE_POINTER": name for key, (name, _) in used.items()}

    def _epilogue(self, problem: Problem) -> dict[str, str]:
        """The bias by its attribute, after setting what follows the product."""
        if not (name := EPILOGUES.get(str(problem.settings.get("epilogue")))):
            return {}
        self._set("matmul_desc", self.operation, "EPILOGUE", self.library.Epilogue[name])
        return {"BIAS_POINTER": "bias"}

    def point(self, addresses: dict[str, int]) -> None:
        """The next products are with these scales, or this bias."""
        for name, address in addresses.items():
            self._set("matmul_desc", self.operation, name, address)

    def _make(self, kind: str, *arguments: int, **attributes: int) -> int:
        """A descriptor, destroyed with this plan."""
        lt = self.library
        made: int = getattr(lt, f"{kind}_create")(*arguments)
        weakref.finalize(self, getattr(lt, f"{kind}_destroy"), made)
        for name, value in attributes.items():
            self._set(kind, made, name, value)
        return made

    def _set(self, kind: str, made: int, name: str, value: int) -> None:
        """Set an attribute of a descriptor, in its type."""
        import numpy as np

        lt = self.library
        attribute = getattr(lt, f"{kind.title().replace('_', '')}Attribute")[name]
        data_type = getattr(lt, f"get_{kind}_attribute_dtype")(attribute)
        buffer = np.array([value], data_type)
        write = getattr(lt, f"{kind}_set_attribute")
        write(made, attribute, buffer.ctypes.data, buffer.nbytes)

    def _matrix(self, shape: tuple[int, ...], data_type: int) -> int:
        """The layout of a batch of row-major matrices: their transposes by columns."""
        batch, rows, columns = (1, *shape)[-3:]
        by_columns = (data_type, columns, rows, columns)
        step = rows * columns
        return self._make(
            "matrix_layout", *by_columns, BATCH_COUNT=batch, STRIDED_BATCH_OFFSET=step
        )

    def _propose(self) -> Any:
        """The proposals, the most promising first; empty if there are none."""
        import numpy as np

        lt = self.library
        preference = self._make("matmul_preference", MAX_WORKSPACE_BYTES=WORKSPACE_BYTES)
        proposals = np.zeros(MOST_ALGORITHMS, lt.matmul_heuristic_result_dtype)
        count = np.zeros(1, np.int32)
        lt.matmul_algo_get_heuristic(
            *(self.handle, self.operation, self.b, self.a, self.c, self.c, preference),
            *(MOST_ALGORITHMS, proposals.ctypes.data, count.ctypes.data),
        )
        return proposals[: int(count[0])]

    def address(self, rank: int) -> int:
        """The address of an algorithm, the first field of its proposal."""
        return int(self.algorithms[rank:].ctypes.data)

    def describe(self, rank: int) -> str:
        """An algorithm's settings, as the library numbers them."""
        import numpy as np

        lt, written, settings = self.library, np.zeros(1, np.uint64), []
        for one in lt.MatmulAlgoConfigAttribute:
            value = np.zeros(1, lt.get_matmul_algo_config_attribute_dtype(one))
            lt.matmul_algo_config_get_attribute(
                *(self.address(rank), one, value.ctypes.data, value.nbytes, written.ctypes.data)
            )
            settings.append(f"{one.name.lower()} {value[0]}")
        return ", ".join(settings)


@lru_cache(maxsize=1)
def _plan(device_id: str, problem: Problem, fast: bool) -> AlgorithmPlan:
    """All variants and buffer copies of a problem share its plan."""
    return AlgorithmPlan(problem, _handle(device_id), fast)


@cache
def _handle(device_id: str) -> int:
    """cuBLASLt's handle on a device, for the life of the process."""
    from nvmath.bindings import cublasLt

    handle: int = cublasLt.create()
    return handle


@cache
def _workspace(device_id: str, stream: int) -> Any:
    """The workspace of a stream. Its launches run one after the other and can share one."""
    import cupy

    return cupy.empty(WORKSPACE_BYTES, cupy.uint8)


def _prepare(
    rank: int, fast: bool, builds: Builds, name: str, device: Device, operands: Operands
) -> Launch:
    """Bind the arguments of cublasLtMatmul with the proposal of that rank."""
    import cupy
    import numpy as np
    from nvmath.bindings import cublasLt

    problem, precision = operands.problem, operands.problem.precision
    require_tensor_cores("cuBLASLt", device, precision)
    current = cupy.cuda.get_current_stream
    _workspace(device.id, current().ptr)  # so that no launch allocates it
    try:
        plan = _plan(device.id, problem, fast)
    except cublasLt.cuBLASLtError as error:
        raise KernelError(f"cuBLASLt refuses {problem.size}: {error}") from error
    if rank >= len(plan.algorithms):
        raise KernelError(f"cuBLASLt proposes {len(plan.algorithms)} algorithms for {problem.size}")
    words = {key: value for key, value in problem.settings.items() if isinstance(value, str)}
    builds.note(
        {"variant": name, "precision": precision.name, "size": problem.size, **words},
        library=_version(),
        algorithm=plan.describe(rank),
    )
    factors = [problem.settings.get(name, usual) for name, usual in (("alpha", 1), ("beta", 0))]
    scalars = np.array(factors, plan.scalar)
    alpha = scalars.ctypes.data
    a, b, c = (operands[one].data.ptr for one in plan.names)
    pointers = {key: operands[name].data.ptr for key, name in plan.pointers.items()}
    arguments = (
        *(plan.handle, plan.operation, alpha, b, plan.b, a, plan.a),
        *(alpha + scalars.itemsize, c, plan.c, c, plan.c, plan.address(rank)),
    )

    def call() -> None:
        stream = current().ptr
        workspace = _workspace(device.id, stream).data.ptr
        plan.point(pointers)
        cublasLt.matmul(*arguments, workspace, WORKSPACE_BYTES, stream)

    told = f"cuBLASLt refuses {problem.size}"
    return guarded(call, cublasLt.cuBLASLtError, told, alive=(scalars, operands, plan))


def _version() -> str:
    from nvmath.bindings import cublasLt

    return f"cuBLASLt {cublasLt.get_version()}"


def kernel(
    name: str, title: str, precisions: tuple[str, ...], *, fast: bool = False, **facts: Any
) -> Kernel:
    """A kernel of the library; ``fast`` adds FP8 products without promoting sums to FP32."""
    builds = Builds()
    variants = tuple(
        Variant(
            name=(one := f"heuristic {rank + 1}"),
            prepare=partial(_prepare, rank, fast, builds, one),
            compile=lambda device, problem: None,  # the library has its code
        )
        for rank in range(MOST_ALGORITHMS)
    )
    return Kernel(
        name=name,
        backend="cublas",
        device_kind="cuda",
        title=title,
        precisions=precisions,
        prepare=variants[0].prepare,
        teaches="the library's best algorithm, not the one that its rules choose",
        variant=variants[0].name,
        variants=variants,
        unavailable=unavailable,
        **{"unsupported": unsupported, **facts},
        fingerprint=_version,
        builds=builds.records,
        library=True,
    )


BUILTIN.add(
    kernel(
        "cublaslt",
        "cuBLASLt, the fastest of all that its heuristics propose; FP8 sums promoted to FP32",
        tuple(one.name for one in PRECISIONS.values() if one.compute),
    )
)
BUILTIN.add(
    kernel(
        "cublaslt_fast",
        "cuBLASLt with fast accumulation: FP8 sums stay in the tensor cores",
        ("fp8",),
        fast=True,
    )
)
BUILTIN.add(
    kernel(
        "cublaslt",
        "cuBLASLt, the fastest of all that its heuristics propose",
        ("fp8",),
        workload="block_gemm",
        unsupported=multiples("cublaslt", m=4, n=16, k=4 * GROUP),  # rows of scales: 16 bytes
        unfit=scales_of_128,
    )
)
BUILTIN.add(
    kernel(
        "cublaslt",
        "cuBLASLt with its epilogue, the fastest of all that its heuristics propose",
        ("fp32", "tf32", "fp16", "bf16", "fp16_fp32"),
        workload="linear",
        unsupported=no_such_epilogue,
    )
)
