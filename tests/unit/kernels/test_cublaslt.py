"""cuBLASLt on a stand-in that computes what the library documents: column-major products with
descriptors. Whether nvmath-python takes these calls needs a GPU."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any

import fake
import numpy as np
import pytest

from rooflab.errors import KernelError
from rooflab.kernels.base import Operands
from rooflab.kernels.libraries import cublas, cublaslt
from rooflab.kernels.sources import discover
from rooflab.measure.buffers import allocate, poison
from rooflab.measure.verify import verify
from rooflab.model import precision
from rooflab.model.encoding import decode, encode
from rooflab.workloads import build

PROPOSED = 5
TYPES = {
    "CUDA_R_64F": precision.FP64,
    "CUDA_R_32F": precision.FP32,
    "CUDA_R_16F": precision.FP16,
    "CUDA_R_16BF": precision.BF16,
    "CUDA_R_8F_E4M3": precision.FP8_E4M3,
}
CudaDataType = IntEnum("CudaDataType", list(TYPES))  # type: ignore[misc]
ComputeType = IntEnum("ComputeType", ["COMPUTE_64F", "COMPUTE_32F", "COMPUTE_32F_FAST_TF32"])
FOUND = [kernel for kernel in discover().all() if kernel.name.startswith("cublaslt")]
KERNELS = {kernel.name: kernel for kernel in FOUND if kernel.workload == "gemm"}
(BLOCKS,) = (kernel for kernel in FOUND if kernel.workload == "block_gemm")
(LINEAR,) = (kernel for kernel in FOUND if kernel.workload == "linear")


class CuBLASLtError(Exception):
    """An error of the library."""


def at(address: int, data_type: Any, shape: tuple[int, ...]) -> Any:
    """The numbers at an address."""
    data_type = np.dtype(data_type)
    raw = (ctypes.c_byte * (int(np.prod(shape)) * data_type.itemsize)).from_address(address)
    return np.frombuffer(raw, data_type).reshape(shape)


class Library:
    """Descriptors are places in a list of dicts."""

    MatmulDescAttribute = IntEnum(
        "MatmulDescAttribute",
        "TRANSA TRANSB FAST_ACCUM A_SCALE_MODE A_SCALE_POINTER B_SCALE_MODE B_SCALE_POINTER "
        "EPILOGUE BIAS_POINTER",
    )
    Epilogue = IntEnum("Epilogue", ["BIAS", "GELU_BIAS"])
    MatmulMatrixScale = IntEnum("MatmulMatrixScale", ["VEC128_32F", "BLK128x128_32F"])
    MatrixLayoutAttribute = IntEnum(
        "MatrixLayoutAttribute", ["BATCH_COUNT", "STRIDED_BATCH_OFFSET"]
    )
    MatmulPreferenceAttribute = IntEnum("MatmulPreferenceAttribute", ["MAX_WORKSPACE_BYTES"])
    MatmulAlgoConfigAttribute = IntEnum("MatmulAlgoConfigAttribute", ["ID", "TILE_ID"])
    matmul_heuristic_result_dtype = np.dtype([("algo", "<u8", (8,)), ("workspace_size", "<u8")])
    cuBLASLtError = CuBLASLtError  # noqa: N815  the library's name

    def __init__(self) -> None:
        self.descriptors: list[dict[Any, Any]] = []
        self.destroyed: list[int] = []
        self.ran: list[tuple[int, int]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Functions that are the same for each kind of descriptor."""
        if name.endswith("_destroy"):
            return self.destroyed.append
        if name.endswith("_attribute_dtype"):
            return lambda attribute: np.int64
        if name.endswith("_set_attribute"):
            return self.set_attribute
        if name.endswith("_create"):
            return self.make
        raise AttributeError(name)

    def make(self, *arguments: Any) -> int:
        self.descriptors.append({"arguments": arguments})
        return len(self.descriptors) - 1

    def set_attribute(self, descriptor: int, attribute: Any, address: int, size: int) -> None:
        assert size == 8
        self.descriptors[descriptor][attribute] = int(at(address, np.int64, (1,))[0])

    def create(self) -> int:
        return 77

    def get_version(self) -> int:
        return 130100

    def matmul_algo_get_heuristic(self, handle: int, *arguments: int) -> None:
        *_, preference, most, proposals, count = arguments
        assert (handle, most) == (77, cublaslt.MOST_ALGORITHMS)
        (workspace,) = list(self.descriptors[preference].values())[1:]
        assert workspace == cublaslt.WORKSPACE_BYTES
        places = at(proposals, self.matmul_heuristic_result_dtype, (most,))
        places["algo"][:PROPOSED, 0] = np.arange(100, 100 + PROPOSED)
        at(count, np.int32, (1,))[0] = PROPOSED

    def matmul_algo_config_get_attribute(
        self, algorithm: int, attribute: int, value: int, size: int, written: int
    ) -> None:
        at(value, np.int64, (1,))[0] = at(algorithm, np.uint64, (1,))[0]

    def read(self, address: int, layout: int) -> list[Any]:
        """The matrices of a batch, in the stored type."""
        one = self.descriptors[layout]
        data_type, rows, columns, leading = one["arguments"]
        stored = np.dtype(TYPES[CudaDataType(data_type).name].storage)
        step = one[self.MatrixLayoutAttribute.STRIDED_BATCH_OFFSET] * stored.itemsize
        return [
            at(address + z * step, stored, (columns, leading))[:, :rows].T
            for z in range(one[self.MatrixLayoutAttribute.BATCH_COUNT])
        ]

    def type_of(self, layout: int) -> Any:
        return TYPES[CudaDataType(self.descriptors[layout]["arguments"][0]).name]

    def matmul(self, handle: int, operation: int, *arguments: int) -> None:
        alpha, a, of_a, b, of_b, beta, c, of_c, d, of_d, algorithm, workspace, size, _ = arguments
        assert (handle, c, of_c, size) == (77, d, of_d, cublaslt.WORKSPACE_BYTES)
        described = self.descriptors[operation]
        scalar = TYPES[CudaDataType(described["arguments"][1]).name].storage
        scale, add = (at(address, scalar, (1,))[0] for address in (alpha, beta))
        names = self.MatmulDescAttribute
        for left, right, out in zip(
            self.read(a, of_a), self.read(b, of_b), self.read(c, of_c), strict=True
        ):
            x, y = (
                decode(np, np.ascontiguousarray(m), self.type_of(layout))
                for m, layout in ((left, of_a), (right, of_b))
            )
            x = x.T if described[names.TRANSA] else x
            y = y.T if described[names.TRANSB] else y
            if names.A_SCALE_MODE in described:
                x, y = self.scaled(described, x, y)
            total = scale * (x @ y)
            if names.EPILOGUE in described:
                total = self.finished(described, total, self.type_of(of_c))
            if add:
                total = total + add * decode(np, out.copy(), self.type_of(of_c))
            out[...] = encode(np, total, self.type_of(of_c))
        self.ran.append((int(at(algorithm, np.uint64, (1,))[0]), workspace))

    def finished(self, described: dict[Any, Any], total: Any, result: Any) -> Any:
        """With a bias for each row, and its activation."""
        address = described[self.MatmulDescAttribute.BIAS_POINTER]
        z = total + decode(np, at(address, result.storage, (len(total),)), result)[:, None]
        if described[self.MatmulDescAttribute.EPILOGUE] == self.Epilogue.BIAS:
            return z
        return z / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))

    def scaled(self, described: dict[Any, Any], x: Any, y: Any) -> Any:
        """Of W, N x K, and of X by columns, K x M."""
        names, modes, groups = self.MatmulDescAttribute, self.MatmulMatrixScale, x.shape[1] // 128
        assert described[names.A_SCALE_MODE] == modes.BLK128x128_32F
        assert described[names.B_SCALE_MODE] == modes.VEC128_32F
        of_x = at(described[names.A_SCALE_POINTER], np.float32, (-(-len(x) // 128), groups))
        of_y = at(described[names.B_SCALE_POINTER], np.float32, (groups, y.shape[1]))
        wide = of_x.repeat(128, axis=0)[: len(x)].repeat(128, axis=1)
        return x * wide, y * of_y.repeat(128, axis=0)


class Array(np.ndarray):
    """With an address where CuPy's arrays have it."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    made = Library()
    cupy: Any = ModuleType("cupy")
    cupy.empty = lambda size, kind: np.empty(size, kind).view(Array)
    cupy.uint8 = np.uint8
    cupy.cuda = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=5))
    nvmath: Any = ModuleType("nvmath")
    bindings: Any = ModuleType("nvmath.bindings")
    nvmath.CudaDataType = CudaDataType
    nvmath.bindings = bindings
    bindings.cublasLt = made
    bindings.cublas = SimpleNamespace(ComputeType=ComputeType)
    for module in (cupy, nvmath, bindings):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    caches = (cublaslt._plan, cublaslt._handle, cublaslt._workspace)
    for one in caches:
        one.cache_clear()
    yield made
    for one in caches:
        one.cache_clear()


def operands_of(precision: str, workload: str = "gemm", **parameters: Any) -> Operands:
    made = allocate(fake.FakeDevice(), build(workload, precision, parameters), 6)
    return Operands(
        made.problem, {name: made[name].view(Array) for name in made}, dict(made.initial)
    )


@pytest.mark.parametrize("precision", KERNELS["cublaslt"].precisions)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_the_product_is_right(library: Library, precision: str, layout: str) -> None:
    kernel, device = KERNELS["cublaslt"], fake.FakeDevice()
    for batch, alpha, beta in ((1, 1.0, 0.0), (1, 0.5, -2.0), (3, 1.5, 0.5)):
        extents = {"m": 7, "n": 32, "k": 16} if precision == "fp8" else {"m": 7, "n": 5, "k": 9}
        settings = {"batch": batch, "alpha": alpha, "beta": beta, "layout": layout}
        operands = operands_of(precision, "gemm", **extents, **settings)
        if kernel.refuses(operands.problem):
            assert (precision, layout == "nt") == ("fp8", False)
            continue
        launch = kernel.prepare(device, operands)
        for pattern in (0, 1):
            poison(operands, pattern)
            launch()
            assert verify(device, operands, 0).reason == "", (batch, alpha, beta)


def test_blocks_have_the_scales_of_their_operands(library: Library) -> None:
    device = fake.FakeDevice()
    shape: dict[str, Any] = {"m": 8, "n": 144, "k": 512}
    several = [operands_of("fp8", "block_gemm", **shape) for _ in range(2)]
    several[1]["x_scales"][...] *= 2
    launches = [BLOCKS.prepare(device, one) for one in several]
    for operands, launch in zip(several, launches, strict=True):
        poison(operands)
        launch()
        assert verify(device, operands, 0).reason == ""
    told = BLOCKS.refuses(build("block_gemm", "fp8", {**shape, "k": 384}))
    assert told == "cublaslt needs K to be a multiple of 512, not 384"
    told = BLOCKS.refuses(build("block_gemm", "fp8", {**shape, "m": 7}))
    assert told == "cublaslt needs M to be a multiple of 4, not 7"
    assert BLOCKS.unfit("9.0") == "" and "9.0 only" in BLOCKS.unfit("10.0")


@pytest.mark.parametrize("precision", LINEAR.precisions)
@pytest.mark.parametrize("epilogue", ["bias", "gelu"])
def test_epilogues_have_the_bias_of_their_operands(
    library: Library, epilogue: str, precision: str
) -> None:
    device = fake.FakeDevice()
    shape: dict[str, Any] = {"m": 7, "n": 5, "k": 9, "epilogue": epilogue}
    several = [operands_of(precision, "linear", **shape) for _ in range(2)]
    several[1]["bias"][...] = several[0]["bias"][::-1]
    launches = [LINEAR.prepare(device, one) for one in several]
    for operands, launch in zip(several, launches, strict=True):
        poison(operands)
        launch()
        assert verify(device, operands, 0).reason == ""


def test_there_is_no_epilogue_for_swiglu() -> None:
    problem = build("linear", "bf16", {"m": 8, "n": 8, "k": 8, "epilogue": "swiglu"})
    told = LINEAR.refuses(problem)
    assert told == "cuBLASLt has no epilogue that multiplies two products, as SwiGLU does"


def test_each_variant_runs_its_proposal(library: Library) -> None:
    operands = operands_of("fp32", m=4, n=4, k=4)
    kernel, device = KERNELS["cublaslt"], fake.FakeDevice()
    for variant in kernel.variants[:PROPOSED]:
        variant.compile(device, operands.problem)
        variant.prepare(device, operands)()
    assert [algorithm for algorithm, _ in library.ran] == list(range(100, 100 + PROPOSED))
    assert len({workspace for _, workspace in library.ran}) == 1
    with pytest.raises(KernelError, match="proposes 5 algorithms for 4"):
        kernel.variants[PROPOSED].prepare(device, operands)
    found = {one["variant"]: one for one in kernel.builds() if one["size"] == "4"}
    assert found["heuristic 3"]["algorithm"] == "id 102, tile_id 102"
    assert found["heuristic 3"]["library"] == "cuBLASLt 130100" == kernel.fingerprint()


def test_descriptors_are_destroyed_with_the_problem(library: Library) -> None:
    kernel, device = KERNELS["cublaslt"], fake.FakeDevice()
    launch = kernel.prepare(device, operands_of("fp32", m=4, n=4, k=4))
    assert library.destroyed == []
    del launch
    kernel.prepare(device, operands_of("fp32", m=5, n=4, k=4))
    assert sorted(library.destroyed) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("name", "fast"), [("cublaslt", 0), ("cublaslt_fast", 1)])
def test_fp8_accumulates_as_the_title_says(library: Library, name: str, fast: int) -> None:
    operands = operands_of("fp8", m=3, n=16, k=16, layout="nt")
    KERNELS[name].prepare(fake.FakeDevice(), operands)
    assert library.descriptors[0][Library.MatmulDescAttribute.FAST_ACCUM] == fast


def test_an_error_names_the_library_and_the_problem(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: int) -> None:
        raise CuBLASLtError("CUBLAS_STATUS_NOT_SUPPORTED")

    kernel, device = KERNELS["cublaslt"], fake.FakeDevice()
    launch = kernel.prepare(device, operands_of("fp32", m=4, n=4, k=4))
    monkeypatch.setattr(library, "matmul", refuse)
    with pytest.raises(KernelError, match="cuBLASLt refuses 4: CUBLAS_STATUS_NOT_SUPPORTED"):
        launch()
    monkeypatch.setattr(library, "matmul_algo_get_heuristic", refuse)
    with pytest.raises(KernelError, match="cuBLASLt refuses 5: CUBLAS_STATUS_NOT_SUPPORTED"):
        kernel.prepare(device, operands_of("fp32", m=5, n=5, k=5))


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"n": 16, "k": 16, "layout": "nn"}, "cuBLASLt supports FP8 in layout nt only"),
        ({"n": 8, "k": 16}, "cuBLASLt in FP8 needs N to be a multiple of 16, it is 8"),
        ({"n": 16, "k": 24}, "cuBLASLt in FP8 needs K to be a multiple of 16, it is 24"),
        ({"m": 1, "n": 16, "k": 16}, ""),
    ],
)
def test_what_fp8_needs_is_named(parameters: dict[str, Any], reason: str) -> None:
    problem = build("gemm", "fp8", {"m": 7, "layout": "nt", **parameters})
    assert KERNELS["cublaslt"].refuses(problem) == reason


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cublas, "unavailable", lambda device: "")
    monkeypatch.setattr(cublaslt, "find_spec", lambda name: None)
    expected = "nvmath-python is not installed: pip install 'rooflab[cublaslt]'"
    assert KERNELS["cublaslt"].unavailable(fake.FakeDevice()) == expected
