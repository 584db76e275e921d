"""Runs as pandas tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rooflab.model.measurement import Measurement
from rooflab.runs.manifest import Manifest
from rooflab.runs.table import header

if TYPE_CHECKING:
    from pandas import DataFrame


def frame(rows: Sequence[Measurement], manifest: Manifest) -> DataFrame:
    """One row per measurement, unrounded; the columns are those of ``measurements.csv``."""
    import pandas

    columns = header(manifest.workloads)
    records = []
    for row in rows:
        problem = row.problem
        own = {"workload": problem.workload, "precision": problem.precision, "size": problem.size}
        values = {**own, **problem.parameters}
        records.append({c: values[c] if c in values else getattr(row, c, None) for c in columns})
    return pandas.DataFrame(records, columns=columns)
