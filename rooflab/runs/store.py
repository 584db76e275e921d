"""The run folder: creating, locking, appending, loading.

``manifest.json``      what was run, on which device, with which ceilings
``measurements.csv``   one row per kernel and problem, on disk before the next is measured
``samples.jsonl``      the raw times of each row, microseconds, one list per round

Text in a run is untrusted: it is cleaned when it is loaded, and nothing in it is executed. Links
inside the folder are not followed when files are written.
"""

from __future__ import annotations

import csv
import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, Self

from rooflab.errors import RunError, UsageError
from rooflab.files import lock, write_atomic
from rooflab.model.collectives import Collectives
from rooflab.model.measurement import Measurement
from rooflab.model.timeline import RecordedStep, Span
from rooflab.runs import samples, table
from rooflab.runs.samples import COLLECTIVES, LAUNCHES, TIMELINES

if TYPE_CHECKING:
    from rooflab.runs.manifest import Manifest

MANIFEST: Final = "manifest.json"
MEASUREMENTS: Final = "measurements.csv"
SAMPLES: Final = "samples.jsonl"
PRINTED: Final = "printed.txt"
FLEET: Final = "fleet.json"
MEMBERS: Final = "members"

UNSAVED: Final = Path("not-saved")
"""The path of a run that is not on disk."""


@dataclass(frozen=True, repr=False)
class RunData:
    """A loaded run: what its folder says. ``rooflab.Run`` adds what can be done with it."""

    path: Path
    manifest: Manifest
    measurements: list[Measurement]
    warnings: list[str] = field(default_factory=list)
    recorded: RecordedStep | None = field(default=None, kw_only=True)
    """One step of a program that is not on disk yet."""
    communicated: Collectives | None = field(default=None, kw_only=True)
    """The collectives of a program that is not on disk yet."""

    def step(self) -> RecordedStep | None:
        """When the launches of one step ran, from its file; None if nothing is known."""
        return self.recorded or samples.load_step(self.path, len(self.measurements))

    def collectives(self) -> Collectives | None:
        """When a program's collectives ran, from their file; None without any."""
        return self.communicated or samples.load_collectives(self.path, len(self.measurements))

    @property
    def ok(self) -> list[Measurement]:
        """The rows with performance figures."""
        return [row for row in self.measurements if row.status == "ok"]

    def __repr__(self) -> str:
        device, count = self.manifest.device.name, len(self.measurements)
        return f"<rooflab.Run {self.path} on {device}: {count} rows>"


# Writing -----------------------------------------------------------------------------------------


class Writer(Protocol):
    """Where a sweep puts its rows. ``rows`` are those that were there before it."""

    path: Path
    manifest: Manifest
    rows: list[Measurement]

    @property
    def empty(self) -> bool:
        """Whether there is no row."""

    def write_manifest(self) -> None:
        """Store the manifest as it is now."""

    def append(
        self, row: Measurement, rounds: Sequence[Sequence[float]], spans: Sequence[Span] = ()
    ) -> None:
        """Store a row with its samples in microseconds and its timeline."""

    def replace(self, rows: Sequence[Measurement]) -> None:
        """Store these rows in place of all."""


class RunWriter:
    """Appends to a run folder and keeps it locked. A row is on disk when ``append`` returns.

    With a ``manifest`` the folder is new; without one it has a run, whose manifest is read.
    ``rows`` are the rows that the folder had when it was locked. A new folder that has no row at
    the end is removed. Raises ``RunError`` if a file cannot be read or written, and ``UsageError``
    if another process has locked the folder.
    """

    def __init__(self, path: Path, manifest: Manifest | None = None) -> None:
        self.path = path
        self._new = manifest is not None
        self._count = 0
        self._files = ExitStack()
        try:
            with self._told():
                self._rows = self._files.enter_context(closing(_Appender(path / MEASUREMENTS)))
                self._rows.lock()
                self.manifest = manifest or _manifest(path)
                self._samples = self._files.enter_context(closing(_Appender(path / SAMPLES)))
                self.rows = self._put_in_order()
        except BaseException:
            self._close()
            raise

    def _put_in_order(self) -> list[Measurement]:
        """Remove what a crash has left incomplete in both files; return the rows."""
        self._rows.drop_torn_line()
        rows: list[Measurement] = []
        if self._rows.size == 0:
            self._columns = table.header(self.manifest.workloads)
            self._write(self._rows, table.csv_lines([self._columns]))
        else:
            rows, _ = table.load_rows(self.path / MEASUREMENTS, self.manifest)
            self._columns = next(csv.reader(self._rows.lines()[:1]))
        self._count = len(rows)
        self._drop_samples_without_row({row.key for row in rows})
        self.write_manifest()
        return rows

    def _drop_samples_without_row(self, keys: set[tuple[object, ...]]) -> None:
        lines = self._samples.lines()
        whole = [line for line in lines if line.endswith("\n")]
        kept = [line for line in whole if (found := samples.owned(line)) and found[0] in keys]
        if kept != lines:
            with self._told(self._samples.path):
                self._samples.replace("".join(kept))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._new and self.empty:
            for name in (MANIFEST, MEASUREMENTS, SAMPLES, PRINTED):
                with suppress(OSError):
                    (self.path / name).unlink()
            with suppress(OSError):
                self.path.rmdir()
        self._files.close()

    @property
    def empty(self) -> bool:
        """Whether the file on disk has no row: an interrupted ``append`` may have written one."""
        with suppress(OSError):
            return (self.path / MEASUREMENTS).read_bytes().count(b"\n") <= 1
        return True

    def write_manifest(self) -> None:
        """Replace the manifest atomically."""
        self.put(MANIFEST, self.manifest.model_dump_json(by_alias=True, indent=2) + "\n")

    def put(self, name: str, text: str) -> None:
        """Replace a whole file of the folder atomically."""
        with self._told(self.path / name):
            write_atomic(self.path / name, text.encode())

    def append(
        self, row: Measurement, rounds: Sequence[Sequence[float]], spans: Sequence[Span] = ()
    ) -> None:
        """Write the samples in microseconds, then ``row``; without its row a sample is dropped."""
        if spans:
            with closing(_Appender(self.path / TIMELINES)) as file:
                self._write(file, samples.timeline_line(row, spans))
        if rounds:
            self._write(self._samples, samples.rounds_line(row, rounds))
        self._write(self._rows, table.line(self._columns, row))
        self._count += 1

    def extend(self, rows: Sequence[Measurement]) -> None:
        """Write rows that have no samples, all at once: a sync for each takes milliseconds."""
        self._write(self._rows, "".join(table.line(self._columns, row) for row in rows))
        self._count += len(rows)

    def replace(self, rows: Sequence[Measurement]) -> None:
        """Replace all rows atomically, with today's columns."""
        columns = table.header(self.manifest.workloads)
        text = table.csv_lines([columns]) + "".join(table.line(columns, row) for row in rows)
        with self._told(self._rows.path):
            self._rows.replace(text)
            self._rows.lock()  # it is another file now
        self._columns, self._count = columns, len(rows)

    def _write(self, file: _Appender, text: str) -> None:
        with self._told(file.path):
            file.append(text)

    @contextmanager
    def _told(self, path: Path | None = None) -> Iterator[None]:
        """Turn errors of the system into a ``RunError`` that says which rows are safe."""
        try:
            yield
        except OSError as error:
            failed = f"cannot write {path or error.filename or self.path}: {error.strerror}"
            remedy = _REMEDIES.get(error.errno or 0, "check the disk")
            if self._new and not self._count:
                raise RunError(f"{failed}; {remedy}, then try again") from error
            safe = {0: "its rows are", 1: "1 row is"}.get(self._count, f"{self._count} rows are")
            again = f"then type: rooflab sweep --resume {self.path}"
            if self._new and self.manifest.program:
                again = "and profile it again"
            raise RunError(f"{failed}; {safe} safe: {remedy}, {again}") from error


_REMEDIES: Final = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "make room"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "make it writable"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "allow more open files (ulimit -n)"),
    errno.ELOOP: "remove the link",
}
"""Remedies for errors of the operating system, by ``errno``."""


class _Appender:
    """A file to which whole lines are appended. Its methods raise ``OSError``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        # A link could lead out of the folder.
        self._file = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return os.fstat(self._file).st_size

    def append(self, text: str) -> None:
        """Write ``text`` and sync it; after an error, remove the part that was written."""
        before, data = self.size, text.encode()
        try:
            while data:
                data = data[os.write(self._file, data) :]
            os.fsync(self._file)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, before)
            raise

    def lines(self) -> list[str]:
        """The lines of the file."""
        text = self.path.read_text(encoding="utf-8-sig", errors="replace")
        return text.splitlines(keepends=True)

    def drop_torn_line(self) -> None:
        """Remove an incomplete last line, which a crash may leave."""
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.ftruncate(self._file, whole)

    def replace(self, text: str) -> None:
        """Replace the content of the file atomically."""
        write_atomic(self.path, text.encode())
        os.close(self._file)
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)

    def lock(self) -> None:
        """Lock the folder. The system releases the lock when the process ends."""
        lock(self._file, self.path.parent)

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._file)


def refuse_run(path: Path) -> None:
    """Raise ``UsageError`` if there is a run: another one inside would not be found again."""
    if (path / MANIFEST).exists():
        raise UsageError(f"{path} is a run already: name another folder, or delete it")


def save(
    path: Path,
    manifest: Manifest,
    rows: Sequence[Measurement],
    rounds: Sequence[Sequence[Sequence[float]]] = (),
    step: RecordedStep | None = None,
    collectives: Collectives | None = None,
) -> Path:
    """Write a run that is complete: a new folder inside ``results``, or ``path`` if that is new.

    ``step`` is one step of a program, ``collectives`` are those of all steps. Returns the folder;
    raises ``RunError`` if it cannot be written, or ``UsageError`` if it is a run already.
    """
    refuse_run(path)
    if path.exists() or path == Path("results"):
        path = create_folder(path, manifest.device.name, manifest.created)
    else:
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise RunError(f"cannot write {path}: {error.strerror}") from error
    with RunWriter(path, manifest) as writer:
        if rounds:
            for row, some in zip(rows, rounds, strict=True):
                writer.append(row, some)
        else:
            writer.extend(rows)
        if step:
            writer.put(LAUNCHES, samples.step_lines(step))
        if collectives:
            writer.put(COLLECTIVES, samples.collective_lines(collectives))
    return path


# Continuing --------------------------------------------------------------------------------------


def resumable(old: Manifest, new: Manifest) -> list[str]:
    """Why a run cannot be continued: differences that could change its results."""
    before, after = _must_agree(old), _must_agree(new)
    differences = [
        f"{name} was {was}, is {now}"
        for name in dict.fromkeys([*before, *after])
        if (was := before.get(name, "absent")) != (now := after.get(name, "absent"))
    ]
    for name in sorted(old.kernels.keys() | new.kernels.keys()):
        first, then = old.kernels.get(name), new.kernels.get(name)
        if first is None or then is None:
            differences.append(f"kernel {name} is {'gone' if first else 'new'}")
        elif first.sha256 != then.sha256:
            differences.append(f"the file of {name} has changed")
        elif first.compiler != then.compiler:
            compiler = first.compiler or "unknown"
            differences.append(f"the compiler of {name} was {compiler}, is {then.compiler}")
    if old.config != new.config:
        differences.append("the settings have changed")
    return differences


def _must_agree(manifest: Manifest) -> dict[str, object]:
    """What must be the same in all parts of a run."""
    facts = {
        name.replace("_", " "): manifest.device.facts[name].value
        for name in ("uuid", "driver_version", "cuda_runtime_version", "threads")
        if name in manifest.device.facts
    }
    device = {"the device": manifest.device.name, "the id of the device": manifest.device.id}
    return {"its schema": manifest.schema_version, **device, **facts, **manifest.versions}


# Folders -----------------------------------------------------------------------------------------


def create_folder(parent: Path, device_name: str, now: datetime) -> Path:
    """Create the folder ``<UTC time>-<device>`` in ``parent``; raises ``UsageError``."""
    plain = "".join(c if c.isalnum() and c.isascii() else " " for c in device_name.lower())
    slug = "-".join(plain.split())[:60] or "device"
    name = f"{now.astimezone(UTC):%Y%m%dT%H%M%SZ}-{slug}"
    for path in (parent / (name + suffix) for suffix in ("", *(f"-{i}" for i in range(2, 100)))):
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            continue
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(
                f"cannot write to {str(parent)[:200]}: {reason}; name a folder of yours"
            ) from error
    raise UsageError(f"{parent} has a hundred runs of this second: give another --out")


def runs_in(parent: Path) -> list[Path]:
    """The run folders in ``parent``, the newest last."""
    return sorted(found.parent for found in parent.glob(f"*/{MANIFEST}"))


def newest(parent: Path) -> Path:
    """The newest run folder in ``parent``; raises ``UsageError`` if there is none."""
    runs = runs_in(parent)
    if not runs:
        raise UsageError(f"no run in {parent}/: name a run folder, or make one with: rooflab sweep")
    return runs[-1]


def _only_run(parent: Path) -> Path:
    """The one run folder in ``parent``; raises ``UsageError`` if there is none, or several."""
    shown = str(parent)[:200]
    runs = runs_in(parent)
    if len(runs) > 1:
        raise UsageError(f"{shown} has {len(runs)} runs: name one, such as {runs[-1]}")
    if not runs:
        raise UsageError(f"{shown} is not a run folder (it has no {MANIFEST}); see: ls results/")
    return runs[0]


def _manifest(folder: Path) -> Manifest:
    from rooflab.runs.manifest import load_manifest  # pydantic takes long to import

    return load_manifest(folder / MANIFEST)


def load(path: Path) -> RunData:
    """Read a run; ``path`` is its folder, a file in it, or a folder with no other run.

    Raises ``UsageError`` if it is not a run folder, and ``RunError`` with file and line if one of
    its files is wrong. An incomplete last line, which a crash may leave, is dropped with a warning.
    """
    try:
        folder = path if path.is_dir() else path.parent
        there, exists = (folder / MANIFEST).is_file(), path.exists()
    except (OSError, ValueError) as error:
        raise UsageError(f"{str(path)[:200]} is not a run folder") from error
    if there and not exists:
        raise UsageError(f"there is no {str(path)[:200]}; the run is {folder}")
    if not there and is_fleet(folder):
        shown = str(folder)[:200]
        raise UsageError(
            f"{str(path)[:200]} is a fleet: rooflab show {shown}, or name one of {shown}/{MEMBERS}/"
        )
    if not there:
        folder = _only_run(path)
    manifest = _manifest(folder)
    rows, warnings = table.load_rows(folder / MEASUREMENTS, manifest)
    if len(rows) < manifest.points:
        again = f"to continue: rooflab sweep --resume {folder}"
        if manifest.program:
            again = "profile it again"
        warnings.append(f"{len(rows)} of {manifest.points} points are measured; {again}")
    return RunData(folder, manifest, rows, warnings)


def is_fleet(path: Path) -> bool:
    """Whether it is the folder of a fleet."""
    try:
        return (path / FLEET).is_file()
    except (OSError, ValueError):
        return False
