"""The CPU's kernels: NumPy's functions and BLAS, and loops in Numba that run on all threads."""

from __future__ import annotations

from collections.abc import Callable
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
from rooflab.workloads.experts import GroupedGemm
from rooflab.workloads.linear import CUBE, Linear
from rooflab.workloads.optimizers import AdamW
from rooflab.workloads.quantised import GROUP, ZERO
from rooflab.workloads.quantization import BLOCK, Quantize
from rooflab.workloads.routing import Combine, Route, SortExperts
from rooflab.workloads.spectral import COMPLEX, Filter

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


@cpu("blas", backend="numpy", workload="grouped_gemm", library=True)
def blas_grouped(device: Device, operands: Operands) -> Launch:
    """NumPy's BLAS library, expert by expert."""
    problem, (x, w, _, y) = operands.problem, operands.values()
    assert isinstance(problem, GroupedGemm)
    experts = list(zip(pairwise((0, *problem.ends)), w, strict=True))

    def launch() -> None:
        for (start, end), weights in experts:
            device.arrays.matmul(x[start:end], weights, out=y[start:end])

    return launch


@numpy_kernel(workload="w4a16")
def numpy_w4a16(device: Device, operands: Operands) -> Launch:
    """NumPy, a pass for each step, then BLAS."""
    numpy, (x, packed, scales, y) = device.arrays, operands.values()
    k = x.shape[1]

    def launch() -> None:
        bits = numpy.stack([packed & 15, packed >> 4], axis=2).reshape(len(packed), -1)[:, :k]
        weights = (bits - x.dtype.type(ZERO)) * scales.repeat(GROUP, axis=1)[:, :k]
        numpy.matmul(x, weights.T, out=y)

    return launch


@numpy_kernel(workload="block_gemm")
def numpy_block_gemm(device: Device, operands: Operands) -> Launch:
    """NumPy, a table for FP8 and a pass for each step, then BLAS."""
    numpy, (x, w, x_scales, w_scales, y) = device.arrays, operands.values()
    (n, k), table = w.shape, numpy.array(E4M3, y.dtype)

    def launch() -> None:
        tokens = table[x] * x_scales.T.repeat(GROUP, axis=1)[:, :k]
        each = w_scales.repeat(GROUP, axis=0)[:n].repeat(GROUP, axis=1)[:, :k]
        numpy.matmul(tokens, (table[w] * each).T, out=y)

    return launch


@numpy_kernel(workload="linear")
def numpy_linear(device: Device, operands: Operands) -> Launch:
    """NumPy's BLAS library, then a pass for each step."""
    numpy, problem, (x, w, *_, y) = device.arrays, operands.problem, operands.values()
    assert isinstance(problem, Linear)
    if problem.gated:
        sums = numpy.empty((problem.m, 2 * problem.n), y.dtype)
        gate, up = sums[:, : problem.n], sums[:, problem.n :]
    else:
        sums, rest = y, numpy.empty_like(y)

    def launch() -> None:
        numpy.matmul(x, w.T, out=sums)
        if problem.gated:
            _swiglu(numpy, gate, up, y)
            return
        numpy.add(y, operands.bias, out=y)
        if problem.epilogue == "gelu":
            _gelu(numpy, y, rest)

    return launch


def _swiglu(numpy: Any, gate: Any, up: Any, out: Any) -> None:
    numpy.negative(gate, out=out)
    with numpy.errstate(over="ignore"):  # the quotient is zero then
        numpy.exp(out, out=out)
    numpy.add(out, 1, out=out)
    numpy.divide(gate, out, out=out)
    numpy.multiply(out, up, out=out)


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


@numpy_kernel(workload="triad")
def numpy_triad(device: Device, operands: Operands) -> Launch:
    """numpy.multiply, then numpy.add."""
    # Two passes, because NumPy has no fused one: C is written, read and written again.
    multiply, add = device.arrays.multiply, device.arrays.add
    a, b, c = operands.a, operands.b, operands.c
    alpha = c.dtype.type(operands.problem.settings["alpha"])

    def launch() -> None:
        multiply(b, alpha, out=c)
        add(a, c, out=c)

    return launch


@numpy_kernel(workload="sum", precisions=NUMBERS)
def numpy_sum(device: Device, operands: Operands) -> Launch:
    """numpy.sum, one thread."""
    x, y = operands.x, operands.y
    return partial(device.arrays.sum, x, out=y[0, ...], dtype=y.dtype)


@cpu("blas", backend="numpy", workload="gemv", library=True)
def blas_gemv(device: Device, operands: Operands) -> Launch:
    """NumPy's BLAS library."""
    return partial(device.arrays.matmul, operands.a, operands.x, out=operands.y)


@numpy_kernel(workload="softmax")
def numpy_softmax(device: Device, operands: Operands) -> Launch:
    """NumPy, a pass for each step."""
    numpy, x, y = device.arrays, operands.x, operands.y

    def launch() -> None:
        numpy.subtract(x, x.max(axis=1, keepdims=True), out=y)
        numpy.exp(y, out=y)
        numpy.divide(y, y.sum(axis=1, keepdims=True), out=y)

    return launch


@numpy_kernel(workload="rmsnorm")
def numpy_rmsnorm(device: Device, operands: Operands) -> Launch:
    """NumPy, a pass for each step."""
    numpy, x, w, y = device.arrays, operands.x, operands.w, operands.y
    epsilon = y.dtype.type(operands.problem.settings["epsilon"])

    def launch() -> None:
        numpy.multiply(x, x, out=y)
        scale = numpy.sqrt(y.mean(axis=1, keepdims=True) + epsilon)
        numpy.divide(x, scale, out=y)
        numpy.multiply(y, w, out=y)

    return launch


@numpy_kernel(workload="layernorm")
def numpy_layernorm(device: Device, operands: Operands) -> Launch:
    """NumPy, a pass for each step."""
    numpy, (x, w, b, y) = device.arrays, operands.values()
    epsilon = y.dtype.type(operands.problem.settings["epsilon"])

    def launch() -> None:
        off = x - x.mean(axis=1, keepdims=True)
        numpy.multiply(off, off, out=y)
        scale = numpy.sqrt(y.mean(axis=1, keepdims=True) + epsilon)
        numpy.divide(off, scale, out=y)
        numpy.multiply(y, w, out=y)
        numpy.add(y, b, out=y)

    return launch


@numpy_kernel(workload="rmsnorm_backward")
def numpy_rmsnorm_backward(device: Device, operands: Operands) -> Launch:
    """NumPy, a pass for each step."""
    numpy, (x, dy, w, rstd, dx, dw) = device.arrays, operands.values()
    scale, normal = rstd[:, None], numpy.empty_like(x)

    def launch() -> None:
        numpy.multiply(x, scale, out=normal)
        numpy.sum(dy * normal, axis=0, out=dw)
        numpy.multiply(dy, w, out=dx)
        numpy.multiply(normal, (dx * normal).mean(axis=1, keepdims=True), out=normal)
        numpy.subtract(dx, normal, out=dx)
        numpy.multiply(dx, scale, out=dx)

    return launch


@numpy_kernel(workload="layernorm_backward")
def numpy_layernorm_backward(device: Device, operands: Operands) -> Launch:
    """NumPy, a pass for each step."""
    numpy, (x, dy, w, mean, rstd, dx, dw, db) = device.arrays, operands.values()
    scale, normal = rstd[:, None], numpy.empty_like(x)

    def launch() -> None:
        numpy.subtract(x, mean[:, None], out=normal)
        numpy.multiply(normal, scale, out=normal)
        numpy.sum(dy * normal, axis=0, out=dw)
        numpy.sum(dy, axis=0, out=db)
        numpy.multiply(dy, w, out=dx)
        numpy.multiply(normal, (dx * normal).mean(axis=1, keepdims=True), out=normal)
        numpy.add(normal, dx.mean(axis=1, keepdims=True), out=normal)
        numpy.subtract(dx, normal, out=dx)
        numpy.multiply(dx, scale, out=dx)

    return launch


@numpy_kernel(workload="cross_entropy")
def numpy_cross_entropy(device: Device, operands: Operands) -> Launch:
    """NumPy, a pass for each step."""
    numpy, (x, targets, y) = device.arrays, operands.values()
    powers, rows = numpy.empty_like(x), numpy.arange(len(x))

    def launch() -> None:
        numpy.subtract(x, x.max(axis=1, keepdims=True), out=powers)
        chosen = powers[rows, targets]
        numpy.exp(powers, out=powers)
        numpy.subtract(numpy.log(powers.sum(axis=1)), chosen, out=y)

    return launch


@numpy_kernel(workload="cross_entropy_backward")
def numpy_cross_entropy_backward(device: Device, operands: Operands) -> Launch:
    """NumPy, a pass for each step."""
    numpy, (x, targets, dx) = device.arrays, operands.values()
    scale, places = operands.problem.settings["scale"], numpy.arange(len(x))

    def launch() -> None:
        numpy.subtract(x, x.max(axis=1, keepdims=True), out=dx)
        numpy.exp(dx, out=dx)
        numpy.divide(dx, dx.sum(axis=1, keepdims=True), out=dx)
        dx[places, targets] -= 1
        numpy.multiply(dx, scale, out=dx)

    return launch


@numpy_kernel(workload="adamw")
def numpy_adamw(device: Device, operands: Operands) -> Launch:
    """NumPy, a pass for each step."""
    numpy, problem, (p, g, m, v) = device.arrays, operands.problem, operands.values()
    assert isinstance(problem, AdamW)
    root = numpy.empty_like(v)

    def launch() -> None:
        numpy.multiply(m, problem.beta1, out=m)
        numpy.add(m, problem.rest1 * g, out=m)
        numpy.multiply(v, problem.beta2, out=v)
        numpy.add(v, problem.rest2 * (g * g), out=v)
        numpy.sqrt(v, out=root)
        numpy.multiply(root, problem.correction, out=root)
        numpy.add(root, problem.epsilon, out=root)
        numpy.multiply(p, problem.kept, out=p)
        numpy.subtract(p, problem.rate * m / root, out=p)

    return launch


@numpy_kernel(workload="swiglu")
def numpy_swiglu(device: Device, operands: Operands) -> Launch:
    """NumPy, a pass for each step."""
    return partial(_swiglu, device.arrays, *operands.values())


@numpy_kernel(workload="rope")
def numpy_rope(device: Device, operands: Operands) -> Launch:
    """NumPy, a pass for each step."""
    numpy, (x, cos, sin, y) = device.arrays, operands.values()
    half = x.shape[-1] // 2
    a, b, first, second = x[..., :half], x[..., half:], y[..., :half], y[..., half:]

    def launch() -> None:
        numpy.multiply(a, cos, out=first)
        numpy.subtract(first, b * sin, out=first)
        numpy.multiply(b, cos, out=second)
        numpy.add(second, a * sin, out=second)

    return launch


@numpy_kernel(workload="embedding")
def numpy_embedding(device: Device, operands: Operands) -> Launch:
    """numpy.take, one thread."""
    ids, table, y = operands.values()
    # Results go through a buffer unless wrong numbers are clipped.
    return partial(device.arrays.take, table, ids, axis=0, out=y, mode="clip")


@numpy_kernel(workload="quantize")
def numpy_quantize(device: Device, operands: Operands) -> Launch:
    """NumPy, a pass for each step."""
    numpy, problem, (x, scales, q) = device.arrays, operands.problem, operands.values()
    assert isinstance(problem, Quantize)
    whole = numpy.zeros((problem.rows, problem.blocks * BLOCK), dtype=x.dtype)
    parts = whole.reshape(problem.rows, problem.blocks, BLOCK)

    def launch() -> None:
        whole[:, : problem.columns] = x
        found = numpy.maximum(abs(parts).max(axis=2), problem.least) / E4M3_MAX
        quotients = (parts / found[:, :, None]).reshape(whole.shape)
        scales[...] = found
        q[...] = encode(numpy, quotients[:, : problem.columns], FP8_E4M3)

    return launch


@numpy_kernel(workload="route")
def numpy_route(device: Device, operands: Operands) -> Launch:
    """NumPy, by a sort of each row."""
    numpy, problem, (logits, weights, ids) = device.arrays, operands.problem, operands.values()
    assert isinstance(problem, Route)

    def launch() -> None:
        ids[...] = numpy.argsort(-logits, axis=1)[:, : problem.chosen]
        largest = numpy.take_along_axis(logits, ids, axis=1)
        numpy.exp(largest - largest[:, :1], out=weights)
        whole = weights if problem.normalised == "on" else numpy.exp(logits - largest[:, :1])
        numpy.divide(weights, whole.sum(axis=1, keepdims=True), out=weights)

    return launch


@numpy_kernel(workload="sort_experts")
def numpy_sort_experts(device: Device, operands: Operands) -> Launch:
    """numpy.argsort, stable."""
    numpy, problem = device.arrays, operands.problem
    assert isinstance(problem, SortExperts)
    ids, weights, sources, shares, places, ends = (one.reshape(-1) for one in operands.values())
    slots, experts = numpy.arange(problem.rows), numpy.arange(problem.experts)

    def launch() -> None:
        order = numpy.argsort(ids, kind="stable")
        numpy.floor_divide(order, problem.chosen, out=sources)
        shares[...] = weights[order]
        places[order] = slots
        ends[...] = numpy.searchsorted(ids[order], experts, side="right")

    return launch


@numpy_kernel(workload="combine")
def numpy_combine(device: Device, operands: Operands) -> Launch:
    """NumPy, a product of each token's weights and rows."""
    numpy, problem, (rows, shares, places, y) = device.arrays, operands.problem, operands.values()
    assert isinstance(problem, Combine)
    shape = (problem.tokens, problem.chosen)

    def launch() -> None:
        some = places.reshape(shape)
        numpy.matmul(shares[some][:, None, :], rows[some], out=y[:, None, :])

    return launch


@numpy_kernel(workload="blur")
def numpy_blur(device: Device, operands: Operands) -> Launch:
    """NumPy, a pass for each step."""
    # (1 2 1) down the columns, then along the rows, of images with a border of one pixel.
    numpy, x, y = device.arrays, operands.x, operands.y
    batch, rows, columns = x.shape
    padded = numpy.empty((batch, rows + 2, columns + 2), dtype=x.dtype)

    def launch() -> None:
        padded[:, 1:-1, 1:-1] = x
        padded[:, 0], padded[:, -1] = padded[:, 1], padded[:, -2]
        padded[:, :, 0], padded[:, :, -1] = padded[:, :, 1], padded[:, :, -2]
        down = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
        numpy.add(down[:, :, :-2] + 2 * down[:, :, 1:-1], down[:, :, 2:], out=y)
        numpy.divide(y, 16, out=y)

    return launch


# One parallel loop in Numba ----------------------------------------------------------------------


def numba_loop(device: Device, operands: Operands) -> Launch:
    """The function called as the workload, after a first run, which compiles it."""
    problem = operands.problem
    function = getattr(_numba("memory", device)[0], problem.workload)
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
    loops, threads = _numba("memory", device)
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


@numpy_kernel(workload="attention", precisions=(*FLOATS, "fp8"))
def numpy_attention(device: Device, operands: Operands) -> Launch:
    """NumPy's BLAS library, and passes over some scores at a time; a table for FP8."""
    numpy, problem, (q, k, v, o) = device.arrays, operands.problem, operands.values()
    assert isinstance(problem, Attention)
    some = max(1, SCORES // (problem.group * problem.keys))
    types, table = problem.precision, numpy.array(E4M3, numpy.float32)
    widen = table.take if types.input is FP8_E4M3 else numpy.asarray

    def launch() -> None:
        for z, head in product(range(problem.batch), range(problem.kv_heads)):
            heads = slice(head * problem.group, (head + 1) * problem.group)
            seen = widen(k[z, head]), widen(v[z, head])
            for start in range(0, problem.queries, some):
                rows = (z, heads, slice(start, start + some))
                found = _attended(numpy, problem, widen(q[rows]), *seen, start)
                o[rows] = encode(numpy, found, types.output)

    return launch


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


@numpy_kernel(workload="attention_backward")
def numpy_attention_backward(device: Device, operands: Operands) -> Launch:
    """NumPy's BLAS library, and passes over some scores at a time."""
    problem = operands.problem
    assert isinstance(problem, AttentionBackward)
    *given, dq, dk, dv = operands.values()
    some = max(1, SCORES // (problem.group * problem.keys))

    def launch() -> None:
        for z, head in product(range(problem.batch), range(problem.kv_heads)):
            heads = slice(head * problem.group, (head + 1) * problem.group)
            dk[z, head] = dv[z, head] = 0
            q, k, v, *others = given
            for start in range(0, problem.queries, some):
                rows = (z, heads, slice(start, start + some))
                known = k[z, head], v[z, head], start, *(one[rows] for one in (q, *others))
                of_q, of_k, of_v = _gradients(device.arrays, problem, *known)
                dq[rows] = of_q.reshape(dq[rows].shape)
                dk[z, head, : len(of_k)] += of_k
                dv[z, head, : len(of_v)] += of_v

    return launch


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
    attention = _numba("attention", device)[0].attention
    launch = partial(attention, *operands.values(), scale, problem.masked)
    element = [array[:1, :1, :1] for array in operands.values()]
    attention(*element, scale, problem.masked)
    return launch


# Two-dimensional FFTs by NumPy (pocketfft) -------------------------------------------------------


def _complex(operands: Operands, name: str) -> Any:
    """A view of pairs (real, imaginary) as complex numbers, of (batch, n, n)."""
    return operands[name].view(COMPLEX[operands.problem.precision.name])[..., 0]


@numpy_kernel(workload="fft")
def numpy_fft(device: Device, operands: Operands) -> Launch:
    """numpy.fft.fft2, one thread."""
    x, y = _complex(operands, "x"), _complex(operands, "y")
    return partial(device.arrays.fft.fft2, x, out=y)


@numpy_kernel(workload="spectrum")
def numpy_spectrum(device: Device, operands: Operands) -> Launch:
    """numpy.matmul, then numpy.fft.fft2."""
    matmul, fft2 = device.arrays.matmul, device.arrays.fft.fft2
    a, b, y = (_complex(operands, name) for name in ("a", "b", "y"))
    product = device.arrays.empty_like(y)

    def launch() -> None:
        matmul(a, b, out=product)
        fft2(product, out=y)

    return launch


@numpy_kernel(workload="filter")
def numpy_filter(device: Device, operands: Operands) -> Launch:
    """NumPy, a pass for each step."""
    numpy, x, y, problem = device.arrays, operands.x, operands.y, operands.problem
    assert isinstance(problem, Filter)
    mask, threshold = problem.mask(numpy), x.dtype.type(problem.threshold)

    def launch() -> None:
        spectrum = numpy.fft.fft2(numpy.where(x < threshold, x.dtype.type(0), x))
        numpy.multiply(spectrum, mask, out=spectrum)
        y[...] = numpy.fft.ifft2(spectrum).real  # scaled

    return launch
