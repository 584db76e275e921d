"""Models of the DRAM traffic of products, and how well they agree with what was counted. Pure.

A model takes a counted product and returns the DRAM bytes that it expects.
"""

from __future__ import annotations

import csv
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from statistics import median
from typing import Final

from rooflab.model.measurement import Measurement
from rooflab.model.traffic import (
    ACCUMULATORS,
    FILLED,
    MEASURED,
    PARTITIONS,
    Chip,
    Product,
    read_again,
)
from rooflab.runs.store import load

RESULTS: Final = Path(__file__).parents[1] / "results"
TABLE: Final = RESULTS / "benchmarks" / "traffic.csv"

STEP: Final = RESULTS / "benchmarks" / "programs_ncu.md"
RUNS: Final = ("20261122T183359Z-nvidia-h200", "20261122T183434Z-nvidia-h200")

H200: Final = Chip(132, 62_914_560)

NEAR: Final = 0.2
"""A model that is wrong by less is near."""

BAND: Final = 1024
"""Rows in the waves of the model with bands: 8 tiles of 128."""


@dataclass(frozen=True, slots=True)
class CountedProduct:
    """All kernels of one product: its time, and what was counted.

    ``launches`` are those in a step of ``examples/programs/train.py``, 0 if it has none.
    """

    layout: str
    product: Product
    kernel: str
    grid: str
    launches: int
    us: float
    dram_bytes: float

    @property
    def compulsory(self) -> int:
        """Bytes of the three matrices."""
        m, n, k = self.product.m, self.product.n, self.product.k
        return self.product.element_bytes * (m * k + k * n + m * n)

    @property
    def tile(self) -> int:
        """Elements of a tile, by the kernel's name."""
        rows, columns = re.findall(r"_(\d+)x(\d+)_", self.kernel)[0]
        return int(rows) * int(columns)


def counted(path: Path = TABLE) -> list[CountedProduct]:
    """The products of the table: kernels of one are added up."""
    found: dict[tuple[str, ...], CountedProduct] = {}
    for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
        key = (row["layout"], row["m"], row["n"], row["k"])
        us, dram = float(row["us"]), float(row["dram_bytes"])
        one = found.get(key)
        found[key] = CountedProduct(
            row["layout"],
            Product(*map(int, key[1:])),
            one.kernel if one else row["kernel"],
            one.grid if one else row["grid"],
            int(row["launches"]),
            us + (one.us if one else 0.0),
            dram + (one.dram_bytes if one else 0.0),
        )
    return list(found.values())


def in_runs() -> list[CountedProduct]:
    """What runs of sweeps counted of cuBLAS on an H200: operands were rotated, nothing flushed."""
    return [
        CountedProduct("nn", Product(*_extents(row)), row.kernel, "", 0, us, row.dram_bytes)
        for folder in RUNS
        for row in load(RESULTS / folder).ok
        if row.kernel == "cublas" and row.problem.precision in MEASURED
        if (us := row.time_us) and row.dram_bytes
    ]


def _extents(row: Measurement) -> tuple[int, int, int]:
    m, n, k = (row.problem.extents[name] for name in "mnk")
    return m, n, k


def in_step() -> list[tuple[str, float, float]]:
    """Kernels of a training step: name, and bytes expected and counted of all their launches.

    They were counted where they are in the step, each with what the one before left in L2.
    """
    expected: dict[tuple[str, str], float] = defaultdict(float)
    launches: Counter[tuple[str, str]] = Counter()
    for one in counted():
        key = (one.kernel[:48], one.grid)
        expected[key] += one.launches * waves(one, FILLED)
        launches[key] += one.launches
    found = []
    for line in STEP.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        name, _, grid = cells[0].rpartition(", ")
        key = (name, grid)
        if launches[key]:
            if launches[key] != int(cells[1].split(",")[0]):
                raise ValueError(f"{name} has other launches in {STEP}")
            found.append((f"{name} {grid}", expected[key], 1e6 * float(cells[4])))
    return found


# Models ------------------------------------------------------------------------------------------

Model = Callable[[CountedProduct], float]


def compulsory(one: CountedProduct) -> float:
    """Each matrix once."""
    return one.compulsory


def waves(one: CountedProduct, filled: float, *, l2: float = 1.0, by_name: bool = False) -> float:
    """What rooflab expects, with ``l2`` times the L2, or with the tile of the kernel's name."""
    tile = one.tile / ACCUMULATORS if by_name else 1.0
    chip = Chip(H200.multiprocessors * tile, H200.l2_bytes * l2)
    return one.compulsory + read_again(one.product, chip, filled)


def bands(one: CountedProduct, *, by_name: bool = False) -> float:
    """Waves with ``BAND`` rows or columns, whichever is less traffic; panels are kept as above."""
    p = one.product
    held = H200.multiprocessors * (one.tile if by_name else ACCUMULATORS)
    if p.m * p.n <= held:
        return one.compulsory
    again = min(_banded(p.m, p.n, p.k, held), _banded(p.n, p.m, p.k, held))
    return one.compulsory + p.element_bytes * again


def _banded(m: int, n: int, k: int, held: float) -> float:
    height = float(min(m, BAND))
    width = min(n, held / height)
    height = min(m, held / width)
    first, second = m * k * (n / width - 1), n * k * (m / height - 1)
    moved = 2 * ((height + width) * k + height * width)
    kept = moved <= H200.l2_bytes / PARTITIONS
    return min(first, second) if kept else first + second


# Scores ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Score:
    """In percent: the part of the time in which a model is near, and errors of its bytes."""

    near: float
    median: float
    worst: float

    @property
    def cells(self) -> list[str]:
        """As in tables."""
        return [f"{self.near:.0f}", f"{self.median:.1f}", f"{self.worst:+.0f}"]


def score(model: Model, found: Iterable[CountedProduct], *, step: bool = False) -> Score:
    """``step``: each product as often as in a training step, so those that it lacks are left out.

    The error is the modelled over the counted bytes, less 1.
    """
    rows = [(model(one) / one.dram_bytes - 1, one) for one in found if one.launches or not step]
    time = [one.us * (one.launches if step else 1) for _, one in rows]
    near = sum(us for us, (error, _) in zip(time, rows, strict=True) if abs(error) < NEAR)
    errors = [error for error, _ in rows]
    return Score(100 * near / sum(time), 100 * median(map(abs, errors)), 100 * max(errors, key=abs))


Family = Callable[[CountedProduct, float], float]


def with_share(family: Family, share: float) -> Model:
    """The model of a family that has this share."""
    return lambda one: family(one, share)


GRID: Final = [round(0.4 + 0.01 * i, 2) for i in range(81)]


def fitted(family: Family, found: Sequence[CountedProduct]) -> float:
    """The share with the least sum of squares of log(modelled / counted), weighted by time."""

    def loss(share: float) -> float:
        return sum(one.us * log(family(one, share) / one.dram_bytes) ** 2 for one in found)

    return min(GRID, key=loss)


def halves(
    family: Family, found: Sequence[CountedProduct], times: int = 100
) -> list[tuple[float, Score]]:
    """The share fitted to a random half of the shapes, and its score on the other, ``times``.

    Layouts of one shape are in the same half.
    """
    source, made = random.Random(0), []
    shapes = sorted({_shape(one) for one in found})
    for _ in range(times):
        chosen = set(source.sample(shapes, len(shapes) // 2))
        share = fitted(family, [one for one in found if _shape(one) in chosen])
        others = [one for one in found if _shape(one) not in chosen]
        made.append((share, score(with_share(family, share), others)))
    return made


def _shape(one: CountedProduct) -> tuple[int, ...]:
    return tuple(sorted((one.product.m, one.product.n, one.product.k)))
