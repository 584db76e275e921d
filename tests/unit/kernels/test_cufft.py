"""The kernels of cuFFT and cuBLAS, on stand-ins that compute what the libraries document: plans,
strides, column-major products, stream capture. Whether CuPy takes these calls needs a GPU."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import fake
import numpy as np
import pytest

from rooflab.errors import KernelError
from rooflab.kernels.base import Operands
from rooflab.kernels.libraries import cufft
from rooflab.kernels.sources import discover
from rooflab.measure.buffers import allocate, poison
from rooflab.measure.verify import verify
from rooflab.workloads import build

TYPES = {"C": np.complex64, "Z": np.complex128, "R": np.float32, "D": np.float64}
KERNELS = [
    kernel
    for kernel in discover().all()
    if kernel.device_kind == "cuda" and kernel.workload in ("fft", "spectrum", "filter")
    if kernel.backend == "cufft"
]


class Array(np.ndarray):
    """With an address where CuPy's arrays have it."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)


class Queue:
    """Work runs at once, or is kept while a stream captures."""

    def __init__(self) -> None:
        self.captured: list[Callable[[], None]] | None = None
        self.current: Any = Stream(self)

    def run(self, work: Callable[[], None]) -> None:
        if self.captured is None:
            work()
        else:
            self.captured.append(work)


class Stream:
    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    def use(self) -> None:
        self.queue.current = self

    def begin_capture(self) -> None:
        assert self.queue.current is self
        self.queue.captured = []

    def end_capture(self) -> Any:
        works, self.queue.captured = self.queue.captured, None
        assert works

        def launch() -> None:
            for work in works:
                work()

        return SimpleNamespace(launch=launch)


class CuFFTError(Exception):
    pass


def plan_class(queue: Queue) -> type:
    """``cupy.cuda.cufft.PlanNd`` with cuFFT's advanced data layout."""

    class PlanNd:
        def __init__(
            self,
            shape: tuple[int, int],
            inembed: tuple[int, int],
            istride: int,
            idist: int,
            onembed: tuple[int, int],
            ostride: int,
            odist: int,
            fft_type: str,
            batch: int,
            order: str,
            last_axis: int,
            last_size: int | None,
        ) -> None:
            assert order == "C"
            if shape == (13, 13):
                raise CuFFTError("CUFFT_INVALID_SIZE")
            self.shape, self.kind, self.batch = shape, fft_type, batch
            self.given, self.result = (inembed, istride, idist), (onembed, ostride, odist)

        def places(self, layout: tuple[tuple[int, int], int, int], columns: int) -> Any:
            embed, stride, dist = layout
            rows, across = np.arange(self.shape[0])[:, None], np.arange(columns)[None, :]
            return np.arange(self.batch)[:, None, None] * dist + (rows * embed[1] + across) * stride

        def fft(self, a: Any, out: Any, direction: int) -> None:
            queue.run(lambda: self.transform(a, out, direction))

        def transform(self, a: Any, out: Any, direction: int) -> None:
            n, points = self.shape[1], self.shape[0] * self.shape[1]
            half = {True: n // 2 + 1, False: n}
            source, target = self.kind[0], self.kind[2]
            given = a.reshape(-1).view(TYPES[source])
            given = given[self.places(self.given, half[target in "RD"])]
            result: Any
            if source in "RD":
                result = np.fft.rfft2(given)
            elif target in "RD":
                result = np.fft.irfft2(given, self.shape) * points
                a[...] = np.nan  # "Out-of-place complex-to-real FFT … overwrite[s] its input"
            else:
                result = np.fft.fft2(given) if direction == -1 else np.fft.ifft2(given) * points
            flat = out.reshape(-1).view(TYPES[target])
            flat[self.places(self.result, half[source in "RD"])] = result

    return PlanNd


def at(address: int, kind: Any, shape: tuple[int, ...]) -> Any:
    """The array at an address."""
    count = int(np.prod(shape)) * np.dtype(kind).itemsize
    return np.frombuffer((ctypes.c_char * count).from_address(address), kind).reshape(shape)


def gemm(*arguments: Any) -> None:
    """cublasGemmStridedBatchedEx without transposition: columns are contiguous."""
    _, _, _, m, n, k, alpha, a, kind, lda, sa, b, _, ldb, sb, *rest = arguments
    beta, c, _, ldc, sc, batch, _, _ = rest
    size = np.dtype(kind).itemsize
    scale, add = at(alpha, kind, (1,))[0], at(beta, kind, (1,))[0]
    assert (scale, add) == (1, 0)
    for z in range(batch):
        left = at(a + z * sa * size, kind, (k, lda))[:, :m].T
        right = at(b + z * sb * size, kind, (n, ldb))[:, :k].T
        at(c + z * sc * size, kind, (n, ldc))[:, :m] = (left @ right).T


def elementwise(queue: Queue) -> Any:
    """``cupy.ElementwiseKernel`` for the three steps, by name."""

    def kernel(inputs: str, outputs: str, body: str, name: str) -> Callable[..., None]:
        def launch(*arguments: Any) -> None:
            *given, out = arguments
            assert len(given) == len(inputs.split(","))
            queue.run(lambda: np.copyto(out, STEPS[name](*given)))

        return launch

    return kernel


def masked(spectra: Any, rows: int, columns: int, radius_squared: int, scale: float) -> Any:
    places = np.arange(rows)
    squares = np.minimum(places, rows - places) ** 2
    keep = squares[:, None] + squares[None, :columns] <= radius_squared
    return np.where(keep, spectra * spectra.real.dtype.type(scale), 0)


STEPS: dict[str, Callable[..., Any]] = {
    "rooflab_filter_keep": lambda x, threshold: np.where(x < threshold, 0, x),
    "rooflab_filter_keep_real": lambda x, threshold: np.where(x < threshold, 0, x),
    "rooflab_filter_real_part": lambda image: image.real,
    "rooflab_filter_mask_float32": masked,
    "rooflab_filter_mask_float64": masked,
}


class Library(ModuleType):
    """NumPy, with what only CuPy has."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


class Device(fake.FakeDevice):
    """A device whose arrays are CuPy's stand-in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.queue = Queue()
        module: Any = Library("cupy")
        cuda: Any = ModuleType("cupy.cuda")
        cuda.cufft = SimpleNamespace(
            PlanNd=plan_class(self.queue),
            CuFFTError=CuFFTError,
            CUFFT_FORWARD=-1,
            CUFFT_INVERSE=1,
            **{f"CUFFT_{kind}": kind for kind in ("C2C", "R2C", "C2R", "Z2Z", "D2Z", "Z2D")},
        )
        cuda.cublas = SimpleNamespace(
            gemmStridedBatchedEx=gemm,
            CUBLASError=RuntimeError,
            setMathMode=lambda *_: None,
            setPointerMode=lambda *_: None,
            **dict.fromkeys(
                (
                    *("CUBLAS_DEFAULT_MATH", "CUBLAS_POINTER_MODE_HOST", "CUBLAS_OP_N"),
                    *("CUBLAS_COMPUTE_32F", "CUBLAS_COMPUTE_64F", "CUBLAS_GEMM_DEFAULT"),
                )
            ),
        )
        cuda.device = SimpleNamespace(get_cublas_handle=lambda: 0)
        cuda.runtime = SimpleNamespace(CUDA_C_32F=np.complex64, CUDA_C_64F=np.complex128)
        cuda.Stream = lambda non_blocking: Stream(self.queue)
        module.cuda = cuda
        module.ElementwiseKernel = elementwise(self.queue)
        self.module = module
        monkeypatch.setitem(sys.modules, "cupy", module)
        monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)

    @property
    def arrays(self) -> Any:
        return self.module

    @property
    def stream(self) -> Any:
        return self.queue.current


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


def operands_of(workload: str, precision: str, parameters: dict[str, Any]) -> Operands:
    made = allocate(fake.FakeDevice(), build(workload, precision, parameters), 6)
    return Operands(made.problem, {name: made[name].view(Array) for name in made}, {})


@pytest.mark.parametrize("one", KERNELS, ids=lambda one: one.id)
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_the_steps_are_right(device: Device, one: Any, precision: str) -> None:
    extra: list[dict[str, float]] = [{}]
    if one.workload == "filter":
        extra += [{"threshold": 0.1, "cutoff": 0.3}, {"cutoff": 0.0}]
    for batch, n in ((1, 1), (3, 2), (2, 7), (3, 16)):
        for settings in extra:
            operands = operands_of(one.workload, precision, {"batch": batch, "n": n, **settings})
            stream = device.stream
            launch = one.prepare(device, operands)
            assert device.stream is stream
            for pattern in (0, 1):
                poison(operands, pattern)
                launch()
                assert verify(device, operands, 0).reason == "", (n, batch, settings)


def test_a_graph_does_its_work_when_it_is_launched(device: Device) -> None:
    operands = operands_of("filter", "fp32", {"batch": 2, "n": 8})
    launch = cufft.graph(device, operands)
    operands.x[...] = operands.x[:, ::-1].copy()
    poison(operands)
    launch()
    assert verify(device, operands, 0).reason == ""


def test_each_launch_has_a_plan_of_its_own(device: Device) -> None:
    """Streams that share a plan overwrite its workspace (cupy/cupy, issue 8079)."""
    operands = operands_of("fft", "fp32", {"n": 4})
    one, other = (cufft.fft(device, operands) for _ in range(2))
    assert one.func.__self__ is not other.func.__self__  # type: ignore[attr-defined]


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", ModuleType("cupy"))
    monkeypatch.setitem(sys.modules, "cupy.cuda", ModuleType("cupy.cuda"))
    some = fake.FakeDevice()
    told = {one.workload: one.unavailable(some) for one in KERNELS}
    assert told["fft"].startswith("libcufft is not installed: pip install 'rooflab[")
    assert "libcublas" in told["spectrum"]


def test_a_size_that_cufft_refuses_is_named(device: Device) -> None:
    with pytest.raises(KernelError, match="cuFFT refuses 2x13: CUFFT_INVALID_SIZE"):
        cufft.fft(device, operands_of("fft", "fp32", {"batch": 2, "n": 13}))
