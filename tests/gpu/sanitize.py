"""Each kernel once per precision, choice and variant at odd sizes, with little else on the GPU.

Made to be watched: compute-sanitizer --tool memcheck python tests/gpu/sanitize.py [KERNEL...]
A kernel is named as its workload and name, such as softmax/pipelined; * stands for anything.
"""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase
from typing import Any

import cupy
import numpy as np

from rooflab.devices.base import Device
from rooflab.devices.registry import open_device
from rooflab.kernels.base import Operands, Prepare
from rooflab.kernels.sources import discover
from rooflab.measure.buffers import between, distinct
from rooflab.model.encoding import decode, encode
from rooflab.model.problem import Index, Operand, Problem
from rooflab.workloads import build
from rooflab.workloads.experts import SPREADS
from rooflab.workloads.linear import EPILOGUES

GEMM = (
    *((129, 65, 33, 2, 1.0, 0.0), (7, 127, 129, 2, 0.5, -2.0)),
    *((129, 67, 35, 1, 1.0, 0.0), (9, 131, 137, 1, 0.5, -2.0)),  # for padded copies
    *((129, 65, 40, 2, 1.0, 0.0), (7, 127, 136, 2, 0.5, -2.0)),  # for copies of 16 bytes
    *((128, 256, 192, 2, 1.0, 0.0), (256, 128, 64, 2, 0.5, -2.0)),  # for whole tiles
    *((129, 272, 528, 1, 1.0, 0.0), (7, 144, 80, 1, 0.5, -2.0)),  # for one matrix at a time
    (5, 72, 2056, 1, 0.5, -2.0),  # for few rows: a long sum
)
MATRICES = ((1, 1), (7, 127), (129, 65), (3, 4099), (5, 1024), (2, 32768))
ROWS = (
    *("softmax", "rmsnorm", "layernorm", "cross_entropy"),
    *("rmsnorm_backward", "layernorm_backward", "cross_entropy_backward", "quantize"),
)
IMAGES = ((1, 1, 1), (2, 1, 33), (2, 33, 1), (3, 37, 130), (2, 65, 256))
SQUARES = ((1, 1), (3, 2), (3, 31), (5, 64), (2, 100))
VECTORS = (1, 129, 4099, 65536)
OF_ATTENTION = ("queries", "keys", "heads", "kv_heads", "head_size", "batch")
ATTENTION = (
    (1, 1, 1, 1, 1, 1),
    (7, 127, 6, 2, 33, 2),
    (70, 70, 2, 2, 64, 1),
    (16, 999, 8, 2, 128, 1),
)
EXPERTS = ((1, 1, 1, 1), (129, 65, 33, 5), (70, 136, 72, 8))
QUANTISED = ((1, 1, 1), (7, 127, 129), (5, 65, 1056), (67, 48, 256))
CANCEL = ("sum", "gemv")
LAYOUTS = ("nn", "nt", "tn", "tt")


class Host:
    """Inputs in host memory, decoded as a reference takes them."""

    def __init__(self, problem: Problem, arrays: dict[str, np.ndarray]) -> None:
        self._arrays = arrays
        self._types = {one.name: one.type for one in problem.operands}

    def __getitem__(self, name: str) -> Any:
        return self.part(name, (...,))

    def part(self, name: str, index: Index) -> Any:
        return decode(np, self._arrays[name][index], self._types[name])

    def shape(self, name: str) -> tuple[int, ...]:
        return self._arrays[name].shape


def problems(workload: str, precision: str) -> list[Problem]:  # noqa: C901  a case for each
    if workload == "gemm":
        return [
            build(
                workload,
                precision,
                {"m": m, "n": n, "k": k, "batch": z, "alpha": a, "beta": b, "layout": layout},
            )
            for m, n, k, z, a, b in GEMM
            for layout in LAYOUTS
        ]
    if workload == "gemv":
        return [build(workload, precision, {"m": m, "n": n}) for m, n in MATRICES]
    if workload in ROWS:
        return [build(workload, precision, {"rows": r, "columns": c}) for r, c in MATRICES]
    if workload == "embedding":
        return [
            build(workload, precision, {"tokens": m, "words": 5, "columns": n}) for m, n in MATRICES
        ]
    if workload in ("route", "sort_experts"):
        names = ("tokens", "experts", "chosen")
        shapes = [dict(zip(names, s, strict=True)) for s in ((1, 1, 1), (7, 3, 3), (300, 128, 8))]
        return [build(workload, precision, shape) for shape in shapes]
    if workload == "combine":
        return [build(workload, precision, {"tokens": m, "columns": n}) for m, n in MATRICES[:3]]
    if workload == "rope":
        return [build(workload, precision, {"tokens": n, "heads": h}) for n, h in MATRICES[:3]]
    if workload == "blur":
        names = ("batch", "rows", "columns")
        return [build(workload, precision, dict(zip(names, one, strict=True))) for one in IMAGES]
    if workload in ("fft", "spectrum", "filter"):
        return [build(workload, precision, {"batch": z, "n": n}) for z, n in SQUARES]
    if workload in ("attention", "attention_backward"):
        shapes = [dict(zip(OF_ATTENTION, one, strict=True)) for one in ATTENTION]
        settings = ("off", "on")
        return [build(workload, precision, {**s, "causal": c}) for s in shapes for c in settings]
    if workload == "grouped_gemm":
        of_experts = ("tokens", "n", "k", "experts")
        shapes = [dict(zip(of_experts, one, strict=True)) for one in EXPERTS]
        return [build(workload, precision, {**s, "spread": c}) for s in shapes for c in SPREADS]
    if workload == "linear":
        shapes = [dict(zip("mnk", one, strict=True)) for one in (*QUANTISED, (70, 134, 200))]
        return [build(workload, precision, {**s, "epilogue": e}) for s in shapes for e in EPILOGUES]
    if workload in ("w4a16", "block_gemm"):
        return [build(workload, precision, dict(zip("mnk", one, strict=True))) for one in QUANTISED]
    name = "elements" if workload in ("sum", "adamw") else "columns"
    return [build(workload, precision, {name: count}) for count in VECTORS]


def main(patterns: list[str]) -> None:
    device, random, launched = open_device("cuda:0"), np.random.default_rng(), 0
    for kernel in discover().all():
        if kernel.device_kind != "cuda" or kernel.library:
            continue
        if not any(fnmatchcase(kernel.id, pattern) for pattern in patterns):
            continue
        for precision in kernel.precisions:
            for problem in problems(kernel.workload, precision):
                if kernel.refuses(problem) or kernel.unavailable(device):
                    continue
                able = [v.prepare for v in kernel.variants if not v.unsupported(problem)]
                for prepare in able or [kernel.prepare]:
                    run(device, problem, prepare, random, kernel.id)
                    launched += 1
    print(f"{launched} launches, all right")


def numbers(random: np.random.Generator, operand: Operand) -> Any:
    if operand.numbers:
        return np.array(operand.numbers)
    if operand.step:
        rows = operand.elements // operand.shape[-1]
        return distinct(np, random, rows, operand).reshape(operand.shape)
    if operand.within:
        return between(np, random.random(operand.shape), operand)
    if operand.type.integer:
        return np.rint(random.uniform(-9, 9, operand.shape))
    return random.uniform(-1, 1, operand.shape)


def run(
    device: Device, problem: Problem, prepare: Prepare, random: np.random.Generator, name: str
) -> None:
    host = {one.name: encode(np, numbers(random, one), one.type) for one in problem.operands}
    operands = Operands(problem, {n: cupy.asarray(a) for n, a in host.items()}, {})
    prepare(device, operands)()
    device.synchronize()
    expected = problem.reference(np, Host(problem, host))
    for one in problem.operands:
        if one.written:
            result = decode(np, cupy.asnumpy(operands[one.name]), one.type)
            wanted = expected[one.name]
            scale = max(float(np.linalg.norm(wanted)), 1e-30)
            error = np.linalg.norm(result - wanted) / scale
            # A sum of random numbers may cancel, so that its relative error is larger. So may a
            # difference: of one number alone, nothing is said.
            limit = 1e-2 if problem.workload in CANCEL else 2 * problem.tolerance
            assert error <= limit or wanted.size == 1, (name, problem.record, error)


if __name__ == "__main__":
    main(sys.argv[1:] or ["gemm/naive", "gemm/coalesced", "gemm/tiled"])
