"""Shared by the scripts in this folder: points, rooflab's measurement, tables."""

from __future__ import annotations

import csv
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from rooflab.errors import RooflabError
from rooflab.kernels.sources import discover
from rooflab.model.precision import PRECISIONS
from rooflab.workloads.gemm import Gemm

if TYPE_CHECKING:
    from rooflab.devices.base import Device
    from rooflab.kernels.base import Kernel

SEED = 0

Row = Mapping[str, str | float | None]


@dataclass(frozen=True, slots=True)
class Point:
    """One kernel on one square problem, written ``cublas/fp16/4096``."""

    kernel: str
    precision: str
    size: int

    @classmethod
    def parse(cls, text: str) -> Point:
        kernel, precision, size = text.split("/")
        return cls(kernel, precision, int(size))

    def __str__(self) -> str:
        return f"{self.kernel}/{self.precision}/{self.size}"

    @property
    def problem(self) -> Gemm:
        size, precision = self.size, PRECISIONS[self.precision]
        return Gemm(m=size, n=size, k=size, precision=precision)

    def find_kernel(self) -> Kernel:
        (kernel,) = discover().select([self.kernel], "cuda", "gemm")
        return kernel


@dataclass(frozen=True, slots=True)
class RooflabTime:
    """``pair_us`` is one launch between two events; ``headline_us`` is a row's ``time_us``."""

    headline_us: float | None = None
    pair_us: float | None = None
    cache: str = ""
    sm_mhz: float | None = None
    flags: str = ""
    reason: str = ""


class Rooflab:
    """Measures points like ``rooflab sweep``, but in this process, each kernel alone."""

    def __init__(self, device: Device) -> None:
        from rooflab.config import SweepConfig
        from rooflab.measure.protocol import Protocol

        self._protocol = Protocol(device, SweepConfig(seed=SEED))

    def time(self, point: Point) -> RooflabTime:
        """Never raises: ``reason`` is the cause of a missing figure."""
        print(f"rooflab, {point}", file=sys.stderr)
        try:
            (outcome,) = self._protocol.measure(point.problem, [point.find_kernel()])
        except Exception as error:  # a point that fails must not end the others
            return RooflabTime(reason=first_line(error))
        if outcome.status != "ok" or outcome.summary is None:
            return RooflabTime(reason=f"{outcome.status}: {outcome.reason}")
        return RooflabTime(
            outcome.summary.median,
            outcome.pair_us,
            outcome.cache,
            outcome.sensed.sm_mhz,
            ";".join(outcome.flags),
        )


def open_gpu() -> Device:
    """The first GPU; exits with one line if there is none."""
    from rooflab.devices.registry import open_device

    try:
        return open_device("cuda")
    except RooflabError as error:
        sys.exit(f"no GPU to measure: {error}")


def sweep(options: Sequence[str], out: Path, limit_s: float | None = None) -> Path:
    """``rooflab sweep`` into a new run folder below ``out``; returns the folder.

    After ``limit_s`` the sweep is interrupted, and the folder has the rows until then.
    """
    before = set(out.glob("*/manifest.json"))
    command = [sys.executable, "-m", "rooflab", "sweep", *options, "--out", str(out)]
    print(*command[1:], file=sys.stderr, flush=True)
    # The table goes to stderr; stdout is for the script's verdict.
    with subprocess.Popen(command, stdout=sys.stderr) as process:
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            code = process.wait()
    new = sorted(set(out.glob("*/manifest.json")) - before)
    if not new:
        sys.exit(f"the sweep wrote no run to {out} (exit code {code})")
    if code:
        print(f"the sweep ended with {code}; judging the rows it wrote", file=sys.stderr)
    return new[-1].parent


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def describe(device: Device) -> str:
    """The device, its driver and the versions that matter."""
    driver = device.fact("driver_version") or "unknown"
    found = [f"{device.name}, driver {driver}"]
    packages = ("rooflab", "cupy-cuda12x", "cupy-cuda13x", "cuda-bench", "nvidia-cublas")
    for package in packages:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return "; ".join(found)


def percent(new: float, reference: float) -> float:
    """The difference of ``new`` from ``reference`` in percent."""
    return 100 * (new / reference - 1)


def judge(row: dict[str, str | float | None], limit_percent: float, reason: str = "") -> None:
    """Fill ``limit %`` and ``verdict`` from ``difference %``, or the reason if it is missing."""
    row["limit %"] = limit_percent
    difference = row["difference %"]
    if not isinstance(difference, float):
        row["verdict"] = f"not compared: {reason or 'no figure'}"
    else:
        row["verdict"] = "agrees" if abs(difference) <= limit_percent else "DIFFERS"


def conclude(rows: Sequence[Row], heading: str, out: Path, name: str) -> int:
    """Print the table and its last line, write ``name``.md and .csv; 0 if every row agrees."""
    agreeing = sum(row["verdict"] == "agrees" for row in rows)
    text = f"{heading}\n\n{markdown(rows)}\n\n{agreeing} of {len(rows)} within limits"
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.md").write_text(text + "\n", encoding="utf-8")
    with (out / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(text)
    return 0 if agreeing == len(rows) else 1


def markdown(rows: Sequence[Row]) -> str:
    """All rows have the keys of the first; numbers are right-aligned."""
    headings = list(rows[0])
    rights = [any(isinstance(row[name], int | float) for row in rows) for name in headings]
    lines = [headings, ["--:" if right else ":--" for right in rights]]
    lines += [[_cell(row[name]) for name in headings] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(value: str | float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if isinstance(value, float) else str(value).replace("|", "\\|")
