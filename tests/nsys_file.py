"""SQLite as ``nsys export --type sqlite`` writes it, with columns of Nsight Systems 2025."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

PROCESS = 543
TID = 0x01000000_00000000 | PROCESS << 24 | 7
"""As nsys packs them: hardware and machine above the process, the thread in the lowest 24 bits."""

TABLES = {
    "StringIds": "id value",
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start end deviceId contextId streamId correlationId globalPid demangledName shortName "
        "mangledName launchType registersPerThread gridX gridY gridZ blockX blockY blockZ "
        "staticSharedMemory dynamicSharedMemory gridId graphId graphNodeId"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "start end deviceId contextId streamId correlationId globalPid bytes copyKind srcKind "
        "dstKind graphNodeId"
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": (
        "start end deviceId contextId streamId correlationId globalPid value bytes memKind"
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start end eventClass globalTid correlationId nameId returnValue callchainId"
    ),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (
        "start end deviceId graphId contextId streamId correlationId globalPid"
    ),
    "NVTX_EVENTS": (
        "start end eventType rangeId category color text globalTid endGlobalTid textId domainId"
    ),
    "TARGET_INFO_GPU": (
        "vmId id name busLocation l2CacheSize totalMemory memoryBandwidth clockRate smCount "
        "chipName maxShmemPerBlockOptin computeMajor computeMinor"
    ),
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid uuid numMultiprocessors",
}

NAMES = {1: "void gemm<float>(float*)", 2: "gemm", 3: "step 1", 4: "relu", 5: "cudaLaunchKernel"}

WHERE = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": TID & ~0xFFFFFF}
GRID = {"gridX": 4, "gridY": 2, "gridZ": 1, "blockX": 128, "blockY": 1, "blockZ": 1}
KERNEL = {**WHERE, **GRID, "demangledName": 1, "shortName": 2, "registersPerThread": 32}
SHARED = {"staticSharedMemory": 16, "dynamicSharedMemory": 1024}

GPU = {"vmId": 1, "id": 0, "name": "NVIDIA H200", "smCount": 132, "l2CacheSize": 62914560}
GPU |= {"computeMajor": 9, "computeMinor": 0, "totalMemory": 150109880320}

Rows = Iterable[tuple[str, dict[str, Any]]]


def kernel(start: int, correlation: int, **others: Any) -> tuple[str, dict[str, Any]]:
    """A kernel of 10 ns."""
    where = {"start": start, "end": start + 10, "correlationId": correlation}
    row = {**where, **KERNEL, **SHARED}
    return "CUPTI_ACTIVITY_KIND_KERNEL", row | others


def copy(start: int, correlation: int, kind: int, **others: Any) -> tuple[str, dict[str, Any]]:
    """A copy of 64 bytes in 10 ns."""
    row = {"start": start, "end": start + 10, "correlationId": correlation, **WHERE}
    return "CUPTI_ACTIVITY_KIND_MEMCPY", row | {"bytes": 64, "copyKind": kind} | others


def call(start: int, correlation: int, thread: int = TID) -> tuple[str, dict[str, Any]]:
    """A launch call."""
    row = {"start": start, "end": start + 1, "globalTid": thread, "correlationId": correlation}
    return "CUPTI_ACTIVITY_KIND_RUNTIME", row


def span(start: int, end: int | None, text: str | int, thread: int = TID) -> tuple[str, Any]:
    """A range of NVTX; a number is that of a text."""
    row = {"start": start, "end": end, "eventType": 59, "globalTid": thread}
    return "NVTX_EVENTS", row | {"text" if isinstance(text, str) else "textId": text}


def written(path: Path, rows: Rows, without: Sequence[str] = ()) -> Path:
    """A file with these rows; ``without`` are columns that an older version lacks, and tables."""
    used = {table for table, _ in rows} | {"StringIds"}
    with closing(sqlite3.connect(path)) as database:
        for table in used - set(without):
            columns = [one for one in TABLES[table].split() if one not in without]
            database.execute(f"CREATE TABLE {table} ({', '.join(f'[{one}]' for one in columns)})")
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", NAMES.items())
        for table, row in rows:
            kept = {key: value for key, value in row.items() if key not in without}
            places = ", ".join("?" * len(kept))
            keys = ", ".join(f"[{one}]" for one in kept)
            sql = f"INSERT INTO {table} ({keys}) VALUES ({places})"
            database.execute(sql, list(kept.values()))
        database.commit()
    return path


def exported(path: Path) -> Path:
    """A step with two kernels and a copy."""
    return written(
        path,
        [
            *(span(0, 100, 3), span(10, 90, "forward"), span(15, 25, "aten::mm, seq = 4")),
            *(call(20, 1), call(30, 2), call(40, 3)),
            *(kernel(1000, 1), kernel(1020, 2, demangledName=4), copy(1040, 3, 1)),
            ("TARGET_INFO_GPU", GPU),
        ],
    )
