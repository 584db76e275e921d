"""Install commands for missing CUDA packages, with the extra for this machine."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final

CUPY_PACKAGES: Final = ("cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x")


def installed_cupy() -> list[str]:
    """The installed CuPy distributions; more than one do not work together."""
    installed = []
    for package in CUPY_PACKAGES:
        try:
            version(package)
        except PackageNotFoundError:
            continue
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
