"""How long do commands that only read runs take, and how large is a report?

    python benchmarks/many_rows.py
    python benchmarks/many_rows.py --before FOLDER   # beside another version of rooflab

Makes runs of many rows from committed ones (tests/many.py), and times each command in a process of
its own, by its CPU time: the commands use one thread, so on an idle machine it is their wall time.
A command that takes longer than ``--most`` seconds is stopped.

PASS: every command takes at most 10 s, and the page of 4,000 rows has at most 2 MB.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from _common import Row, conclude

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from many import grown, joined, saved  # noqa: E402  a module of the tests
from measured import CPU, LADDER  # noqa: E402

from rooflab.runs.store import RunData  # noqa: E402

COUNTS = (1000, 4000, 20_000)
LIMIT_S = 10.0
LIMIT_MB = 2.0
OF_ROWS = 4000
"""Rows of the page whose size is limited."""

COMMANDS = {
    "show": ["show", "RUN"],
    "export": ["export", "RUN"],
    "plot": ["plot", "RUN"],
    "compare": ["compare", "RUN", "RUN"],
    "explain": ["explain", "RUN"],
    "report": ["report", "RUN", "--out", "report.html"],
}


def runs(counts: list[int]) -> Iterator[tuple[str, RunData]]:
    """Of several workloads, kernels and precisions; the largest also of other kinds."""
    mixed = joined()
    for count in counts:
        yield "7 workloads, 22 kernels", grown(mixed, count)
    ladder = joined([LADDER])
    fp32 = [row for row in ladder.ok if row.problem.precision == "fp32"]
    names = [f"kernel{i}" for i in range(20)]
    yield "1 workload, 20 kernels", grown(replace(ladder, measurements=fp32), max(counts), names)
    yield (
        "CPU, 1 workload, 4 kernels",
        grown(joined([CPU]), max(counts), ["naive", "tiled", "numba", "blas"]),
    )


def timed(words: list[str], folder: Path, rooflab: Path, most: int) -> float | None:
    """CPU seconds of a command of the rooflab in a folder; None if it takes more than ``most``."""
    environment = os.environ | {"PYTHONPATH": str(rooflab)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "rooflab", *words]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (most, most)),
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return None
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.decode()}")
    return spent


def measure(
    name: str, run: RunData, folder: Path, versions: dict[str, Path], most: int
) -> list[Row]:
    """A row for each command."""
    count, path = len(run.measurements), saved(run, folder / f"{name} {len(run.measurements)}")
    rows: list[Row] = []
    for command, words in COMMANDS.items():
        print(f"{command}, {name}, {count} rows", file=sys.stderr, flush=True)
        given = [str(path) if word == "RUN" else word for word in words]
        row: dict[str, str | float | None] = {"command": command, "run": name, "rows": str(count)}
        for version, rooflab in versions.items():
            seconds = timed(given, folder, rooflab, most)
            row[version] = f"> {most}" if seconds is None else seconds
        spent = row["s"]
        agrees = isinstance(spent, float) and spent <= LIMIT_S
        if command == "report":
            row["MB"] = size = (folder / "report.html").stat().st_size / 1e6
            agrees &= count != OF_ROWS or size <= LIMIT_MB
        else:
            row["MB"] = None
        rows.append({**row, "verdict": "agrees" if agrees else "DIFFERS"})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=list(COUNTS))
    parser.add_argument("--before", type=Path, help="another version of rooflab to time beside")
    parser.add_argument("--most", type=int, default=300, help="s after which it is stopped")
    parser.add_argument("--out", type=Path, default=Path("results/many_rows"))
    args = parser.parse_args()
    # The present version is the last, so that the page that is measured is its.
    versions = {"before s": args.before.resolve()} if args.before else {}
    versions["s"] = ROOT
    rows: list[Row] = []
    with TemporaryDirectory() as folder:
        for name, run in runs(args.rows):
            rows += measure(name, run, Path(folder), versions, args.most)
    heading = (
        f"# Commands that read runs of many rows\n\nCPU seconds, at most {LIMIT_S:g}, and before: "
        f"those of another version. A page of {OF_ROWS} rows has at most {LIMIT_MB:g} MB."
    )
    return conclude(rows, heading, args.out, "many_rows")


if __name__ == "__main__":
    sys.exit(main())
