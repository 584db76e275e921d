"""Nsight Compute's command line: hardware counters of another process."""

from __future__ import annotations

import csv
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from rooflab.devices.cuda.counters import FORBIDDEN, choose
from rooflab.errors import UnavailableError

LIMIT_S: Final = 300

_PLACES: Final = (("/opt/nvidia/nsight-compute", "*/ncu"), ("/usr/local", "cuda*/bin/ncu"))


def find() -> str | None:
    """The program, on the path or where NVIDIA's installers put it."""
    if found := shutil.which("ncu"):
        return found
    places = (sorted(Path(folder).glob(pattern)) for folder, pattern in _PLACES)
    return next((str(found[-1]) for found in places if found), None)


@cache
def metrics(ncu: str) -> tuple[str, ...]:
    """The metrics that this machine's GPU has. Raises ``UnavailableError`` without any."""
    lines = run([ncu, "--query-metrics"]).splitlines()
    if found := choose({line.split()[0] for line in lines if "__" in line.split(" ")[0]}):
        return tuple(found)
    raise UnavailableError("ncu --query-metrics lists no metric that is known")


def count(ncu: str, command: Sequence[str], *, cold: bool) -> dict[str, float]:
    """The metrics of all launches that ``command`` makes between profiler start and stop.

    Each kernel runs once per pass, with a flushed cache if ``cold``. Raises ``UnavailableError``.
    """
    options = ["--csv", "--page", "raw", "--print-units", "base", "--profile-from-start", "off"]
    options += ["--clock-control", "none", "--cache-control", "all" if cold else "none"]
    options += ["--target-processes", "all", "--metrics", ",".join(metrics(ncu))]
    output = run([ncu, *options, *command])
    values = dict(_sums(output, metrics(ncu)))
    if not values:
        forbidden = "ERR_NVGPUCTRPERM" in output
        raise UnavailableError(FORBIDDEN if forbidden else "ncu wrote no values")
    return values


def run(command: Sequence[str]) -> str:
    """What the command prints on both streams. Raises ``UnavailableError``."""
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"ncu took more than {LIMIT_S} s") from error
    except OSError as error:
        raise UnavailableError(f"ncu does not start: {error.strerror}") from error
    return ended.stdout


def _sums(output: str, names: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Each metric over all kernels: sums, means of rates. The table's second line has units."""
    table = csv.DictReader(line for line in output.splitlines() if line.startswith('"'))
    kernels = list(table)[1:]
    for name in names:
        values = [value for row in kernels if (value := number(row.get(name))) is not None]
        if values:
            mean = name.endswith("per_second")
            yield name, sum(values) / len(values) if mean else sum(values)


def number(cell: str | None) -> float | None:
    """The number in a cell of a table; None for ``n/a`` and empty cells."""
    try:
        return float((cell or "").replace(",", ""))
    except ValueError:
        return None
