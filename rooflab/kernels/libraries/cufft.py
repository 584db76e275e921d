"""Workloads with a two-dimensional FFT on a GPU: cuFFT and cuBLAS through CuPy.

Each prepared launch has a plan of its own. CuPy's functions take plans from a cache, and a plan has
one workspace: two streams with the same plan overwrite each other's (github.com/cupy/cupy, issue
8079). Launches allocate nothing: workspace and intermediate arrays belong to the launch.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from rooflab.devices.base import Device, Launch
from rooflab.errors import KernelError
from rooflab.kernels.base import Operands
from rooflab.kernels.libraries import cublas
from rooflab.kernels.libraries.cuda import needs
from rooflab.kernels.registry import register
from rooflab.model.problem import Problem
from rooflab.workloads.spectral import COMPLEX, Filter

TRANSFORMS: Final = {
    "fp32": {"C2C": "CUFFT_C2C", "R2C": "CUFFT_R2C", "C2R": "CUFFT_C2R"},
    "fp64": {"C2C": "CUFFT_Z2Z", "R2C": "CUFFT_D2Z", "C2R": "CUFFT_Z2D"},
}

FORWARD: Final = -1
INVERSE: Final = 1
"""Directions of a transform (cuFFT, "cufftExec")."""

cufft_kernel = partial(
    register,
    backend="cufft",
    device_kind="cuda",
    precisions=tuple(COMPLEX),
    unavailable=needs("cufft"),
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


@cufft_kernel(
    "cufft",
    workload="fft",
    teaches="the vendor's library, the baseline on this device",
    library=True,
)
def fft(device: Device, operands: Operands) -> Launch:
    """cuFFT."""
    return partial(make_plan(operands.problem).fft, operands.x, operands.y, FORWARD)


@cufft_kernel(
    "cublas_cufft",
    workload="spectrum",
    teaches="two libraries on one stream; the product stays in device memory",
    unavailable=needs("cublas", "cufft"),
    unsupported=cublas.unsupported,
    library=True,
)
def spectrum(device: Device, operands: Operands) -> Launch:
    """cuBLAS gemmStridedBatchedEx, then cuFFT in place."""
    import numpy as np

    y, transform = operands.y, make_plan(operands.problem).fft
    scalars = np.array([1, 0], COMPLEX[operands.problem.precision.name])
    multiply = cublas.multiply(operands, "aby", scalars, "C", batched=True)

    def launch() -> None:
        multiply()
        transform(y, y, FORWARD)

    return launch


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
    teaches="the definition: every step reads and writes device memory",
    library=True,
)
def stages(device: Device, operands: Operands) -> Launch:
    """CuPy, a kernel for each step, and cuFFT."""
    # Threshold, convert, FFT, mask, inverse FFT, real part, scale.
    arrays, x, y, problem = device.arrays, operands.x, operands.y, _problem(operands)
    kept, spectra = arrays.empty_like(x), _intermediate(device, operands)
    above = arrays.empty(x.shape, dtype=bool)
    mask = problem.mask(arrays).astype(x.dtype)
    threshold, scale = x.dtype.type(problem.threshold), x.dtype.type(1 / problem.n**2)
    transform = make_plan(problem).fft

    def launch() -> None:
        arrays.greater_equal(x, threshold, out=above)
        arrays.multiply(x, above, out=kept)
        arrays.copyto(spectra, kept)
        transform(spectra, spectra, FORWARD)
        arrays.multiply(spectra, mask, out=spectra)
        transform(spectra, spectra, INVERSE)
        arrays.copyto(y, spectra.real)
        arrays.multiply(y, scale, out=y)

    return launch


def _mask(arrays: Any, problem: Filter, spectra: Any, real: str) -> Launch:
    """Sets frequencies outside the radius to 0 and scales the others.

    ``i`` is the index of an element of (batch, n, columns); with the half of a spectrum, columns
    are n / 2 + 1, and all of them are frequencies up to n / 2.
    """
    kernel = arrays.ElementwiseKernel(
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
    n, columns = problem.n, spectra.shape[-1]
    return partial(kernel, spectra, n, columns, problem.radius_squared, 1 / n**2, spectra)


@cufft_kernel(
    "fused",
    workload="filter",
    teaches="three elementwise kernels instead of six, and no array for the mask",
)
def fused(device: Device, operands: Operands) -> Launch:
    """Neighbouring steps in one kernel, and cuFFT."""
    # Threshold and convert; FFT; mask and scale; inverse FFT; real part.
    arrays, x, y, problem = device.arrays, operands.x, operands.y, _problem(operands)
    spectra = _intermediate(device, operands)
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
    transform = make_plan(problem).fft
    mask = _mask(arrays, problem, spectra, x.dtype.name)

    def launch() -> None:
        keep(x, threshold, spectra)
        transform(spectra, spectra, FORWARD)
        mask()
        transform(spectra, spectra, INVERSE)
        real_part(spectra, y)

    return launch


@cufft_kernel(
    "graph",
    workload="filter",
    teaches="one launch for all steps: small images are limited by launches",
)
def graph(device: Device, operands: Operands) -> Launch:
    """fused, launched as one CUDA graph.

    The steps of ``fused``, captured while they are prepared.

    The first run, before the capture, loads the code: loading is not allowed in every capture. The
    stream of the capture is one of its own, because other streams may not wait for it.
    """
    steps = fused(device, operands)
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
    teaches="half of the spectrum determines the rest: half of the work and traffic",
)
def real(device: Device, operands: Operands) -> Launch:
    """fused with FFTs of real numbers."""
    # Threshold; FFT to half of the spectrum; mask and scale; inverse FFT to real numbers.
    arrays, x, y, problem = device.arrays, operands.x, operands.y, _problem(operands)
    kept, spectra = arrays.empty_like(x), _intermediate(device, operands, problem.n // 2 + 1)
    keep = arrays.ElementwiseKernel(
        "T x, T threshold", "T kept", "kept = x < threshold ? T(0) : x", "rooflab_filter_keep_real"
    )
    threshold = x.dtype.type(problem.threshold)
    to_spectra = partial(make_plan(problem, "R2C").fft, kept, spectra, FORWARD)
    to_images = partial(make_plan(problem, "C2R").fft, spectra, y, INVERSE)
    mask = _mask(arrays, problem, spectra, x.dtype.name)

    def launch() -> None:
        keep(x, threshold, kept)
        to_spectra()
        mask()
        to_images()

    return launch
