"""Counts the DRAM traffic of products by cuBLAS, and compares models of it with what was counted.

python benchmarks/traffic.py [--count results/benchmarks/traffic.csv]

Counting needs a GPU and PyTorch. Without it the tables of docs/lab/traffic.md are printed.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from _traffic import (
    CountedProduct,
    Family,
    Model,
    bands,
    compulsory,
    counted,
    fitted,
    halves,
    in_runs,
    in_step,
    score,
    waves,
    with_share,
)

from rooflab.model.traffic import FILLED

Shape = tuple[str, int, int, int, int]
"""Layout, M, N and K, and launches in a step of the training example."""

TOKENS: Final = 8192

FLUSHED: Final = 256 * 2**20
"""Bytes that are written before each product: more than L2 holds."""


def shapes() -> Iterator[Shape]:
    """Those of the training step, squares, and few rows."""
    for n, k in ((6144, 2048), (2048, 2048), (8192, 2048), (2048, 8192), (32000, 2048)):
        each = 1 if n == 32000 else 4
        yield "nt", TOKENS, n, k, each
        yield "nn", TOKENS, k, n, each
        yield "tn", n, k, TOKENS, each
    for size in (2048, 4096, 8192, 12288):
        for layout in ("nn", "nt", "tn"):
            yield layout, size, size, size, 0
    for m in (1, 16, 64, 256, 1024, 4096):
        for n, k in ((8192, 8192), (4096, 14336), (28672, 4096)):
            yield "nt", m, n, k, 0
    yield "nn", 16384, 16384, 1024, 0
    yield "nn", 1024, 1024, 65536, 0
    yield "nn", 32768, 4096, 4096, 0
    yield "nn", 4096, 32768, 4096, 0


LEVELS: Final = ("dram_bytes", "l2_bytes")

# Counting ----------------------------------------------------------------------------------------


def count(path: Path) -> None:
    """Count each product once, after a flush of the caches, and write the table."""
    import torch

    from rooflab.devices.cuda.activity import synchronize
    from rooflab.devices.cuda.cupti import Cupti
    from rooflab.devices.cuda.replay import Replay, counters_of

    cupti, inside = Cupti(), [False]
    wanted = list(shapes())
    made = [(shape, *_operands(torch, *shape[:4])) for shape in wanted]
    for _, a, b in made:
        a @ b  # what is chosen and allocated at the first call
    flush = torch.empty(FLUSHED, device="cuda", dtype=torch.uint8)
    lines: list[Sequence[Any]] = [COLUMNS]
    with Replay(cupti, counters_of(cupti, 0), lambda key, index: inside[0]) as replay:
        for shape, a, b in made:
            flush.zero_()
            synchronize()
            inside[0] = True
            a @ b
            synchronize()
            inside[0] = False
            lines += [_line(shape, one) for one in replay.counted]
            replay.counted.clear()
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


COLUMNS: Final = ("layout", "m", "n", "k", "launches", "kernel", "grid", "us", *LEVELS)


def _operands(torch: Any, layout: str, m: int, n: int, k: int) -> tuple[Any, Any]:
    def made(rows: int, columns: int, *, transposed: bool) -> Any:
        shape = (columns, rows) if transposed else (rows, columns)
        one = torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
        return one.t() if transposed else one

    return made(m, k, transposed=layout[0] == "t"), made(k, n, transposed=layout[1] == "t")


def _line(shape: Shape, one: Any) -> Sequence[Any]:
    grid = "x".join(map(str, one.key.grid))
    name = one.key.kernel.partition("<")[0].removeprefix("void ")
    found = one.counters
    return (*shape, name, grid, one.us, int(found.dram_bytes or 0), int(found.l2_bytes or 0))


# Tables ------------------------------------------------------------------------------------------


def markdown(lines: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table whose first ``left`` columns are words."""
    marks = [":--"] * left + ["--:"] * (len(lines[0]) - left)
    rows = (f"| {' | '.join(cells)} |" for cells in (lines[0], marks, *lines[1:]))
    return "\n".join(rows)


FAMILIES: Final[dict[str, Family]] = {
    "waves, nothing kept": partial(waves, l2=0.0),
    "**waves, a panel kept if a wave fits in half of L2**": waves,
    "the same, in all of L2": partial(waves, l2=2.0),
    "the same as in bold, with the tile of the kernel's name": partial(waves, by_name=True),
}
"""Models with one share to fit."""


def models(found: Sequence[CountedProduct]) -> str:
    """Each model on all products, with its share fitted to all of them."""
    listed: list[tuple[str, str, Model]] = [
        ("compulsory", "–", compulsory),
        ("square waves in step, nothing kept", "1", partial(waves, filled=1.0, l2=0.0)),
        ("bands of 1024, a panel kept", "–", bands),
        ("the same, with the tile of the name", "–", partial(bands, by_name=True)),
    ]
    for name, family in FAMILIES.items():
        share = fitted(family, found)
        listed.append((name, f"{share:.2f}", with_share(family, share)))
    head = ["model", "share", "near, % of the time", "median error %", "worst %", "near in a step"]
    rows = [
        [name, share, *score(model, found).cells, f"{score(model, found, step=True).near:.0f}"]
        for name, share, model in listed
    ]
    return markdown([head, *rows])


def held_out(found: Sequence[CountedProduct]) -> str:
    """Shares fitted to some of the products, and errors on the others."""
    step = [one for one in found if one.launches]
    others = [one for one in found if not one.launches]
    head = ["fitted to", "judged by", "share", "near, % of the time", "median error %", "worst %"]
    lines = [head]
    for to, by, one, other in (
        ("the training step", "all else", step, others),
        ("all else", "the training step", others, step),
    ):
        share = fitted(waves, one)
        cells = score(with_share(waves, share), other).cells
        lines.append([to, by, f"{share:.2f}", *cells])
    shares, scores = zip(*halves(waves, found), strict=True)
    worst = max((one.worst for one in scores), key=abs)
    lines.append(
        [
            "half of the shapes, 100 times",
            "the other half",
            f"{min(shares):.2f} to {max(shares):.2f}",
            f"at least {min(one.near for one in scores):.0f}",
            f"{median(one.median for one in scores):.1f}",
            f"{worst:+.0f}",
        ]
    )
    return markdown(lines, 2)


def other_counts() -> str:
    """The model against what was not counted for it."""
    lines = [["counted", "MB", "model, MB", "error %"]]
    for one in in_runs():
        p, expected = one.product, waves(one, FILLED)
        lines.append(_compared(f"a sweep, {p.m}×{p.n}×{p.k}", expected, one.dram_bytes))
    lines += [_compared(f"a step, `{name}`", *values) for name, *values in in_step()]
    return markdown(lines)


def _compared(name: str, expected: float, moved: float) -> list[str]:
    error = 100 * (expected / moved - 1)
    return [name, f"{moved / 1e6:.0f}", f"{expected / 1e6:.0f}", f"{error:+.1f}"]


def products(found: Sequence[CountedProduct]) -> str:
    """Each product: times its compulsory bytes."""
    lines = [["product", "cuBLAS's kernel", "µs", "counted, × compulsory", "model, ×", "error %"]]
    for one in found:
        p, expected = one.product, waves(one, FILLED)
        kernel = one.kernel.removeprefix("nvjet_sm90_tst_")
        lines.append(
            [
                f"{one.layout} {p.m}×{p.n}×{p.k}",
                f"`{kernel}`",
                f"{one.us:.0f}",
                f"{one.dram_bytes / one.compulsory:.2f}",
                f"{expected / one.compulsory:.2f}",
                f"{100 * (expected / one.dram_bytes - 1):+.0f}",
            ]
        )
    return markdown(lines, 2)


def tables() -> dict[str, str]:
    """All of the page, by the name of their place."""
    found = counted()
    return {
        "models": models(found),
        "held_out": held_out(found),
        "other_counts": other_counts(),
        "products": products(found),
    }


def main() -> None:
    """Count, or compare."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--count", type=Path, metavar="FILE")
    given = options.parse_args()
    if given.count:
        count(given.count)
        return
    print("\n\n".join(tables().values()))


if __name__ == "__main__":
    main()
