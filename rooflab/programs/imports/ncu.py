"""Nsight Compute's table as CSV: a line per launch (``--page raw``), or one per metric.

Format: https://docs.nvidia.com/nsight-compute/NsightComputeCli, "--csv" and "--page".
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

from rooflab.devices.base import Counters
from rooflab.devices.cuda import ncu
from rooflab.devices.cuda.counters import choose, interpret
from rooflab.devices.records import Dim, RecordedLaunch, Recording
from rooflab.errors import RunError
from rooflab.model.measurement import COLUMNS
from rooflab.programs.imports.values import BIGGEST, MOST, dim, name

LISTED: Final = 3
"""Damaged cells that a note names."""

MAGIC: Final = b"NVR\0"
"""Of a report, which only Nsight Compute reads."""

HEADER: Final = re.compile(r'^"?ID"?,(?=.*Kernel Name)', re.MULTILINE)
"""The start of the table, after the program's own output and ncu's messages."""

NOTE: Final = (
    "Times are those of Nsight Compute, which runs launches one at a time and repeats them, by "
    "default with empty caches and locked clocks: they differ from the program's own, and its gaps "
    "are not known."
)

_COMMAND: Final = "ncu --import FILE.ncu-rep --csv --page raw > FILE.csv"
_DURATION: Final = "gpu__time_duration"
_SHARED: Final = "launch__shared_mem_per_block_"
_CYCLES: Final = "sm__cycles_elapsed"

_LABELS: Final = {
    "Duration": f"{_DURATION}.sum",
    "Registers Per Thread": "launch__registers_per_thread",
    "Static Shared Memory Per Block": f"{_SHARED}static",
    "Dynamic Shared Memory Per Block": f"{_SHARED}dynamic",
}
"""What the page of details calls them."""

_FACTS: Final = {
    "device__attribute_multiprocessor_count": "sm_count",
    "device__attribute_l2_cache_size": "l2_cache",
}
_NAME: Final = "device__attribute_display_name"

_TEXTS: Final = frozenset(
    ("Kernel Name", "Grid Size", "Block Size", "Device", "Stream", "CC", _NAME)
)
_STARTS: Final = ("launch__", _DURATION, _CYCLES, *_FACTS)
_ENDS: Final = (".sum", ".sum.per_second", ".sum.per_cycle_elapsed")
"""The columns that are read, and what their names start and end with."""

_NUMBERS: Final = (_DURATION, _CYCLES, _SHARED, "launch__registers", "launch__grid_dim", *_FACTS)
_EMPTY: Final = frozenset(("n/a", "-", "no data"))
"""What stands where there is no number."""

_PREFIXES: Final = {
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "": 1.0,
    "K": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
}
_UNIT: Final = re.compile(r"([numKMGT]?)(second|s|byte|B|[hH]z|cycle|inst|sector|register)")
_NUMBER: Final = re.compile(r"[-+]?(\d{1,3}(,\d{3})+|\d+)(\.\d*)?([eE][-+]?\d+)?")
_OTHER_LOCALE: Final = re.compile(r"[-+]?\d[\d.]*,\d+")


NumberedLines = Iterator[tuple[int, list[str]]]
"""Cells by the number of their line."""


@dataclass(slots=True)
class _Row:
    """A launch: its metrics in bytes, seconds and plain numbers, and its texts.

    ``damaged`` says which cells are no numbers, which are left out.
    """

    line: int
    damaged: list[str] = field(default_factory=list)
    values: dict[str, float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)


def converted(path: Path) -> str:
    """The table of a report, from Nsight Compute itself.

    Raises ``RunError`` without it, and ``UnavailableError`` if it fails.
    """
    program = ncu.find()
    if program is None:
        raise RunError(
            f"{path}: a report that only Nsight Compute reads, and ncu is not on PATH; write it as "
            f"a table where it is: {_COMMAND}"
        )
    options = ["--csv", "--page", "raw", "--print-units", "base"]
    output = ncu.run([program, "--import", str(path), *options])
    if not HEADER.search(output):
        said = next((line for line in output.splitlines() if line.strip()), "it wrote nothing")
        raise RunError(f"{path}: ncu does not read it ({name(said)[:200]})")
    return output


def read(path: Path, text: str) -> Recording:
    """What the table in ``text``, the content of ``path``, has recorded. Raises ``RunError``.

    Launches stand one after the other, in the order of the table.
    """
    launches: list[RecordedLaunch] = []
    devices: dict[int, _Row] = {}
    damaged: list[str] = []
    for row in _rows(path, text):
        damaged += row.damaged
        launches.append(_launch(path, row, launches[-1].end_ns if launches else 0))
        devices.setdefault(launches[-1].device, row)
        if len(launches) > MOST:
            raise RunError(f"{path} line {row.line}: more than {MOST:,} launches; write a part")
    if not launches:
        raise RunError(f"{path}: no kernel is in this table; write it with {_COMMAND}")
    counted = sum(one.counters is not None for one in launches)
    device = Counter(one.device for one in launches).most_common(1)[0][0]
    device_name, facts = _device(devices[device])
    return Recording(
        launches=launches,
        source="Nsight Compute",
        device_name=device_name,
        facts=facts,
        notes=list(_notes(len(launches), counted, damaged)),
    )


def _notes(launches: int, counted: int, damaged: Sequence[str]) -> Iterator[str]:
    """Which launches have no counters, and which cells were no numbers; of many the first."""
    yield NOTE
    if counted < launches:
        yield (
            f"{launches - counted} launches of {launches} have no counters of FLOPs and bytes: "
            "record them with ncu --set full."
        )
    if damaged:
        more = f" and {len(damaged) - LISTED} more" if len(damaged) > LISTED else ""
        yield f"Left out, because they are no numbers: {'; '.join(damaged[:LISTED])}{more}."


def _rows(path: Path, text: str) -> Iterator[_Row]:
    lines = _lines(path, text)
    line, columns = next(lines, (1, []))
    if not {"ID", "Kernel Name"} <= set(columns):
        raise RunError(f"{path} line {line}: damaged names of columns; write it with {_COMMAND}")
    reader = _of_metrics if "Metric Name" in columns else _of_launches
    yield from reader(path, [name(one) for one in columns], lines)


def _lines(path: Path, text: str) -> NumberedLines:
    """The table's lines, by number: between them may be ncu's messages."""
    start = match.start() if (match := HEADER.search(text)) else len(text)
    quote = '"' if text.startswith('"', start) else ""
    for line, content in enumerate(text[start:].split("\n"), text.count("\n", 0, start) + 1):
        if content.strip() and content.startswith(quote):
            try:
                yield line, next(csv.reader([content.rstrip("\r")], strict=True))
            except csv.Error as error:
                raise _damaged(path, line, str(error)) from error


def _of_launches(path: Path, columns: Sequence[str], lines: NumberedLines) -> Iterator[_Row]:
    """The wide form: the line below the names has the units."""
    own = _own()
    wanted = [index for index, column in enumerate(columns) if column in own or _read(column)]
    units: list[str] | None = None
    for line, cells in lines:
        _check(path, line, columns, cells)
        if units is None and not cells[0].strip():
            units = cells
            continue
        row = _Row(line)
        for index in wanted:
            _put(path, row, columns[index], units[index] if units else "", cells[index])
        yield row


def _read(column: str) -> bool:
    """Whether a column is read: most of the two thousand of the set full are not."""
    return column in _TEXTS or column.startswith(_STARTS) or column.endswith(_ENDS)


def _of_metrics(path: Path, columns: Sequence[str], lines: NumberedLines) -> Iterator[_Row]:
    """The long form: a line per metric; those of one launch have one ID."""
    found: dict[tuple[str, str], _Row] = {}
    for line, cells in lines:
        _check(path, line, columns, cells)
        one = dict(zip(columns, cells, strict=True))
        key = (one.get("Process ID", ""), one["ID"])
        row = found.get(key)
        if row is None:
            row = found[key] = _Row(line)
            for column in _TEXTS.intersection(columns):
                _put(path, row, column, "", one[column])
        metric = name(one["Metric Name"])
        metric, unit = _LABELS.get(metric, metric), one.get("Metric Unit", "")
        _put(path, row, metric, unit, one.get("Metric Value", ""), line)
    yield from found.values()


def _check(path: Path, line: int, columns: Sequence[str], cells: Sequence[str]) -> None:
    if len(cells) != len(columns):
        raise _damaged(path, line, f"it has {len(cells)} cells and not {len(columns)}")


def _damaged(path: Path, line: int, reason: str) -> RunError:
    return RunError(f"{path} line {line}: damaged ({reason}); write it again: {_COMMAND}")


def _put(path: Path, row: _Row, column: str, unit: str, cell: str, line: int = 0) -> None:
    """Add a cell to a launch, as a number if it is one."""
    cell = cell.strip()
    if column in _TEXTS:
        row.texts.setdefault(column, name(cell))
    if (value := _number(cell)) is not None:
        row.values.setdefault(column, value * _factor(unit))
    elif _OTHER_LOCALE.fullmatch(cell) and "__" in column:
        raise RunError(
            f"{path} line {line or row.line}: {cell[:40]} is not a number in English; write the "
            f"table with LC_ALL=C {_COMMAND}"
        )
    elif cell and _is_number(column) and cell.casefold() not in _EMPTY:
        row.damaged.append(f"line {line or row.line}, {column}: {cell[:40]!r}")


def _is_number(column: str) -> bool:
    """Whether only a number can stand in a column that is read."""
    return column.startswith(_NUMBERS) or column.endswith(_ENDS) or column in _own()


def _number(cell: str) -> float | None:
    """An amount: counters are not negative."""
    value = ncu.number(cell) if _NUMBER.fullmatch(cell) else None
    return value if value is not None and 0 <= value < BIGGEST else None


@lru_cache(maxsize=256)
def _factor(unit: str) -> float:
    """From ``unit``, such as ``usecond``, ``Kbyte/block`` or ``cycle/nsecond``, to the base one."""
    above, _, below = unit.strip().partition("/")
    return _one(above) / _one(below)


def _one(unit: str) -> float:
    match = _UNIT.fullmatch(unit)
    return _PREFIXES[match[1]] if match else 1.0


def _launch(path: Path, row: _Row, start_ns: int) -> RecordedLaunch:
    static, dynamic = (_count(row, f"{_SHARED}{kind}") for kind in ("static", "dynamic"))
    return RecordedLaunch(
        kernel=row.texts.get("Kernel Name") or "unknown kernel",
        start_ns=start_ns,
        end_ns=start_ns + _duration_ns(path, row),
        grid=_dim(row, "Grid Size", "launch__grid_dim"),
        block=_dim(row, "Block Size", "launch__block_dim"),
        shared_bytes=static + dynamic,
        registers=_count(row, "launch__registers_per_thread"),
        device=_count(row, "Device"),
        stream=_count(row, "Stream"),
        counters=_counters(row),
    )


def _duration_ns(path: Path, row: _Row) -> int:
    kinds = (f"{_DURATION}{suffix}" for suffix in (".sum", ".max", ".avg", ""))
    seconds = next((row.values[one] for one in kinds if one in row.values), None)
    if seconds is None or not 0 <= seconds < 1e6:
        raise RunError(
            f"{path} line {row.line}: this launch has no {_DURATION}.sum; record it with "
            f"ncu --set full, or with --metrics {_DURATION}.sum,…"
        )
    return round(seconds * 1e9)


def _count(row: _Row, column: str) -> int:
    value = row.values.get(column, 0.0)
    return int(value) if value > 0 else 0


def _dim(row: _Row, column: str, metric: str) -> Dim:
    """From a cell such as ``(128, 1, 1)``, or from a metric for each of x, y and z."""
    found = dim([int(each) for each in re.findall(r"\d{1,10}", row.texts.get(column, ""))])
    return found if any(found) else dim([_count(row, f"{metric}_{axis}") for axis in "xyz"])


def _counters(row: _Row) -> Counters | None:
    """None without any of FLOPs or bytes."""
    found = interpret(_known(row.values), 1)
    known = (found.flops, found.dram_bytes, found.l2_bytes, found.l1_bytes, found.others)
    return found if any(each not in ({}, None) for each in known) else None


def _known(values: Mapping[str, float]) -> Mapping[str, float]:
    """The metrics that rooflab counts too. The set full has some sums only as rates."""
    rates = {
        ".per_cycle_elapsed": values.get(f"{_CYCLES}.avg", 0.0),
        ".per_second": values.get(f"{_DURATION}.sum", 0.0),
    }
    sums = {
        key.removesuffix(rate): float(round(value * times))
        for rate, times in rates.items()
        for key, value in values.items()
        if times and key.endswith(f".sum{rate}")
    }
    found = {**sums, **values}
    own = _own()
    names = [key for key in found if key.endswith(".sum") or key in own]
    chosen = choose({_CYCLES, *(key.partition(".")[0] for key in names)})
    return {key: found[key] for key in chosen if key in found}


def _own() -> set[str]:
    """The metrics of ``rooflab.counter``."""
    return {metric for column in COLUMNS.values() for metric in column.metrics}


def _device(row: _Row) -> tuple[str, dict[str, object]]:
    facts: dict[str, object] = {
        fact: count for metric, fact in _FACTS.items() if (count := _count(row, metric))
    }
    if re.fullmatch(r"\d{1,2}\.\d", capability := row.texts.get("CC", "")):
        facts["compute_capability"] = capability
    return row.texts.get(_NAME, ""), facts
