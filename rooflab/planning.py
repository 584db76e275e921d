"""What a sweep will measure: kernels by name or file, problems, and their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from glob import escape
from inspect import getsourcefile
from math import inf
from pathlib import Path
from typing import Final

from rooflab.config import Selection, SweepConfig, points
from rooflab.devices.base import Device
from rooflab.devices.cuda.nvcc import CompilerSetting, choose, driver_version
from rooflab.devices.registry import class_of, kinds
from rooflab.errors import UnavailableError, UsageError
from rooflab.kernels.base import Kernel, is_file
from rooflab.kernels.registry import Registry
from rooflab.kernels.sources import discover, load_file
from rooflab.model.grouping import grouped
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import Problem
from rooflab.model.units import scaled
from rooflab.options import ALL
from rooflab.workloads import find

WARM_UP_WORK: Final = 2 * 4096**3
"""Most FLOPs and bytes of a problem for the warm-up: larger ones do not heat a GPU more."""

WARM_UP_BYTES: Final = 2**31


@dataclass(frozen=True, slots=True)
class Step:
    """A problem, and the kernels that are measured on it together."""

    problem: Problem
    kernels: tuple[Kernel, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of a sweep. ``notes`` are messages for the user: what was left out, and why."""

    config: SweepConfig
    steps: tuple[Step, ...]
    files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def with_notes(self, *notes: str) -> Plan:
        """The same plan with additional ``notes`` at the front."""
        return replace(self, notes=(*notes, *self.notes))

    @property
    def points(self) -> int:
        """The number of rows that the sweep will have."""
        return sum(len(step.kernels) for step in self.steps)

    @property
    def kernels(self) -> list[Kernel]:
        """All kernels of the steps, each once."""
        return list({kernel.id: kernel for step in self.steps for kernel in step.kernels}.values())


def plan(config: SweepConfig, device: Device) -> Plan:
    """The steps of a sweep: by workload and precision, small problems first.

    A kernel is measured in the precisions that it supports; one that cannot run here is left out,
    with a note, and so is a workload of several for which none can. Raises ``UsageError`` if a
    kernel is not found, if a user's own cannot run here, or if no step is left.
    """
    points(config)
    compilers = choose(config.compiler, driver_version(device))
    registry = discover(compilers.own)
    files: list[str] = []
    notes: list[str] = []
    absent: list[tuple[str, str]] = []
    steps: list[Step] = []
    for selection in config.workloads:
        notes += _decimal_commas(selection)
        patterns = _patterns(selection, registry, device, files, config.compiler)
        chosen = registry.select(patterns, device.kind, selection.workload)
        usable = chosen if device.absent else _usable(chosen, patterns, device, absent)
        if usable:
            steps += _steps(selection, usable, notes)
        else:
            notes.append(f"{selection.workload} left out: none of its kernels can run here")
    if not steps:
        raise UsageError("none of these kernels can run here (see: rooflab kernels)")
    by_reason = grouped(absent, lambda pair: pair[1])
    notes[:0] = [
        f"{', '.join(dict.fromkeys(name for name, _ in some))} left out: {reason}"
        for reason, some in by_reason.items()
    ]
    if any(step.problem.record.streamed for step in steps) and not device.has_own_memory:
        raise UnavailableError(f"{device.name} computes in host memory: leave out --host")
    if any(step.problem.gpus > 1 for step in steps) and device.group_size == 1:
        raise UnavailableError(f"{device.name} is the only one here: leave out --gpus")
    _refuse_too_large(steps, device)
    measured = {kernel.name: kernel for step in steps for kernel in step.kernels}
    if config.variant and not any(kernel.variants for kernel in measured.values()):
        raise UsageError(
            f"--variant {config.variant[0][:40]!r}: no variants in {', '.join(measured)[:60]}"
        )
    if compilers.note and any(file.endswith(".cu") for file in files):
        notes.append(compilers.note)
    return Plan(config, tuple(steps), tuple(dict.fromkeys(files)), tuple(notes))


def _refuse_too_large(steps: Sequence[Step], device: Device) -> None:
    """Raise ``UsageError`` if no problem can fit into the memory of the device."""
    memory = float(device.fact("memory_total") or inf)
    resident = [step.problem for step in steps if step.problem.record.resident]
    if steps and len(resident) == len(steps):
        least = min(resident, key=lambda problem: problem.operand_bytes)
        if least.operand_bytes > memory:
            raise UsageError(
                f"{least.workload} {least.precision.name} {least.size} needs "
                f"{scaled(least.operand_bytes)}B, and {device.name} has {scaled(memory)}B of "
                "memory: give a smaller problem"
            )


def _decimal_commas(selection: Selection) -> Iterator[str]:
    """Notes about parameters that may have been meant as one number: ``1,5`` for 1.5."""
    for name, values in selection.parameters.items():
        whole = [v for v in values if isinstance(v, float) and v.is_integer() and v >= 0]
        if len(whole) == len(values) == 2:
            one, other = (f"{value:g}" for value in whole)
            yield f"{name} is {one}, then {other}: write {one}.{other} for one number"


def _patterns(
    selection: Selection,
    registry: Registry,
    device: Device,
    files: list[str],
    compiler: CompilerSetting,
) -> list[str]:
    """Names and globs; a file is replaced by the names of its kernels, which are registered."""
    nvcc = choose(compiler, driver_version(device)).users
    patterns: list[str] = []
    elsewhere: list[tuple[str, Kernel]] = []
    for pattern in selection.kernels:
        if not is_file(pattern):
            patterns.append(pattern)
            continue
        loaded = load_file(pattern, nvcc)
        files.append(pattern)
        if not loaded:  # it defines workloads, columns or flags
            continue
        found = [kernel for kernel in loaded if kernel.workload == selection.workload]
        if not found:
            other = loaded[0].workload
            raise UsageError(
                f"{pattern} is for {other}, not {selection.workload}: "
                f"rooflab sweep {other} --kernel {pattern}"
            )
        here = [kernel for kernel in found if kernel.device_kind == device.kind]
        if not here:
            elsewhere.append((pattern, found[0]))
        for kernel in here:
            registry.add(kernel)
            patterns.append(escape(kernel.name))
    for pattern, kernel in elsewhere:
        # A file that defines the workload is needed for the kernels of other files.
        if not patterns or str(kernel.source) != getsourcefile(find(selection.workload)):
            _refuse_elsewhere(pattern, kernel, compiler)
    return patterns or ["*"]


def _refuse_elsewhere(pattern: str, kernel: Kernel, compiler: CompilerSetting) -> None:
    """Raise ``UsageError``: the file needs another kind of device, or, if .cu, does not compile."""
    kind = kernel.device_kind
    if class_of(kind) is Device:
        known = " or ".join(f'"{one}"' for one in kinds())
        raise UsageError(f'{pattern} has device="{kind}": write {known}')
    if pattern.endswith(".cu"):
        from rooflab.kernels.cuda_file.kernel import check_file

        check_file(Path(pattern), choose(compiler, None).users)
    raise UnavailableError(f"{pattern} needs {class_of(kind).needs}")


def _usable(
    kernels: list[Kernel], patterns: Sequence[str], device: Device, absent: list[tuple[str, str]]
) -> list[Kernel]:
    """The kernels that can run here; the names of the others, with the reason, are ``absent``.

    Raises ``UsageError`` if one given by name cannot, and is a user's own or the only one.
    """
    usable = []
    for kernel in kernels:
        reason, named = kernel.unavailable(device), escape(kernel.name) in patterns
        if reason and named and (kernel.untrusted or len(patterns) == 1):
            raise UsageError(f"kernel {kernel.name} cannot run here: {reason}")
        if reason:
            absent.append((kernel.name, reason))
        else:
            usable.append(kernel)
    return usable


def _steps(selection: Selection, kernels: list[Kernel], notes: list[str]) -> list[Step]:
    everything = ALL in selection.precisions
    wanted = list(PRECISIONS) if everything else list(dict.fromkeys(selection.precisions))
    if not everything:
        notes += [
            f"{kernel.name} does not support {', '.join(lacking)}: skipped"
            for kernel in kernels
            if (lacking := [p for p in wanted if p not in kernel.precisions])
        ]
    steps = []
    for precision in wanted:
        able = tuple(kernel for kernel in kernels if precision in kernel.precisions)
        if able:
            problems = selection.build(precision)
            # By the settings in the order given, then by size.
            order = list(dict.fromkeys(tuple(p.settings.items()) for p in problems))
            problems.sort(
                key=lambda p: (order.index(tuple(p.settings.items())), p.flops, p.operand_bytes)
            )
            steps += [Step(problem, able) for problem in problems]
    if not steps:
        has = "; ".join(f"{kernel.name} has {', '.join(kernel.precisions)}" for kernel in kernels)
        raise UsageError(
            f"no kernel supports {', '.join(wanted)}: {has}"[:400]
            + f" (give another: --precision {kernels[0].precisions[0]})"
        )
    return steps


def pending(steps: Sequence[Step], done: Sequence[Measurement]) -> list[Step]:
    """The steps without the points that ``done`` has a row for."""
    keys = {row.key for row in done}
    left = []
    for step in steps:
        kernels = tuple(k for k in step.kernels if (k.name, *step.problem.key) not in keys)
        if kernels:
            left.append(Step(step.problem, kernels))
    return left


def warm_up_step(steps: Sequence[Step]) -> Step:
    """The step for the warm-up: the largest within the WARM_UP limits, else the smallest."""

    def work(step: Step) -> int:
        return step.problem.flops + step.problem.operand_bytes

    small = [
        step
        for step in steps
        if step.problem.flops <= WARM_UP_WORK and step.problem.operand_bytes <= WARM_UP_BYTES
    ]
    return max(small, key=work) if small else min(steps, key=work)


def smallest(steps: Sequence[Step]) -> list[Step]:
    """The smallest problem of each workload and precision, in the memory of one device."""
    found: dict[tuple[str, str], Step] = {}
    for step in steps:
        problem = step.problem
        kind = (problem.workload, problem.precision.name)
        least = found[kind].problem.operand_bytes if kind in found else inf
        if problem.record.resident and problem.operand_bytes < least:
            found[kind] = step
    return list(found.values())
