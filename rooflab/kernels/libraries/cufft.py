"""Workloads with a two-dimensional FFT on a GPU: cuFFT and cuBLAS through CuPy.

Each prepared launch has a plan of its own. CuPy's functions take plans from a cache, and a plan has
one workspace: two streams with the same plan overwrite each other's (github.com/cupy/cupy, issue
8079). Launches allocate nothing: workspace and intermediate arrays belong to the launch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rooflab.errors import KernelError
from rooflab.kernels.libraries import cublas
from rooflab.kernels.registry import register
from rooflab.model.problem import Problem
from rooflab.workloads.spectral import Filter

if TYPE_CHECKING:
    from rooflab.devices.base import Device
    from rooflab.kernels.base import Launch, Operands

COMPLEX: Final = {"fp32": "complex64", "fp64": "complex128"}
"""CuPy's complex type of each precision."""

TRANSFORMS: Final = {
    "fp32": {"C2C": "CUFFT_C2C", "R2C": "CUFFT_R2C", "C2R": "CUFFT_C2R"},
    "fp64": {"C2C": "CUFFT_Z2Z", "R2C": "CUFFT_D2Z", "C2R": "CUFFT_Z2D"},
}


def unavailable(device: Device | None) -> str:
    """Why cuFFT cannot run on ``device``, empty if it can."""
    from rooflab.devices.cuda import device as cuda_device
    from rooflab.devices.cuda import install

    if device is None:
        return cuda_device.availability()
    try:
        from cupy.cuda import cufft  # noqa: F401
    except ImportError:
        return f"libcufft is not installed: {install.line(install.extra())}"
    return ""


def unavailable_with_cublas(device: Device | None) -> str:
    """Why cuBLAS and cuFFT cannot run on ``device``, empty if they can."""
    return cublas.unavailable(device) or unavailable(device)


cufft_kernel = partial(
    register,
    backend="cufft",
    device_kind="cuda",
    precisions=tuple(COMPLEX),
    unavailable=unavailable,
)


def make_plan(problem: Problem, transform: str = "C2C") -> Any:
    """A new plan for all matrices of ``problem``, with its own workspace.

    ``transform`` is C2C, R2C (real to the half of the spectrum that determines the rest) or C2R.
    Raises ``KernelError`` if cuFFT refuses the size.
    """
    from cupy.cuda import cufft

    n, batch = problem.extents["n"], problem.extents["batch"]
    half = n // 2 + 1
    columns = {"C2C": (n, n), "R2C": (n, half), "C2R": (half, n)}[transform]
    given, result = ((n, count) for count in columns)
    kind = getattr(cufft, TRANSFORMS[problem.precision.name][transform])
    try:
        return cufft.PlanNd(
            *((n, n), given, 1, n * columns[0], result, 1, n * columns[1]),
            *(kind, batch, "C", 2, None if transform == "C2C" else columns[1]),
        )
    except cufft.CuFFTError as error:
        raise KernelError(f"cuFFT refuses {problem.size}: {error}") from error


def _forward() -> int:
    from cupy.cuda import cufft

    return int(cufft.CUFFT_FORWARD)


def _inverse() -> int:
    from cupy.cuda import cufft

    return int(cufft.CUFFT_INVERSE)


@cufft_kernel(
    "cufft",
    workload="fft",
    title="cuFFT",
    teaches="the vendor's library, the baseline on this device",
    library=True,
)
def fft(device: Device, operands: Operands) -> Launch:
    """One plan for the whole batch."""
    return partial(make_plan(operands.problem).fft, operands.x, operands.y, _forward())


@cufft_kernel(
    "cublas_cufft",
    workload="spectrum",
    title="cuBLAS gemmStridedBatchedEx, then cuFFT in place",
    teaches="two libraries on one stream; the product stays in device memory",
    unavailable=unavailable_with_cublas,
    unsupported=cublas.unsupported,
    library=True,
)
def spectrum(device: Device, operands: Operands) -> Launch:
    """The product into the output, then its FFT in place."""
    multiply, y, forward = complex_product(operands), operands.y, _forward()
    transform = make_plan(operands.problem).fft

    def launch() -> None:
        multiply()
        transform(y, y, forward)

    return launch


def complex_product(operands: Operands) -> Callable[[], None]:
    """C = A·B into ``operands.y`` by cuBLAS, without TF32. Column-major: Cᵀ = Bᵀ·Aᵀ."""
    import numpy as np
    from cupy.cuda import cublas as library
    from cupy.cuda import device as cupy_device
    from cupy.cuda import runtime

    problem = operands.problem
    n, batch, wide = problem.extents["n"], problem.extents["batch"], problem.precision.name
    handle = cupy_device.get_cublas_handle()
    library.setMathMode(handle, library.CUBLAS_DEFAULT_MATH)
    library.setPointerMode(handle, library.CUBLAS_POINTER_MODE_HOST)
    scalars = np.array([1, 0], COMPLEX[wide])
    alpha, beta = scalars.ctypes.data, scalars.ctypes.data + scalars.itemsize
    kind = runtime.CUDA_C_64F if wide == "fp64" else runtime.CUDA_C_32F
    compute = library.CUBLAS_COMPUTE_64F if wide == "fp64" else library.CUBLAS_COMPUTE_32F
    a, b, c = ((operands[name].data.ptr, kind, n, n * n) for name in ("a", "b", "y"))
    arguments = (
        *(handle, library.CUBLAS_OP_N, library.CUBLAS_OP_N, n, n, n),
        *(alpha, *b, *a, beta, *c, batch, compute, library.CUBLAS_GEMM_DEFAULT),
    )

    # The arguments are plain addresses: `alive` keeps their memory allocated.
    def multiply(alive: object = (scalars, operands)) -> None:
        try:
            library.gemmStridedBatchedEx(*arguments)
        except library.CUBLASError as error:
            raise KernelError(f"cuBLAS refuses {problem.size}: {error}") from error

    return multiply


# Filter: one idea after the other ----------------------------------------------------------------


def _problem(operands: Operands) -> Filter:
    assert isinstance(operands.problem, Filter)
    return operands.problem


def _intermediate(device: Device, operands: Operands, columns: int = 0) -> Any:
    """An array for the spectra, complex, of (batch, n, columns or n)."""
    batch, rows, all_columns = operands.x.shape
    wide = COMPLEX[operands.problem.precision.name]
    return device.arrays.empty((batch, rows, columns or all_columns), dtype=wide)


@cufft_kernel(
    "stages",
    workload="filter",
    title="CuPy, a kernel for each step, and cuFFT",
    teaches="the definition: every step reads and writes device memory",
    library=True,
)
def stages(device: Device, operands: Operands) -> Launch:
    """Threshold, convert, FFT, mask, inverse FFT, real part, scale."""
    arrays, x, y, problem = device.arrays, operands.x, operands.y, _problem(operands)
    kept, spectra = arrays.empty_like(x), _intermediate(device, operands)
    above = arrays.empty(x.shape, dtype=bool)
    mask = problem.mask(arrays).astype(x.dtype)
    threshold, scale = x.dtype.type(problem.threshold), x.dtype.type(1 / problem.n**2)
    transform, forward, inverse = make_plan(problem).fft, _forward(), _inverse()

    def launch() -> None:
        arrays.greater_equal(x, threshold, out=above)
        arrays.multiply(x, above, out=kept)
        arrays.copyto(spectra, kept)
        transform(spectra, spectra, forward)
        arrays.multiply(spectra, mask, out=spectra)
        transform(spectra, spectra, inverse)
        arrays.copyto(y, spectra.real)
        arrays.multiply(y, scale, out=y)

    return launch


def _fused_steps(device: Device, operands: Operands) -> Launch:
    """Three elementwise kernels around the two FFTs; nothing is allocated by a launch."""
    arrays, x, y, problem = device.arrays, operands.x, operands.y, _problem(operands)
    spectra, real = _intermediate(device, operands), x.dtype.name
    keep = arrays.ElementwiseKernel(
        "T x, T threshold",
        "C spectrum",
        "spectrum = C(x < threshold ? T(0) : x, T(0))",
        "rooflab_filter_keep",
    )
    real_part = arrays.ElementwiseKernel(
        "C image", "T y", "y = image.real()", "rooflab_filter_real_part"
    )
    threshold = x.dtype.type(problem.threshold)
    transform, forward, inverse = make_plan(problem).fft, _forward(), _inverse()
    mask = partial(_mask_kernel(arrays, real), spectra, *_mask_arguments(problem), spectra)

    def launch() -> None:
        keep(x, threshold, spectra)
        transform(spectra, spectra, forward)
        mask()
        transform(spectra, spectra, inverse)
        real_part(spectra, y)

    return launch


def _mask_kernel(arrays: Any, real: str) -> Any:
    """Sets frequencies outside the radius to 0 and scales the others.

    ``i`` is the index of an element of (batch, n, columns); with the half of a spectrum, columns
    are n / 2 + 1, and all of them are frequencies up to n / 2.
    """
    return arrays.ElementwiseKernel(
        f"C spectrum, int64 rows, int64 columns, int64 radius_squared, {real} scale",
        "C masked",
        """
        const long long row = i / columns % rows, column = i % columns;
        const long long down = row < rows - row ? row : rows - row;
        const long long right = column < rows - column ? column : rows - column;
        masked = down * down + right * right <= radius_squared ? spectrum * scale : C(0);
        """,
        f"rooflab_filter_mask_{real}",
    )


def _mask_arguments(problem: Filter, columns: int = 0) -> tuple[int, int, int, float]:
    n = problem.n
    return n, columns or n, problem.radius_squared, 1 / n**2


@cufft_kernel(
    "fused",
    workload="filter",
    title="Neighbouring steps in one kernel, and cuFFT",
    teaches="three elementwise kernels instead of six, and no array for the mask",
)
def fused(device: Device, operands: Operands) -> Launch:
    """Threshold and convert; FFT; mask and scale; inverse FFT; real part."""
    return _fused_steps(device, operands)


@cufft_kernel(
    "graph",
    workload="filter",
    title="fused, launched as one CUDA graph",
    teaches="one launch for all steps: small images are limited by launches",
)
def graph(device: Device, operands: Operands) -> Launch:
    """The steps of ``fused``, captured while they are prepared.

    The first run, before the capture, loads the code: loading is not allowed in every capture. The
    stream of the capture is one of its own, because other streams may not wait for it.
    """
    steps = _fused_steps(device, operands)
    steps()
    device.synchronize()
    before = device.stream
    side = device.arrays.cuda.Stream(non_blocking=True)
    side.use()
    try:
        side.begin_capture()
        steps()
        captured = side.end_capture()
    finally:
        before.use()

    # The graph holds plain addresses: `alive` keeps plan and arrays.
    def launch(alive: object = steps) -> None:
        captured.launch()

    return launch


@cufft_kernel(
    "real",
    workload="filter",
    title="fused with FFTs of real numbers",
    teaches="half of the spectrum determines the rest: half of the work and traffic",
)
def real(device: Device, operands: Operands) -> Launch:
    """Threshold; FFT to half of the spectrum; mask and scale; inverse FFT to real numbers."""
    arrays, x, y, problem = device.arrays, operands.x, operands.y, _problem(operands)
    columns = problem.n // 2 + 1
    kept, spectra = arrays.empty_like(x), _intermediate(device, operands, columns)
    keep = arrays.ElementwiseKernel(
        "T x, T threshold", "T kept", "kept = x < threshold ? T(0) : x", "rooflab_filter_keep_real"
    )
    threshold = x.dtype.type(problem.threshold)
    to_spectra = partial(make_plan(problem, "R2C").fft, kept, spectra, _forward())
    to_images = partial(make_plan(problem, "C2R").fft, spectra, y, _inverse())
    scaled = _mask_arguments(problem, columns)
    mask = partial(_mask_kernel(arrays, x.dtype.name), spectra, *scaled, spectra)

    def launch() -> None:
        keep(x, threshold, kept)
        to_spectra()
        mask()
        to_images()

    return launch
