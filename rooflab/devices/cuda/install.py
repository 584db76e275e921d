"""What is installed: CuPy, parts of CUDA in packages; and the commands that install what is not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

CUPY_PACKAGES: Final = ("cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x")


def installed_cupy() -> list[str]:
    """The installed CuPy distributions; more than one do not work together."""
    installed = []
    for package in CUPY_PACKAGES:
        with suppress(PackageNotFoundError):
            version(package)
            installed.append(package)
    return installed


def extra(driver_cuda: str = "") -> str:
    """``cuda12`` or ``cuda13``: the version of the installed CuPy, else of the driver."""
    present = installed_cupy()
    if len(present) == 1 and present[0][-3:-1] in ("12", "13"):
        return f"cuda{present[0][-3:-1]}"
    major = driver_cuda.partition(".")[0]
    return "cuda13" if major.isdigit() and int(major) >= 13 else "cuda12"


def line(*extras: str) -> str:
    """``pip install 'rooflab[…]'`` with these extras."""
    return f"pip install 'rooflab[{','.join(extras)}]'"


def in_packages(function: str, name: str) -> Iterator[Path]:
    """What a function of cuda-pathfinder, which comes with CuPy, finds, if anything."""
    with suppress(Exception):  # it raises for unknown layouts
        from cuda import pathfinder

        if found := getattr(pathfinder, function)(name):
            yield Path(found)


def first_line(error: Exception) -> str:
    """The first line of an error that says something, else the error's type."""
    lines = (line.strip(" =") for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)
