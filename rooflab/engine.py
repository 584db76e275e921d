"""The engine: plan, measure, record. It prints nothing; it reports to an observer."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from inspect import getsourcefile
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Final

from rooflab.backends import discover, load_file
from rooflab.config import ALL, Selection, SweepConfig, of_run, points
from rooflab.cpu.facts import allowed_cpus
from rooflab.cuda import ncu
from rooflab.cuda.compiler import source_sha256
from rooflab.cuda.nvcc import Nvcc, choose, driver_version
from rooflab.device import Counters, Device
from rooflab.errors import RooflabError, UnavailableError, UsageError
from rooflab.kernels import Kernel, is_file
from rooflab.measure import profiled
from rooflab.measure.levels import stored_levels
from rooflab.measure.messages import Count, Job
from rooflab.measure.process import module_path
from rooflab.measure.protocol import Outcome
from rooflab.measure.telemetry import summarize
from rooflab.measure.worker import Worker
from rooflab.model.dtypes import PRECISIONS
from rooflab.model.measurement import Measurement
from rooflab.model.problem import Problem, ProblemRecord
from rooflab.model.roofline import Limits, Roofline
from rooflab.registry import Registry
from rooflab.runs.manifest import DeviceRecord, KernelRecord, Manifest, WorkloadRecord
from rooflab.runs.store import Run, RunWriter, Writer, create_folder, load, resumable
from rooflab.version import __version__
from rooflab.workloads import find

WARM_UP_WORK: Final = 2 * 4096**3
"""Most FLOPs and bytes of a problem for the warm-up: larger ones do not heat a GPU more."""

WARM_UP_BYTES: Final = 2**31

REMEASURED: Final = 3
"""Most times that a sweep measures its roofs again: it takes seconds."""

# Plan --------------------------------------------------------------------------------------------


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

    A kernel is measured in the precisions that it supports. Raises ``UsageError`` if a kernel is
    not found, if a kernel given by its exact name cannot run here, or if no step is left.
    """
    points(config)
    compilers = choose(config.compiler, driver_version(device))
    registry = discover(compilers.own)
    files: list[str] = []
    notes: list[str] = []
    steps: list[Step] = []
    for selection in config.workloads:
        patterns = _patterns(selection, registry, device, files, compilers.users)
        chosen = registry.select(patterns, device.kind, selection.workload)
        usable = _usable(chosen, patterns, device, notes)
        steps += _steps(selection, usable, notes)
    if any(step.problem.streamed for step in steps) and not device.has_own_memory:
        raise UsageError(f"{device.name} computes in host memory: leave out --host")
    if any(step.problem.spread for step in steps) and device.group_size == 1:
        raise UsageError(f"{device.name} is the only one here: leave out --gpus")
    if compilers.note and any(file.endswith(".cu") for file in files):
        notes.append(compilers.note)
    return Plan(config, tuple(steps), tuple(dict.fromkeys(files)), tuple(notes))


def _patterns(
    selection: Selection,
    registry: Registry,
    device: Device,
    files: list[str],
    nvcc: Nvcc | None,
) -> list[str]:
    """Names and globs; a file is replaced by the names of its kernels, which are registered."""
    patterns: list[str] = []
    elsewhere: list[tuple[str, Kernel]] = []
    for pattern in selection.kernels:
        if not is_file(pattern):
            patterns.append(pattern)
            continue
        loaded = load_file(pattern, nvcc)
        files.append(pattern)
        if not loaded:  # it defines a workload
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
            patterns.append(kernel.name)
    for pattern, kernel in elsewhere:
        # A file that defines the workload is needed for the kernels of other files.
        if not patterns or str(kernel.source) != getsourcefile(find(selection.workload)):
            _refuse_elsewhere(pattern, kernel)
    return patterns or ["*"]


def _refuse_elsewhere(pattern: str, kernel: Kernel) -> None:
    """Raise ``UsageError``: the file needs another kind of device, or, if .cu, does not compile."""
    if kernel.device_kind != "cuda":
        raise UsageError(f"{pattern} is for --device {kernel.device_kind}")
    if pattern.endswith(".cu"):
        from rooflab.backends.cuda_file import check_file

        check_file(Path(pattern))
    raise UsageError(f"{pattern} needs an NVIDIA GPU (see: rooflab doctor)")


def _usable(
    kernels: list[Kernel], patterns: Sequence[str], device: Device, notes: list[str]
) -> list[Kernel]:
    """The kernels that can run here; raises ``UsageError`` if one given by name cannot."""
    usable = []
    for kernel in kernels:
        reason = kernel.unavailable(device)
        if reason and kernel.name in patterns:
            raise UsageError(f"kernel {kernel.name} cannot run here: {reason}")
        if reason:
            notes.append(f"{kernel.name} left out: {reason}")
        else:
            usable.append(kernel)
    if not usable:
        raise UsageError("none of these kernels can run here (see: rooflab kernels)")
    return usable


def _steps(selection: Selection, kernels: list[Kernel], notes: list[str]) -> list[Step]:
    everything = ALL in selection.precisions
    wanted = list(PRECISIONS) if everything else list(dict.fromkeys(selection.precisions))
    if not everything:
        notes += [
            f"{kernel.name} does not support {', '.join(lacking)}: left out there"
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
        raise UsageError(f"no kernel supports {', '.join(wanted)}: {has}"[:400])
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


# Observe -----------------------------------------------------------------------------------------


class Observer:
    """Receives the events of a sweep. A subclass overrides methods; here they do nothing."""

    def planned(self, plan: Plan) -> None:
        """The plan is ready."""

    def note(self, text: str) -> None:
        """A message for the user."""

    def began(self, run: Run, points: int) -> None:
        """The folder exists and the ceilings are known; ``points`` rows will follow."""

    def progress(self, problem: ProblemRecord, kernel: str, step: str) -> None:
        """The current problem, kernel and step, such as ``timing``."""

    def measured(self, row: Measurement, detail: str) -> None:
        """A row is on disk. ``detail`` is a failure's whole message."""

    def finished(self) -> None:
        """All that could be measured is there."""


# Execute -----------------------------------------------------------------------------------------


def execute(
    plan: Plan, device: Device, out: Path, observer: Observer, command: Sequence[str] = ()
) -> Run:
    """Measure the plan's steps and write the run to a new folder in ``out``.

    Each row is on disk before the next is measured. On ``KeyboardInterrupt`` the run is closed
    properly, and the exception is raised again.
    """
    observer.planned(plan)
    folder = create_folder(out, device.name, datetime.now(UTC))
    with RunWriter(folder, describe(plan, device, command)) as writer:
        return execute_into(plan, device, writer, observer)


def execute_into(
    plan: Plan, device: Device, writer: Writer, observer: Observer, *, hold: bool = False
) -> Run:
    """Measure the plan's steps that ``writer`` has no row for.

    With ``hold`` the device is kept busy afterwards, until this process is ended.
    """
    execution = _Execution(plan, device, writer, observer)
    return execution.run(pending(plan.steps, writer.rows), hold=hold)


def resume(folder: Path, device: Device, files: Sequence[str], observer: Observer) -> Run:
    """Continue an interrupted run with its own settings.

    ``files`` are the kernel files that may be loaded. Other files in the manifest are not loaded:
    the run may come from somebody else. Raises ``UsageError`` if the run cannot be continued here.
    """
    planned = _planned_again(folder, device, files, "continue")
    observer.planned(planned)
    with RunWriter(folder) as writer:
        return execute_into(planned, device, writer, observer)


def count(folder: Path, device: Device, files: Sequence[str], observer: Observer) -> Run:
    """Add counters to the rows of a run, measured with the same kernels on the same device.

    ``files`` are the kernel files that may be loaded, as for ``resume``. Raises ``UsageError``.
    """
    planned = _planned_again(folder, device, files, "count")
    observer.planned(planned)
    with RunWriter(folder) as writer:
        return _Execution(planned, device, writer, observer).count()


def _planned_again(folder: Path, device: Device, files: Sequence[str], verb: str) -> Plan:
    """The plan of a run in ``folder``; raises ``UsageError`` if its kernels cannot run alike."""
    old = load(folder)
    try:
        config = of_run(old.manifest.config)
    except UsageError as error:
        raise UsageError(f"cannot {verb} {folder}: {error}") from error
    named = [k for selection in config.workloads for k in selection.kernels if is_file(k)]
    if unnamed := sorted(set(named) - set(files)):
        again = " ".join(f"--kernel {name}" for name in unnamed)
        raise UsageError(f"this run has kernel files; if you trust them, add: {again}")
    planned = plan(config, device)
    manifest = describe(planned, device, ())
    if differences := resumable(old.manifest, manifest):
        raise UsageError(f"cannot {verb} {folder}: {'; '.join(differences)[:400]}")
    return planned


def describe(plan: Plan, device: Device, command: Sequence[str]) -> Manifest:
    """The manifest of a run that begins now, without ceilings."""
    versions = {"rooflab": __version__, "python": platform.python_version()}
    for package in ("numpy", *device.packages):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    workloads = dict.fromkeys(selection.workload for selection in plan.config.workloads)
    return Manifest(
        created=datetime.now(UTC),
        command=list(command),
        versions=versions,
        host={"system": platform.system(), "machine": platform.machine()},
        device=DeviceRecord(id=device.id, kind=device.kind, name=device.name, facts=device.facts),
        roofline=Roofline(()),
        config=plan.config.model_dump(mode="json"),
        kernels={
            kernel.id: KernelRecord(
                backend=kernel.backend,
                title=kernel.title,
                source=kernel.source.name if kernel.source else "",
                sha256=source_sha256(kernel.source) if kernel.source else "",
                compiler=kernel.compiler(),
            )
            for kernel in plan.kernels
        },
        workloads={name: WorkloadRecord.of(find(name)) for name in workloads},
        points=plan.points,
    )


class _Execution:
    """One sweep: sends requests to the worker, writes rows, reports to the observer."""

    def __init__(self, plan: Plan, device: Device, writer: Writer, observer: Observer) -> None:
        self._plan = plan
        self._device = device
        self._writer = writer
        self._observer = observer
        self._rows = list(writer.rows)
        self._started = perf_counter()
        self._remeasured = 0
        timing = plan.config.timing
        job = Job(
            device=device.id,
            config=plan.config,
            files=plan.files,
            affinity=allowed_cpus(),
            path=module_path(),
            candidates=device.candidates or timing.contexts,
            environment=device.environment(os.environ),
        )
        self._job = job
        self._worker = Worker(job, observer.progress)
        self._countable = True
        self._ncu: str | None = None

    def run(self, steps: Sequence[Step], *, hold: bool = False) -> Run:
        """Measure ``steps``; the manifest is completed even after an exception."""
        run = Run(self._writer.path, self._writer.manifest, self._rows)
        with self._worker:
            try:
                self._measure(steps, run)
                if self._plan.config.counters:
                    self._count()
            finally:
                self._close()
            self._observer.finished()
            if hold:
                self._occupy()
        return run

    def _occupy(self) -> None:
        """Measure the step of the warm-up again and again, as long as it can be measured."""
        step = warm_up_step(self._plan.steps)
        names = [kernel.name for kernel in step.kernels]
        status = "ok"
        while status == "ok":
            outcomes = self._worker.measure(step.problem.record, names, inf)
            status = min((one.status for one in outcomes), key=lambda status: status != "ok")

    def _measure(self, steps: Sequence[Step], run: Run) -> None:
        manifest = self._writer.manifest
        # A continued run keeps the roofs that its first rows were compared with.
        if not manifest.roofline.ceilings:
            manifest.roofline = self._worker.roofline().with_limits(*self._levels())
            self._writer.write_manifest()
        self._observer.began(run, sum(len(step.kernels) for step in steps))
        if not steps:
            return
        first = warm_up_step(steps)
        names = [kernel.name for kernel in first.kernels]
        manifest.warm_up = self._worker.warm_up(first.problem.record, names)
        left = sum(len(step.kernels) for step in steps)
        for step in steps:
            most_s = self._most_s(left)
            if most_s <= 0:
                how = f" (go on with: rooflab sweep --resume {self._writer.path})"
                self._observer.note(
                    f"--max-time is over: {left} points are left{how if self._rows else ''}"
                )
                return
            self._measure_step(step, most_s)
            left -= len(step.kernels)

    def _most_s(self, points: int) -> float:
        """Seconds for the rounds of each of the next ``points``; 0 if the time is used up."""
        budget = self._plan.config.max_time_s
        if budget is None:
            return inf
        # Preparing and verifying take time too: the rounds get half.
        return max(0.0, budget - (perf_counter() - self._started)) / points / 2

    def _measure_step(self, step: Step, most_s: float) -> None:
        manifest = self._writer.manifest
        names = [kernel.name for kernel in step.kernels]
        outcomes = self._worker.measure(step.problem.record, names, most_s)
        self._check_roofs(step.problem, outcomes)
        for kernel, outcome in zip(step.kernels, outcomes, strict=True):
            row = record(step.problem, kernel, outcome, manifest.roofline, self._device)
            self._writer.append(row, outcome.rounds, outcome.spans)
            self._rows.append(row)
            self._observer.measured(row, outcome.detail)

    def count(self) -> Run:
        """Count the rows that have figures and no counters."""
        run = Run(self._writer.path, self._writer.manifest, self._rows)
        with self._worker:
            manifest = self._writer.manifest
            manifest.roofline = manifest.roofline.completed(self._levels())
            self._writer.write_manifest()
            self._observer.began(run, 0)
            self._count()
        return run

    def _count(self) -> None:
        """Each row is on disk before the next is counted."""
        for i, row in enumerate(self._rows):
            if row.status == "ok" and row.cycles is None and self._countable:
                self._rows[i] = self._counted(row)
                self._writer.replace(self._rows)

    def _levels(self) -> Limits:
        """The device's levels: measured once, in a process that times nothing else."""
        if (known := stored_levels(self._device)) is not None:
            return known
        try:
            with Worker(replace(self._job, candidates=1), self._observer.progress) as worker:
                return worker.levels()
        except RooflabError as error:
            self._observer.note(f"the memory levels were not measured: {error}")
            return ()

    def _counted(self, row: Measurement) -> Measurement:
        """The row with counters; as it is if it cannot be counted."""
        try:
            counters = self._counters(row)
        except UnavailableError as error:
            self._countable = False
            self._observer.note(str(error))
            return row
        except RooflabError as error:
            self._observer.note(str(error))
            return row
        return with_counters(row, counters)

    def _counters(self, row: Measurement) -> Counters:
        """By CUPTI in the worker, else by Nsight Compute; raises ``UnavailableError``."""
        request = Count(row.problem, row.kernel, row.variant)
        if self._ncu is None:
            counted = self._worker.count(request)
            if counted.counters:
                return counted.counters
            if not counted.unavailable:
                raise UnavailableError(f"{self._device.name} has no counters")
            self._ncu = ncu.find()
            if self._ncu is None:
                raise UnavailableError(counted.unavailable)
            self._observer.note(f"{counted.unavailable}; counting with ncu instead")
            self._worker.stop()
        self._observer.progress(row.problem, row.kernel, "counting with ncu")
        return profiled.count(self._ncu, self._job, request)

    def _check_roofs(self, problem: Problem, outcomes: Sequence[Outcome]) -> None:
        """Measure the roofs again if a kernel was faster than they allow; the higher ones hold."""
        manifest = self._writer.manifest
        roof = manifest.roofline.roof(problem.precision.name, problem.flops_each, problem.traffic)
        times = [outcome.summary.median for outcome in outcomes if outcome.summary]
        passed = roof is not None and min(times, default=inf) < roof.us
        if not (passed and self._device.measures_roofs and self._remeasured < REMEASURED):
            return
        self._remeasured += 1
        again = self._worker.roofline(again=True)
        if (raised := manifest.roofline.raised(again)) != manifest.roofline:
            manifest.roofline = raised
            self._observer.note("a kernel passed its measured roof, which was measured again")
            self._writer.write_manifest()

    def _close(self) -> None:
        manifest, worker = self._writer.manifest, self._worker
        manifest.contexts = [*manifest.contexts, *worker.launches_us]
        for name, builds in worker.builds.items():
            if name in manifest.kernels:
                known = manifest.kernels[name].compiled
                known += [build for build in builds if build not in known]
        manifest.wall_s = {
            "total": round(perf_counter() - self._started, 3),
            **{name: round(value, 3) for name, value in asdict(worker.clock).items()},
        }
        manifest.finished = datetime.now(UTC)
        if not self._writer.empty:
            self._writer.write_manifest()


# Record ------------------------------------------------------------------------------------------


def record(
    problem: Problem, kernel: Kernel, outcome: Outcome, roofline: Roofline, device: Device
) -> Measurement:
    """One row, with performance figures only if the outcome is ``ok``."""
    precision, flops, moved = problem.precision.name, problem.flops, problem.bytes
    roof = roofline.roof(precision, problem.flops_each, problem.traffic)
    row = Measurement(
        problem=problem.record,
        kernel=kernel.name,
        backend=kernel.backend,
        variant=outcome.variant,
        status=outcome.status,
        reason=outcome.reason,
        rel_error=outcome.rel_error,
        flops=flops,
        bytes=moved,
        intensity=problem.intensity,
        roof_us=roof.us if roof else None,
        serial_us=_serial_us(problem, roofline),
        roof_tflops=flops / roof.us / 1e6 if roof else None,
        bound=roof.bound if roof else "",
        flags=";".join(outcome.flags),
    )
    summary = outcome.summary
    if outcome.status != "ok" or summary is None:
        return row
    time_us = summary.median
    sensed = summarize(outcome.readings)
    observed = _observed(roofline, device, problem, sensed.sm_mhz)
    flags = list(outcome.flags)
    if roof and time_us < roof.us:
        flags.append("above_roof")
    return replace(
        row,
        flags=";".join(flags),
        cache=outcome.cache,
        samples=summary.samples,
        rounds=summary.rounds,
        time_us=time_us,
        time_lo_us=summary.low,
        time_hi_us=summary.high,
        time_min_us=summary.minimum,
        time_p05_us=summary.p05,
        time_p95_us=summary.p95,
        pair_us=outcome.pair_us,
        launch_us=outcome.launch_us,
        tflops=flops / time_us / 1e6,
        gbps=moved / time_us / 1e3,
        algorithm_gbps=problem.result_bytes / time_us / 1e3 if problem.collective else None,
        bus_gbps=problem.bus_bytes / time_us / 1e3 if problem.collective else None,
        roof_percent=100 * roof.us / time_us if roof else None,
        observed_tflops=flops / observed / 1e6 if observed else None,
        observed_percent=100 * observed / time_us if observed else None,
        sm_mhz=sensed.sm_mhz,
        nvml_mhz=sensed.nvml_mhz,
        mem_mhz=sensed.mem_mhz,
        temp_c=sensed.temp_c,
        energy_j=outcome.energy_j,
        power_w=outcome.power_w,
        energy_mhz=outcome.energy_mhz,
        gflop_per_j=flops / outcome.energy_j / 1e9 if outcome.energy_j else None,
    )


def _serial_us(problem: Problem, roofline: Roofline) -> float | None:
    if not problem.streamed:
        return None
    name, traffic = problem.precision.name, problem.traffic
    return roofline.serial_us(name, problem.flops, traffic, problem.kernel_bytes)


def with_counters(row: Measurement, counters: Counters) -> Measurement:
    """The row with what counters found."""
    return replace(
        row,
        counted_flops=counters.all_flops,
        tensor_flops=counters.tensor_flops,
        fp64_flops=counters.flops.get("fp64", 0.0),
        fp32_flops=counters.flops.get("fp32", 0.0),
        fp16_flops=counters.flops.get("fp16", 0.0),
        dram_bytes=counters.dram_bytes,
        l2_bytes=counters.l2_bytes,
        l1_bytes=counters.l1_bytes,
        cycles=counters.cycles,
        counted_mhz=counters.mhz,
    )


def _observed(
    roofline: Roofline, device: Device, problem: Problem, sm_mhz: float | None
) -> float | None:
    """The roof in µs at the observed clock, with the same bandwidths; None if unknown.

    Of several GPUs only the clock of the first one is observed.
    """
    known = sm_mhz and not problem.spread
    compute = device.observed(problem.precision.name, sm_mhz) if known and sm_mhz else None
    if compute is None:
        return None
    at_clock = Roofline(
        (*roofline.ceilings, compute), (), roofline.memory, ("observed", *roofline.prefer)
    )
    roof = at_clock.roof(problem.precision.name, problem.flops, problem.traffic)
    return roof.us if roof else None
