"""What provides kernels: CUDA files, CUTLASS, cuBLAS, the CPU, and installed packages."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from rooflab import console
from rooflab.registry import BUILTIN, Registry


def discover() -> Registry:
    """All kernels: the files of kernels/, the built-in backends and installed packages.

    Packages register by an entry point in the group ``rooflab.kernels`` that names a module whose
    import runs ``@kernel``; one that fails costs its own kernels and a warning.
    """
    from rooflab.backends import cpu, cublas, cuda, cutlass  # noqa: F401  importing registers

    _load_packages()
    return Registry([*cuda.shipped_kernels(), *cutlass.shipped_kernels(), *BUILTIN.all()])


@cache
def _load_packages() -> None:
    for entry in entry_points(group="rooflab.kernels"):
        try:
            entry.load()
        except Exception as error:  # whatever a stranger's import may raise
            package = entry.dist.name if entry.dist else entry.value
            console.warn(
                f"the kernels of {package} cannot be loaded ({type(error).__name__}: {error}): "
                f"mend or pip uninstall {package}"
            )
