"""Runs made of numbers, for tests that need a run and no device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rooflab.model.facts import Fact
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import Problem
from rooflab.model.roofline import Ceiling, MissingCeiling, Roofline
from rooflab.runs.manifest import DeviceRecord, Manifest, WorkloadRecord
from rooflab.runs.store import RunData
from rooflab.workloads.gemm import Gemm

SQUARES = [(s, s, s) for s in (256, 512, 1024, 2048, 4096, 8192)]
LLM = [(m, n, k) for n, k in ((4096, 4096), (14336, 4096)) for m in (1, 16, 256, 4096)]
KERNELS = ("naive", "coalesced", "tiled", "cublas")

H200_PEAKS = {
    "fp64": 66.9e12,
    "fp32": 66.9e12,
    "tf32": 495e12,
    "fp32_3xtf32": 165e12,
    "fp16": 989e12,
    "bf16": 989e12,
    "fp16_fp32": 989e12,
    "fp8": 1979e12,
}
H200_FACTS = {
    "driver_version": Fact("580.95.05"),
    "sm_clock_max": Fact(1980, "MHz"),
    "memory_clock_max": Fact(3201, "MHz"),
    "power_limit": Fact(700.0, "W"),
    "ecc_mode": Fact("enabled"),
    "l2_cache": Fact(50 * 2**20, "B"),
}
CPU_FACTS = {
    "cores": Fact(2),
    "threads": Fact(2),
    "power_limit": Fact(None, reason="not readable"),
    "last_level_cache_bytes": Fact(32 * 2**20, "B"),
}


def compute(key: str, value: float, provenance: Any = "derived") -> Ceiling:
    """A compute ceiling in FLOP/s."""
    return Ceiling("compute", key, value, provenance, "made up")


def bandwidth(key: str, value: float, provenance: Any = "derived") -> Ceiling:
    """A bandwidth ceiling in byte/s."""
    return Ceiling("bandwidth", key, value, provenance, "made up")


def h200_roofline(missing: Sequence[MissingCeiling] = ()) -> Roofline:
    """Derived peaks of an H200, less those named in ``missing``."""
    ceilings = [compute(key, value) for key, value in H200_PEAKS.items()]
    ceilings.append(bandwidth("HBM", 4.81e12))
    gone = {(m.kind, m.key) for m in missing}
    return Roofline(
        tuple(c for c in ceilings if (c.kind, c.key) not in gone), tuple(missing), memory="HBM"
    )


def cpu_roofline() -> Roofline:
    """Measured peaks of a small CPU, with its derived bound."""
    return Roofline(
        (
            compute("fp32", 148e9, "measured"),
            compute("fp64", 73e9, "measured"),
            compute("fp32", 192e9),
            compute("fp64", 96e9),
            bandwidth("DRAM", 21.4e9, "measured"),
        ),
        memory="DRAM",
        prefer=("measured", "derived"),
    )


def gemm(m: int, n: int, k: int, precision: str = "fp32", **parameters: Any) -> Gemm:
    """One GEMM."""
    return Gemm(m=m, n=n, k=k, precision=PRECISIONS[precision], **parameters)


def of(problem: Problem, kernel: str, **values: Any) -> Measurement:
    """A row of ``problem`` with its work."""
    work = ("flops", "bytes", "host_bytes", "peer_bytes", "intensity")
    given = {name: getattr(problem, name) for name in work} | {"cache": "cold"} | values
    return Measurement(problem=problem.record, kernel=kernel, **given)


def row(
    kernel: str,
    shape: tuple[int, int, int],
    precision: str,
    tflops: float,
    roofline: Roofline,
    **other: Any,
) -> Measurement:
    """One ok row that reaches ``tflops``; everything else follows from the model."""
    parameters = {name: other.pop(name) for name in list(other) if name in Gemm.parameters()}
    problem = gemm(*shape, precision, **parameters)
    seconds = problem.flops / (tflops * 1e12)
    roof = roofline.roof(precision, problem.flops, problem.traffic)
    values: dict[str, Any] = {
        "backend": "synthetic",
        "time_us": seconds * 1e6,
        "tflops": tflops,
        "gbps": problem.link_bytes / seconds / 1e9,
        "roof_us": roof.us if roof else None,
        "roof_tflops": problem.flops / roof.us / 1e6 if roof else None,
        "roof_percent": roof.us / seconds / 1e4 if roof else None,
        "bound": roof.bound if roof else "",
    }
    return of(problem, kernel, **(values | other))


def rows(
    roofline: Roofline,
    precisions: Iterable[str],
    kernels: Sequence[str],
    shapes: Iterable[tuple[int, int, int]],
    best: float = 0.8,
    **other: Any,
) -> list[Measurement]:
    """Rows that look like a sweep: the last kernel reaches ``best`` of the roof, others less.

    Small problems do not fill the machine, so that throughput rises with the size.
    """
    made = []
    for precision in precisions:
        peak = roofline.compute(precision)
        for i, kernel in enumerate(kernels):
            share = best * 0.22 ** (len(kernels) - 1 - i)
            for shape in shapes:
                problem = gemm(*shape, precision)
                least = roofline.roof(precision, problem.flops, problem.traffic)
                roof = problem.flops / least.us * 1e6 if least else peak.value if peak else 20e12
                filled = problem.flops / (problem.flops + roof * 4e-6)
                tflops = roof * share * filled / 1e12
                made.append(row(kernel, shape, precision, tflops, roofline, **other))
    return made


def run(
    name: str,
    roofline: Roofline,
    measurements: list[Measurement],
    facts: dict[str, Fact] | None = None,
    *,
    kind: str = "cuda",
    day: int = 20,
    path: Path = Path("results/synthetic"),
    **other: Any,
) -> RunData:
    """A run of ``measurements`` on a device called ``name``; ``other`` values of its manifest."""
    values: dict[str, Any] = {
        "created": datetime(2026, 11, day, 14, 3, tzinfo=UTC),
        "command": ["rooflab", "sweep"],
        "versions": {"rooflab": "0.1.0"},
        "host": {},
        "device": DeviceRecord(id=f"{kind}:0", kind=kind, name=name, facts=facts or {}),
        "roofline": roofline,
        "config": {},
        "kernels": {},
        "workloads": {"gemm": WorkloadRecord.of(Gemm)},
    }
    return RunData(path, Manifest(**(values | other)), measurements)


def with_device(run: RunData, **other: Any) -> RunData:
    """``run`` with other values of its device."""
    device = run.manifest.device.model_copy(update=other)
    return replace(run, manifest=run.manifest.model_copy(update={"device": device}))


def under(run: RunData, ceilings: Iterable[Ceiling]) -> RunData:
    """The run on a device with these ceilings."""
    roofline = replace(run.manifest.roofline, ceilings=tuple(ceilings))
    return replace(run, manifest=run.manifest.model_copy(update={"roofline": roofline}))


def h200_run(
    precisions: Iterable[str] = tuple(PRECISIONS),
    shapes: Sequence[tuple[int, int, int]] = tuple(SQUARES),
    **other: Any,
) -> RunData:
    """A full sweep on an H200."""
    roofline = h200_roofline()
    return run(
        "NVIDIA H200", roofline, rows(roofline, precisions, KERNELS, shapes, **other), H200_FACTS
    )


def capped_run(
    precisions: Iterable[str] = tuple(PRECISIONS), mhz: float = 1455, **other: Any
) -> RunData:
    """An H200 whose power limit slows what loads it most, down to ``mhz``."""
    full = h200_run(precisions, **other)
    made = []
    for one in full.measurements:
        m, n, k = (one.problem.extents[name] for name in "mnk")
        shape, roof = (m, n, k), one.roof_tflops or 0.0
        heavy = one.kernel == KERNELS[-1] and one.bound == "compute" and m >= 4096
        clock = (mhz if m > 4096 else (mhz + 1980) / 2) if heavy else 1980
        slower = clock / 1980
        seen: dict[str, Any] = {"sm_mhz": clock, "observed_tflops": roof * slower}
        seen["flags"] = "noisy;power_capped" if heavy else "batch_timed"
        tflops = (one.tflops or 0.0) * slower
        made.append(row(one.kernel, shape, one.problem.precision, tflops, h200_roofline(), **seen))
    return run("NVIDIA H200", full.manifest.roofline, made, H200_FACTS)


def cpu_run(precisions: Iterable[str] = ("fp32",), day: int = 20) -> RunData:
    """A sweep on a CPU with measured ceilings."""
    roofline = cpu_roofline()
    return run(
        "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz",
        roofline,
        rows(roofline, precisions, ("naive", "tiled", "blas"), SQUARES[:4], best=0.9),
        CPU_FACTS,
        kind="cpu",
        day=day,
    )
