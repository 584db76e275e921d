"""The run folder: manifest, measurements, samples; created, appended to, loaded.

``manifest.json``      what was run, where and with which ceilings
``measurements.csv``   one row per kernel and problem, on disk before the next is measured
``samples.jsonl``      the raw times of each row, microseconds, one list per round
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TextIO

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rooflab.devices.base import Fact
from rooflab.errors import RunError, UsageError
from rooflab.measurement import COLUMNS, Measurement
from rooflab.roofline import Roofline

SCHEMA: Final = 2
MANIFEST: Final = "manifest.json"
MEASUREMENTS: Final = "measurements.csv"
SAMPLES: Final = "samples.jsonl"


class DeviceRecord(BaseModel):
    """The device a run was measured on."""

    id: str
    kind: str
    name: str
    facts: dict[str, Fact]


class KernelRecord(BaseModel):
    """One kernel of a run. ``compiled`` lists registers, shared memory and spills per build.

    ``sha256`` is that of the source and of what it includes from kernels/include.
    """

    backend: str
    title: str
    source: str = ""
    sha256: str = ""
    compiled: list[dict[str, Any]] = []


class Manifest(BaseModel):
    """Everything about a run that is not a measurement."""

    model_config = ConfigDict(populate_by_name=True)

    schema_version: int = Field(default=SCHEMA, alias="schema")
    created: datetime
    finished: datetime | None = None
    command: list[str]
    versions: dict[str, str]
    host: dict[str, str]
    device: DeviceRecord
    roofline: Roofline
    config: dict[str, Any]
    kernels: dict[str, KernelRecord]
    # Since schema 2.
    settled: dict[str, Any] = {}
    contexts: list[list[float]] = []
    """Per worker, the empty launch in each of its candidates, µs; the shortest one measured."""
    wall_s: dict[str, float] = {}
    points: int = 0
    """How many rows the sweep is to give; 0 where that is not known."""


@dataclass(frozen=True)
class Run:
    """A loaded run."""

    path: Path
    manifest: Manifest
    measurements: list[Measurement]
    warnings: list[str] = field(default_factory=list)

    @property
    def ok(self) -> list[Measurement]:
        """The rows that carry performance figures."""
        return [row for row in self.measurements if row.status == "ok"]


class RunWriter:
    """Appends to a run folder. Every row is on disk when ``append`` returns."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        try:
            self._rows: TextIO = (path / MEASUREMENTS).open("a", encoding="utf-8", newline="")
        except OSError as error:
            raise UsageError(f"cannot write to {path}: {error.strerror}") from error
        _lock(self._rows, path)
        self._repair()
        self._samples: TextIO = (path / SAMPLES).open("a", encoding="utf-8")
        self.write_manifest()
        if self._rows.tell() == 0:
            self._commit(self._rows, _csv_line(list(COLUMNS)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._samples.close()
        self._rows.close()

    def _repair(self) -> None:
        """Cut off a torn last line, and samples whose row was never written."""
        table = self.path / MEASUREMENTS
        content = table.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(table, whole)
        self._rows.seek(0, os.SEEK_END)
        samples = self.path / SAMPLES
        if not samples.exists():
            return
        rows, _ = _load_rows(table)
        written = {_samples_of(row) for row in rows}
        lines = samples.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        kept = [line for line in lines if _owner(line) in written]
        if kept != lines:
            new = self.path / (SAMPLES + ".new")
            new.write_text("".join(kept), encoding="utf-8")
            new.replace(samples)

    def write_manifest(self) -> None:
        """Replace the manifest in one step."""
        text = self.manifest.model_dump_json(by_alias=True, indent=2) + "\n"
        new = self.path / (MANIFEST + ".new")
        new.write_text(text, encoding="utf-8")
        new.replace(self.path / MANIFEST)

    def append(self, row: Measurement, rounds: Sequence[Sequence[float]]) -> None:
        """Write ``row`` and its samples in microseconds, samples first: the row is the proof."""
        if rounds:
            samples = {
                **dict(zip(_OWNER, _samples_of(row), strict=True)),
                "unit": "us",
                "rounds": [[float(f"{sample:.6g}") for sample in one] for one in rounds],
            }
            self._commit(self._samples, json.dumps(samples) + "\n")
        self._commit(self._rows, _csv_line([_cell(getattr(row, name)) for name in COLUMNS]))

    def _commit(self, file: TextIO, text: str) -> None:
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        except OSError as error:
            raise RunError(
                f"cannot write {self.path}: {error.strerror}; "
                "what was measured before is safe there"
            ) from error


_OWNER: Final = ("kernel", "shape", "precision", "layout")


def _samples_of(row: Measurement) -> tuple[str, ...]:
    """What a line of samples calls the row that it belongs to."""
    return (row.kernel, row.shape, row.precision, row.layout)


def _owner(line: str) -> tuple[str, ...] | None:
    """The row that a line of samples belongs to, None where the line is torn."""
    try:
        samples = json.loads(line)
        return tuple(samples[name] for name in _OWNER) if line.endswith("\n") else None
    except (ValueError, KeyError, TypeError):
        return None


def _lock(file: TextIO, path: Path) -> None:
    """Keep the folder for this process. The system lets go of it when the process ends, however."""
    try:
        import fcntl
    except ImportError:  # Windows has no such lock
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise UsageError(
            f"{path} is in use by another rooflab: wait for it, or sweep into a folder of its own"
        ) from None


def resumable(old: Manifest, new: Manifest) -> list[str]:
    """What keeps a run from being continued: the differences that would show in its figures."""
    differences = []
    for name in ("name", "id"):
        was, now = getattr(old.device, name), getattr(new.device, name)
        if was != now:
            differences.append(f"the device was {was}, is {now}")
    for name in ("uuid", "driver_version", "cuda_runtime_version", "threads"):
        was, now = ((one.device.facts.get(name) or Fact(None)).value for one in (old, new))
        if was != now:
            differences.append(f"{name.replace('_', ' ')} was {was}, is {now}")
    for name in sorted(old.versions.keys() | new.versions.keys()):
        was, now = (one.versions.get(name, "absent") for one in (old, new))
        if was != now:
            differences.append(f"{name} was {was}, is {now}")
    for name in sorted(old.kernels.keys() | new.kernels.keys()):
        if name not in old.kernels or name not in new.kernels:
            differences.append(f"kernel {name} is {'new' if name in new.kernels else 'gone'}")
        elif old.kernels[name].sha256 != new.kernels[name].sha256:
            differences.append(f"the source of {name} has changed")
    if old.config != new.config:
        differences.append("the settings have changed")
    return differences


def create_folder(parent: Path, device_name: str, now: datetime) -> Path:
    """A new folder ``<UTC time>-<device>`` below ``parent``, writable."""
    slug = "-".join("".join(c if c.isalnum() else " " for c in device_name.lower()).split())
    name = f"{now.astimezone(UTC):%Y%m%dT%H%M%SZ}-{slug}"
    for path in (parent / (name + suffix) for suffix in ("", *(f"-{i}" for i in range(2, 100)))):
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(
                f"cannot write to {parent}: {error.strerror}; give --out a folder of yours"
            ) from error
    raise UsageError(f"{parent} holds a hundred runs of this second; give another --out")


def newest(parent: Path) -> Path:
    """The newest run folder below ``parent``."""
    runs = sorted(p.parent for p in parent.glob(f"*/{MANIFEST}"))
    if not runs:
        raise UsageError(f"no run in {parent}/: name a run folder, or make one with: rooflab sweep")
    return runs[-1]


def load(path: Path) -> Run:
    """Read a run folder, or the folder that a file of it lies in.

    Raises ``RunError`` naming file and line for anything that is not a run. A torn last line,
    the trace of a crash, is dropped with a warning.
    """
    folder = path if path.is_dir() else path.parent
    if not (folder / MANIFEST).is_file():
        raise UsageError(f"{path} is not a run folder (it has no {MANIFEST}); see: ls results/")
    manifest = _load_manifest(folder / MANIFEST)
    rows, warnings = _load_rows(folder / MEASUREMENTS)
    if len(rows) < manifest.points:
        warnings.append(
            f"{len(rows)} of {manifest.points} points are measured: rooflab sweep --resume {folder}"
        )
    return Run(folder, manifest, rows, warnings)


def _load_manifest(path: Path) -> Manifest:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        schema = content.get("schema")
    except (ValueError, AttributeError, OSError) as error:
        raise RunError(f"{path}: not a rooflab manifest ({error})") from error
    if not isinstance(schema, int) or schema < 1:
        raise RunError(f"{path}: not a rooflab manifest (it has no schema number)")
    if schema > SCHEMA:
        raise RunError(
            f"{path} was written by a newer rooflab (schema {schema}, this one reads up to "
            f"{SCHEMA}); update here: pip install -U rooflab"
        )
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise RunError(f"{path}: {place}: {first['msg']}") from error


def _load_rows(path: Path) -> tuple[list[Measurement], list[str]]:
    try:
        text = path.read_bytes().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return [], [f"{path} is missing: no row was finished"]
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}") from error
    lines = text.splitlines(keepends=True)
    warnings = []
    if lines and not lines[-1].endswith("\n"):
        warnings.append(f"{path} line {len(lines)}: torn by a crash, dropped")
        lines.pop()
    if not lines:
        return [], warnings
    header = next(csv.reader([lines[0]]))
    missing = [name for name in COLUMNS if name not in header and name not in _SINCE_SCHEMA_2]
    if missing:
        raise RunError(
            f"{path} line 1: not a rooflab table, it lacks "
            f"{', '.join(missing[:3])}{' …' if len(missing) > 3 else ''}"
        )
    return [_parse(path, i, header, line) for i, line in enumerate(lines[1:], 2)], warnings


def _parse(path: Path, number: int, header: list[str], line: str) -> Measurement:
    cells = next(csv.reader([line]), [])
    if len(cells) != len(header):
        raise RunError(f"{path} line {number}: {len(cells)} cells under {len(header)} headings")
    values: dict[str, Any] = {}
    for name, cell in zip(header, cells, strict=True):
        column = COLUMNS.get(name)
        if column is None:
            continue
        try:
            values[name] = None if column.optional and cell == "" else column.type(cell)
        except ValueError:
            raise RunError(
                f"{path} line {number}: {name} is {cell!r}, not {_KIND[column.type]}"
            ) from None
    return Measurement(**values)


_SINCE_SCHEMA_2: Final = (
    *("pair_us", "launch_us", "observed_tflops", "observed_percent", "gflop_per_j"),
)

_KIND: Final[dict[type, str]] = {int: "a whole number", float: "a number", str: "text"}


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return " ".join(value.split())
    return f"{value:.8g}" if isinstance(value, float) else str(value)


def _csv_line(cells: list[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()
