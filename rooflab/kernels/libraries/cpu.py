"""The CPU's kernels: NumPy's functions and BLAS, and loops in Numba that run on all threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise, product
from math import inf, pi, sqrt
from typing import Any, Final

from rooflab.devices.base import Device, Launch
from rooflab.devices.cpu.ceilings import fix_numba_threads
from rooflab.errors import KernelError
from rooflab.kernels.base import Operands
from rooflab.kernels.registry import register
from rooflab.model.encoding import E4M3, E4M3_MAX, encode
from rooflab.model.precision import FP8_E4M3
from rooflab.workloads.attention import Attention
from rooflab.workloads.attention_gradients import AttentionBackward
from rooflab.workloads.elementwise import Elementwise
from rooflab.workloads.linear import CUBE
from rooflab.workloads.quantised import GROUP, ZERO
from rooflab.workloads.quantization import BLOCK

FLOATS: Final = ("fp32", "fp64")
NUMBERS: Final = (*FLOATS, "int32", "int64")

PARTS: Final = 64
"""Partial sums per thread: enough for short chains of additions, few enough to add quickly."""


def without_numba(device: Device | None) -> str:
    """Why no Numba kernel can run, empty if it can."""
    return "" if find_spec("numba") else "Numba is not installed: pip install numba"


cpu = partial(register, device_kind="cpu", precisions=FLOATS)
numpy_kernel = partial(cpu, "numpy", backend="numpy")
numba_kernel = partial(cpu, backend="numba", unavailable=without_numba)


def steps(
    workload: str,
    rest: Callable[..., Iterable[Any]] | None = None,
    name: str = "numpy",
    **facts: Any,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function of NumPy, the problem and its operands, which is the launch itself.

    It is also given what ``rest`` makes of the same before any launch, such as an array for steps.
    """

    def add(function: Callable[..., None]) -> Callable[..., None]:
        def prepare(device: Device, operands: Operands) -> Launch:
            given = (device.arrays, operands.problem, *operands.values())
            return partial(function, *given, *(rest(*given) if rest else ()))

        prepare.__doc__ = function.__doc__ or "NumPy, a pass for each step."
        cpu(name, backend="numpy", workload=workload, **facts)(prepare)
        return function

    return add


def _numba(module: str, device: Device) -> tuple[Any, int]:
    """A module of Numba kernels, and their number of threads."""
    threads = device.fact("threads")
    try:
        loops = import_module(f"{__package__}._numba_{module}")
        return loops, fix_numba_threads(threads if isinstance(threads, int) else 1)
    except ImportError as error:
        raise KernelError(f"Numba cannot be imported: {error}") from error


# GEMM: from the textbook loop to the vendor's library --------------------------------------------


def _gemm_arguments(operands: Operands) -> tuple[Any, Any, Any, float, float]:
    """A as (batch, M, K) and B as (batch, K, N), views in any layout; C, alpha and beta."""
    settings = operands.problem.settings
    a, b = (
        operands[name].swapaxes(1, 2) if letter == "t" else operands[name]
        for name, letter in zip("ab", str(settings["layout"]), strict=True)
    )
    return a, b, operands.c, float(settings["alpha"]), float(settings["beta"])


def _started(function: Callable[..., None], operands: Operands, *workspace: Any) -> Launch:
    """``function`` with its arguments, after a first run, which starts Numba's threads."""
    a, b, c, alpha, beta = _gemm_arguments(operands)
    element = c[:1, :1, :1].copy()
    function(element, element, element, 0.0, 0.0, *workspace)
    return partial(function, a, b, c, alpha, beta, *workspace)


@numba_kernel("naive", teaches="the cost of reading B by columns and of adding to a single scalar")
def naive(device: Device, operands: Operands) -> Launch:
    """Triple loop, rows in parallel (Numba)."""
    loops, _ = _numba("gemm", device)
    function = loops.compiled(loops.naive, operands.problem.precision.name)
    return _started(function, operands)


@numba_kernel("tiled", teaches="packing, cache tiles and register reuse: more arithmetic per load")
def tiled(device: Device, operands: Operands) -> Launch:
    """Packed cache tiles, vectors along N (Numba)."""
    loops, threads = _numba("gemm", device)
    function = loops.compiled(loops.tiled, operands.problem.precision.name, workspace=True)
    return _started(function, operands, loops.shared_workspace(threads, operands.c.dtype))


@cpu(
    "blas",
    backend="numpy",
    teaches="a vendor's library, the baseline on this machine",
    library=True,
)
def blas(device: Device, operands: Operands) -> Launch:
    """NumPy's BLAS library."""
    # ``numpy.matmul`` has no alpha and beta: they need additional passes over C.
    matmul, scale, add = device.arrays.matmul, device.arrays.multiply, device.arrays.add
    a, b, c, alpha, beta = _gemm_arguments(operands)
    product = device.arrays.empty_like(c) if beta else c

    def launch() -> None:
        matmul(a, b, out=product)
        if alpha != 1:
            scale(product, alpha, out=product)
        if beta:
            scale(c, beta, out=c)
            add(c, product, out=c)

    return launch


# Products of a language model --------------------------------------------------------------------


@steps("grouped_gemm", name="blas", library=True)
def _grouped(numpy: Any, problem: Any, x: Any, w: Any, ends: Any, y: Any) -> None:
    """NumPy's BLAS library, expert by expert."""
    for (start, end), weights in zip(pairwise((0, *problem.ends)), w, strict=True):
        numpy.matmul(x[start:end], weights, out=y[start:end])


@steps("w4a16")
def _w4a16(numpy: Any, problem: Any, x: Any, packed: Any, scales: Any, y: Any) -> None:
    """NumPy, a pass for each step, then BLAS."""
    k = problem.k
    bits = numpy.stack([packed & 15, packed >> 4], axis=2).reshape(len(packed), -1)[:, :k]
    weights = (bits - x.dtype.type(ZERO)) * scales.repeat(GROUP, axis=1)[:, :k]
    numpy.matmul(x, weights.T, out=y)


@steps("block_gemm", lambda numpy, problem, *arrays: [numpy.array(E4M3, arrays[-1].dtype)])
def _block_gemm(
    numpy: Any, problem: Any, x: Any, w: Any, x_scales: Any, w_scales: Any, y: Any, table: Any
) -> None:
    """NumPy, a table for FP8 and a pass for each step, then BLAS."""
    n, k = w.shape
    tokens = table[x] * x_scales.T.repeat(GROUP, axis=1)[:, :k]
    each = w_scales.repeat(GROUP, axis=0)[:n].repeat(GROUP, axis=1)[:, :k]
    numpy.matmul(tokens, (table[w] * each).T, out=y)


@steps(
    "linear",
    lambda numpy, problem, x, w, *others: [numpy.empty((problem.m, len(w)), x.dtype)],
)
def _linear(numpy: Any, problem: Any, x: Any, w: Any, *others: Any) -> None:
    """NumPy's BLAS library, then a pass for each step."""
    *bias, y, rest = others
    numpy.matmul(x, w.T, out=rest if problem.gated else y)
    if problem.gated:
        _swiglu(numpy, problem, rest[:, : problem.n], rest[:, problem.n :], y)
        return
    numpy.add(y, *bias, out=y)
    if problem.epilogue == "gelu":
        _gelu(numpy, y, rest)


def _gelu(numpy: Any, z: Any, rest: Any) -> None:
    """In place, by a hyperbolic tangent."""
    numpy.multiply(z, z, out=rest)
    numpy.multiply(rest, CUBE, out=rest)
    numpy.add(rest, 1, out=rest)
    numpy.multiply(rest, z, out=rest)
    numpy.multiply(rest, sqrt(2 / pi), out=rest)
    numpy.tanh(rest, out=rest)
    numpy.add(rest, 1, out=rest)
    numpy.multiply(z, 0.5, out=z)
    numpy.multiply(z, rest, out=z)


# NumPy's functions -------------------------------------------------------------------------------


@numpy_kernel(workload="add", precisions=NUMBERS)
def numpy_add(device: Device, operands: Operands) -> Launch:
    """numpy.add, one thread."""
    return partial(device.arrays.add, operands.a, operands.b, out=operands.c)


@numpy_kernel(workload="copy", precisions=NUMBERS)
def numpy_copy(device: Device, operands: Operands) -> Launch:
    """numpy.copyto, one thread."""
    return partial(device.arrays.copyto, operands.c, operands.a)


@numpy_kernel(workload="sum", precisions=NUMBERS)
def numpy_sum(device: Device, operands: Operands) -> Launch:
    """numpy.sum, one thread."""
    x, y = operands.x, operands.y
    return partial(device.arrays.sum, x, out=y[0, ...], dtype=y.dtype)


@cpu("blas", backend="numpy", workload="gemv", library=True)
def blas_gemv(device: Device, operands: Operands) -> Launch:
    """NumPy's BLAS library."""
    return partial(device.arrays.matmul, operands.a, operands.x, out=operands.y)


@numpy_kernel(workload="embedding")
def numpy_embedding(device: Device, operands: Operands) -> Launch:
    """numpy.take, one thread."""
    ids, table, y = operands.values()
    # Results go through a buffer unless wrong numbers are clipped.
    return partial(device.arrays.take, table, ids, axis=0, out=y, mode="clip")


@steps("triad")
def _triad(numpy: Any, problem: Any, a: Any, b: Any, c: Any) -> None:
    """numpy.multiply, then numpy.add."""
    # Two passes, because NumPy has no fused one: C is written, read and written again.
    numpy.multiply(b, problem.alpha, out=c)
    numpy.add(a, c, out=c)


@steps("softmax")
def _softmax(numpy: Any, problem: Any, x: Any, y: Any) -> None:
    numpy.subtract(x, x.max(axis=1, keepdims=True), out=y)
    numpy.exp(y, out=y)
    numpy.divide(y, y.sum(axis=1, keepdims=True), out=y)


@steps("rmsnorm")
def _rmsnorm(numpy: Any, problem: Any, x: Any, w: Any, y: Any) -> None:
    numpy.multiply(x, x, out=y)
    scale = numpy.sqrt(y.mean(axis=1, keepdims=True) + problem.epsilon)
    numpy.divide(x, scale, out=y)
    numpy.multiply(y, w, out=y)


@steps("layernorm")
def _layernorm(numpy: Any, problem: Any, x: Any, w: Any, b: Any, y: Any) -> None:
    off = x - x.mean(axis=1, keepdims=True)
    _rmsnorm(numpy, problem, off, w, y)
    numpy.add(y, b, out=y)


def like_the_first(numpy: Any, problem: Any, first: Any, *others: Any) -> list[Any]:
    """An array like the first operand, for steps."""
    return [numpy.empty_like(first)]


@steps("rmsnorm_backward", like_the_first)
def _rmsnorm_backward(
    numpy: Any, problem: Any, x: Any, dy: Any, w: Any, rstd: Any, dx: Any, dw: Any, normal: Any
) -> None:
    scale = rstd[:, None]
    numpy.multiply(x, scale, out=normal)
    numpy.sum(dy * normal, axis=0, out=dw)
    numpy.multiply(dy, w, out=dx)
    numpy.multiply(normal, (dx * normal).mean(axis=1, keepdims=True), out=normal)
    numpy.subtract(dx, normal, out=dx)
    numpy.multiply(dx, scale, out=dx)


@steps("layernorm_backward", like_the_first)
def _layernorm_backward(
    numpy: Any, problem: Any, x: Any, dy: Any, w: Any, mean: Any, rstd: Any, *others: Any
) -> None:
    (dx, dw, db, normal), scale = others, rstd[:, None]
    numpy.subtract(x, mean[:, None], out=normal)
    numpy.multiply(normal, scale, out=normal)
    numpy.sum(dy * normal, axis=0, out=dw)
    numpy.sum(dy, axis=0, out=db)
    numpy.multiply(dy, w, out=dx)
    numpy.multiply(normal, (dx * normal).mean(axis=1, keepdims=True), out=normal)
    numpy.add(normal, dx.mean(axis=1, keepdims=True), out=normal)
    numpy.subtract(dx, normal, out=dx)
    numpy.multiply(dx, scale, out=dx)


@steps(
    "cross_entropy",
    lambda numpy, problem, x, *others: [numpy.empty_like(x), numpy.arange(len(x))],
)
def _cross_entropy(
    numpy: Any, problem: Any, x: Any, targets: Any, y: Any, powers: Any, rows: Any
) -> None:
    numpy.subtract(x, x.max(axis=1, keepdims=True), out=powers)
    chosen = powers[rows, targets]
    numpy.exp(powers, out=powers)
    numpy.subtract(numpy.log(powers.sum(axis=1)), chosen, out=y)


@steps("cross_entropy_backward", lambda numpy, problem, x, *others: [numpy.arange(len(x))])
def _cross_entropy_backward(
    numpy: Any, problem: Any, x: Any, targets: Any, dx: Any, rows: Any
) -> None:
    _softmax(numpy, problem, x, dx)
    dx[rows, targets] -= 1
    numpy.multiply(dx, problem.scale, out=dx)


@steps("adamw", lambda numpy, problem, *arrays: [numpy.empty_like(arrays[-1])])
def _adamw(numpy: Any, problem: Any, p: Any, g: Any, m: Any, v: Any, root: Any) -> None:
    numpy.multiply(m, problem.beta1, out=m)
    numpy.add(m, problem.rest1 * g, out=m)
    numpy.multiply(v, problem.beta2, out=v)
    numpy.add(v, problem.rest2 * (g * g), out=v)
    numpy.sqrt(v, out=root)
    numpy.multiply(root, problem.correction, out=root)
    numpy.add(root, problem.epsilon, out=root)
    numpy.multiply(p, problem.kept, out=p)
    numpy.subtract(p, problem.rate * m / root, out=p)


@steps("swiglu")
def _swiglu(numpy: Any, problem: Any, gate: Any, up: Any, out: Any) -> None:
    numpy.negative(gate, out=out)
    with numpy.errstate(over="ignore"):  # the quotient is zero then
        numpy.exp(out, out=out)
    numpy.add(out, 1, out=out)
    numpy.divide(gate, out, out=out)
    numpy.multiply(out, up, out=out)


@steps("rope")
def _rope(numpy: Any, problem: Any, x: Any, cos: Any, sin: Any, y: Any) -> None:
    half = problem.half
    a, b, first, second = x[..., :half], x[..., half:], y[..., :half], y[..., half:]
    numpy.multiply(a, cos, out=first)
    numpy.subtract(first, b * sin, out=first)
    numpy.multiply(b, cos, out=second)
    numpy.add(second, a * sin, out=second)


@steps(
    "quantize",
    lambda numpy, problem, x, *_: [numpy.zeros((problem.rows, problem.blocks * BLOCK), x.dtype)],
)
def _quantize(numpy: Any, problem: Any, x: Any, scales: Any, q: Any, whole: Any) -> None:
    whole[:, : problem.columns] = x
    parts = whole.reshape(*scales.shape, BLOCK)
    found = numpy.maximum(abs(parts).max(axis=2), problem.least) / E4M3_MAX
    quotients = (parts / found[:, :, None]).reshape(whole.shape)
    scales[...] = found
    q[...] = encode(numpy, quotients[:, : problem.columns], FP8_E4M3)


@steps("route")
def _route(numpy: Any, problem: Any, logits: Any, weights: Any, ids: Any) -> None:
    """NumPy, by a sort of each row."""
    ids[...] = numpy.argsort(-logits, axis=1)[:, : problem.chosen]
    largest = numpy.take_along_axis(logits, ids, axis=1)
    numpy.exp(largest - largest[:, :1], out=weights)
    whole = weights if problem.normalised == "on" else numpy.exp(logits - largest[:, :1])
    numpy.divide(weights, whole.sum(axis=1, keepdims=True), out=weights)


@steps(
    "sort_experts", lambda numpy, problem, *_: map(numpy.arange, (problem.rows, problem.experts))
)
def _sort_experts(numpy: Any, problem: Any, *arrays: Any) -> None:
    """numpy.argsort, stable."""
    ids, weights, sources, shares, places, ends, slots, experts = (a.reshape(-1) for a in arrays)
    order = numpy.argsort(ids, kind="stable")
    numpy.floor_divide(order, problem.chosen, out=sources)
    shares[...] = weights[order]
    places[order] = slots
    ends[...] = numpy.searchsorted(ids[order], experts, side="right")


@steps("combine")
def _combine(numpy: Any, problem: Any, rows: Any, shares: Any, places: Any, y: Any) -> None:
    """NumPy, a product of each token's weights and rows."""
    some = places.reshape(problem.tokens, problem.chosen)
    numpy.matmul(shares[some][:, None, :], rows[some], out=y[:, None, :])


@steps(
    "blur",
    lambda numpy, problem, x, y: [
        numpy.empty((problem.batch, problem.rows + 2, problem.columns + 2), x.dtype)
    ],
)
def _blur(numpy: Any, problem: Any, x: Any, y: Any, padded: Any) -> None:
    # (1 2 1) down the columns, then along the rows, of images with a border of one pixel.
    padded[:, 1:-1, 1:-1] = x
    padded[:, 0], padded[:, -1] = padded[:, 1], padded[:, -2]
    padded[:, :, 0], padded[:, :, -1] = padded[:, :, 1], padded[:, :, -2]
    down = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
    numpy.add(down[:, :, :-2] + 2 * down[:, :, 1:-1], down[:, :, 2:], out=y)
    numpy.divide(y, 16, out=y)


# One parallel loop in Numba ----------------------------------------------------------------------


def numba_loop(device: Device, operands: Operands) -> Launch:
    """The function called as the workload, after a first run, which compiles it."""
    problem = operands.problem
    function = getattr(_numba("loops", device)[0], problem.workload)
    flat = isinstance(problem, Elementwise)
    arrays = [array.reshape(-1) if flat else array for array in operands.values()]
    launch = partial(function, *arrays, *map(float, problem.settings.values()))
    launch()
    return launch


for _workload, _title, _precisions in (
    ("add", "One loop, all threads (Numba)", NUMBERS),
    ("copy", "One loop, all threads (Numba)", NUMBERS),
    ("triad", "One loop, all threads (Numba)", FLOATS),
    ("gemv", "One row after the other, all threads", FLOATS),
    ("softmax", "A row at a time, all threads", FLOATS),
    ("rmsnorm", "A row at a time, all threads", FLOATS),
    ("blur", "One row after the other, all threads", FLOATS),
):
    numba_kernel("numba", workload=_workload, title=_title, precisions=_precisions)(numba_loop)


@numba_kernel("numba", workload="sum", precisions=NUMBERS)
def numba_sum(device: Device, operands: Operands) -> Launch:
    """Partial sums on all threads (Numba)."""
    loops, threads = _numba("loops", device)
    x, y, total = operands.x, operands.y, device.arrays.sum
    parts = device.arrays.empty(PARTS * threads, dtype=y.dtype)

    def launch() -> None:
        loops.sum_parts(x, parts)
        total(parts, out=y[0, ...], dtype=y.dtype)

    launch()
    return launch


# Attention ---------------------------------------------------------------------------------------

SCORES: Final = 2**19
"""Scores that are computed at once: they stay in the caches of a core."""


@steps(
    "attention",
    lambda numpy, problem, *_: [numpy.array(E4M3, numpy.float32)],
    precisions=(*FLOATS, "fp8"),
)
def _attention(numpy: Any, problem: Attention, q: Any, k: Any, v: Any, o: Any, table: Any) -> None:
    """NumPy's BLAS library, and passes over some scores at a time; a table for FP8."""
    widen = table.take if problem.precision.input is FP8_E4M3 else numpy.asarray
    some = max(1, SCORES // (problem.group * problem.keys))
    for z, head in product(range(problem.batch), range(problem.kv_heads)):
        heads = slice(head * problem.group, (head + 1) * problem.group)
        seen = widen(k[z, head]), widen(v[z, head])
        for start in range(0, problem.queries, some):
            rows = (z, heads, slice(start, start + some))
            found = _attended(numpy, problem, widen(q[rows]), *seen, start)
            o[rows] = encode(numpy, found, problem.precision.output)


def _attended(numpy: Any, problem: Attention, q: Any, k: Any, v: Any, start: int) -> Any:
    """What the queries from ``start`` on, of the heads that share keys and values, find."""
    group, rows, size = q.shape
    last = numpy.arange(start, start + rows) + problem.keys - problem.queries
    seen = int(last[-1]) + 1 if problem.masked else problem.keys
    scores = (q * q.dtype.type(size**-0.5)).reshape(-1, size) @ k[:seen].T
    if problem.masked:
        scores.reshape(group, rows, seen)[:, numpy.arange(seen) > last[:, None]] = -inf
    scores -= scores.max(axis=1, keepdims=True)
    numpy.exp(scores, out=scores)
    found = scores @ v[:seen]
    found /= scores.sum(axis=1, keepdims=True)
    return found.reshape(q.shape)


@steps("attention_backward")
def _attention_backward(numpy: Any, problem: AttentionBackward, *arrays: Any) -> None:
    """NumPy's BLAS library, and passes over some scores at a time."""
    q, k, v, o, dout, lse, dq, dk, dv = arrays
    some = max(1, SCORES // (problem.group * problem.keys))
    for z, head in product(range(problem.batch), range(problem.kv_heads)):
        heads = slice(head * problem.group, (head + 1) * problem.group)
        dk[z, head] = dv[z, head] = 0
        for start in range(0, problem.queries, some):
            rows = (z, heads, slice(start, start + some))
            known = k[z, head], v[z, head], start, *(one[rows] for one in (q, o, dout, lse))
            of_q, of_k, of_v = _gradients(numpy, problem, *known)
            dq[rows] = of_q.reshape(dq[rows].shape)
            dk[z, head, : len(of_k)] += of_k
            dv[z, head, : len(of_v)] += of_v


def _gradients(
    numpy: Any, problem: AttentionBackward, k: Any, v: Any, start: int, *of_queries: Any
) -> tuple[Any, Any, Any]:
    """dQ of the queries from ``start`` on, and their part of dK and dV of keys that they see."""
    group, rows, size = of_queries[0].shape
    q, o, dout, lse = (one.reshape(group * rows, -1) for one in of_queries)
    last = numpy.arange(start, start + rows) + problem.keys - problem.queries
    seen = int(last[-1]) + 1 if problem.masked else problem.keys
    scale = q.dtype.type(size**-0.5)
    weights = (q * scale) @ k[:seen].T
    weights -= lse
    if problem.masked:
        weights.reshape(group, rows, seen)[:, numpy.arange(seen) > last[:, None]] = -inf
    numpy.exp(weights, out=weights)
    changes = dout @ v[:seen].T
    changes -= (dout * o).sum(axis=1, keepdims=True)
    changes *= weights
    changes *= scale
    return changes @ k[:seen], changes.T @ q, weights.T @ dout


@numba_kernel("numba", workload="attention")
def numba_attention(device: Device, operands: Operands) -> Launch:
    """A query at a time, all threads (Numba)."""
    problem = operands.problem
    assert isinstance(problem, Attention)
    scale = operands.q.dtype.type(problem.head_size**-0.5)
    attention = _numba("loops", device)[0].attention
    launch = partial(attention, *operands.values(), scale, problem.masked)
    element = [array[:1, :1, :1] for array in operands.values()]
    attention(*element, scale, problem.masked)
    return launch


# Two-dimensional FFTs by NumPy (pocketfft) -------------------------------------------------------


def _complex(pairs: Any) -> Any:
    """A view of pairs (real, imaginary) as complex numbers, of (batch, n, n)."""
    return pairs.view(f"c{2 * pairs.itemsize}")[..., 0]


@numpy_kernel(workload="fft")
def numpy_fft(device: Device, operands: Operands) -> Launch:
    """numpy.fft.fft2, one thread."""
    return partial(device.arrays.fft.fft2, _complex(operands.x), out=_complex(operands.y))


@steps("spectrum", like_the_first)
def _spectrum(numpy: Any, problem: Any, *arrays: Any) -> None:
    """numpy.matmul, then numpy.fft.fft2."""
    a, b, y, product = map(_complex, arrays)
    numpy.matmul(a, b, out=product)
    numpy.fft.fft2(product, out=y)


@steps("filter", lambda numpy, problem, *_: [problem.mask(numpy)])
def _filter(numpy: Any, problem: Any, x: Any, y: Any, mask: Any) -> None:
    threshold = x.dtype.type(problem.threshold)
    spectrum = numpy.fft.fft2(numpy.where(x < threshold, x.dtype.type(0), x))
    numpy.multiply(spectrum, mask, out=spectrum)
    y[...] = numpy.fft.ifft2(spectrum).real  # scaled
