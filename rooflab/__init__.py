"""rooflab: how close is a kernel to what this machine can do, and what holds it back?

>>> import rooflab
>>> run = rooflab.sweep("gemm", kernels=["tiled", "blas"], sizes=[256, 512], device="cpu")
>>> run.frame()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rooflab.version import __version__

if TYPE_CHECKING:
    from rooflab.api import (
        Run,
        compare,
        count,
        fleet_sweep,
        judge,
        load,
        load_fleet,
        report_fleet,
        resume,
        sweep,
    )
    from rooflab.functions.bench import Result, bench
    from rooflab.functions.do_bench import do_bench
    from rooflab.functions.marked import benchmark
    from rooflab.kernels.python_file import kernel
    from rooflab.model.measurement import Measurement, column, counter, flag
    from rooflab.model.precision import PRECISIONS
    from rooflab.model.problem import Operand, Piece, Problem, boxes, extent, setting
    from rooflab.programs.profile import Profile, profile
    from rooflab.workloads import workload

__all__ = [
    "PRECISIONS",
    "Measurement",
    "Operand",
    "Piece",
    "Problem",
    "Profile",
    "Result",
    "Run",
    "__version__",
    "bench",
    "benchmark",
    "boxes",
    "column",
    "compare",
    "count",
    "counter",
    "do_bench",
    "extent",
    "flag",
    "fleet_sweep",
    "judge",
    "kernel",
    "load",
    "load_fleet",
    "profile",
    "report_fleet",
    "resume",
    "setting",
    "sweep",
    "workload",
]

_NAMES = {
    "rooflab.functions.bench": "Result bench",
    "rooflab.functions.do_bench": "do_bench",
    "rooflab.functions.marked": "benchmark",
    "rooflab.api": "Run compare count fleet_sweep judge load load_fleet report_fleet resume sweep",
    "rooflab.kernels.python_file": "kernel",
    "rooflab.model.measurement": "Measurement column counter flag",
    "rooflab.model.precision": "PRECISIONS",
    "rooflab.model.problem": "Operand Piece Problem boxes extent setting",
    "rooflab.programs.profile": "Profile profile",
    "rooflab.workloads": "workload",
}
_WHERE = {name: module for module, names in _NAMES.items() for name in names.split()}


def __dir__() -> list[str]:
    """The public names, for completion."""
    return __all__


def __getattr__(name: str) -> Any:
    """Import ``name`` when it is first used, so that ``import rooflab`` stays fast."""
    if name not in _WHERE:
        raise AttributeError(f"rooflab has no {name!r}")
    return getattr(import_module(_WHERE[name]), name)
