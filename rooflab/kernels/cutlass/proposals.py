"""CUTLASS's kernels that NVIDIA's nvMatmulHeuristics proposes for a problem, raced.

nvMatmulHeuristics (package ``nvidia-matmul-heuristics``) models the time of CUTLASS's tiles,
clusters and orders on a GPU, and ranks them; NVIDIA's libraries use it too. Each proposal is a
variant of kernels/gemm/cutlass/45_cutlass_hopper.cu. It leaves the schedule open: where a tile
allows both, both are raced.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Final

from rooflab.devices.base import Device, Launch
from rooflab.files import kernels_dir
from rooflab.kernels.base import Kernel, Operands, Variant
from rooflab.kernels.cuda_file.header import Configuration
from rooflab.kernels.cuda_file.kernel import PLAN_GB, CudaFile, read_file
from rooflab.kernels.registry import BUILTIN
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import Problem

PACKAGE: Final = "nvidia-matmul-heuristics"
EXTRA: Final = "heuristics"
PROPOSALS: Final = 8
"""NVIDIA's advice is to race so many (CUTLASS, "GEMM heuristics")."""

PINGPONG_ELEMENTS: Final = 128 * 128
"""Of a tile of C that one warp group can hold."""

COOPERATIVE_ROWS: Final = 128
"""Two warp groups divide a tile of a multiple of so many rows."""


def _file() -> CudaFile:
    return _read(kernels_dir() / "gemm" / "cutlass" / "45_cutlass_hopper.cu")


_read = cache(read_file)


def _installed() -> bool:
    return find_spec("nvMatmulHeuristics") is not None


def unavailable(device: Device | None) -> str:
    """Why this kernel cannot run on ``device``, empty if it can."""
    if reason := _file().unavailable(device):
        return reason
    if not _installed():
        from rooflab.devices.cuda import install

        return f"{PACKAGE} is not installed: {install.line(EXTRA)}"
    return ""


@lru_cache(maxsize=64)
def choices(problem: Problem) -> tuple[Configuration, ...]:
    """What to race for ``problem`` on an H100 or H200, the most promising first.

    Both cards have the same multiprocessors. Empty without the package.
    """
    if not _installed():
        return ()
    import nvMatmulHeuristics

    interface = nvMatmulHeuristics.NvMatmulHeuristicsInterfaceEx(
        backend=nvMatmulHeuristics.NvMatmulHeuristicsTarget.CUTLASS3,
        flags=nvMatmulHeuristics.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
        gpu=nvMatmulHeuristics.NvMatmulHeuristicsNvidiaGpu.H200_SXM,
    )
    # As BLAS names them: an operand by rows is "T".
    letters = str(problem.settings["layout"]).translate({ord("n"): "T", ord("t"): "N"})
    layout = nvMatmulHeuristics.NvMatmulHeuristicsMatmulLayout[f"{letters}_ROW_MAJOR"]
    extents = [problem.extents[name] for name in ("m", "n", "k")]
    asked = interface.makeNvMatmulHeuristicsProblem(*extents, layout, problem.extents["batch"])
    found = interface.get(asked, PROPOSALS, precision=problem.precision.heuristics)
    fast = int(problem.precision.name == "fp8")
    made = [one for proposal in found for one in _schedules(proposal["kernel"], fast)]
    return tuple({one.name: one for one in made}.values())


def _schedules(proposal: Any, fast: int) -> Iterator[Configuration]:
    """The macros that make the file this kernel, with each schedule that its tile allows."""
    rows, columns, split = proposal.cta_tile_m, proposal.cta_tile_n, proposal.split_k > 1
    m, n, order = proposal.cluster_m, proposal.cluster_n, "n" if proposal.cta_order else "m"
    able = {
        "": rows % COOPERATIVE_ROWS == 0,
        "pingpong": rows * columns <= PINGPONG_ELEMENTS and not split,
    }
    for word in (word for word, fits in able.items() if fits):
        words = [f"{rows}x{columns} {m}x{n}", word, "stream-k" * split]
        yield Configuration(
            name=" ".join([*filter(None, words), f"swizzle {proposal.swizzle_factor} {order}"]),
            TILE_M=rows,
            TILE_N=columns,
            CLUSTER_M=m,
            CLUSTER_N=n,
            PINGPONG=int(bool(word)),
            STREAM_K=int(split),
            FAST_ACCUMULATE=fast,
            raster=order,
            swizzle=proposal.swizzle_factor,
        )


def _too_few(rank: int, problem: Problem) -> str:
    """Why there is no choice of this rank; empty if there is, or without the package."""
    if not _installed() or rank < len(found := choices(problem)):
        return ""
    count = len(found) or "no"
    return f"nvMatmulHeuristics proposes {count} kernels that CUTLASS makes for {problem.size}"


def _variant(rank: int) -> Variant:
    def prepare(device: Device, operands: Operands) -> Launch:
        return _file().prepare_variant(choices(operands.problem)[rank], device, operands)

    def compile_for(device: Device, problem: Problem) -> None:
        _file().compile_for(choices(problem)[rank], device, problem)

    return Variant(f"proposal {rank + 1}", prepare, compile_for, partial(_too_few, rank))


def _fingerprint() -> str:
    return f"{_file().fingerprint()} {PACKAGE} {version(PACKAGE)}"


RACED: Final = tuple(map(_variant, range(2 * PROPOSALS)))

KERNEL: Final = Kernel(
    name="cutlass_heuristics",
    backend="cutlass",
    device_kind="cuda",
    title="CUTLASS 3.x, the fastest of 8 kernels that nvMatmulHeuristics proposes",
    precisions=tuple(one.name for one in PRECISIONS.values() if one.heuristics),
    prepare=RACED[0].prepare,
    teaches="NVIDIA's model of what is fast, checked by a race",
    variant=RACED[0].name,
    variants=RACED,
    unavailable=unavailable,
    unsupported=lambda problem: _file().unsupported(problem),
    fingerprint=_fingerprint,
    compiler=lambda: _file().compiler_title(),
    builds=lambda: _file().builds.records(),
    memory_gb=PLAN_GB,
)
BUILTIN.add(KERNEL)
