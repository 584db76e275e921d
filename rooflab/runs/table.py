"""``measurements.csv``: rows to lines and back. Reads every older schema."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rooflab.errors import RunError, UsageError
from rooflab.model.measurement import COLUMNS, Measurement
from rooflab.model.problem import DRAM, ProblemRecord, Value, describe
from rooflab.runs.text import clean
from rooflab.workloads import DEFAULT, build

if TYPE_CHECKING:
    from pandas import DataFrame

    from rooflab.runs.manifest import Manifest, WorkloadRecord

_NAMES: Final = frozenset(one.name for one in fields(Measurement))
_FIRST: Final = ("workload", "kernel", "backend", "variant", "precision", "size")
_KIND: Final[dict[type, str]] = {int: "a whole number", float: "a number", str: "text"}
_TYPES: Final[dict[str, type[Value]]] = {"int": int, "float": float, "str": str}
MAX_BYTES: Final = 2**30


def header(workloads: Mapping[str, WorkloadRecord]) -> list[str]:
    """The names of all columns: kernel and problem, parameters, results."""
    parameters = [
        name
        for record in workloads.values()
        for name in (*record.extents, *record.settings, *record.streaming)
    ]
    return list(dict.fromkeys([*_FIRST, *parameters, *COLUMNS]))


def cells(row: Measurement) -> dict[str, Any]:
    """Every cell of a row by the name of its column: problem, parameters, results."""
    problem = row.problem
    own = {"workload": problem.workload, "precision": problem.precision, "size": problem.size}
    return {**own, **problem.parameters, **{name: getattr(row, name) for name in COLUMNS}}


def line(columns: Sequence[str], row: Measurement) -> str:
    """One row as a line of CSV."""
    # Parameters with all digits: a rounded value would be another point.
    exact = {k: repr(v) if isinstance(v, float) else v for k, v in row.problem.parameters.items()}
    values = {**cells(row), **exact}
    return csv_lines([[_cell(values.get(name)) for name in columns]])


def frame(rows: Iterable[Measurement], manifest: Manifest) -> DataFrame:
    """A table for pandas, unrounded, with the columns of ``measurements.csv``."""
    import pandas

    columns = header(manifest.workloads)
    table = [[values.get(name) for name in columns] for values in map(cells, rows)]
    return pandas.DataFrame(table, columns=columns)


def csv_lines(rows: Iterable[Sequence[str]]) -> str:
    """Rows of cells as lines of CSV."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return clean(" ".join(value.split()))
    return f"{value:.8g}" if isinstance(value, float) else str(value)


def load_rows(path: Path, manifest: Manifest) -> tuple[list[Measurement], list[str]]:
    """The rows of a table, and warnings. An incomplete last line, left by a crash, is dropped.

    Raises ``RunError`` with file and line for anything else that is not a row.
    """
    try:
        if path.exists() and not path.is_file():
            raise RunError(f"{path}: not a rooflab table (it is not a file)")
        if path.stat().st_size > MAX_BYTES:
            raise RunError(f"{path}: not a rooflab table (it is too large)")
        # Spreadsheets write a byte-order mark.
        text = path.read_bytes().decode("utf-8-sig", errors="replace")
    except FileNotFoundError:
        return [], [f"{path} is missing: no row was finished"]
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}") from error
    lines = text.split("\n")
    torn = lines.pop()
    warnings = [f"{path} line {len(lines) + 1}: incomplete after a crash, dropped"] if torn else []
    if not lines:
        return [], warnings
    columns = _split(f"{path} line 1", lines[0])
    own = ("m", "n", "k") if _is_of_gemm(manifest) else ("workload", "size")
    needed = ("kernel", "precision", "status", *own)
    if missing := [name for name in needed if name not in columns]:
        raise RunError(f"{path} line 1: not a rooflab table, it lacks {', '.join(missing)}")
    numbered = enumerate(lines[1:], 2)
    return [parse(columns, text, manifest, f"{path} line {n}") for n, text in numbered], warnings


def _split(where: str, text: str) -> list[str]:
    try:
        cells = next(csv.reader([text]), [])
    except csv.Error as error:
        raise RunError(
            f"{where} is damaged ({error}): restore the file, or delete it and measure again with "
            "--resume"
        ) from error
    return cells if clean(text) == text else [clean(cell) for cell in cells]


def _is_of_gemm(manifest: Manifest) -> bool:
    """Whether the run is older than schema 3, which has a column for the workload."""
    return manifest.schema_version < 3


def parse(
    columns: Sequence[str], text: str, manifest: Manifest, where: str = "a row"
) -> Measurement:
    """The row in one line of a table with these columns; raises ``RunError``."""
    found = _split(where, text)
    if len(found) != len(columns):
        raise RunError(f"{where}: {len(found)} cells under {len(columns)} headings")
    cells = dict(zip(columns, found, strict=True))
    values: dict[str, Any] = {}
    for name, column in COLUMNS.items():
        if name in cells and not (column.optional and cells[name] == ""):
            values[name] = _value(where, name, cells[name], column.type)
            if name.endswith("_us") and not 0 <= values[name] < math.inf:
                raise RunError(f"{where}: {name} is {cells[name][:40]!r}, not a time")
    problem = _problem(where, cells, manifest)
    old = _is_of_gemm(manifest)
    if old and values.get("bound") == "memory":
        values["bound"] = DRAM
    if old and values.get("flops") and values.get("roof_tflops"):
        values["roof_us"] = values["flops"] / (values["roof_tflops"] * 1e6)
    link = "peer_bytes" if problem.gpus > 1 else "host_bytes" if problem.streamed else "bytes"
    if link not in cells:  # before schema 4
        values[link] = values.pop("bytes", None)
    own = {name: values.pop(name) for name in values.keys() - _NAMES}
    return Measurement(problem=problem, own=own, **values)


def _problem(where: str, cells: Mapping[str, str], manifest: Manifest) -> ProblemRecord:
    old = _is_of_gemm(manifest)
    workload = DEFAULT if old else cells["workload"]
    record = manifest.workloads.get(workload)
    if record is None:
        raise RunError(f"{where}: its manifest has no workload {workload[:40]!r}")
    extents = {name: _parameter(where, cells, name, int) for name in record.extents}
    moved = {name: kind for name, kind in record.streaming.items() if cells.get(name)}
    settings = {
        name: _parameter(where, cells, name, _TYPES[kind])
        for name, kind in (record.settings | moved).items()
    }
    about = describe(settings, record.defaults, workload)
    size = cells.get("size", "")
    if old:
        try:  # the size in today's notation
            size = build(workload, "fp32", {**extents, **settings}).size
        except UsageError as error:
            raise RunError(f"{where}: {error}") from error
    return ProblemRecord(workload, cells["precision"], size, extents, settings, about)


def _parameter(where: str, cells: Mapping[str, str], name: str, kind: type[Value]) -> Any:
    if name not in cells:
        raise RunError(f"{where}: the column {name[:40]} is missing")
    value = _value(where, name, cells[name], kind)
    if isinstance(value, float) and not math.isfinite(value):
        raise RunError(f"{where}: {name} is {cells[name][:40]!r}, not a finite number")
    return value


def _value(where: str, name: str, cell: str, kind: type[Value]) -> Value:
    try:
        return kind(cell)
    except ValueError:
        raise RunError(f"{where}: {name} is {cell[:40]!r}, not {_KIND[kind]}") from None
