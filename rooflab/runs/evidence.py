"""What a run knows about a row, as evidence for its diagnosis."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from rooflab.devices.cuda.compiler import source_sha256
from rooflab.devices.cuda.launches import occupancy
from rooflab.errors import RooflabError
from rooflab.kernels.base import Kernel
from rooflab.kernels.registry import Registry
from rooflab.kernels.sources import discover
from rooflab.model.diagnosis import Evidence, Grid, Load
from rooflab.model.measurement import Measurement, is_possible
from rooflab.model.problem import DRAM, PROGRAM, SFU, Problem, ProblemRecord
from rooflab.model.roofline import COMPUTE, Ceiling, Roofline
from rooflab.model.units import scaled
from rooflab.runs.manifest import KernelRecord, Manifest
from rooflab.workloads import build

OWN_BACKEND: Final = "cuda"

SLOWEST: Final = 0.01
"""No clock is a smaller part of its maximum."""


class Witness:
    """Knows a run, and gives evidence on its rows. It reads each kernel's source once."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._fact = manifest.device.fact
        found = (self._fact(name) for name in ("sm_clock_max", "sm_clock_default"))
        nominal = next((value for value in found if value is not None), None)
        self._nominal_mhz = float(nominal) if isinstance(nominal, int | float) and nominal else None
        self._ours = cache(self._find)

    def evidence(self, row: Measurement) -> Evidence:
        """The evidence of a row with status ok."""
        loads = _loads(row, self._manifest.roofline, self._nominal_mhz)
        # Conversions of other types count as FP16, so the largest pipe multiplies.
        pipes = (row.tensor_flops, row.fp64_flops, row.fp32_flops, row.fp16_flops)
        return Evidence(
            time_us=row.time_us or math.inf,
            launch_us=row.launch_us if is_possible(row.launch_us) else None,
            loads=tuple(load for load in loads if is_possible(load.us)),
            grid=self._grid(row),
            clock_mhz=row.sm_mhz,
            nominal_mhz=self._nominal_mhz,
            nvml_mhz=row.nvml_mhz,
            capped="power_capped" in row.flag_names,
            executed=_ratio(max(pipe or 0.0 for pipe in pipes), row.flops),
            moved=_ratio(row.dram_bytes, row.bytes),
        )

    def next_rung(self, row: Measurement) -> Kernel | None:
        """The kernel after the row's on the ladder of our own kernels, for the same problem."""
        problem = row.problem
        rungs = ladder(self._manifest.device.kind, problem.workload)
        names = [kernel.name for kernel in rungs]
        for kernel in rungs[names.index(row.kernel) + 1 :] if row.kernel in names else ():
            fits = all(problem.settings.get(n) in given for n, given in kernel.choices.items())
            if fits and problem.precision in kernel.precisions:
                return kernel
        return None

    def _find(self, workload: str, name: str) -> tuple[Kernel, KernelRecord] | None:
        """A kernel and its record, if the file that ran is one of ours and has not changed."""
        kernel = registry().get(self._manifest.device.kind, workload, name)
        record = self._manifest.kernel(workload, name)
        if not kernel or not record or not kernel.source:
            return None
        return (kernel, record) if source_sha256(kernel.source) == record.sha256 else None

    def _grid(self, row: Measurement) -> Grid | None:
        problem, multiprocessors = row.problem, self._fact("sm_count")
        if problem.workload == PROGRAM:
            known = problem.settings.get("grid")
            return _small_grid(problem.extents["blocks"], multiprocessors) if known else None
        found = self._ours(problem.workload, row.kernel)
        if not found or not isinstance(multiprocessors, int) or multiprocessors < 1:
            return None
        kernel, record = found
        words = {name: v for name, v in problem.settings.items() if isinstance(v, str)}
        wanted = {"variant": row.variant, "precision": problem.precision, **words}
        builds = (
            one
            for one in record.compiled
            if all(one.get(name, value) == value for name, value in wanted.items())
        )
        compiled = next(builds, {})
        registers, shared = (compiled.get(name) for name in ("registers", "shared_bytes"))
        built = _built(problem)
        shape = kernel.launch_shape(built, row.variant, multiprocessors) if built else None
        if shape is None or not isinstance(registers, int) or not isinstance(shared, int):
            return None
        capability = str(self._fact("compute_capability") or "")
        fits = occupancy(capability, shape.threads, registers, shared)
        return Grid(shape.blocks, multiprocessors, fits.blocks) if fits and fits.blocks else None


def _small_grid(blocks: int, multiprocessors: Any) -> Grid | None:
    """Of a program only grids are known, and not how many blocks fit: too few are always known."""
    small = isinstance(multiprocessors, int) and blocks < multiprocessors
    return Grid(blocks, multiprocessors, 1) if small else None


@cache
def registry() -> Registry:
    """All kernels, which are found once."""
    return discover()


@cache
def ladder(device_kind: str, workload: str) -> list[Kernel]:
    """Our own kernels of a workload, by rung."""
    of = (device_kind, workload, OWN_BACKEND)
    return [k for k in registry().all() if (k.device_kind, k.workload, k.backend) == of]


def _ratio(counted: float | None, modelled: int | None) -> float | None:
    return counted / modelled if counted and modelled else None


# Loads -------------------------------------------------------------------------------------------


def _built(record: ProblemRecord) -> Problem | None:
    """The problem of a record, None if its workload is not known here."""
    try:
        return build(record.workload, record.precision, record.parameters)
    except RooflabError:
        return None


def _loads(row: Measurement, roofline: Roofline, nominal_mhz: float | None) -> Iterator[Load]:
    if not row.problem.resident:
        return  # its bytes are those of a link, whose roof says all
    yield from _computing(row, roofline, nominal_mhz)
    problem = _built(row.problem)
    for unit, operations in problem.units.items() if problem else ():
        if limit := roofline.compute(unit):
            slowdown = _slowdown(limit, row, nominal_mhz)
            yield _load(unit, operations, limit, slowdown, counted=False)
    counted = {DRAM: row.dram_bytes, "l2": row.l2_bytes, "l1": row.l1_bytes}
    for level, amount in counted.items():
        ceiling = _bandwidth(roofline, level)
        if level == DRAM and not amount:
            if ceiling and row.bytes:
                yield _load(level, row.bytes, ceiling, 1.0, counted=False)
        elif ceiling and amount:
            yield _load(level, amount, ceiling, 1.0, counted=True)


def _computing(row: Measurement, roofline: Roofline, nominal_mhz: float | None) -> Iterator[Load]:
    """The busiest pipe, at the clock that was counted: at a lower clock it has a lower ceiling."""
    pipes = {
        row.problem.precision: row.tensor_flops,
        "fp64_vector": row.fp64_flops,
        "fp32": row.fp32_flops,
    }
    counted = {key: amount for key, amount in pipes.items() if amount}
    modelled = {row.problem.precision: float(row.flops or 0)}
    amounts = counted or modelled
    found = [
        _load(COMPUTE, amount, ceiling, _slowdown(ceiling, row, nominal_mhz), counted=bool(counted))
        for key, amount in amounts.items()
        if amount and (ceiling := roofline.compute(key))
    ]
    yield from sorted(found, key=lambda load: -load.us)[:1]


def _slowdown(ceiling: Ceiling, row: Measurement, nominal_mhz: float | None) -> float:
    """The clock while timed over that of a derived ceiling, at most 1."""
    if ceiling.provenance != "derived" or not row.sm_mhz or not nominal_mhz:
        return 1.0
    share = row.sm_mhz / nominal_mhz
    return share if SLOWEST <= share <= 1.0 else 1.0


def _bandwidth(roofline: Roofline, level: str) -> Ceiling | None:
    """Measured if it is there: what copies reach, not what the bus could carry."""
    return roofline.cache(roofline.memory if level == DRAM else level.upper())


def _load(
    resource: str, amount: float, ceiling: Ceiling, slowdown: float, *, counted: bool
) -> Load:
    rate = ceiling.value * slowdown
    unit = {COMPUTE: "FLOP", SFU: "op"}.get(resource, "B")
    text = f"{scaled(amount)}{unit} at {ceiling.show(rate)} ({ceiling.provenance})"
    return Load(resource, amount / rate * 1e6, text, counted)
