"""Recordings that other profilers made: torch.profiler, Nsight Systems, Nsight Compute."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rooflab.devices.records import Recording
from rooflab.errors import RunError
from rooflab.programs.imports import content, ncu, nsys, trace

FORMATS: Final = (
    "a trace of torch.profiler (.json or .json.gz), SQLite of Nsight Systems "
    "(nsys export --type sqlite FILE.nsys-rep), or Nsight Compute's table "
    "(ncu --import FILE.ncu-rep --csv --page raw > FILE.csv)"
)

_SYSTEMS: Final = (".nsys-rep", ".qdrep", ".qdstrm")
"""Reports of Nsight Systems, in formats that only it reads."""


def load(path: Path) -> Recording:
    """What another profiler recorded in ``path``, whose format its content tells.

    Raises ``RunError`` if the file cannot be read, is damaged or of no known format, or has no
    kernel, and ``UnavailableError`` if Nsight Compute is needed and fails.
    """
    with _without_collection():
        return _read(path)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Pause the search for garbage, of which reading makes none: it takes three times as long."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _read(path: Path) -> Recording:
    head = content.head(path)
    if head.startswith(nsys.MAGIC):
        return nsys.read(path)
    if head.startswith(ncu.MAGIC):
        return ncu.read(path, ncu.converted(path))
    if path.suffix in _SYSTEMS:
        raise RunError(
            f"{path}: a report that only Nsight Systems reads; write it as SQLite: "
            f"nsys export --type sqlite {path}"
        )
    text = content.text(path)
    if (start := re.compile(r"\s*(.)").match(text)) and start[1] in "{[":
        return trace.read(path, text)
    if ncu.HEADER.search(text):
        return ncu.read(path, text)
    why = "a format that is not known" if text.strip() else "empty"
    raise RunError(f"{path}: {why}; what can be read is {FORMATS}")
