"""CUTLASS's headers, with CuTe's: their folder and version."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from rooflab.devices.cuda import compiler, install
from rooflab.errors import KernelError

TESTED_FROM: Final = (4, 2)
TESTED_BELOW: Final = (4, 3)
"""CUTLASS versions that our files are tested with. The layout of a kernel's parameters is an
implementation detail of CUTLASS; kernels/cutlass/plan.py checks it at run time."""

OPTIONS: Final = (
    "-default-device",  # CUTLASS leaves many functions unmarked, and NVRTC has no host
    "--device-int128",  # without it CUTLASS's 64-bit divisions trap
    "-DNDEBUG",  # with asserts the compiler waits for every wgmma
)
"""NVRTC's options for the headers."""


@cache
def library() -> compiler.Library | None:
    """The headers in CUTLASS_PATH, else of the package nvidia-cutlass; None if there are none."""
    for folder in _candidates():
        try:
            text = (folder / "cutlass" / "version.h").read_text(encoding="utf-8")
        except OSError:
            continue
        numbers = re.findall(r"#define\s+CUTLASS_(?:MAJOR|MINOR|PATCH)\s+(\d+)", text)
        if len(numbers) == 3:
            return compiler.Library("CUTLASS", ".".join(numbers), (folder,))
    return None


def _candidates() -> Iterator[Path]:
    if checkout := os.environ.get("CUTLASS_PATH"):
        yield Path(checkout) / "include"
    package = find_spec("cutlass_library")
    for location in (package.submodule_search_locations or ()) if package else ():
        yield Path(location) / "source" / "include"
    yield from install.in_packages("find_nvidia_header_directory", "cutlass")


def install_line() -> str:
    """The command that installs the headers."""
    return install.line(install.extra(), "cutlass")


def unavailable() -> str:
    """Why the headers cannot be used, with the command that installs them; empty if they can."""
    found = library()
    if found is None:
        return f"CUTLASS is not installed: {install_line()}"
    if not TESTED_FROM <= tuple(map(int, found.version.split(".")))[:2] < TESTED_BELOW:
        return f"CUTLASS {found.version} in {found.folders[0]} is not {tested()}: {install_line()}"
    headers = compiler.cuda_headers()
    for name in ("crt/mma.h", "cuda/std/type_traits"):
        if not any((folder / name).is_file() for folder in (headers.folders if headers else ())):
            return f"CUTLASS needs CUDA's header {name}, which is not installed: {install_line()}"
    return ""


def usable() -> compiler.Library:
    """The headers; raises ``KernelError`` if they cannot be used."""
    if (reason := unavailable()) or not (found := library()):
        raise KernelError(reason)
    return found


def tested() -> str:
    """The tested versions, in pip's notation."""
    return f">={'.'.join(map(str, TESTED_FROM))},<{'.'.join(map(str, TESTED_BELOW))}"
