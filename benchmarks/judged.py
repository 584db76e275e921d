"""Does `rooflab judge` accept what is honest? Every CUDA file of kernels/, as if nobody trusted it.

    python benchmarks/judged.py
    python benchmarks/judged.py --precisions all

Each file is judged in each of its precisions (without ``all``: in its first one) on a problem which
it supports. Several are judged at once, so their times are no figures, and whether something works
on after a launch is not asked.

PASS: all are accepted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from _common import Row, conclude, describe, first_line, open_gpu

import rooflab
from rooflab.kernels.base import Kernel
from rooflab.kernels.sources import discover
from rooflab.options import parse_shape
from rooflab.workloads import build, find

ROOT = Path(__file__).resolve().parents[1]
AT_ONCE = 7
SHAPES = {
    "gemm": ("1024x1024x1024", "8x1024x1024"),
    "gemv": ("1024x2048",),
    "softmax": ("1024x2048",),
    "rmsnorm": ("1024x2048",),
    "blur": ("8x512x512",),
    "fft": ("64x1024", "64x32"),
    "sum": ("1048576",),
    "adamw": ("1048576",),
    "attention": ("256x256",),
    "attention_backward": ("256x256",),
    "cross_entropy": ("1024x2048",),
    "layernorm": ("1024x2048",),
    "rope": ("256x8x128",),
    "swiglu": ("1024x2048",),
    "embedding": ("1024x1000x2048",),
    "grouped_gemm": ("512x1024x1024",),
    "w4a16": ("512x1024x1024", "16x1024x1024"),
    "block_gemm": ("512x1024x1024",),
    "linear": ("512x1024x1024",),
    "rmsnorm_backward": ("1024x2048",),
    "layernorm_backward": ("1024x2048",),
    "cross_entropy_backward": ("1024x2048",),
    "quantize": ("1024x2048",),
    "route": ("1024x128x8",),
    "sort_experts": ("1024x128x8",),
    "combine": ("1024x2048",),
}
"""By workload: the first that a kernel supports is taken."""

VECTOR = ("1x1048576",)


class Job(NamedTuple):
    """A file, and the problem that it is judged on."""

    file: Path
    workload: str
    precision: str
    shape: str
    words: dict[str, str]

    def judge(self) -> Row:
        """In a process of its own."""
        from rooflab.judging.trial import Arena

        Arena.disturbed = lambda self: False  # type: ignore[method-assign]  # others work too
        options: dict[str, Any] = {
            "precisions": self.precision,
            "shapes": self.shape,
            "parameters": self.words,
        }
        started = perf_counter()
        try:
            found = rooflab.judge(self.file, self.workload, "cuda", timeout_s=120, **options)
            refusal = "" if found.accepted else f"{found.problems[0].row.status}: {found.reason}"
        except Exception as error:  # one that fails must not end the others
            refusal = first_line(error)
        return {
            "file": str(self.file.relative_to(ROOT)),
            "precision": self.precision,
            "problem": " ".join([self.shape, *self.words.values()]),
            "s": perf_counter() - started,
            "verdict": f"REFUSED: {refusal}" if refusal else "agrees",
        }


def jobs(kernels: list[Kernel], *, every: bool) -> Iterator[Job]:
    """Of each file once, in all of its precisions if asked for; raises if nothing suits it."""
    for kernel in kernels:
        assert kernel.source
        for precision in kernel.precisions[: None if every else 1]:
            yield Job(kernel.source, kernel.workload, precision, *_problem(kernel, precision))


def _problem(kernel: Kernel, precision: str) -> tuple[str, dict[str, str]]:
    settings = find(kernel.workload).parameters().values()
    allowed = {**{one.name: one.choices for one in settings if one.choices}, **kernel.choices}
    for shape, *chosen in product(SHAPES.get(kernel.workload, VECTOR), *allowed.values()):
        words = dict(zip(allowed, chosen, strict=True))
        extents = parse_shape(shape, kernel.workload)
        if not kernel.refuses(build(kernel.workload, precision, {**extents, **words})):
            return shape, words
    raise LookupError(f"{kernel.id} supports none of the problems in {precision}")


def shipped() -> list[Kernel]:
    """Those with a .cu file; one of several kernels in a file stands for it."""
    found = {k.source: k for k in discover().all() if k.source and k.source.suffix == ".cu"}
    return sorted(found.values(), key=lambda kernel: str(kernel.source))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precisions", choices=("first", "all"), default="first")
    parser.add_argument("--out", type=Path, default=Path("results/judged"))
    args = parser.parse_args()
    device = open_gpu()
    rows = []
    processes = min(AT_ONCE, max(1, (os.cpu_count() or 2) // 2))
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        wanted = jobs(shipped(), every=args.precisions == "all")
        for one in as_completed([pool.submit(job.judge) for job in wanted]):
            rows.append(one.result())
            print(rows[-1]["file"], rows[-1]["verdict"], file=sys.stderr, flush=True)
    heading = f"# Every shipped kernel, judged\n\n{describe(device)}"
    return conclude(sorted(rows, key=lambda row: str(row["file"])), heading, args.out, "judged")


if __name__ == "__main__":
    sys.exit(main())
