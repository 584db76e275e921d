"""The SQLite that ``nsys export --type sqlite`` writes. Times are in ns.

Schema: https://docs.nvidia.com/nsight-systems/UserGuide, "SQLite Schema Reference". Columns that
a version lacks are not known.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from rooflab.devices.ranges import Range
from rooflab.devices.records import CopyKind, RecordedLaunch, Recording
from rooflab.errors import RunError
from rooflab.programs.imports.host import (
    UNKNOWN,
    DeviceActivity,
    EventKey,
    HostPlace,
    HostThreads,
    launched_steps,
    transfers,
)
from rooflab.programs.imports.values import MOST, described, dim, name, number, whole

MAGIC: Final = b"SQLite format 3\0"

_KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
_GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
_MEMSETS: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
_CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_RANGES: Final = "NVTX_EVENTS"

_WHERE: Final = (
    *("start", "end", "deviceId", "streamId", "correlationId", "globalPid"),
    *("bytes", "copyKind"),
)
_GRID: Final = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
_LAUNCH: Final = (
    *("demangledName", "shortName", *_GRID, "registersPerThread"),
    *("staticSharedMemory", "dynamicSharedMemory", "graphId", "graphNodeId"),
)

_KINDS: Final[dict[int, CopyKind]] = {
    **dict.fromkeys((1, 3, 11), "h2d"),
    **dict.fromkeys((2, 4, 12), "d2h"),
    **dict.fromkeys((5, 6, 7, 8, 13), "d2d"),
    9: "host",
    10: "peer",
}
"""Copies by CUPTI's ``CUpti_ActivityMemcpyKind``; those from 11 on move pages of managed memory."""

_OPERATION: Final = re.compile(r"(aten::\w+|[^,]+(?=, (seq|op_id) = ))")
"""Ranges of ``torch.autograd.profiler.emit_nvtx``, such as ``aten::mm, seq = 4``."""

_FACTS: Final = {
    "smCount": "sm_count",
    "totalMemory": "memory_total",
    "l2CacheSize": "l2_cache",
    "maxShmemPerBlockOptin": "shared_memory_per_block",
}
"""Columns of ``TARGET_INFO_GPU``, and rooflab's names."""


def read(path: Path) -> Recording:
    """What the database has recorded, which is opened for reading only. Raises ``RunError``."""
    place = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
    try:
        database = sqlite3.connect(place, uri=True)
    except sqlite3.Error as error:
        raise RunError(f"{path}: {error}") from error
    with closing(database):
        return _Export(path, database).recording()


@dataclass(slots=True, kw_only=True)
class _Record(DeviceActivity):
    """A row of a table of kernels, graphs, copies or memsets."""

    others: Sequence[Any]


class _Export:
    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self._path = path
        self._database = database
        self._database.text_factory = lambda content: content.decode(errors="replace")
        self._tables = self._schema()
        self._several = "globalPid" in self._tables.get(_KERNELS, ())
        """Whether correlation ids are those of a process."""
        self._texts: dict[int, str] = {}

    def recording(self) -> Recording:
        kernels = list(self._activities(_KERNELS, _LAUNCH))
        graphs = list(self._activities(_GRAPHS, ("graphId",)))
        copies = [*self._activities(_COPIES), *self._activities(_MEMSETS, kind="memset")]
        if not kernels and not graphs:
            raise RunError(
                f"{self._path}: no kernel of a GPU is in this file; record it with "
                "nsys profile --trace cuda,nvtx --cuda-graph-trace node"
            )
        self._texts = dict(self._strings())
        everything = [*kernels, *graphs, *copies]
        places = self._places({one.key for one in everything})
        for one in everything:
            one.place = places.get(one.key, UNKNOWN)
        launches = self._launches(kernels, graphs)
        device = Counter(one.device for one in launches).most_common(1)[0][0]
        device_name, facts = self._device(device)
        return Recording(
            launches=launches,
            copies=transfers(copies),
            steps=launched_steps(everything),
            source="Nsight Systems",
            device_name=device_name,
            facts=facts,
            notes=list(self._notes(kernels, graphs, copies)),
        )

    def _schema(self) -> dict[str, set[str]]:
        """Columns by table. Views are not read: they could be programs that do not end."""
        with self._told("the schema"):
            self._database.execute("PRAGMA trusted_schema = OFF")
            found = self._database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            names = [one for (one,) in found if isinstance(one, str)]
            return {one: self._columns(one) for one in names if one in _TABLES}

    @contextmanager
    def _told(self, where: str) -> Iterator[None]:
        """Turn errors of a damaged file into a ``RunError``; their text may have parts of it."""
        try:
            yield
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            raise RunError(
                f"{self._path} {where}: damaged ({name(str(error))[:200]}); export it again"
            ) from error

    def _columns(self, table: str) -> set[str]:
        return {row[1] for row in self._database.execute(f'PRAGMA table_info("{table}")')}

    def _rows(self, table: str, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """The rows of a table, none without it; None for columns that it lacks."""
        if table not in self._tables:
            return
        there = self._tables[table]
        asked = ", ".join(f'"{one}"' if one in there else "NULL" for one in columns)
        with self._told(f"table {table}"):
            rows = self._database.execute(f'SELECT {asked} FROM "{table}" LIMIT {MOST + 1}')
            for index, row in enumerate(rows):
                if index == MOST:
                    raise RunError(
                        f"{self._path} table {table}: more than {MOST:,} rows; record a shorter "
                        "part of the program"
                    )
                yield row

    def _activities(
        self, table: str, columns: Sequence[str] = (), kind: CopyKind | None = None
    ) -> Iterator[_Record]:
        for index, row in enumerate(self._rows(table, (*_WHERE, *columns)), 1):
            start, end, device, stream, correlation, process, moved, copied = row[: len(_WHERE)]
            if whole(start) is None or whole(end) is None or end < start:
                raise RunError(
                    f"{self._path} table {table} row {index}: damaged, start and end are not "
                    "times in ns; export it again"
                )
            yield _Record(
                start_ns=start,
                end_ns=end,
                key=self._key(process, correlation),
                device=number(device),
                stream=number(stream),
                kind=kind or _KINDS.get(number(copied)),
                bytes=number(moved),
                others=row[len(_WHERE) :],
            )

    def _key(self, process: object, correlation: object) -> EventKey:
        return (_thread(process)[0] if self._several else 0, number(correlation))

    def _strings(self) -> Iterator[tuple[int, str]]:
        for key, value in self._rows("StringIds", ("id", "value")):
            if isinstance(key, int) and isinstance(value, str):
                yield key, value

    def _text(self, *ids: object) -> str:
        """The first of these that is known."""
        found = (self._texts.get(one) for one in ids if isinstance(one, int))
        return name(next((text for text in found if text), "unknown kernel"))

    def _places(self, wanted: set[EventKey]) -> dict[EventKey, HostPlace]:
        """By thread and time of the calls that launched."""
        host = HostThreads()
        columns = ("start", "globalTid", "correlationId")
        for start, thread, correlation in self._rows(_CALLS, columns):
            key = self._key(thread, correlation)
            if key in wanted and whole(start) is not None:
                host.calls.setdefault(key, (_thread(thread), start))
        named = ("start", "end", "text", "textId", "globalTid")
        for start, end, text, text_id, thread in self._rows(_RANGES, named):
            title = text if isinstance(text, str) else self._texts.get(number(text_id))
            if title and whole(start) is not None and whole(end) is not None:
                _add(host, _thread(thread), name(title), start, end)
        return host.places()

    def _launches(
        self, kernels: Sequence[_Record], graphs: Sequence[_Record]
    ) -> list[RecordedLaunch]:
        numbers: dict[Range, int] = {}
        launches = []
        for one in sorted(kernels, key=lambda kernel: kernel.start_ns):
            demangled, short, *rest = one.others
            registers, static, dynamic, graph, node = rest[len(_GRID) :]
            operation = one.place.operation
            launches.append(
                RecordedLaunch(
                    kernel=self._text(demangled, short),
                    start_ns=one.start_ns,
                    end_ns=one.end_ns,
                    grid=dim(rest[:3]),
                    block=dim(rest[3:6]),
                    shared_bytes=number(static) + number(dynamic),
                    registers=number(registers),
                    device=one.device,
                    stream=one.stream,
                    graph=number(graph) or number(node) >> 32,
                    operation=operation.name if operation else "",
                    call=numbers.setdefault(operation, len(numbers) + 1) if operation else 0,
                    phase=one.place.phase,
                )
            )
        launches += map(_graph, graphs)
        return sorted(launches, key=lambda launch: launch.start_ns)

    def _device(self, device: int) -> tuple[str, dict[str, object]]:
        """Name and facts of a CUDA device; several processes may number them differently."""
        gpus = dict(self._rows("TARGET_INFO_CUDA_DEVICE", ("cudaId", "gpuId")))
        columns = ("id", "name", "computeMajor", "computeMinor", *_FACTS)
        rows = list(self._rows("TARGET_INFO_GPU", columns))
        own = next((row for row in rows if row[0] == gpus.get(device, device)), None)
        if own is None:
            return "", {}
        _, title, major, minor, *values = own
        return described(title, dict(zip(_FACTS.values(), values, strict=True)), major, minor)

    def _notes(
        self, kernels: Sequence[_Record], graphs: Sequence[_Record], copies: Sequence[_Record]
    ) -> Iterator[str]:
        yield "Nsight Systems does not record FLOPs and bytes of kernels, only times."
        if _RANGES not in self._tables:
            yield "The file has no NVTX ranges, so phases and operations are not known."
        if lost := sum(one.place is UNKNOWN for one in kernels):
            yield f"The launch calls of {lost} kernels of {len(kernels)} are not in the file."
        if graphs:
            yield (
                f"{len(graphs)} launches of CUDA graphs were recorded as a whole: record their "
                "kernels with nsys profile --cuda-graph-trace node."
            )
        if left_out := sum(one.kind is None for one in copies):
            yield f"{left_out} copies of an unknown kind are left out."


_TABLES: Final = {
    *(_KERNELS, _GRAPHS, _COPIES, _MEMSETS, _CALLS, _RANGES),
    *("StringIds", "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE"),
}


def _thread(thread: object) -> tuple[int, int]:
    """Process and thread in a ``globalTid``, whose lowest 24 bits are the thread."""
    known = thread if isinstance(thread, int) else 0
    return known >> 24, known


def _add(host: HostThreads, thread: tuple[int, int], title: str, start: int, end: int) -> None:
    if match := _OPERATION.match(title):
        host.operations[thread].append(Range(match[1], start, end))
    else:
        host.annotations[thread].append(Range(title, start, end))


def _graph(one: _Record) -> RecordedLaunch:
    """A whole CUDA graph as one launch: its kernels are not known, but the device was busy."""
    return RecordedLaunch(
        kernel="CUDA graph",
        start_ns=one.start_ns,
        end_ns=one.end_ns,
        device=one.device,
        stream=one.stream,
        graph=number(one.others[0]),
        phase=one.place.phase,
    )
