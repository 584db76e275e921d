"""Every CUDA kernel against float64, in every precision and choice, on awkward shapes."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Set
from itertools import product
from pathlib import Path
from typing import Final, TypeVar

import pytest
from documents import example

from rooflab.devices.base import Device
from rooflab.errors import KernelError, LaunchError
from rooflab.files import kernels_dir
from rooflab.kernels.base import Kernel, Prepare, Variant
from rooflab.kernels.cuda_file.kernel import read_file
from rooflab.kernels.sources import discover, load_file
from rooflab.measure.buffers import allocate, poison
from rooflab.measure.verify import Expected
from rooflab.model.problem import Problem
from rooflab.workloads import build, find

pytestmark = pytest.mark.gpu

# CUTLASS's are many and slow to compile: test_cutlass_kernels.py
KERNELS = {
    kernel.id: kernel
    for kernel in discover().all()
    if kernel.device_kind == "cuda" and kernel.backend != "cutlass"
}


def choices(kernel: Kernel) -> list[dict[str, str]]:
    """All combinations of the workload's settings that are words."""
    words = {p.name: p.choices for p in find(kernel.workload).parameters().values() if p.choices}
    return [dict(zip(words, values, strict=True)) for values in product(*words.values())]


COMPILED = "torch_compiled"
"""It takes tens of seconds to compile for a precision and a shape."""


CUTE = sorted((kernels_dir() / "gemm" / "cute").glob("*.cu"))
READING = ("cute_gemm", "cute_epilogue")
"""Each takes half a minute to compile: only the first, and the one that is about it, read C too."""

PROPOSED: Final = 3
"""So many of a library's algorithms are tried on all problems, and all on the last one."""


def precisions(kernel: Kernel) -> tuple[str, ...]:
    """All, but of what PyTorch compiles the last: storage as bits, sums in another type."""
    return kernel.precisions[-1:] if kernel.name == COMPILED else kernel.precisions


CASES = [
    pytest.param(name, precision, words, id="-".join((name, precision, *words.values())))
    for name, kernel in KERNELS.items()
    for precision in precisions(kernel)
    for words in choices(kernel)
    if all(words[setting] in allowed for setting, allowed in kernel.choices.items())
]

# The odd ones first; then sizes that are multiples of 16 bytes, or whole tiles.
GEMM = (
    *((1, 1, 1), (7, 127, 129), (129, 1, 65), (1000, 37, 513)),
    *((1, 1, 8), (127, 129, 136), (1000, 37, 512), (333, 1001, 264)),
    *((256, 256, 256), (128, 384, 448), (333, 1000, 1040), (2100, 2064, 528)),
    *((3, 1000, 4104), (64, 520, 4104)),  # few rows, long sums
)
MATRICES = ((1, 1), (7, 127), (129, 1), (3, 4099), (1000, 513), (64, 1024), (33, 8192), (5, 32768))
ROWS = (
    *("gemv", "softmax", "rmsnorm", "layernorm", "cross_entropy"),
    *("rmsnorm_backward", "layernorm_backward", "cross_entropy_backward", "quantize"),
)
IMAGES = (
    *((1, 1, 1), (3, 1, 127), (2, 129, 1), (1, 2, 2), (5, 37, 130), (2, 65, 1000)),
    *((1, 100, 256), (3, 33, 1024)),  # rows are multiples of 16 bytes
)
SQUARES = ((1, 1), (1, 2), (3, 7), (129, 16), (2, 31), (5, 64), (3, 127), (2, 512), (1, 1000))
OF_ATTENTION = ("queries", "keys", "heads", "kv_heads", "head_size", "batch")
ATTENTION = (
    *((1, 1, 1, 1, 1, 1), (7, 127, 6, 2, 33, 2), (130, 130, 4, 4, 64, 1), (100, 1000, 8, 1, 96, 2)),
    *((1, 4099, 32, 8, 128, 3), (16, 8192, 8, 2, 128, 1), (333, 500, 6, 3, 256, 1)),
    (1024, 1024, 32, 8, 128, 1),
)
EXPERTS = (
    (1, 1, 1, 1),
    (129, 65, 33, 5),
    (70, 136, 72, 8),
    (3, 1000, 264, 64),
    (1000, 520, 1032, 7),
    (1000, 1544, 776, 40),
)
"""Tokens, N, K, and experts."""

QUANTISED = (
    (1, 1, 1),
    (7, 127, 129),
    (1, 4096, 4128),
    (3, 1000, 4096),
    (64, 520, 288),
    (333, 48, 1280),
    (700, 8200, 288),
    (128, 272, 1024),
)
KEPT_BYTES = 2**28
VECTORS = (1, 7, 127, 129, 1000, 4099, 65536, 1_000_003)


FACTORS: Final = ((1.0, 0.0), (1.5, 0.0), (0.5, -2.0))
"""Of a product and of the old C."""


def problems(kernel: Kernel, precision: str, words: dict[str, str]) -> Iterator[Problem]:
    """What a kernel is tried on, where it supports it; few that PyTorch would compile for.

    A product of a kernel with many precisions and layouts has other factors in each of them.
    """
    shapes = list(_parameters(kernel.workload))
    tests = sum(one.values[0] == kernel.id for one in CASES)
    if kernel.workload == "gemm" and tests >= len(FACTORS):
        turn = turn_of(kernel, precision, words)
        shapes = [one for i, one in enumerate(shapes) if "batch" in one or not _turn(i, turn)]
    if kernel.source in CUTE and kernel.name not in READING:
        shapes = [{**one, "beta": 0.0} if "batch" in one else one for one in shapes]
        shapes = [one for one in shapes if one["beta"] == 0]
    for parameters in shapes[1::4] if kernel.name == COMPILED else shapes:
        problem = build(kernel.workload, precision, {**words, **parameters})
        if not kernel.refuses(problem):
            yield problem


def attempts(
    kernel: Kernel, precision: str, words: dict[str, str]
) -> Iterator[tuple[Problem, list[Variant]]]:
    """The problems of a test, and what to try on each: of many variants few, others in others."""
    every = list(problems(kernel, precision, words))
    for problem in every:
        variants = [one for one in kernel.variants if not one.unsupported(problem)]
        if kernel.source:
            variants = covering(kernel, variants, turn=turn_of(kernel, precision, words))
        elif kernel.library and problem is not every[-1]:
            variants = variants[:PROPOSED]
        yield problem, variants


def turn_of(kernel: Kernel, precision: str, words: dict[str, str]) -> int:
    """The how many-th of the kernel's tests it is."""
    tests = [one.values[1:] for one in CASES if one.values[0] == kernel.id]
    return tests.index((precision, words))


def covering(kernel: Kernel, variants: list[Variant], turn: int) -> list[Variant]:
    """Variants of a file in which every value of every macro is that is in any of them.

    All others are verified wherever they are used, as every kernel is.
    """
    assert kernel.source
    traits = {
        choice.title: {*choice.macros.items(), ("", choice.access_bytes), ("", choice.splits)}
        for choice in read_file(kernel.source).header.all_variants
    }
    start = turn % max(len(variants), 1)
    turned = {one.name: one for one in (*variants[start:], *variants[:start])}
    return [turned[name] for name in cover({name: traits[name] for name in turned})]


Choice = TypeVar("Choice", bound=Hashable)


def cover(traits: Mapping[Choice, Set[Hashable]]) -> Iterator[Choice]:
    """Few choices that have all traits between them; the first of those that add most."""
    missing = set().union(*traits.values())
    while missing:
        found = max(traits, key=lambda one: len(traits[one] & missing))
        missing -= traits[found]
        yield found


def _turn(number: int, turn: int) -> int:
    """Zero for one of each shape's three factors, the next one for the next shape."""
    shape, factors = divmod(number, len(FACTORS))
    return (shape + factors + turn) % len(FACTORS)


def _parameters(workload: str) -> Iterator[dict[str, float]]:  # noqa: C901  a case for each
    if workload == "gemm":
        for m, n, k in GEMM:
            for alpha, beta in FACTORS:
                yield {"m": m, "n": n, "k": k, "alpha": alpha, "beta": beta}
        for m, n, k in ((7, 127, 129), (7, 127, 136), (128, 256, 192)):
            yield {"m": m, "n": n, "k": k, "alpha": 0.5, "beta": -2.0, "batch": 3}
    elif workload in ROWS:
        names = list(find(workload).sizes)
        for extents in MATRICES:
            yield dict(zip(names, extents, strict=True))
    elif workload == "blur":
        for batch, rows, columns in IMAGES:
            yield {"batch": batch, "rows": rows, "columns": columns}
    elif workload == "filter":
        for batch, n in SQUARES:
            for threshold, cutoff in ((0.25, 0.5), (-0.1, 0.0), (0.3, 2.0)):
                yield {"batch": batch, "n": n, "threshold": threshold, "cutoff": cutoff}
    elif workload in ("fft", "spectrum"):
        for batch, n in SQUARES:
            yield {"batch": batch, "n": n}
    elif workload == "embedding":
        for tokens, words, columns in ((1, 1, 1), (7, 3, 127), (1000, 17, 513), (129, 5000, 4096)):
            yield {"tokens": tokens, "words": words, "columns": columns}
    elif workload in ("route", "sort_experts"):
        for tokens, experts, chosen in ((1, 1, 1), (7, 3, 3), (1000, 128, 8), (4099, 33, 5)):
            yield {"tokens": tokens, "experts": experts, "chosen": chosen}
    elif workload == "combine":
        for tokens, columns, chosen in ((1, 1, 1), (7, 127, 3), (1000, 513, 8), (129, 4096, 2)):
            yield {"tokens": tokens, "columns": columns, "chosen": chosen}
    elif workload == "rope":
        for tokens, heads, head_size in ((1, 1, 2), (7, 3, 6), (127, 32, 128), (1000, 8, 64)):
            yield {"tokens": tokens, "heads": heads, "head_size": head_size, "batch": 2}
    elif workload in ("attention", "attention_backward"):
        for one in ATTENTION:
            yield dict(zip(OF_ATTENTION, one, strict=True))
    elif workload == "grouped_gemm":
        for sizes in EXPERTS:
            yield dict(zip(("tokens", "n", "k", "experts"), sizes, strict=True))
    elif workload in ("w4a16", "block_gemm", "linear"):
        for shape in QUANTISED:
            yield dict(zip("mnk", shape, strict=True))
    else:
        (name,) = find(workload).sizes
        for count in VECTORS:
            yield {name: count}


class Trial:
    """A problem on a device, and what is right: for one kernel, or for all of its variants."""

    def __init__(self, device: Device, problem: Problem) -> None:
        seed = sum(problem.extents.values())
        self._device, self._operands = device, allocate(device, problem, seed)
        self._expected = Expected(device, self._operands, seed, KEPT_BYTES)

    def passes(self, prepare: Prepare) -> None:
        """Two launches on outputs with two kinds of poison, each right."""
        launch = prepare(self._device, self._operands)
        for pattern in (0, 1):
            poison(self._operands, pattern)
            launch()
            self._device.synchronize()
            verdict = self._expected.verdict(self._operands)
            assert not verdict.reason, (self._operands.problem.record, verdict.reason)


def check(device: Device, kernel: Kernel, problem: Problem) -> None:
    Trial(device, problem).passes(kernel.prepare)


@pytest.mark.parametrize(("name", "precision", "words"), CASES)
def test_kernel_is_correct(
    device: Device, name: str, precision: str, words: dict[str, str]
) -> None:
    kernel = KERNELS[name]
    if reason := kernel.unavailable(device):
        pytest.skip(reason)
    for problem, variants in attempts(kernel, precision, words):
        trial = Trial(device, problem)
        for rank, prepare in enumerate([v.prepare for v in variants] or [kernel.prepare]):
            try:
                trial.passes(prepare)
            except LaunchError as error:  # a smaller variant is for this problem
                assert "bytes of shared memory" in str(error) and len(variants) > 1
            except KernelError as error:  # the library proposes fewer than there may be
                assert rank, error
                assert f"proposes {rank} algorithms" in str(error)
                break


def test_more_than_2_31_elements(device: Device) -> None:
    """Offsets of 64 bits: 2^31 + 7 numbers of two bytes in each operand."""
    problem = build("copy", "fp16", {"columns": 2**30, "batch": 2})
    for name in ("copy/naive", "copy/vectorized", "copy/streaming"):
        check(device, KERNELS[name], problem)
        device.release()


PLAIN = """/*
entry = "mine"
precisions = ["fp32"]
layouts = ["nn"]
block = [64]
tile = [1, 1]
shared_bytes = 65536
*/

// One block per element of C. Its last thread stands 64 KB away from the first: out of reach
// unless the launch has asked for all of it.
extern "C" __global__ void mine(int M, int N, int K, float alpha, const float* A, const float* B,
                                float beta, float* C) {
    extern __shared__ float sums[];
    float sum = 0;
    for (int k = threadIdx.x; k < K; k += 64) {
        sum += A[blockIdx.y * K + k] * B[k * N + blockIdx.x];
    }
    sums[threadIdx.x * 256 + 255] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int other = 1; other < 64; ++other) sum += sums[other * 256 + 255];
    float* c = C + blockIdx.y * N + blockIdx.x;
    *c = alpha * sum + (beta != 0 ? beta * *c : 0);
}
"""


def test_a_users_plain_file_with_much_shared_memory(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(PLAIN)
    (kernel,) = load_file(path)
    parameters = {"m": 33, "n": 65, "k": 129, "alpha": 0.5, "beta": -2.0}
    check(device, kernel, build("gemm", "fp32", parameters))


def test_the_example_with_tma(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(example("CONTRIBUTING.md", "cuda"))
    (kernel,) = load_file(path)
    if reason := kernel.unavailable(device):
        pytest.skip(reason)
    for m, n, k in ((1, 4, 4), (33, 68, 132), (127, 128, 36)):
        parameters = {"m": m, "n": n, "k": k, "alpha": 0.5, "beta": -2.0}
        check(device, kernel, build("gemm", "fp32", parameters))
    assert "multiple of 4" in kernel.refuses(build("gemm", "fp32", {"m": 8, "n": 7, "k": 8}))


CLUSTERS = """/*
entry = "mine"
precisions = ["fp32"]
layouts = ["nn"]
min_compute_capability = "9.0"
block = [32]
tile = [1, 32]
cluster = ["BLOCKS"]
early_launch = "EARLY"
variants = [{ BLOCKS = 2, EARLY = 0 }, { BLOCKS = 4, EARLY = 1 }]
*/
// Right only if the blocks of a cluster are as many as the header says: their ranks are factors.
extern "C" __global__ void mine(int M, int N, int K, float alpha, const float* A, const float* B,
                                float beta, float* C) {
    unsigned rank, blocks;
    asm("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
    asm("mov.u32 %0, %cluster_nctarank;" : "=r"(blocks));
    asm volatile("griddepcontrol.wait;" ::: "memory");
    const int column = blockIdx.x * 32 + threadIdx.x;
    if (column >= N) return;
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += A[blockIdx.y * K + k] * B[k * N + column];
    const bool right = blocks == BLOCKS && rank == blockIdx.x % BLOCKS && gridDim.x % BLOCKS == 0;
    float& c = C[blockIdx.y * N + column];
    c = right ? alpha * sum + (beta != 0 ? beta * c : 0) : -1;
}
"""


def test_a_users_file_with_clusters(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(CLUSTERS)
    (kernel,) = load_file(path)
    if reason := kernel.unavailable(device):
        pytest.skip(reason)
    problem = build("gemm", "fp32", {"m": 33, "n": 165, "k": 129, "alpha": 0.5, "beta": -2.0})
    for variant in kernel.variants:
        Trial(device, problem).passes(variant.prepare)
