"""Every workload: its work and traffic by hand, its reference against plain loops, and that
verification passes right results and finds wrong ones, on the exact device."""

from __future__ import annotations

import cmath
import math
import re
from collections.abc import Callable
from functools import partial
from math import isnan
from typing import Any

import fake
import numpy as np
import pytest
from numpy.typing import NDArray

from rooflab.config import SweepConfig, Timing
from rooflab.errors import KernelError, UsageError
from rooflab.kernels.base import Operands
from rooflab.measure import buffers
from rooflab.measure.buffers import allocate, poison, rotate
from rooflab.measure.protocol import Protocol
from rooflab.measure.verify import Expected, unlike, verify
from rooflab.model.encoding import E4M3, decode, encode
from rooflab.model.precision import FP32, PRECISIONS
from rooflab.model.problem import Problem
from rooflab.workloads import build, catalogue, parts
from rooflab.workloads.optimizers import AdamW

DEVICE = fake.FakeDevice()
TIMING = Timing(warmup_s=0, warmup_launches=1, min_rounds=3, max_rounds=3, batch_us=0)

EXAMPLES: dict[str, dict[str, Any]] = {
    "gemm": {"m": 17, "n": 9, "k": 33, "batch": 2, "layout": "tn", "alpha": 0.5, "beta": -2},
    "grouped_gemm": {"tokens": 19, "n": 7, "k": 33, "experts": 5, "spread": "skewed"},
    "w4a16": {"m": 5, "n": 7, "k": 259},
    "block_gemm": {"m": 5, "n": 133, "k": 259},
    "linear": {"m": 5, "n": 7, "k": 33, "epilogue": "gelu"},
    "gemv": {"m": 37, "n": 53},
    "add": {"rows": 3, "columns": 41, "batch": 2},
    "copy": {"rows": 3, "columns": 41, "batch": 2},
    "triad": {"columns": 211, "alpha": -1.25},
    "sum": {"elements": 1001},
    "softmax": {"rows": 7, "columns": 61},
    "rmsnorm": {"rows": 7, "columns": 61, "epsilon": 0.01},
    "layernorm": {"rows": 7, "columns": 61, "epsilon": 0.01},
    "cross_entropy": {"rows": 7, "columns": 61},
    "rmsnorm_backward": {"rows": 7, "columns": 61},
    "layernorm_backward": {"rows": 7, "columns": 61},
    "cross_entropy_backward": {"rows": 7, "columns": 61, "scale": 0.2},
    "embedding": {"tokens": 9, "words": 5, "columns": 12},
    "quantize": {"rows": 7, "columns": 300, "least": 0.01},
    "route": {"tokens": 9, "experts": 21, "chosen": 4, "normalised": "off"},
    "sort_experts": {"tokens": 9, "experts": 21, "chosen": 4},
    "combine": {"tokens": 9, "columns": 21, "chosen": 4},
    "adamw": {"elements": 101, "lr": 0.1, "step": 3},
    "swiglu": {"rows": 3, "columns": 41, "batch": 2},
    "rope": {"tokens": 5, "heads": 3, "head_size": 6, "batch": 2},
    "blur": {"batch": 3, "rows": 5, "columns": 7},
    "fft": {"batch": 3, "n": 6},
    "spectrum": {"batch": 2, "n": 5},
    "filter": {"batch": 2, "n": 6, "threshold": -0.25, "cutoff": 0.7},
    "attention": {
        "queries": 5,
        "keys": 9,
        "heads": 4,
        "kv_heads": 2,
        "head_size": 8,
        "batch": 2,
        "causal": "on",
    },
    "attention_backward": {
        "queries": 5,
        "keys": 9,
        "heads": 4,
        "kv_heads": 2,
        "head_size": 8,
        "batch": 2,
        "causal": "on",
    },
    "allreduce": {"elements": 101, "gpus": 3},
    "allgather": {"elements": 101, "gpus": 3},
}
FLOATS = [name for name, precision in PRECISIONS.items() if not precision.integer]
INTEGERS = ["int32", "int64"]
EXACT = ["add", "copy", "sum", "gemm", "gemv"]
"""Those that have a meaning for integers."""


def example(workload: str, precision: str = "fp32", **other: Any) -> Problem:
    parameters = dict(EXAMPLES[workload])
    if PRECISIONS[precision].integer and workload == "gemm":
        parameters |= {"alpha": 1.0, "beta": 0.0}
    return build(workload, precision, parameters | other)


def computed(problem: Problem, seed: int = 5) -> Operands:
    """Operands as the exact device's kernels leave them."""
    operands = allocate(DEVICE, problem, seed)
    poison(operands)
    fake.compute(operands)()
    return operands


def output(operands: Operands) -> Any:
    """The array of the first output of floats, or of the first one."""
    written = [one for one in operands.problem.operands if one.written]
    return operands[min(written, key=lambda one: one.type.integer).name]


def test_every_workload_has_an_example() -> None:
    """A new one must be added here."""
    assert EXAMPLES.keys() == catalogue().keys()


@pytest.mark.parametrize("workload", EXAMPLES)
def test_every_workload_describes_itself(workload: str) -> None:
    kind = catalogue()[workload]
    assert kind.workload == workload
    assert kind.title and kind.formula and kind.work
    assert set(kind.sizes) <= set(kind.parameters())
    assert all(parameter.description for parameter in kind.parameters().values())
    problem = example(workload)
    names = {one.name for one in problem.operands}
    for argument in kind.arguments:
        assert argument in names or isinstance(getattr(problem, argument), (int, float))


# Work and traffic --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workload", "precision", "flops", "bytes_"),
    [
        ("gemm", "fp32", 2 * 2 * 17 * 9 * 33, 4 * 2 * (17 * 33 + 33 * 9 + 2 * 17 * 9)),
        (
            *("grouped_gemm", "bf16", 2 * 19 * 7 * 33),
            2 * (19 * 33 + 3 * 33 * 7 + 19 * 7) + 4 * 5,
        ),
        (
            *("block_gemm", "fp8", 2 * 5 * 133 * 259),
            259 * (5 + 133) + 4 * 3 * (5 + 2) + 2 * 5 * 133,
        ),
        ("linear", "bf16", 5 * 7 * (2 * 33 + 8), 2 * (5 * 33 + 7 * 33 + 7 + 5 * 7)),
        ("w4a16", "fp16", 2 * 5 * 7 * 259, 2 * (5 * 259 + 7 * 3 + 5 * 7) + 7 * 130),
        ("gemv", "fp32", 2 * 37 * 53, 4 * (37 * 53 + 53 + 37)),
        ("add", "fp64", 246, 3 * 8 * 246),
        ("copy", "fp16", 0, 2 * 2 * 246),
        ("triad", "fp32", 2 * 211, 3 * 4 * 211),
        ("sum", "int64", 1001, 8 * 1002),
        ("softmax", "fp16_fp32", 5 * 427, 427 * (2 + 4)),
        ("rmsnorm", "bf16", 4 * 427, 2 * (2 * 427 + 61)),
        ("layernorm", "bf16", 7 * 427, 2 * (2 * 427 + 2 * 61)),
        ("cross_entropy", "fp16", 4 * 427, 2 * (427 + 7) + 4 * 7),
        ("rmsnorm_backward", "bf16", 9 * 427, 2 * (3 * 427 + 2 * 61) + 4 * 7),
        ("layernorm_backward", "bf16", 13 * 427, 2 * (3 * 427 + 3 * 61) + 4 * 2 * 7),
        ("cross_entropy_backward", "fp16", 6 * 427, 2 * 2 * 427 + 4 * 7),
        ("embedding", "bf16", 0, 4 * 9 + 2 * 12 * (4 + 9)),  # 4.33 of 5 rows
        ("quantize", "bf16", 2 * 2100, (2 + 1) * 2100 + 4 * 7 * 3),
        ("route", "bf16", 9 * (4 * 21 + 4), 2 * 9 * (21 + 4) + 8 * 9 * 4),
        ("sort_experts", "bf16", 0, 9 * 4 * (8 + 2 + 8 + 2 + 8) + 4 * 21),
        ("combine", "bf16", 2 * 9 * 4 * 21, 2 * (36 * 21 + 36 + 9 * 21) + 8 * 36),
        ("adamw", "bf16", 14 * 101, (2 * 2 + 2 + 4 * 4) * 101),
        ("swiglu", "fp16", 4 * 246, 3 * 2 * 246),
        ("rope", "bf16", 6 * 2 * 3 * 5 * 3, 2 * (2 * 2 * 3 * 5 * 6 + 2 * 5 * 3)),
        ("blur", "fp16", 17 * 105, 2 * 2 * 105),
        ("attention", "bf16", 4 * 8 * 8 * (5 + 6 + 7 + 8 + 9), 2 * 8 * 2 * (2 * 4 * 5 + 2 * 2 * 9)),
        (
            *("attention_backward", "bf16", 10 * 8 * 8 * (5 + 6 + 7 + 8 + 9)),
            2 * 8 * 2 * (4 * 4 * 5 + 4 * 2 * 9) + 4 * 2 * 4 * 5,
        ),
        ("fft", "fp64", 3 * round(5 * 36 * math.log2(36)), 2 * 3 * 36 * 16),
        ("spectrum", "fp32", 2 * (8 * 125 + round(5 * 25 * math.log2(25))), 3 * 2 * 25 * 8),
        ("filter", "fp32", 2 * (round(5 * 36 * math.log2(36)) + 3 * 36), 2 * 2 * 36 * 4),
    ],
)
def test_work_and_bytes_by_hand(workload: str, precision: str, flops: int, bytes_: int) -> None:
    problem = example(workload, precision)
    assert (problem.flops, problem.bytes) == (flops, bytes_)
    assert problem.traffic == {"dram": bytes_}


# References --------------------------------------------------------------------------------------

Inputs = dict[str, NDArray[np.float64]]


def elementwise_loops(problem: Problem, inputs: Inputs) -> NDArray[np.float64]:
    a = inputs["a"]
    other: Any = {"add": 1.0, "copy": 0.0}.get(problem.workload, problem.settings.get("alpha"))
    b = inputs.get("b", np.zeros_like(a))
    flat = [x + other * y for x, y in zip(a.reshape(-1), b.reshape(-1), strict=True)]
    return np.array(flat).reshape(a.shape)


def gemm_loops(problem: Problem, inputs: Inputs) -> NDArray[np.float64]:
    settings: Any = problem.settings
    a = inputs["a"].swapaxes(1, 2)  # of layout tn
    b, c = inputs["b"], inputs["c"]
    made = np.empty(c.shape)
    for z, i, j in np.ndindex(*c.shape):
        total = math.fsum(a[z, i, k] * b[z, k, j] for k in range(problem.extents["k"]))
        made[z, i, j] = settings["alpha"] * total + settings["beta"] * c[z, i, j]
    return made


def product_loops(problem: Problem, inputs: Inputs) -> NDArray[np.float64]:
    """Element by element, of the expert whose end comes first, or of unpacked weights."""
    x, table = inputs["x"], np.array(E4M3)
    if problem.workload == "block_gemm":
        x = table[x]
    made = np.empty((len(x), problem.extents["n"]))
    for i, j in np.ndindex(*made.shape):
        if problem.workload == "grouped_gemm":
            expert = next(e for e, end in enumerate(inputs["ends"]) if i < end)
            column = inputs["w"][expert, :, j]
        elif problem.workload == "block_gemm":
            scales = inputs["x_scales"][:, i].astype(float) * inputs["w_scales"][j // 128]
            column = table[inputs["w"][j]] * [scales[k // 128] for k in range(x.shape[1])]
        else:
            bits = [int(inputs["w"][j, k // 2]) >> 4 * (k % 2) & 15 for k in range(x.shape[1])]
            column = np.array([(b - 8) * inputs["scales"][j, k // 128] for k, b in enumerate(bits)])
        made[i, j] = math.fsum(x[i] * column)
    return made


def linear_loops(problem: Problem, inputs: Inputs) -> NDArray[np.float64]:
    """Element by element, with GELU as its paper approximates it."""
    n, epilogue = problem.extents["n"], problem.settings["epilogue"]
    made = np.empty((len(inputs["x"]), n))
    for i, j in np.ndindex(*made.shape):
        z = math.fsum(inputs["x"][i] * inputs["w"][j])
        if epilogue == "swiglu":
            up = math.fsum(inputs["x"][i] * inputs["w"][n + j])
            made[i, j] = z / (1 + math.exp(-z)) * up
            continue
        z += float(inputs["bias"][j])
        tangent = math.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))
        made[i, j] = z if epilogue == "bias" else 0.5 * z * (1 + tangent)
    return made


def losses(problem: Problem, inputs: Inputs) -> NDArray[np.float64]:
    pairs = zip(inputs["x"], inputs["targets"].astype(int), strict=True)
    return np.array([math.log(math.fsum(np.exp(row))) - row[target] for row, target in pairs])


def loss_gradients(problem: Problem, inputs: Inputs) -> Any:
    made = np.exp(inputs["x"])
    made /= np.array([[math.fsum(row)] for row in made])
    for row, target in zip(made, inputs["targets"].astype(int), strict=True):
        row[target] -= 1
    return problem.settings["scale"] * made


def row_loops(problem: Problem, inputs: Inputs) -> NDArray[np.float64]:
    """Row by row."""
    settings: Any = problem.settings
    made = np.empty(inputs["x"].shape)
    for row, out in zip(inputs["x"], made, strict=True):
        if problem.workload == "softmax":
            powers = [math.exp(x) for x in row]
            out[:] = [power / math.fsum(powers) for power in powers]
        elif problem.workload == "layernorm":
            mean = math.fsum(row) / len(row)
            variance = math.fsum((x - mean) ** 2 for x in row) / len(row)
            scale = 1 / math.sqrt(variance + settings["epsilon"])
            each = zip(row, inputs["w"], inputs["b"], strict=True)
            out[:] = [w * (x - mean) * scale + b for x, w, b in each]
        else:
            mean = math.fsum(x * x for x in row) / len(row)
            scale = 1 / math.sqrt(mean + settings["epsilon"])
            out[:] = [w * x * scale for x, w in zip(row, inputs["w"], strict=True)]
    return made


def combine_loops(problem: Problem, inputs: Inputs) -> NDArray[np.float64]:
    places = inputs["places"].astype(int).reshape(-1, problem.extents["chosen"])
    pairs = [[(inputs["shares"][p], inputs["rows"][p]) for p in some] for some in places]
    return np.array([sum(share * row for share, row in some) for some in pairs])


def route_loops(problem: Problem, inputs: Inputs) -> dict[str, Any]:
    """Token by token, with lists."""
    made: dict[str, Any] = {"weights": [], "ids": []}
    for row in inputs["logits"]:
        ids = sorted(range(len(row)), key=lambda e: -row[e])[: problem.extents["chosen"]]
        whole = math.fsum(np.exp(row))
        made["weights"].append([math.exp(row[e]) / whole for e in ids])
        made["ids"].append(ids)
    return made


def sorted_loops(problem: Problem, inputs: Inputs) -> dict[str, Any]:
    """By an append to the list of each expert."""
    ids, weights = inputs["ids"].astype(int), inputs["weights"]
    lists: list[list[tuple[int, int]]] = [[] for _ in range(21)]
    for token, j in np.ndindex(*ids.shape):
        lists[ids[token, j]].append((token, j))
    rows = [slot for one in lists for slot in one]
    return {
        "sources": [token for token, _ in rows],
        "shares": [weights[slot] for slot in rows],
        "places": [rows.index(slot) for slot in np.ndindex(*ids.shape)],
        "ends": np.cumsum([len(one) for one in lists]),
    }


def norm_gradients(problem: Problem, inputs: Inputs) -> dict[str, Any]:
    """Row by row."""
    weights, centred = inputs["w"], "mean" in inputs
    made: dict[str, Any] = {"dx": [], "dw": 0.0, "db": 0.0}
    for i, (x, dy) in enumerate(zip(inputs["x"], inputs["dy"], strict=True)):
        scale, mean = inputs["rstd"][i], inputs["mean"][i] if centred else 0.0
        normal = [scale * (number - mean) for number in x]
        each = [w * number for w, number in zip(weights, dy, strict=True)]
        along = math.fsum(a * n for a, n in zip(each, normal, strict=True)) / len(x)
        offset = math.fsum(each) / len(x) * centred
        pairs = zip(each, normal, strict=True)
        made["dx"].append([scale * (a - offset - n * along) for a, n in pairs])
        made["dw"] = made["dw"] + dy * normal
        made["db"] = made["db"] + dy
    return made


def quantized(problem: Problem, inputs: Inputs) -> dict[str, Any]:
    """Block by block, to the nearest of all numbers of E4M3."""
    x = inputs["x"]
    numbers = np.array([number for number in E4M3 if not isnan(number)])
    made: dict[str, Any] = {"scales": [], "q": np.empty(x.shape)}
    for row, out in zip(x, made["q"], strict=True):
        starts = range(0, len(row), 128)
        made["scales"].append([max(abs(row[i : i + 128])) / 448 for i in starts])
        for i, number in enumerate(row):
            quotient = number / made["scales"][-1][i // 128]
            out[i] = numbers[abs(numbers - quotient).argmin()]
    return made


def stepped(given: Any, p: float, g: float, m: float, v: float) -> float:
    """A parameter after a step of AdamW, as in algorithm 2 of its paper."""
    m = given["beta1"] * m + (1 - given["beta1"]) * g
    v = given["beta2"] * v + (1 - given["beta2"]) * g**2
    m /= 1 - given["beta1"] ** given["step"]
    v /= 1 - given["beta2"] ** given["step"]
    step: float = given["lr"] * (m / (math.sqrt(v) + given["epsilon"]) + given["decay"] * p)
    return p - step


def swiglu_loops(problem: Problem, inputs: Inputs) -> NDArray[np.float64]:
    pairs = zip(inputs["gate"].reshape(-1), inputs["up"].reshape(-1), strict=True)
    made = np.array([gate / (1 + math.exp(-gate)) * up for gate, up in pairs])
    return made.reshape(inputs["gate"].shape)


def rope_loops(problem: Problem, inputs: Inputs) -> NDArray[np.float64]:
    """Turned as complex numbers."""
    x, half = inputs["x"], problem.extents["head_size"] // 2
    made = np.empty(x.shape)
    for z, head, token, i in np.ndindex(*x.shape[:3], half):
        turn = complex(inputs["cos"][token, i], inputs["sin"][token, i])
        turned = complex(x[z, head, token, i], x[z, head, token, i + half]) * turn
        made[z, head, token, [i, i + half]] = turned.real, turned.imag
    return made


def attention_loops(problem: Problem, inputs: Inputs) -> NDArray[np.float64]:
    """Query by query, over the keys that it sees."""
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    made = np.empty(q.shape)
    group, later = q.shape[1] // k.shape[1], k.shape[2] - q.shape[2]
    for z, head, i in np.ndindex(*q.shape[:3]):
        seen = range(later + i + 1 if problem.settings["causal"] == "on" else k.shape[2])
        scores = [math.fsum(q[z, head, i] * k[z, head // group, j]) for j in seen]
        weights = [math.exp(score / math.sqrt(q.shape[3])) for score in scores]
        for c in range(q.shape[3]):
            values = [w * v[z, head // group, j, c] for j, w in zip(seen, weights, strict=True)]
            made[z, head, i, c] = math.fsum(values) / math.fsum(weights)
    return made


def attention_gradients(problem: Problem, inputs: Inputs) -> dict[str, Any]:
    """Pair by pair of a query and a key that it sees."""
    q, k, v, o, dout = (inputs[name] for name in ("q", "k", "v", "o", "dout"))
    made = {"dq": np.zeros(q.shape), "dk": np.zeros(k.shape), "dv": np.zeros(k.shape)}
    group, later, scale = q.shape[1] // k.shape[1], k.shape[2] - q.shape[2], q.shape[3] ** -0.5
    for z, head, i, j in np.ndindex(*q.shape[:3], k.shape[2]):
        if problem.settings["causal"] == "on" and j > later + i:
            continue
        query, key = (z, head, i), (z, head // group, j)
        weight = math.exp(math.fsum(q[query] * k[key]) * scale - inputs["lse"][query])
        change = weight * math.fsum(dout[query] * (v[key] - o[query])) * scale
        made["dq"][query] += change * k[key]
        made["dk"][key] += change * q[query]
        made["dv"][key] += weight * dout[query]
    return made


def fft_loops(problem: Problem, inputs: Inputs) -> NDArray[np.float64]:
    """Of matrices, or of products of two."""
    several = zip(*inputs.values(), strict=True)
    matrices = [[complex_matrix(one) for one in some] for some in several]
    made = np.array([dft(product(*some) if len(some) > 1 else some[0]) for some in matrices])
    return np.stack([made.real, made.imag], axis=-1)


def blurred(image: NDArray[np.float64]) -> NDArray[np.float64]:
    made = np.zeros(image.shape)
    rows, columns = image.shape
    for r, c in np.ndindex(rows, columns):
        for i, j in np.ndindex(3, 3):
            weight = (2 - abs(i - 1)) * (2 - abs(j - 1)) / 16
            row, column = min(max(r + i - 1, 0), rows - 1), min(max(c + j - 1, 0), columns - 1)
            made[r, c] += weight * image[row, column]
    return made


def complex_matrix(pairs: NDArray[np.float64]) -> NDArray[np.complex128]:
    return np.array([[complex(*pair) for pair in row] for row in pairs])


def product(a: NDArray[np.complex128], b: NDArray[np.complex128]) -> NDArray[np.complex128]:
    n = len(a)
    made = [[sum(a[i, k] * b[k, j] for k in range(n)) for j in range(n)] for i in range(n)]
    return np.array(made)


def dft(x: NDArray[np.complex128], sign: int = -1) -> NDArray[np.complex128]:
    """Every element of the sum as it is written down."""
    n = len(x)
    made = np.zeros((n, n), dtype=complex)
    for u, v in np.ndindex(n, n):
        for r, c in np.ndindex(n, n):
            made[u, v] += x[r, c] * cmath.exp(sign * 2j * math.pi * (u * r + v * c) / n)
    return made


def filtered(image: NDArray[np.float64], problem: Problem) -> NDArray[np.float64]:
    """With the zero frequency moved to the middle and back, as textbooks draw it."""
    n = problem.extents["n"]
    threshold, cutoff = (float(problem.settings[name]) for name in ("threshold", "cutoff"))
    centred = np.fft.fftshift(dft(np.where(image >= threshold, image, 0).astype(complex)))
    for u, v in np.ndindex(n, n):
        if math.hypot(u - n // 2, v - n // 2) > cutoff * n / 2:
            centred[u, v] = 0
    return dft(np.fft.ifftshift(centred), +1).real / n**2


LOOPS: dict[str, Callable[[Problem, Inputs], Any]] = {
    "gemm": gemm_loops,
    **dict.fromkeys(("grouped_gemm", "w4a16", "block_gemm"), product_loops),
    "linear": linear_loops,
    "gemv": lambda problem, inputs: [math.fsum(row * inputs["x"]) for row in inputs["a"]],
    "sum": lambda problem, inputs: [math.fsum(inputs["x"])],
    "allreduce": lambda problem, inputs: [[math.fsum(column) for column in inputs["x"].T]] * 3,
    "allgather": lambda problem, inputs: [[*inputs["x"].reshape(-1)]] * 3,
    **dict.fromkeys(("add", "copy", "triad"), elementwise_loops),
    **dict.fromkeys(("softmax", "layernorm", "rmsnorm"), row_loops),
    **dict.fromkeys(("layernorm_backward", "rmsnorm_backward"), norm_gradients),
    "cross_entropy": losses,
    "cross_entropy_backward": loss_gradients,
    "quantize": quantized,
    "route": route_loops,
    "sort_experts": sorted_loops,
    "combine": combine_loops,
    "swiglu": swiglu_loops,
    "rope": rope_loops,
    "embedding": lambda problem, inputs: [inputs["table"][int(one)] for one in inputs["ids"]],
    "adamw": lambda problem, inputs: [*map(partial(stepped, problem.settings), *inputs.values())],
    "attention": attention_loops,
    "attention_backward": attention_gradients,
    "blur": lambda problem, inputs: [blurred(image) for image in inputs["x"]],
    "filter": lambda problem, inputs: [filtered(image, problem) for image in inputs["x"]],
    **dict.fromkeys(("fft", "spectrum"), fft_loops),
}
"""The output, or each of several by its name, element by element as the formula says."""


@pytest.mark.parametrize("workload", EXAMPLES)
def test_references_are_what_the_formulas_say(workload: str) -> None:
    compare_with_loops(example(workload, "fp64"))


@pytest.mark.parametrize("epilogue", ["bias", "swiglu"])
def test_so_are_other_epilogues(epilogue: str) -> None:
    compare_with_loops(example("linear", "fp64", epilogue=epilogue))


def compare_with_loops(problem: Problem) -> None:
    operands = allocate(DEVICE, problem, 3)
    inputs = {
        one.name: operands.initial.get(one.name, operands[one.name])
        for one in problem.operands
        if one.read
    }
    wanted = LOOPS[problem.workload](problem, {name: a.copy() for name, a in inputs.items()})
    poison(operands)
    fake.compute(operands)()
    if not isinstance(wanted, dict):
        np.testing.assert_allclose(output(operands), wanted, rtol=1e-11, atol=1e-12)
        return
    for one in problem.operands:
        if one.written:
            right = wanted[one.name]
            found = decode(np, operands[one.name], one.type)
            exact = max(1e-11, one.type.epsilon) if one.type == FP32 else 1e-11
            np.testing.assert_allclose(found, right, rtol=exact, atol=1e-12)


@pytest.mark.parametrize("workload", ["rmsnorm", "layernorm"])
def test_gradients_of_norms_are_those_of_the_norms(workload: str) -> None:
    """Of Σ y·dy, by small steps, if what was saved is that of the rows."""
    random, shape = np.random.default_rng(), {"rows": 3, "columns": 5}
    backward = build(f"{workload}_backward", "fp64", shape)
    operands = allocate(DEVICE, backward, 3)
    off = operands.x - operands.x.mean(axis=1, keepdims=True) * (workload == "layernorm")
    operands.rstd[...] = ((off**2).mean(axis=1) + 1e-6) ** -0.5
    if workload == "layernorm":
        operands.mean[...] = operands.x.mean(axis=1)
    fake.compute(operands)()
    given = {name: operands[name].copy() for name in ("x", "w")} | {"b": np.zeros(5)}

    def total(**changed: Any) -> float:
        forward = build(workload, "fp64", {**shape, "epsilon": 1e-6})
        made = forward.reference(np, {**given, **changed})["y"]  # type: ignore[arg-type]
        return float((made * operands.dy).sum())

    for name, gradient in (("x", "dx"), ("w", "dw"), ("b", "db")):
        if gradient in operands:
            step = 1e-5 * random.standard_normal(given[name].shape)
            change = total(**{name: given[name] + step}) - total(**{name: given[name] - step})
            assert change == pytest.approx(2 * (operands[gradient] * step).sum(), rel=1e-6)


def test_softmax_of_large_numbers_is_finite() -> None:
    problem = build("softmax", "fp64", {"rows": 1, "columns": 3})
    operands = allocate(DEVICE, problem, 0)
    operands.x[...] = [[1000.0, 1000.0, -1000.0]]
    fake.compute(operands)()
    assert operands.y.tolist() == [[0.5, 0.5, 0.0]]


# Verification ------------------------------------------------------------------------------------


def last_place(array: Any) -> str:
    """``[2, 8]``: the indices of the last element, without leading axes of one element."""
    shape = array.shape
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return f"[{', '.join(str(n - 1) for n in shape)}]"


@pytest.mark.parametrize("precision", FLOATS)
@pytest.mark.parametrize("workload", EXAMPLES)
def test_right_results_pass(workload: str, precision: str) -> None:
    problem = example(workload, precision)
    verdict = verify(DEVICE, computed(problem), 0)
    assert verdict.reason == ""
    assert verdict.rel_error <= problem.tolerance


@pytest.mark.parametrize("precision", INTEGERS)
@pytest.mark.parametrize("workload", EXACT)
def test_right_integers_pass_and_are_exact(workload: str, precision: str) -> None:
    verdict = verify(DEVICE, computed(example(workload, precision)), 0)
    assert (verdict.rel_error, verdict.reason) == (0, "")


@pytest.mark.parametrize("workload", EXAMPLES)
def test_a_float_that_is_not_written_is_counted(workload: str) -> None:
    operands = computed(example(workload))
    last = output(operands).reshape(-1)
    last[-1] = np.nan
    verdict = verify(DEVICE, operands, 0)
    assert isnan(verdict.rel_error)
    assert f"1 of {last.size} elements of " in verdict.reason
    assert "NaN" in verdict.reason


@pytest.mark.parametrize("precision", INTEGERS)
@pytest.mark.parametrize("workload", EXACT)
@pytest.mark.parametrize("pattern", [0, 1])
def test_an_integer_that_is_not_written_is_counted(
    workload: str, precision: str, pattern: int
) -> None:
    """Whichever of the two patterns it was poisoned with."""
    operands = computed(example(workload, precision))
    right = output(operands).copy()
    poison(operands, pattern)
    output(operands).reshape(-1)[1:] = right.reshape(-1)[1:]
    assert verify(DEVICE, operands, 0).reason.startswith(f"1 of {right.size} elements of ")
    assert "not written" in verify(DEVICE, operands, 0).reason


@pytest.mark.parametrize("precision", INTEGERS)
@pytest.mark.parametrize("workload", EXACT)
def test_a_wrong_integer_is_found_and_named(workload: str, precision: str) -> None:
    operands = computed(example(workload, precision))
    flat = output(operands).reshape(-1)
    flat[-1] += 1
    reason = verify(DEVICE, operands, 0).reason
    assert reason.startswith(f"1 of {flat.size} elements are wrong; worst at ")
    assert reason.endswith(last_place(output(operands)))


@pytest.mark.parametrize("workload", EXAMPLES)
def test_a_wrong_float_is_found_and_named(workload: str) -> None:
    operands = computed(example(workload))
    array = output(operands)
    array.reshape(-1)[-1] += 2
    assert last_place(array) in verify(DEVICE, operands, 0).reason


@pytest.mark.parametrize("workload", [name for name in EXAMPLES if name != "copy"])
def test_rounding_of_one_digit_too_many_is_found(workload: str) -> None:
    """A kernel that computes FP32 with the ten bits of TF32."""
    operands = computed(example(workload))
    bits = output(operands).view(np.uint32)
    bits &= np.uint32(0xFFFFE000)
    assert verify(DEVICE, operands, 0).reason


@pytest.mark.parametrize("most_bytes", [0, 2**30])
def test_sums_over_rows_are_those_of_all_pieces(
    monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    monkeypatch.setattr(parts, "PIECE_ELEMENTS", 100)
    operands = computed(build("layernorm_backward", "fp32", {"rows": 33, "columns": 50}))
    expected = Expected(DEVICE, operands, 0, most_bytes)
    assert expected.verdict(operands).reason == ""
    for name in ("dw", "db"):
        operands[name][49] += 0.1
        assert re.search(f"worst at {name}.49.", expected.verdict(operands).reason)
        operands[name][49] -= 0.1
    operands.dw[3] = np.nan
    assert expected.verdict(operands).reason.startswith("1 of 50 elements of dw are NaN")


def test_sums_over_rows_that_cancel_are_not_called_wrong() -> None:
    operands = allocate(DEVICE, build("layernorm_backward", "fp32", {"rows": 2, "columns": 1}), 1)
    operands.dy[...] = [[1.0], [-1.0]]
    operands.mean[...], operands.x[...], operands.rstd[...] = 0.0, [[0.3], [0.1]], 1.0
    poison(operands)
    fake.compute(operands)()
    operands.db[...] = 1e-7
    assert verify(DEVICE, operands, 0).reason == ""
    operands.db[...] = 1e-4
    assert "relative error" in verify(DEVICE, operands, 0).reason


@pytest.mark.parametrize("name", ["m", "v"])
def test_moments_in_half_precision_are_found_beside_parameters_in_it(name: str) -> None:
    operands = computed(build("adamw", "bf16", {"elements": 1000}))
    assert verify(DEVICE, operands, 0).reason == ""
    operands[name].view(np.uint32)[:] &= np.uint32(0xFFFF0000)
    assert verify(DEVICE, operands, 0).reason.startswith("relative error")


def test_shares_of_adamw_may_be_rounded_before_they_are_subtracted() -> None:
    """As PyTorch does, in FP32."""
    problem = build("adamw", "fp32", {"elements": 1000})
    assert isinstance(problem, AdamW)
    operands = computed(problem)
    rest = 1 - float(np.float32(problem.beta2))
    operands["v"][:] *= np.float32(rest / problem.rest2)
    assert verify(DEVICE, operands, 0).reason == ""
    operands["v"][:] *= np.float32(1 + 1e-4)
    assert verify(DEVICE, operands, 0).reason.startswith("relative error")


@pytest.mark.parametrize("name", ["beta1", "beta2", "step"])
def test_shares_and_steps_of_adamw_are_checked(name: str) -> None:
    for value in (-0.5, 1.0) if name != "step" else (0.0,):
        with pytest.raises(UsageError, match=f"^{name} = "):
            build("adamw", "fp32", {"elements": 4, name: value})


def test_blocks_of_zeros_need_a_scale() -> None:
    with pytest.raises(UsageError, match="least = 0 gives zeros no scale: give more than 0"):
        build("quantize", "fp32", {"rows": 4, "columns": 7, "least": 0})


def test_heads_of_rope_have_halves() -> None:
    with pytest.raises(UsageError, match="head_size = 7 has no halves: give an even number"):
        build("rope", "fp32", {"tokens": 4, "head_size": 7})


def test_a_copy_must_be_exact() -> None:
    operands = computed(example("copy"))
    first = operands.c.reshape(-1)[:1]
    first[...] = np.nextafter(first, np.float32(2))
    reason = verify(DEVICE, operands, 0).reason
    assert reason.startswith("1 of ") and "worst at C[0" in reason
    operands.a[0, 0, -1], operands.c[0, 0, -1] = -0.0, 0.0
    operands.c[0, 0, 0] = operands.a[0, 0, 0]
    last = operands.c.shape[-1] - 1
    assert re.search(rf"^1 of .* worst at C\[.*{last}\]", verify(DEVICE, operands, 0).reason)


def test_integers_that_wrap_around_are_right() -> None:
    operands = allocate(DEVICE, build("add", "int32", {"columns": 4}), 0)
    operands.a[...] = 2**31 - 1
    operands.b[...] = 1
    operands.c[...] = -(2**31)
    assert verify(DEVICE, operands, 0).reason == ""
    total = allocate(DEVICE, build("sum", "int32", {"elements": 3}), 0)
    total.x[...] = 2**31 - 1
    total.y[...] = 2**31 - 3
    assert verify(DEVICE, total, 0).reason == ""


def test_a_value_that_looks_like_poison_but_is_right_passes() -> None:
    operands = allocate(DEVICE, build("copy", "int32", {"columns": 4}), 0)
    operands.a[...] = list(buffers.SENTINELS) * 2
    poison(operands)
    operands.c[...] = operands.a
    assert verify(DEVICE, operands, 0).reason == ""


def test_a_sum_that_cancels_is_not_called_wrong() -> None:
    problem = build("sum", "fp32", {"elements": 10_000})
    operands = allocate(DEVICE, problem, 1)
    operands.x[5000:] = -operands.x[:5000]
    operands.y[...] = 1e-5  # far from zero in proportion, and near in what is summed
    assert verify(DEVICE, operands, 0).reason == ""
    operands.y[...] = 1.0
    assert "relative error" in verify(DEVICE, operands, 0).reason


def test_one_accumulator_in_half_precision_is_not_accurate_enough() -> None:
    problem = build("sum", "fp16", {"elements": 20_000})
    operands = allocate(DEVICE, problem, 1)
    total = np.float16(0)
    for value in operands.x:
        total = np.float16(total + value)
    operands.y[...] = total
    assert verify(DEVICE, operands, 0).reason


# Mistakes of kernels for images and matrices -----------------------------------------------------


def outcome_of(problem: Problem, kernel: Callable[[Operands], Any]) -> str:
    """Why the result of ``kernel``, in FP64 arithmetic, is wrong."""
    operands = allocate(DEVICE, problem, 4)
    result = kernel(operands)
    if operands.y.ndim == 4:
        result = np.stack([result.real, result.imag], axis=-1)
    operands.y[...] = encode(np, result, problem.precision.output)
    return verify(DEVICE, operands, 0).reason


def wide(operands: Operands, name: str) -> Any:
    """An input in FP64, complex if it has pairs."""
    kind = next(one.type for one in operands.problem.operands if one.name == name)
    values = decode(np, operands[name], kind)
    return values[..., 0] + 1j * values[..., 1] if values.ndim == 4 else values


def stencil(x: Any, mode: Any = "edge") -> Any:
    """Blur with any border: the nine shifted images."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)), mode=mode)
    _, rows, columns = x.shape
    shifted = {(i, j): padded[:, i : i + rows, j : j + columns] for i, j in np.ndindex(3, 3)}
    return sum((2 - abs(i - 1)) * (2 - abs(j - 1)) * part for (i, j), part in shifted.items()) / 16


def without_a_corner_of_the_halo(operands: Operands) -> Any:
    """One pixel counts a 0 in place of its diagonal neighbour in the next tile of 16."""
    x = wide(operands, "x")
    result = stencil(x)
    result[0, 15, 15] -= x[0, 16, 16] / 16
    return result


BLURS: dict[str, Callable[[Operands], Any]] = {
    "": lambda operands: stencil(wide(operands, "x")),
    "zeros outside": lambda operands: stencil(wide(operands, "x"), "constant"),
    "mirrored": lambda operands: stencil(wide(operands, "x"), "reflect"),
    "wrapped": lambda operands: stencil(wide(operands, "x"), "wrap"),
    "no corner": without_a_corner_of_the_halo,
    "no weights": lambda operands: wide(operands, "x"),
}


@pytest.mark.parametrize("mistake", BLURS)
@pytest.mark.parametrize("precision", ["fp64", "fp32", "fp16", "bf16"])
def test_mistakes_of_blur_are_found(precision: str, mistake: str) -> None:
    problem = build("blur", precision, {"batch": 2, "rows": 40, "columns": 33})
    assert bool(outcome_of(problem, BLURS[mistake])) == bool(mistake)


FFTS: dict[str, Callable[[Any], Any]] = {
    "": np.fft.fft2,
    "conjugated": lambda x: np.fft.fft2(x).conj(),
    "inverse": lambda x: np.fft.ifft2(x, norm="forward"),
    "normalised": lambda x: np.fft.fft2(x, norm="ortho"),
    "shifted": lambda x: np.fft.fftshift(np.fft.fft2(x), axes=(1, 2)),
    "transposed": lambda x: np.fft.fft2(x).swapaxes(1, 2),
    "rows only": np.fft.fft,
    "half precision": lambda x: np.fft.fft2(rounded(x, np.float16)),
}


def rounded(x: Any, kind: Any) -> Any:
    return x.real.astype(kind).astype(float) + 1j * x.imag.astype(kind).astype(float)


@pytest.mark.parametrize("n", [8, 31, 256])
@pytest.mark.parametrize("mistake", FFTS)
@pytest.mark.parametrize("precision", ["fp64", "fp32"])
def test_mistakes_of_fft_are_found(precision: str, mistake: str, n: int) -> None:
    problem = build("fft", precision, {"batch": 3, "n": n})
    reason = outcome_of(problem, lambda operands: FFTS[mistake](wide(operands, "x")))
    assert bool(reason) == bool(mistake)


@pytest.mark.parametrize("n", [16, 127, 128])
def test_an_fft_in_single_precision_is_right_in_fp32_and_wrong_in_fp64(n: int) -> None:
    def single(operands: Operands) -> Any:
        return np.fft.fft2(wide(operands, "x").astype(np.complex64))

    assert not outcome_of(build("fft", "fp32", {"batch": 3, "n": n}), single)
    assert outcome_of(build("fft", "fp64", {"batch": 3, "n": n}), single)


PRODUCTS: dict[str, Callable[[Any, Any], Any]] = {
    "": np.matmul,
    "A transposed": lambda a, b: a.swapaxes(1, 2) @ b,
    "B transposed": lambda a, b: a @ b.swapaxes(1, 2),
    "A conjugated": lambda a, b: a.conj() @ b,
    "exchanged": lambda a, b: b @ a,
    "elementwise": np.multiply,
    "first of the batch": lambda a, b: a[:1] @ b,
    "ten bits": lambda a, b: rounded(a, np.float16) @ rounded(b, np.float16),
}


@pytest.mark.parametrize("n", [8, 96])
@pytest.mark.parametrize("mistake", PRODUCTS)
def test_mistakes_of_spectrum_are_found(mistake: str, n: int) -> None:
    def kernel(operands: Operands) -> Any:
        return np.fft.fft2(PRODUCTS[mistake](wide(operands, "a"), wide(operands, "b")))

    problem = build("spectrum", "fp32", {"batch": 2, "n": n})
    assert bool(outcome_of(problem, kernel)) == bool(mistake)


def low_pass(operands: Operands, mistake: str) -> Any:
    """The filter in FP64, with one mistake."""
    problem, x = operands.problem, wide(operands, "x")
    n, cutoff = problem.extents["n"], float(problem.settings["cutoff"])
    threshold = float(problem.settings["threshold"])
    below = abs(x) < threshold if mistake == "threshold of the size" else x < threshold
    kept = np.where(below, threshold if mistake == "clamped" else 0, x)
    places = np.arange(n)
    signed = np.where(places > n // 2, places - n, places)
    if mistake == "not wrapped":
        signed = places
    if mistake == "shifted":
        signed = places - n // 2
    squares = signed[:, None] ** 2 + signed[None, :] ** 2
    if mistake == "square":
        squares = np.maximum(abs(signed)[:, None], abs(signed)[None, :]) ** 2
    mask = squares <= (cutoff * n / 2) ** 2
    if mistake == "without the edge":
        mask = squares < (cutoff * n / 2) ** 2
    if mistake == "high-pass":
        mask = ~mask
    norm: Any = {"not scaled": "forward", "scaled by n": "ortho"}.get(mistake, "backward")
    return np.fft.ifft2(np.fft.fft2(kept) * mask, norm=norm).real


@pytest.mark.parametrize("n", [16, 100])
@pytest.mark.parametrize(
    "mistake",
    [
        *("", "clamped", "threshold of the size", "not wrapped", "shifted", "square"),
        *("without the edge", "high-pass", "not scaled", "scaled by n"),
    ],
)
def test_mistakes_of_filter_are_found(mistake: str, n: int) -> None:
    problem = build("filter", "fp32", {"batch": 2, "n": n})
    reason = outcome_of(problem, lambda operands: low_pass(operands, mistake))
    assert bool(reason) == bool(mistake)


@pytest.mark.parametrize("parameters", [{"cutoff": 0.0}, {"cutoff": 1e30}, {"threshold": 2.0}])
def test_filters_at_their_limits(parameters: dict[str, float]) -> None:
    """Only the mean, every frequency, no pixel."""
    problem = build("filter", "fp32", {"n": 12, **parameters})
    operands = allocate(DEVICE, problem, 4)
    fake.compute(operands)()
    kept = np.where(operands.x < problem.settings["threshold"], 0, operands.x)
    wanted = np.full_like(kept, kept.mean()) if "cutoff" in parameters else kept * 0
    wanted = kept if problem.settings["cutoff"] == 1e30 else wanted
    np.testing.assert_allclose(operands.y, wanted, atol=1e-6)
    assert verify(DEVICE, operands, 0).reason == ""


def test_pixels_at_a_threshold_that_fp32_rounds_are_kept() -> None:
    problem = build("filter", "fp32", {"n": 4, "threshold": 0.1, "cutoff": 2.0})
    operands = allocate(DEVICE, problem, 4)
    operands.x[...] = np.float32(0.3)
    operands.x[0, 0, 0] = np.float32(0.1)
    fake.compute(operands)()
    np.testing.assert_allclose(operands.y, operands.x, atol=1e-7)


def test_a_filter_with_a_negative_cutoff_is_an_error() -> None:
    with pytest.raises(UsageError, match="cutoff = -1 keeps no frequency: give 0 or more"):
        build("filter", "fp32", {"n": 4, "cutoff": -1})


def test_a_checkerboard_that_cancels_is_not_called_wrong() -> None:
    problem = build("blur", "fp32", {"rows": 20, "columns": 20})
    operands = allocate(DEVICE, problem, 4)
    operands.x[...] = (-1.0) ** np.add.outer(np.arange(20), np.arange(20))
    fake.compute(operands)()
    operands.y[:, 5, 5] += 1e-8
    assert verify(DEVICE, operands, 0).reason == ""


# Copies of the operands --------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "int32", "bf16"])
def test_copies_with_other_results_are_found(precision: str) -> None:
    problem = example("add", precision)
    rotation = rotate(DEVICE, problem, 2, cold=True)
    rotation.poison(0)
    for operands in rotation.copies[:4]:
        fake.compute(operands)()
    assert unlike(DEVICE, rotation, range(4)) == []
    wrong = output(rotation.copies[2]).reshape(-1)
    value = decode(np, wrong[:1], problem.precision.output) + 50
    wrong[:1] = encode(np, value, problem.precision.output)
    assert unlike(DEVICE, rotation, range(4)) == [2]
    assert unlike(DEVICE, rotation, [1, 0, 3]) == []


def test_copies_hold_the_same_numbers_at_other_addresses() -> None:
    rotation = rotate(DEVICE, example("triad"), 2, cold=True)
    first, second = rotation.copies[:2]
    assert np.array_equal(first.a, second.a)
    assert not np.shares_memory(first.a, second.a)
    assert rotation.filled(DEVICE, "ints").copies[0].a is first.a
    assert np.array_equal(first.a, second.a)
    assert np.array_equal(first.b, rotation.copies[-1].b)
    assert np.array_equal(first.a, allocate(DEVICE, example("triad"), 2, "ints").a)


# The whole protocol ------------------------------------------------------------------------------


def run(problem: Problem, spoil: Any = None) -> Any:
    kernel = fake.exact("one", 0.5, spoil, problem.workload, (problem.precision.name,))
    (outcome,) = Protocol(fake.FakeDevice(), SweepConfig(timing=TIMING)).measure(problem, [kernel])
    return outcome


@pytest.mark.parametrize("workload", [w for w in EXAMPLES if not catalogue()[w].collective])
def test_every_workload_is_measured(workload: str) -> None:
    problem = example(workload)
    outcome = run(problem)
    assert (outcome.status, outcome.reason, outcome.flags) == ("ok", "", [])
    roof = DEVICE.roofline().roof("fp32", problem.flops, problem.traffic)
    assert roof is not None
    assert outcome.summary.median == pytest.approx(2 * roof.us)


@pytest.mark.parametrize("workload", ["add", "copy", "sum"])
def test_integers_are_measured(workload: str) -> None:
    outcome = run(example(workload, "int32"))
    assert (outcome.status, outcome.rel_error) == ("ok", 0)


def test_a_kernel_that_leaves_integers_alone_is_incorrect() -> None:
    def forget(operands: Operands) -> None:
        operands.c.reshape(-1)[:7] = buffers.SENTINELS[0]

    outcome = run(example("add", "int32"), forget)
    assert outcome.status == "incorrect"
    assert outcome.reason == "7 of 246 elements of C are not written"


def test_a_kernel_that_is_off_by_one_is_incorrect() -> None:
    def spoil(operands: Operands) -> None:
        operands["y"][...] += 1

    outcome = run(example("sum", "int32"), spoil)
    assert (outcome.status, outcome.summary) == ("incorrect", None)
    assert "1 of 1 elements are wrong" in outcome.reason


def test_a_reference_that_returns_another_name_is_told_so() -> None:
    kind = catalogue()["copy"]

    class Misnamed(kind):  # type: ignore[misc, valid-type]
        def reference(self, arrays: Any, inputs: Any) -> dict[str, Any]:
            return {"z": inputs["a"]}

    problem = Misnamed(precision=PRECISIONS["fp32"], columns=8)
    operands = allocate(DEVICE, problem, 0, "uniform")
    for one in problem.operands:
        if one.written:
            operands[one.name][...] = 0  # it may have been NaN
    with pytest.raises(KernelError, match=r"the reference of copy returns 'z', not \w+"):
        verify(DEVICE, operands, 0)
