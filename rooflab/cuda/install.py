"""What to type where a CUDA package is missing: the extra that fits this machine."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final

CUPY_PACKAGES: Final = ("cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x")


def installed_cupy() -> list[str]:
    """The CuPy distributions that are installed; more than one cannot work."""
    installed = []
    for package in CUPY_PACKAGES:
        try:
            version(package)
        except PackageNotFoundError:
            continue
        installed.append(package)
    return installed


def extra(driver_cuda: str = "") -> str:
    """``cuda12`` or ``cuda13``: what CuPy is there for, else what the driver supports."""
    present = installed_cupy()
    if len(present) == 1 and present[0][-3:-1] in ("12", "13"):
        return f"cuda{present[0][-3:-1]}"
    major = driver_cuda.partition(".")[0]
    return "cuda13" if major.isdigit() and int(major) >= 13 else "cuda12"


def line(*extras: str) -> str:
    """``pip install 'rooflab[…]'`` with these extras."""
    return f"pip install 'rooflab[{','.join(extras)}]'"
