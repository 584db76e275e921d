"""Small runs to compare."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import synthetic

from rooflab.model.facts import Fact
from rooflab.model.measurement import Measurement
from rooflab.model.roofline import Roofline
from rooflab.runs import store
from rooflab.workloads import build

BROKEN: dict[str, Any] = {"time_us": None, "time_lo_us": None, "time_hi_us": None, "cache": ""}


def measured(kernel: str, size: int, time: float, half: float, **other: Any) -> Measurement:
    """A GEMM, square or of a ``shape``, that took ``time`` ± ``half`` microseconds."""
    shape = other.pop("shape", (size, size, size))
    parameters = {**dict(zip("mnk", shape, strict=True)), "layout": other.pop("layout", "nn")}
    problem = build("gemm", other.pop("precision", "fp32"), parameters)
    row = Measurement(
        problem=problem.record,
        kernel=kernel,
        flops=problem.flops,
        cache="cold",
        time_us=time,
        time_lo_us=time - half,
        time_hi_us=time + half,
    )
    return replace(row, **other)


def written(name: str, *rows: Measurement, driver: str = "580", **other: Any) -> Path:
    folder = Path(name)
    folder.mkdir()
    facts = {"driver_version": Fact(driver)}
    given = {"created": datetime(2026, 1, 2, 3, 4, tzinfo=UTC), **other}
    made = synthetic.run("NVIDIA H200", Roofline(()), [], facts, **given)
    with store.RunWriter(folder, made.manifest) as writer:
        for row in rows:
            writer.append(row, [])
    return folder
