"""Are our kernels faster than cuBLAS, at every size, and is each rung faster than the one below it?

    python benchmarks/ladder.py bf16                # sweep a precision, then judge
    python benchmarks/ladder.py decode              # the shapes of decode.toml
    python benchmarks/ladder.py bf16 --rungs        # every rung at 4096 and 8192
    python benchmarks/ladder.py bf16 fp32 --errors  # errors against FP64, beside the library's
    python benchmarks/ladder.py                     # judge all runs in results/, without a GPU
    python benchmarks/ladder.py results/RUN ...     # judge these

A sweep has our highest rung for each problem, cuBLAS, cuBLASLt and the CUTLASS kernels that
nvMatmulHeuristics proposes, 1024 to 8192 in both layouts, by benchmarks/ladder.toml. With all that
must be compiled it takes less than five minutes on any Hopper card with 16 processors; install
'.[cuda13,cublaslt,cutlass,heuristics]'. Each precision and card is judged by the run that has most
of it. The page goes to results/benchmarks/ladder.md.

PASS: the targets in _ladder.py, geometric mean and least ratio of each layout; errors at most 1.5
times the library's; each rung faster than the one before at 4096 and 8192.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from _common import Row, open_gpu, sweep
from _ladder import (
    AGAINST,
    BESIDE,
    DECODE,
    DECODE_PRECISIONS,
    ERRORS,
    FEW_ROWS_RUNG,
    PROPOSED,
    RUNG_SIZES,
    SIZES,
    TARGETS,
    champion,
    decode_shapes,
    ladder_of,
    layouts,
    newest_first,
    page,
    read_errors,
    rungs,
)
from _ladder_errors import error_rows

import rooflab
from rooflab.devices.base import Device
from rooflab.kernels.base import Kernel, Variant
from rooflab.kernels.sources import discover
from rooflab.measure.search import compilers, named
from rooflab.model.precision import PRECISIONS
from rooflab.runs.store import MANIFEST, RunData
from rooflab.workloads.gemm import Gemm

HERE = Path(os.path.relpath(Path(__file__).parent))
GRACE_S = 30.0
"""After this and --seconds a sweep is interrupted; its rows stay."""

RUNG_ROUNDS = 20
"""Some rungs differ by 1 %, as much as a round from the next one at a power limit."""


# Measuring ---------------------------------------------------------------------------------------


def entrants(
    kernels: Sequence[Kernel], precision: str, sizes: Sequence[int], wanted: Sequence[str]
) -> dict[str, list[str]]:
    """Our highest rungs by layout, of those that are ``wanted``, else of all."""
    found: dict[str, list[str]] = {}
    for layout in wanted or layouts(precision):
        some = (
            Gemm(m=size, n=size, k=size, precision=PRECISIONS[precision], layout=layout)
            for size in sizes
        )
        best = [one.name for problem in some if (one := champion(kernels, problem))]
        if best:
            found[layout] = list(dict.fromkeys(best))
    return found


def measure(what: str, arguments: argparse.Namespace) -> None:
    """One sweep, into ``--out``."""
    started = perf_counter()
    kernels = [one for one in discover().all() if one.device_kind == "cuda"]
    options = ["--config", str(HERE / "ladder.toml")]
    if what == DECODE:
        options += _of_decoding(kernels, arguments)
    elif arguments.rungs:
        options += _of_rungs(kernels, what)
    else:
        race = race_of(kernels, what, arguments)
        compile_all(race, open_gpu(), arguments.variant)
        options += race.options()
    options += [word for name in arguments.variant for word in ("--variant", name)]
    options += ["--retune"] if arguments.retune else []
    left_s = max(GRACE_S, arguments.seconds - (perf_counter() - started))
    sweep(["--max-time", f"{left_s:.0f}", *options], arguments.out, left_s + GRACE_S)


@dataclass(frozen=True)
class Race:
    """The kernels as on the command line, problems and layouts of a sweep."""

    words: Sequence[str]
    precisions: Sequence[str]
    layouts: Sequence[str]
    sizes: Sequence[int]

    def options(self) -> list[str]:
        """Those of ``rooflab sweep``."""
        return [
            *("-k", ",".join(self.words), "-p", ",".join(self.precisions)),
            *("--layout", ",".join(self.layouts), "--sizes", ",".join(map(str, self.sizes))),
        ]

    def kernels(self) -> list[Kernel]:
        """Those that rooflab has, the slowest to compile first. Globs and files are the sweep's."""
        found = [discover().get("cuda", "gemm", word) for word in self.words]
        return sorted(filter(None, found), key=lambda one: -one.memory_gb)

    def problems(self) -> list[Gemm]:
        return [
            Gemm(m=size, n=size, k=size, precision=PRECISIONS[precision], layout=layout)
            for size in self.sizes
            for layout in self.layouts
            for precision in self.precisions
        ]


def race_of(kernels: Sequence[Kernel], what: str, arguments: argparse.Namespace) -> Race:
    """Ours against the libraries."""
    chosen = entrants(kernels, what, arguments.sizes, arguments.layout)
    words = [*(arguments.kernel or (name for best in chosen.values() for name in best))]
    if not arguments.kernel and max(arguments.sizes) > max(SIZES):
        words += [name for name in BESIDE if what in rungs()[f"gemm/{name}"].precisions]
    words += ["cublas", "cublaslt", *(["cublaslt_fast"] if what == "fp8" else [])]
    proposed = (one for one in kernels if one.name == PROPOSED and what in one.precisions)
    words += [one.name for one in proposed]
    precisions = dict.fromkeys([AGAINST.get(what, what), what])
    return Race(
        list(dict.fromkeys(words)),
        list(precisions),
        list(chosen or layouts(what)),
        arguments.sizes,
    )


def compile_all(race: Race, device: Device, patterns: Sequence[str]) -> None:
    """Compile every variant for every problem, which the searches of a sweep would do one problem
    after the other. Failures are told by the rows."""
    kernels = [one for one in race.kernels() if not one.unavailable(device)]
    tasks = [
        (variant, problem)
        for kernel in kernels
        for problem in race.problems()
        if not kernel.refuses(problem)
        for variant in named(kernel, patterns)
        if not variant.unsupported(problem)
    ]

    def build(task: tuple[Variant, Gemm]) -> None:
        with suppress(Exception):
            task[0].compile(device, task[1])

    with ThreadPoolExecutor(
        compilers(max((one.memory_gb for one in kernels), default=1.0))
    ) as pool:
        for done, _ in enumerate(pool.map(build, tasks), 1):
            print(f"compiling {done}/{len(tasks)}", end="\r", file=sys.stderr)
    print(file=sys.stderr)


def _of_decoding(kernels: Sequence[Kernel], arguments: argparse.Namespace) -> list[str]:
    """Our kernels for few rows; the highest of the others if there is none."""
    few = [
        name.partition("/")[2]
        for name, header in rungs().items()
        if header.workload == "gemm" and FEW_ROWS_RUNG <= header.rung < float("inf")
        if set(DECODE_PRECISIONS) & set(header.precisions)
    ]
    others = entrants(kernels, DECODE_PRECISIONS[0], SIZES, ["nt"]).get("nt", [])
    return [
        *("-k", ",".join([*(arguments.kernel or few or others), "cublas", "cublaslt"])),
        *("-p", ",".join(DECODE_PRECISIONS), "--layout", "nt"),
        *("--shape", ",".join(decode_shapes())),
    ]


def _of_rungs(kernels: Sequence[Kernel], what: str) -> list[str]:
    """All rungs that a precision has, in the highest one's layout, without the libraries."""
    chosen = entrants(kernels, what, RUNG_SIZES, [])
    layout = max(chosen, key=lambda one: max(rungs()[f"gemm/{name}"].rung for name in chosen[one]))
    sizes = ",".join(map(str, RUNG_SIZES))
    return [
        *("-k", ",".join(ladder_of(what)), "-p", what, "--layout", layout, "--sizes", sizes),
        *("--rounds", str(RUNG_ROUNDS)),
    ]


def measure_errors(precisions: Sequence[str], pages: Path) -> None:
    """Errors of ``precisions``; those of others stay as they are in the table."""
    device = open_gpu()
    device.claim()
    kernels = [one for one in discover().all() if one.device_kind == device.kind]
    old = [row for row in read_errors(pages) if row["precision"] not in precisions]
    rows: list[Row] = [*old]
    pages.mkdir(parents=True, exist_ok=True)
    for precision in precisions:
        for row in error_rows(device, kernels, precision):
            print(*row.values(), sep="  ", file=sys.stderr, flush=True)
            rows.append(row)
        with (pages / f"{ERRORS}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


# Judging -----------------------------------------------------------------------------------------


def runs_in(folder: Path) -> list[RunData]:
    """The runs in a folder, newest first."""
    runs = [rooflab.load(path.parent) for path in folder.glob(f"*/{MANIFEST}")]
    return newest_first(runs)


def judge(runs: Sequence[RunData], pages: Path) -> int:
    """Write and print ladder.md; 0 if all is as wanted."""
    text, good = page(runs, read_errors(pages))
    pages.mkdir(parents=True, exist_ok=True)
    (pages / "ladder.md").write_text(text, encoding="utf-8")
    print(text)
    return 0 if good else 1


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = ", ".join(TARGETS)
    parser.add_argument("what", nargs="*", help=f"{names}, or run folders to judge")
    parser.add_argument("--rungs", action="store_true", help="measure every rung instead")
    parser.add_argument("--errors", action="store_true", help="measure errors instead")
    parser.add_argument("--seconds", type=float, default=265.0, help="about, for each sweep")
    parser.add_argument("--sizes", type=_numbers, default=list(SIZES))
    parser.add_argument("--layout", type=_texts, default=[], help="instead of our best rung's")
    parser.add_argument("--kernel", type=_texts, default=[], help="instead of our best rung")
    parser.add_argument("--variant", action="append", default=[], help="as rooflab sweep's")
    parser.add_argument("--retune", action="store_true", help="search variants again")
    parser.add_argument("--out", type=Path, default=Path("results"), help="parent of run folders")
    parser.add_argument("--pages", type=Path, default=Path("results/benchmarks"))
    arguments = parser.parse_args(words)
    chosen = [name for name in arguments.what if name in TARGETS]
    folders = [Path(name) for name in arguments.what if name not in TARGETS]
    if absent := [str(path) for path in folders if not (path / MANIFEST).is_file()]:
        parser.error(f"{absent[0]} is neither a run folder nor one of {names}")
    if arguments.errors:
        measure_errors([name for name in chosen or TARGETS if name != DECODE], arguments.pages)
    else:
        for what in chosen:
            measure(what, arguments)
    runs = newest_first(map(rooflab.load, folders)) if folders else runs_in(arguments.out)
    return judge(runs, arguments.pages)


def _texts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _numbers(text: str) -> list[int]:
    return [int(part) for part in _texts(text)]


if __name__ == "__main__":
    sys.exit(main())
