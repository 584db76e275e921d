"""What provides kernels: CUDA files, CUTLASS, cuBLAS, the CPU, and installed packages."""

from __future__ import annotations

from importlib.metadata import entry_points

from rooflab.registry import BUILTIN, Registry


def discover() -> Registry:
    """All kernels: the files of kernels/, the built-in backends and installed packages.

    Packages register by an entry point in the group ``rooflab.kernels`` that names a module whose
    import runs ``@kernel``.
    """
    from rooflab.backends import cpu, cublas, cuda, cutlass  # noqa: F401  importing registers

    for entry in entry_points(group="rooflab.kernels"):
        entry.load()
    return Registry([*cuda.shipped_kernels(), *cutlass.shipped_kernels(), *BUILTIN.all()])
