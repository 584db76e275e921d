"""The engine: measures a plan and writes its rows. It prints nothing; it reports to an observer."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from math import inf
from pathlib import Path
from secrets import randbits
from time import perf_counter
from typing import Final

from rooflab import planning
from rooflab.config import SweepConfig, limited, of_run
from rooflab.devices.base import Counters, Device
from rooflab.devices.cpu.facts import allowed_cpus
from rooflab.devices.cuda import ncu
from rooflab.devices.cuda.compiler import source_sha256
from rooflab.errors import RooflabError, UnavailableError, UsageError
from rooflab.kernels.base import Kernel, is_file
from rooflab.measure.levels import best_roofline, keep_roofs, stored_levels
from rooflab.measure.protocol import Outcome
from rooflab.model.measurement import Measurement
from rooflab.model.problem import Problem, ProblemRecord
from rooflab.model.roofline import CeilingList, Roofline
from rooflab.planning import Plan, Step, pending, smallest, warm_up_step
from rooflab.recording import rated, record, with_counters
from rooflab.runs.manifest import DeviceRecord, KernelRecord, Manifest, WorkloadRecord
from rooflab.runs.store import PRINTED, RunData, RunWriter, Writer, create_folder, load, resumable
from rooflab.version import __version__
from rooflab.worker import profiled
from rooflab.worker.client import Worker
from rooflab.worker.messages import Count, Job
from rooflab.worker.printed import Printed
from rooflab.worker.process import module_path
from rooflab.workloads import find, rebuild

LOWER: Final = 0.95
"""Below this share of the best roofs of earlier runs the machine is busy, or throttles."""

REMEASURED: Final = 3
"""Most times that a sweep measures its roofs again: it takes seconds."""

SHORT_US: Final = 30.0
"""Launches that take longer hardly depend on the process: by less than half a percent."""

REHEARSING: Final = 6
"""Most processes that compile at the same time."""

# Observe -----------------------------------------------------------------------------------------


class Observer:
    """Receives the events of a sweep. A subclass overrides methods; here they do nothing."""

    def planned(self, plan: Plan) -> None:
        """The plan is ready."""

    def note(self, text: str) -> None:
        """A message for the user."""

    def phase(self, text: str) -> None:
        """What happens before the first point, and takes seconds."""

    def began(self, run: RunData, points: int) -> None:
        """The folder exists and the ceilings are known; ``points`` rows will follow."""

    def progress(self, problem: ProblemRecord, kernel: str, step: str) -> None:
        """The current problem, kernel and step, such as ``timing``."""

    def failed(self, problem: ProblemRecord, kernel: str, status: str, reason: str) -> None:
        """A row will not be ``ok``; it comes when the other kernels of its problem are done."""

    def measured(self, row: Measurement, detail: str) -> None:
        """A row is on disk. ``detail`` is a failure's whole message."""

    def finished(self) -> None:
        """All that could be measured is there."""


# Execute -----------------------------------------------------------------------------------------


def execute(
    plan: Plan, device: Device, out: Path, observer: Observer, command: Sequence[str] = ()
) -> RunData:
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
) -> RunData:
    """Measure the plan's steps that ``writer`` has no row for.

    With ``hold`` the device is kept busy afterwards, until this process is ended.
    """
    execution = _Execution(plan, device, writer, observer)
    return execution.run(pending(plan.steps, writer.rows), hold=hold)


def resume(
    folder: Path,
    device: Device,
    files: Sequence[str],
    observer: Observer,
    max_time_s: float | None = None,
) -> RunData:
    """Continue an interrupted run with its own settings, but for ``max_time_s`` if it is given.

    ``files`` are the kernel files that may be loaded. Other files in the manifest are not loaded:
    the run may come from somebody else. Raises ``UsageError`` if the run cannot be continued here.
    """
    planned = _planned_again(folder, device, files, "continue")
    if max_time_s is not None:
        planned = replace(planned, config=limited(planned.config, max_time_s))
    observer.planned(planned)
    with RunWriter(folder) as writer:
        return execute_into(planned, device, writer, observer)


def count(folder: Path, device: Device, files: Sequence[str], observer: Observer) -> RunData:
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
    planned = planning.plan(config, device)
    manifest = describe(planned, device, ())
    if differences := resumable(old.manifest, manifest):
        raise UsageError(f"cannot {verb} {folder}: {'; '.join(differences)[:400]}")
    return planned


def describe(plan: Plan, device: Device, command: Sequence[str]) -> Manifest:
    """The manifest of a run that begins now, without ceilings."""
    workloads = dict.fromkeys(selection.workload for selection in plan.config.workloads)
    return manifest_of(device, plan.config, plan.kernels, [*workloads], plan.points, command)


def manifest_of(
    device: Device,
    config: SweepConfig,
    kernels: Sequence[Kernel],
    workloads: Sequence[str],
    points: int,
    command: Sequence[str] = (),
) -> Manifest:
    """The manifest of what is measured by these settings, without ceilings."""
    return Manifest(
        created=datetime.now(UTC),
        command=list(command),
        versions=_versions(device),
        host={"system": platform.system(), "machine": platform.machine()},
        device=DeviceRecord(id=device.id, kind=device.kind, name=device.name, facts=device.facts),
        roofline=Roofline(()),
        config=config.model_dump(mode="json"),
        kernels={
            kernel.id: KernelRecord(
                backend=kernel.backend,
                title=kernel.title,
                source=kernel.source.name if kernel.source else "",
                sha256=source_sha256(kernel.source) if kernel.source else "",
                compiler=kernel.compiler(),
            )
            for kernel in kernels
        },
        workloads={name: WorkloadRecord.of(find(name)) for name in workloads},
        points=points,
    )


def _versions(device: Device) -> dict[str, str]:
    """Of rooflab, Python, and what the device needs."""
    versions = {"rooflab": __version__, "python": platform.python_version()}
    for package in ("numpy", *device.packages):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def processes(plan: Plan, device: Device) -> int:
    """How many are started, of which one measures: they differ in the time of an empty launch."""
    if device.candidates:
        return device.candidates
    roofline = device.roofline()
    for step in plan.steps:
        problem = step.problem
        roof = roofline.of(problem)
        if roof is None or roof.us < SHORT_US:
            return plan.config.timing.contexts
    return 1


class _Execution:
    """One sweep: sends requests to the worker, writes rows, reports to the observer."""

    def __init__(self, plan: Plan, device: Device, writer: Writer, observer: Observer) -> None:
        self._plan = plan
        self._device = device
        self._writer = writer
        self._observer = observer
        self._rows = list(writer.rows)
        self._started = self._begun = perf_counter()
        self._remeasured = 0
        self._job = Job(
            device=device.id,
            config=plan.config,
            entropy=randbits(64),
            files=plan.files,
            affinity=allowed_cpus(),
            path=module_path(),
            candidates=processes(plan, device),
            environment=device.environment(os.environ),
        )
        self._printed = Printed(writer.path / PRINTED) if writer.path.is_dir() else None
        self._worker = Worker(self._job, observer.progress, observer.failed, self._printed)
        writer.manifest.entropy.append(self._job.entropy)
        self._ncu: str | None = None

    def run(self, steps: Sequence[Step], *, hold: bool = False) -> RunData:
        """Measure ``steps``; the manifest is completed even after an exception."""
        run = RunData(self._writer.path, self._writer.manifest, self._rows)
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

    def _measure(self, steps: Sequence[Step], run: RunData) -> None:
        manifest = self._writer.manifest
        # A continued run keeps the roofs that its first rows were compared with.
        if not manifest.roofline.ceilings:
            levels = self._levels(steps)
            manifest.roofline = self._roofs().with_limits(*levels)
            self._writer.write_manifest()
        self._observer.began(run, sum(len(step.kernels) for step in steps))
        if not steps:
            return
        first = warm_up_step(steps)
        names = [kernel.name for kernel in first.kernels]
        self._observer.phase("warming up the device")
        manifest.warm_up = self._worker.warm_up(first.problem.record, names)
        self._begun = perf_counter()  # a machine's first run has measured for seconds until here
        left = sum(len(step.kernels) for step in steps)
        for step in steps:
            most_s = self._most_s(left)
            if most_s <= 0:
                how = f" (go on with: rooflab sweep --resume {self._writer.path})"
                self._observer.note(
                    f"--max-time is reached: {left} points not measured{how if self._rows else ''}"
                )
                return
            self._measure_step(step, most_s)
            left -= len(step.kernels)

    def _roofs(self) -> Roofline:
        """The ceilings now, or the best that this machine has shown if they are higher."""
        measures = self._device.measures_roofs
        self._observer.phase("measuring roofs" if measures else f"opening {self._job.device}")
        own = self._worker.roofline()
        if not measures:
            return own
        best = best_roofline(self._device)
        keep_roofs(self._device, [c for c in own.ceilings if c.provenance == "measured"])
        raised = own.raised(best)
        lower = [
            f"{one.key} {one.amount} (best: {other.amount})"
            for one, other in zip(own.ceilings, raised.ceilings, strict=True)
            if one.value < LOWER * other.value
        ]
        if lower:
            self._observer.note(
                "this machine is slower than in an earlier run, whose roofs are used: "
                + ", ".join(lower)
            )
        return raised

    def _most_s(self, points: int) -> float:
        """Seconds for the rounds of each of the next ``points``; 0 if the time is used up."""
        budget = self._plan.config.max_time_s
        if budget is None:
            return inf
        # Preparing and verifying take time too: the rounds get half.
        return max(0.0, budget - (perf_counter() - self._begun)) / points / 2

    def _measure_step(self, step: Step, most_s: float) -> None:
        manifest = self._writer.manifest
        names = [kernel.name for kernel in step.kernels]
        outcomes = self._worker.measure(step.problem.record, names, most_s)
        try:
            self._check_roofs(step.problem, outcomes)
        except RooflabError as error:
            self._observer.note(f"the roofs were not measured again: {error}")
        finally:  # whatever happens to the roofs
            for kernel, outcome in zip(step.kernels, outcomes, strict=True):
                row = record(step.problem, kernel, outcome, manifest.roofline, self._device)
                self._writer.append(row, outcome.rounds, outcome.spans)
                self._rows.append(row)
                self._observer.measured(row, outcome.detail)

    def count(self) -> RunData:
        """Count the rows that have figures and no counters."""
        run = RunData(self._writer.path, self._writer.manifest, self._rows)
        with self._worker:
            manifest = self._writer.manifest
            manifest.roofline = manifest.roofline.completed(self._levels(()))
            self._writer.write_manifest()
            self._observer.began(run, 0)
            self._count()
        return run

    def _count(self) -> None:
        """Each row is on disk before the next is counted."""
        for i, row in enumerate(self._rows):
            if row.status != "ok" or row.cycles is not None:
                continue
            try:
                self._rows[i] = with_counters(row, self._counters(row))
            except RooflabError as error:
                self._observer.note(str(error))
                if isinstance(error, UnavailableError):
                    return
                continue
            self._writer.replace(self._rows)

    def _levels(self, steps: Sequence[Step]) -> CeilingList:
        """The device's levels: measured once, if need be in a process that times nothing else.

        Meanwhile the processes start of which one will measure the steps.
        """
        links = any(step.problem.placement.parameters for step in steps)
        known = stored_levels(self._device, links=links)
        # Compilers keep on disk what they make: only a machine's first run rehearses.
        rehearsed = [] if known is not None else list(self._rehearsed(steps))
        # Two logical processors often share a core: two compilers there take twice as long.
        self._worker.begin(rehearsed, min(REHEARSING, len(allowed_cpus()) // 2))
        if known is not None:
            return known
        compiling = "compiling, and " if rehearsed else ""
        self._observer.phase(f"{compiling}measuring memory levels and pipes, once for this machine")
        job = replace(self._job, candidates=1)
        try:
            if not self._device.levels_apart:
                return self._worker.levels(links=links)
            with Worker(job, self._observer.progress, printed=self._printed) as worker:
                worker.begin()
                self._worker.ready()  # the processors are theirs until then
                return worker.levels(links=links)
        except RooflabError as error:
            self._observer.note(f"the memory levels were not measured: {error}")
            return ()

    def _rehearsed(self, steps: Sequence[Step]) -> Iterator[tuple[ProblemRecord, str]]:
        """What can be compiled before the steps: a race of variants compiles those itself."""
        for step in smallest(steps):
            if self._device.compiles_arrays:
                yield step.problem.record, ""
            for kernel in step.kernels:
                if len(kernel.variants) < 2 and not kernel.untrusted:
                    yield step.problem.record, kernel.name

    def _counters(self, row: Measurement) -> Counters:
        """By CUPTI in the worker, else by Nsight Compute; raises ``UnavailableError``."""
        request = Count(row.problem, row.kernel, row.variant)
        if self._ncu is None:
            counted = self._worker.count(request)
            if isinstance(counted, Counters):
                return counted
            if not counted:
                raise UnavailableError(f"{self._device.name} has no counters")
            self._ncu = ncu.find()
            if self._ncu is None:
                raise UnavailableError(counted)
            self._observer.note(f"{counted}; counting with ncu instead")
            self._worker.stop()
        self._observer.progress(row.problem, row.kernel, "counting with ncu")
        return profiled.count(self._ncu, self._job, request)

    def _check_roofs(self, problem: Problem, outcomes: Sequence[Outcome]) -> None:
        """Measure the roofs again if a kernel was faster than they allow; the higher ones hold."""
        manifest = self._writer.manifest
        roof = manifest.roofline.of(problem)
        times = [outcome.summary.median for outcome in outcomes if outcome.summary]
        passed = roof is not None and min(times, default=inf) < roof.us
        if not (passed and self._device.measures_roofs and self._remeasured < REMEASURED):
            return
        self._remeasured += 1
        again = self._worker.roofline(again=True)
        if (raised := manifest.roofline.raised(again)) != manifest.roofline:
            new = [one for one in raised.ceilings if one not in manifest.roofline.ceilings]
            manifest.roofline = raised
            keep_roofs(self._device, new)
            self._rows[:] = [
                rated(row, rebuild(row.problem), raised, self._device) for row in self._rows
            ]
            if self._rows:
                self._writer.replace(self._rows)
            now = ", ".join(f"{one.key} {one.amount}" for one in new)
            self._observer.note(f"a kernel exceeded a measured roof; roofs measured again: {now}")
            self._writer.write_manifest()

    def _close(self) -> None:
        manifest, worker = self._writer.manifest, self._worker
        worker.stop()
        if self._printed:
            self._printed.close()
        if self._printed and self._printed.lines:
            self._observer.note(
                f"kernels printed {self._printed.lines} lines, which are in {self._printed.path}"
            )
        manifest.contexts = [*manifest.contexts, *worker.launches_us]
        for name, builds in worker.builds.items():
            if name in manifest.kernels:
                known = manifest.kernels[name].compiled
                known += [build for build in builds if build not in known]
        manifest.wall_s = {
            "total": round(perf_counter() - self._started, 3),
            "start": round(self._begun - self._started, 3),
            **{name: round(value, 3) for name, value in asdict(worker.clock).items()},
        }
        manifest.finished = datetime.now(UTC)
        if not self._writer.empty:
            self._writer.write_manifest()
