"""Do our memory-bound kernels reach the memory roof, and are they faster than the libraries?

    python benchmarks/memory_bound.py

Runs ``rooflab sweep --config benchmarks/memory_bound.toml`` (``--run`` judges an existing run). The
roofs are measured in the same run: the copy roof is the best rate of a device-to-device memcpy, the
read roof the best rate of any kernel that mainly reads (``sum``, ``gemv``). Each point uses the
fastest of our kernels and the fastest of the libraries: cuBLAS, CuPy, PyTorch, Triton.

PASS: copy, add and triad at 0.97 of the copy roof; softmax and RMS norm at 0.93, faster than
PyTorch and Triton, and at 0.99 of the code that torch.compile generates; sum at 0.97 of the read
roof; gemv at 0.95 of it from 512 MB on and at 0.85 below, and on the decode shapes 1.05 times as
fast as cuBLAS (geometric mean).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from _common import Row, conclude, sweep

import rooflab

CONFIG = Path(os.path.relpath(Path(__file__).with_suffix(".toml")))
POINT = ["workload", "precision", "size"]
OF_COPY = {"copy": 0.97, "add": 0.97, "triad": 0.97, "softmax": 0.93, "rmsnorm": 0.93}
READERS = ("sum", "gemv")
LARGE_BYTES = 512e6


def judge(frame: pd.DataFrame) -> Iterator[Row]:
    """``frame`` has the rows of a run with status ok."""
    copy_roof = frame[frame.kernel == "memcpy"].gbps.max()
    read_roof = frame[frame.workload.isin(READERS)].gbps.max()
    ours, others = frame[frame.backend == "cuda"], frame[frame.backend != "cuda"]
    generated = others.kernel.str.endswith("_compiled")
    ours, libraries, generated = best(ours), best(others[~generated]), best(others[generated])
    for point, row in ours.iterrows():
        workload = point[0]
        if workload in OF_COPY:
            yield verdict(point, row, "memcpy", copy_roof, OF_COPY[workload])
        elif workload == "sum":
            yield verdict(point, row, "read roof", read_roof, 0.97)
        elif row.m == row.n:
            least = 0.95 if row.bytes >= LARGE_BYTES else 0.85
            yield verdict(point, row, "read roof", read_roof, least)
        if workload in ("softmax", "rmsnorm"):
            for other, least in ((libraries.loc[point], 1.0), (generated.loc[point], 0.99)):
                yield verdict(point, row, other.kernel, other.gbps, least)
    yield from decode(ours, libraries)


def best(frame: pd.DataFrame) -> pd.DataFrame:
    """The fastest row of each point."""
    fastest = frame.groupby(POINT, sort=False).gbps.idxmax()
    return frame.loc[fastest].set_index(POINT)


def decode(ours: pd.DataFrame, libraries: pd.DataFrame) -> Iterator[Row]:
    """For each precision, gemv against cuBLAS on the shapes that are not square."""
    shapes = ours[(ours.m != ours.n) & ours.m.notna()]
    ratios = shapes.gbps / libraries.gbps.reindex(shapes.index)
    for precision, found in ratios.groupby("precision"):
        point = ("gemv", precision, f"{len(found)} decode shapes")
        mean = np.exp(np.log(found).mean())
        fastest = pd.Series({"kernel": "the fastest", "gbps": mean})
        yield verdict(point, fastest, "cublas", 1.0, 1.05)


def verdict(
    point: tuple[str, ...], ours: pd.Series, against: str, reference: float, least: float
) -> Row:
    ratio = ours.gbps / reference
    return {
        **dict(zip(POINT, point, strict=True)),
        "ours": ours.kernel,
        "GB/s": str(round(ours.gbps)) if reference > 1.0 else "",
        "against": against,
        "its GB/s": str(round(reference)) if reference > 1.0 else "",
        "ratio": float(ratio),
        "at least": least,
        "verdict": "agrees" if ratio >= least else "BELOW",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, help="judge this run folder instead of measuring")
    parser.add_argument("--out", type=Path, default=Path("results/memory_bound"))
    args = parser.parse_args()
    run = rooflab.load(args.run or sweep(["--config", str(CONFIG)], args.out))
    frame = run.frame()
    heading = f"# {run.path.name}: {run.manifest.device.name}"
    return conclude(list(judge(frame[frame.status == "ok"])), heading, args.out, "memory_bound")


if __name__ == "__main__":
    sys.exit(main())
