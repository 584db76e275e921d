"""Sources of kernels: .cu and .py files, CUTLASS, cuBLAS, cuFFT, CuPy, NumPy, Numba, packages."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from rooflab.devices.cuda.nvcc import Nvcc
from rooflab.devices.registry import installed
from rooflab.errors import UsageError
from rooflab.kernels import libraries
from rooflab.kernels.base import Kernel
from rooflab.kernels.registry import BUILTIN, Registry


def discover(nvcc: Nvcc | None = None) -> Registry:
    """All kernels: the files of kernels/, libraries and installed packages.

    The files are compiled by ``nvcc``, or by NVRTC if that is None.

    Packages use an entry point in the group ``rooflab.kernels``: it names a module whose import
    registers kernels or workloads. A package that fails is left out with a warning.
    """
    from rooflab.kernels.cuda_file import kernel as cuda_file
    from rooflab.kernels.cutlass import proposals  # noqa: F401  importing registers

    for file in iter_modules(libraries.__path__, f"{libraries.__name__}."):
        if "._" not in file.name:
            import_module(file.name)
    installed("rooflab.kernels")
    return Registry([*cuda_file.shipped_kernels(nvcc), *BUILTIN.all()])


def load_file(spec: str | Path, nvcc: Nvcc | None = None) -> list[Kernel]:
    """The kernels in a user's file; raises ``UsageError`` with the file's errors.

    A .cu file is compiled by ``nvcc``, or by NVRTC if that is None.
    """
    return [replace(kernel, foreign=True) for kernel in _load_file(spec, nvcc)]


def _load_file(spec: str | Path, nvcc: Nvcc | None) -> list[Kernel]:
    text = str(spec)
    if "\0" in text or len(text) > 4096:
        raise UsageError("the name of a kernel file is not a valid file name")
    if any(0xD800 <= ord(character) < 0xE000 for character in text):
        # A byte that is not UTF-8, which the record of a run could not hold.
        raise UsageError(f"kernel file {text[:200]}: give it a name in UTF-8")
    path, _, name = text.partition(".py:")
    try:
        if text.endswith(".py") or ".py:" in text:
            from rooflab.kernels.python_file import load_python_file

            return load_python_file(Path(f"{path}.py" if name or ".py:" in text else path), name)
        if not text.endswith(".cu"):
            raise UsageError(f"kernel file {text[:200]} is neither .cu nor .py")
        from rooflab.kernels.cuda_file.kernel import read_file

        return [read_file(Path(text), nvcc).as_kernel()]
    except OSError as error:
        raise UsageError(f"kernel file {text[:200]} cannot be read: {error.strerror}") from error
