"""Workloads with a two-dimensional FFT: fft, spectrum and filter.

Complex numbers are stored as pairs (real, imaginary) in a last axis of 2: the memory layout of C's
and NumPy's complex types. FFTs are forward and not normalised: element [0, 0] of a transform is
frequency zero, the sum of all elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor, log2, pi, sqrt
from typing import Any, ClassVar, Final

from rooflab.errors import UsageError
from rooflab.model.precision import Precision
from rooflab.model.problem import Inputs, Operand, extent, in_and_out, setting
from rooflab.workloads.batches import Batch

COMPLEX: Final = {"fp32": "complex64", "fp64": "complex128"}
"""The complex type of NumPy and CuPy in each precision."""


def fft_flops(n: int) -> int:
    """5·N·log2(N) for the N = n² points of a matrix.

    The convention of FFTW's benchmarks (fftw.org/speed/method.html), which is what a radix-2 FFT
    needs; other algorithms need less, and sizes with large prime factors more.
    """
    return round(5 * n * n * log2(n * n))


def fft_rounding(precision: Precision, n: int) -> float:
    """Largest ‖out - ref‖ / ‖ref‖ of the FFT of n x n points in the accumulate type.

    3.4 epsilons for each halving of the N = n² points, with twiddle factors that are right to half
    an epsilon (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, theorem 24.2). The
    bound is for radix 2. A usual error grows with the root of log N only; this leaves the room that
    the longer transforms of prime sizes (Bluestein) need.
    """
    return 4 * max(1.0, log2(n * n)) * precision.accumulate.epsilon


def complex_of(pairs: Any) -> Any:
    """(…, 2) real numbers as (…) complex ones."""
    return pairs[..., 0] + 1j * pairs[..., 1]


def pairs_of(arrays: Any, values: Any) -> Any:
    """(…) complex numbers as (…, 2) real ones."""
    return arrays.stack([values.real, values.imag], axis=-1)


@dataclass(frozen=True, kw_only=True)
class Matrices(Batch):
    """The base: ``batch`` square matrices, of which a kernel's blocks take whole ones."""

    sizes: ClassVar = ("n",)

    n: int = extent("rows and columns of a matrix")

    def _complex(self, *names: str) -> tuple[Operand, ...]:
        """Operands of (batch, n, n, 2); the last one is the output."""
        return in_and_out(self.precision, **dict.fromkeys(names, (self.batch, self.n, self.n, 2)))


@dataclass(frozen=True, kw_only=True)
class Fft(Matrices):
    """Large matrices pass through memory twice or more: once for the rows, once for the columns."""

    workload: ClassVar = "fft"
    title: ClassVar = "two-dimensional FFT of complex matrices"
    formula: ClassVar = "Y = F·X·F, F[j, k] = exp(-2πi·j·k / n)"
    work: ClassVar = "5·N·log2(N)·batch by convention, N = n²"

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The matrices and their transforms."""
        return self._complex("x", "y")

    @property
    def flops(self) -> int:
        """By convention; 0 for n = 1."""
        return self.batch * fft_flops(self.n)

    @property
    def tolerance(self) -> float:
        """The FFT's rounding and that of the output."""
        return self.precision.rounding(0) + fft_rounding(self.precision, self.n)

    def magnitude(self, rms: Mapping[str, float]) -> float:
        """A sum of n² random numbers has n times the size of one number."""
        return self.n * rms["x"]

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """The array library's FFT in complex FP64."""
        return {"y": pairs_of(arrays, arrays.fft.fft2(complex_of(inputs["x"])))}


@dataclass(frozen=True, kw_only=True)
class Spectrum(Matrices):
    """A product limited by arithmetic, then a transform limited by memory."""

    workload: ClassVar = "spectrum"
    title: ClassVar = "two-dimensional FFT of products of complex matrices"
    formula: ClassVar = "Y = F·(A·B)·F, F[j, k] = exp(-2πi·j·k / n)"
    work: ClassVar = "(8·n³ + 5·N·log2(N))·batch, N = n²"

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The factors and the transforms of their products."""
        return self._complex("a", "b", "y")

    @property
    def flops(self) -> int:
        """Four multiplications and four additions for each complex product, and the FFT."""
        return self.batch * (8 * self.n**3 + fft_flops(self.n))

    @property
    def tolerance(self) -> float:
        """Sums of 2n real products, then the FFT, which keeps relative errors of that norm."""
        return self.precision.dot_product(2 * self.n) + fft_rounding(self.precision, self.n)

    def magnitude(self, rms: Mapping[str, float]) -> float:
        """A part of the product is a sum of 2n products; the FFT adds n² of them."""
        return self.n * sqrt(2 * self.n) * rms["a"] * rms["b"]

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """The product and its FFT in complex FP64."""
        product = complex_of(inputs["a"]) @ complex_of(inputs["b"])
        return {"y": pairs_of(arrays, arrays.fft.fft2(product))}


@dataclass(frozen=True, kw_only=True)
class Filter(Matrices):
    """A chain of short steps: how much of its time is traffic between them?

    A frequency f counts as itself or as f - n, whichever is nearer to zero; the low-pass keeps the
    pairs of row and column frequency with radius ≤ cutoff·n/2. No shift is needed: frequency zero
    is element [0, 0]. The mask is the same for f and -f, so that the result is real.
    """

    workload: ClassVar = "filter"
    title: ClassVar = "threshold and low-pass filter of images"
    formula: ClassVar = "y = F⁻¹(mask·F(x ≥ threshold ? x : 0)), mask = radius ≤ cutoff·n/2"
    work: ClassVar = "(5·N·log2(N) + 3·N)·batch, N = n²"
    arguments: ClassVar = ("batch", "n", "threshold", "radius_squared", "x", "y")

    threshold: float = setting(0.25, "pixels below it become 0")
    cutoff: float = setting(0.5, "largest frequency that is kept, in n/2; 0 keeps the mean")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cutoff < 0:
            raise UsageError(f"cutoff = {self.cutoff:g} keeps no frequency: give 0 or more")

    @property
    def radius_squared(self) -> int:
        """Largest sum of squares of two frequencies that is kept.

        A whole number, so that every kernel keeps the same frequencies. All radii are below n.
        """
        return floor((min(self.cutoff, 2.0) * self.n / 2) ** 2)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The images and the filtered images, real."""
        shape = (self.batch, self.n, self.n)
        return in_and_out(self.precision, x=shape, y=shape)

    @property
    def flops(self) -> int:
        """Two FFTs of real numbers, each half of a complex one; threshold, mask and scale."""
        return self.batch * (fft_flops(self.n) + 3 * self.n**2)

    @property
    def tolerance(self) -> float:
        """Two FFTs; the mask is exact."""
        return self.precision.rounding(1) + 2 * fft_rounding(self.precision, self.n)

    def magnitude(self, rms: Mapping[str, float]) -> float:
        """Noise of which the filter keeps its share of frequencies, a disc: it may have no mean."""
        share = min(1.0, pi * max(1, self.radius_squared) / self.n**2)
        return sqrt(share) * rms["x"]

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """Step by step in complex FP64. The threshold is compared in the accumulate type."""
        x = inputs["x"]
        threshold = arrays.asarray(self.threshold, dtype=self.precision.accumulate.storage)
        spectrum = arrays.fft.fft2(arrays.where(x < threshold, 0.0, x))
        return {"y": arrays.fft.ifft2(spectrum * self.mask(arrays)).real}

    def hard_numbers(self) -> dict[str, float]:
        """Also the threshold, which is not below itself."""
        return super().hard_numbers() | {"pixels at the threshold": self.threshold}

    def mask(self, arrays: Any) -> Any:
        """(n, n) on the array module: whether each frequency is kept."""
        places = arrays.arange(self.n)
        distances = arrays.minimum(places, self.n - places) ** 2
        return distances[:, None] + distances[None, :] <= self.radius_squared
