"""The Python interface: everything that the command line does, for scripts and notebooks."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, Unpack

from rooflab import config as configuration
from rooflab import engine, planning
from rooflab.config import SweepConfig
from rooflab.devices import registry as devices
from rooflab.devices.base import Device
from rooflab.devices.cuda.absent import AbsentGpu
from rooflab.devices.registry import ALL
from rooflab.engine import Observer
from rooflab.errors import RooflabError, UnavailableError, UsageError
from rooflab.fleet import ranks as fleet_ranks
from rooflab.fleet import record as fleet_record
from rooflab.fleet import runs as fleets
from rooflab.fleet import session
from rooflab.fleet.coordinate import Watcher
from rooflab.fleet.launch import TOGETHER, Setup
from rooflab.fleet.outliers import THRESHOLD_PERCENT
from rooflab.fleet.page import page as fleet_page
from rooflab.fleet.runs import Fleet
from rooflab.judging import verdict
from rooflab.judging.verdict import Decision
from rooflab.kernels.base import is_file
from rooflab.kernels.sources import load_file
from rooflab.observers import Lines
from rooflab.options import OPTIONS, Chosen, Options, chosen, listed, listed_kernels
from rooflab.planning import Plan
from rooflab.report.explain import Explanation, explanations, paragraphs
from rooflab.report.html import page
from rooflab.report.html.markup import table
from rooflab.report.html.program import notebook
from rooflab.report.races import sentence
from rooflab.report.text import digits, heading, speed
from rooflab.runs import store
from rooflab.runs.compare import Comparison
from rooflab.runs.compare_programs import comparable, compare_any
from rooflab.runs.program import is_program
from rooflab.runs.races import Race, races
from rooflab.worker.process import ahead, loading
from rooflab.workloads import DEFAULT, catalogue, find

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

REPORTED: Final = 4
"""Ranks of a program in a report."""

P = ParamSpec("P")
R = TypeVar("R")


class Run(store.RunData):
    """A measured run: ``path``, ``manifest``, ``measurements``, and methods to use them."""

    @classmethod
    def of(cls, run: store.RunData) -> Run:
        """The same run with these methods."""
        return cls(run.path, run.manifest, run.measurements, run.warnings)

    def frame(self) -> DataFrame:
        """A pandas table with one row per measurement, unrounded."""
        from rooflab.runs.table import frame

        return frame(self.measurements, self.manifest)

    def plot(
        self,
        path: str | Path | None = None,
        *,
        precision: str | None = None,
        workload: str | None = None,
        style: str = "default",
        **figure: str | bool | None,
    ) -> Figure:
        """The roofline, or another figure; written to ``path`` if it is given.

        Other figures are throughput against size (``by_size=True``), the roofline with counted
        bytes of each memory level (``levels=True``), GFLOP/J (``energy=True``), and the speed-up of
        the other kernels against one (``per_kernel="tiled"``); of a program its step
        (``step=True``) and when its launches ran (``timeline=True``). ``style`` is ``default``,
        ``paper``, ``slides`` or ``dark``.
        """
        from rooflab import figures

        name, value = figures.chosen(figure)
        precisions = listed(precision) if precision else None
        drawn = figures.draw(name, [self], precisions, workload, style=style, value=value)
        if path is not None:
            figures.save(drawn, Path(path))
        return drawn

    def compare(
        self, other: store.RunData, threshold_percent: float | None = None
    ) -> Comparison | Races:
        """Compare ``other`` with this run as the base, as ``rooflab.compare`` does."""
        return compare(self, other, threshold_percent)

    def explain(self, kernel: str = "", size: str | int = "") -> Explanations:
        """What holds each row back, or those of a kernel and a size; the largest gain first.

        Raises ``UsageError`` if there is no such row.
        """
        return Explanations(explanations(self, kernel, str(size)))

    def report(self, path: str | Path = "report.html", *others: str | Path | store.RunData) -> Path:
        """Write this run, and ``others`` beside it, as one HTML page; returns its path.

        Raises ``UsageError`` if a run has no row, or if the file cannot be written.
        """
        page.write([self, *map(_run, others)], Path(path))
        return Path(path)

    def _repr_html_(self) -> str:
        """A table for notebooks, of a program what is to say of it too; all text is escaped."""
        if is_program(self.measurements):
            return notebook(self)
        headings = ("problem", "size", "kernel", "time µs", "reached", "% of roof", "bound")
        rows = [
            (heading(row.problem), row.problem.size, row.kernel)
            + (
                (digits(row.time_us, 4), speed(row), digits(row.roof_percent, 3), row.bound)
                if row.status == "ok"
                else (row.status, row.reason, "", "")
            )
            for row in self.measurements
        ]
        title = f"{self.manifest.device.name}, {self.manifest.created:%Y-%m-%d %H:%M} UTC"
        return table(headings, rows, title)


class Explanations(tuple[Explanation, ...]):
    """Verdicts on rows. Printed, each is a paragraph."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n\n".join("\n  ".join(paragraphs(one)) for one in self)

    def __repr__(self) -> str:
        """One line; ``print`` shows them."""
        return f"<rooflab.Explanations of {len(self)} rows: print() shows them>"


class Races(tuple[Race, ...]):
    """The comparison of two devices: their races. Printed, it is a sentence for each."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(sentence, self))

    __repr__ = __str__


def _shown(function: Callable[P, R]) -> Callable[P, R]:
    """Give ``function`` the signature that ``help`` and completion show: with every option."""
    own, kind = inspect.signature(function), inspect.Parameter
    *first, _ = own.parameters.values()
    hints = {name: one.type for name, one in OPTIONS.items()} | Options.__annotations__
    unset = {name: one.unset for name, one in OPTIONS.items()}
    options = [
        kind(name, kind.KEYWORD_ONLY, default=unset.get(name), annotation=hint)
        for name, hint in hints.items()
    ]
    every = [*first, *options, kind("parameter", kind.VAR_KEYWORD)]
    function.__signature__ = own.replace(parameters=every)  # type: ignore[attr-defined]
    return function


@_shown
def sweep(
    workload: str | None = None,
    *,
    device: str = "auto",
    out: str | Path = "results",
    observer: Observer | None = None,
    **options: Unpack[Options],
) -> Run:
    """Measure kernels and return the run; its folder is in ``out``.

    ``kernels`` are names, globs, and .cu and .py files; ``sizes`` is as on the command line, or a
    list of numbers; ``threads`` is a number, or ``"all"`` for one per physical core of a CPU;
    ``timing`` holds keys of ``config.Timing``. ``parameters`` holds those of the workload, and
    ``host``, ``chunk``, ``streams`` and ``graph``, each a value or a list of values; they may also
    be arguments themselves. The others are as on the command line. A separate process measures: the
    caller's threads, environment and signal handlers do not change. ``observer`` is told what
    happens; without one, lines on standard error say it.

    Raises ``UsageError`` for wrong arguments, and ``RooflabError`` if the time was over before
    anything was measured.
    """
    given = _chosen(workload, options)
    with ahead(device):
        plan, target = make_plan(given, device)
        run = Run.of(engine.execute(plan, target, Path(out), observer or Lines()))
    if not run.measurements:
        raise RooflabError("nothing was measured: raise max_time_s")
    return run


@_shown
def fleet_sweep(
    workload: str | None = None,
    *,
    devices: Sequence[str] | str | None = None,
    hosts: Sequence[str] | str = (),
    launch: str | None = None,
    on: str | None = None,
    python: str = "python3",
    phases: Sequence[str] | str = TOGETHER,
    repeats: int | None = None,
    mixed: bool = False,
    out: str | Path = "results",
    resume: str | Path | None = None,
    watcher: Watcher | None = None,
    **options: Unpack[Options],
) -> Fleet:
    """Measure the same kernels on many devices, and return their runs.

    ``devices`` are those of each host, by default ``all``: every GPU. ``launch`` reaches one of
    ``hosts``, as in ``ssh {host}``; ``on`` is the address of a Ray cluster, of which ``hosts`` are
    nodes, by default all. Without either, the devices are this machine's. ``phases`` and
    ``repeats`` are those of ``rooflab fleet sweep``; ``options`` are the other arguments of
    ``sweep``. ``resume`` is a fleet's folder, of which the rest is measured with
    its own settings.

    Raises ``UsageError`` for wrong arguments and ``RooflabError`` if a host does not answer when it
    is asked for its GPUs. A member that fails later is listed in ``remarks``.
    """
    given = _chosen(workload, options)
    wanted = listed(_texts(devices or ([] if resume else [ALL])))
    how = {"phases": tuple(listed(_texts(phases))), "repeats": repeats, "mixed": mixed}
    folder = None if resume is None else Path(resume)
    with session.reach(launch, on, python, wanted, listed(_texts(hosts)), **how) as members:
        return load_fleet(measure_fleet(members, given, Path(out), watcher or Watcher(), folder))


def measure_fleet(
    members: Setup,
    given: Chosen,
    out: Path,
    watcher: Watcher,
    folder: Path | None = None,
    command: Sequence[str] = (),
) -> Path:
    """Measure on many devices, or the rest of ``folder``; returns the fleet's folder.

    Of what is given for a ``folder`` only kernel files count.
    """
    if folder is not None:
        return session.resume(folder, members, _load_files(given), watcher)
    files = _load_files(given, session.kinds(members.devices))
    of_kind = partial(_config, given)
    return session.start(members, of_kind, out, watcher, files=files, command=command)


def load_fleet(path: str | Path) -> Fleet:
    """Read the folder of a fleet; ``rooflab.fleet.runs.assess`` says which member is slow."""
    folder = Path(path)
    members = fleet_record.load(folder).members.values()
    return fleets.load_fleet(folder, [one.name for one in members if one.first])


def report_fleet(
    path: str | Path, out: str | Path = "report.html", threshold_percent: float = THRESHOLD_PERCENT
) -> Path:
    """Write the page of a fleet's folder, and return its file.

    Of a program's ranks it is the report of those that are waited for most. Differences below
    ``threshold_percent`` are ignored. Raises ``UsageError`` if nothing was measured, or the file
    cannot be written.
    """
    record = fleet_record.load(Path(path))
    if record.ranks:
        slowest = fleet_ranks.load_ranks(Path(path)).most_waited_for(REPORTED)
        page.write([one.run for one in slowest], Path(out))
        return Path(out)
    fleet_page.write(fleets.assess(load_fleet(path), threshold_percent), record, Path(out))
    return Path(out)


def _chosen(workload: str | None, options: Mapping[str, Any]) -> Chosen:
    """The sweep that arguments describe."""
    given = {name: _plain(value) for name, value in options.items() if value is not None}
    workload = None if workload is None else str(workload)
    arguments = inspect.signature(sweep).parameters.keys() - {"parameter"}
    kind = find(workload if workload in catalogue() else DEFAULT)
    for name in given.keys() - {"timing", *OPTIONS, *kind.parameters(), *kind.placements()}:
        if close := difflib.get_close_matches(name, arguments, n=1, cutoff=0.7):
            raise UsageError(f"sweep has no argument {name[:40]!r}: did you mean {close[0]}?")
    for name in given.keys() & OPTIONS.keys():
        if OPTIONS[name].type == list[str]:
            given[name] = _texts(given[name])
    if "threads" in given:
        (given["threads"],) = devices.thread_counts([given["threads"]])
    if not isinstance(given.get("timing", {}), dict):
        raise UsageError(f"timing = {str(given['timing'])[:40]!r}: give a dict of names and values")
    return chosen(workload, given)


def _plain(value: Any) -> Any:
    """Lists, tuples and ranges as lists, mappings as dicts; numbers and arrays as Python's own."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [*map(_plain, value)]
    return value.tolist() if hasattr(value, "tolist") else value


def _texts(given: Any) -> list[str]:
    several = isinstance(given, Iterable) and not isinstance(given, str)
    return list(map(str, given)) if several else [str(given)]


def make_plan(given: Chosen, device: str) -> tuple[Plan, Device]:
    """The plan of a sweep, and the opened device."""
    device_id, why = devices.resolve(device)
    threads = given.options.get("threads")
    target = devices.open_device(device_id, threads)
    _load_files(given, [target.kind])
    config = _config(given, target.kind)
    if config.threads != threads:  # the file has them
        target = devices.open_device(device_id, config.threads)
    plan = planning.plan(config, target)
    notes = [why, target.missing_telemetry()]
    return plan.with_notes(*filter(None, notes)), target


def plan_anywhere(given: Chosen, device: str) -> tuple[Plan, Device]:
    """As ``make_plan``, but if this machine lacks something, the plan is for a GPU elsewhere."""
    try:
        return make_plan(given, device)
    except UnavailableError as error:
        if device != "auto" and not device.startswith("cuda"):
            raise
        note = f"only a plan, it cannot be measured here: {error}"
    target = AbsentGpu()
    _load_files(given, [target.kind])
    return planning.plan(_config(given, target.kind), target).with_notes(note), target


def _config(given: Chosen, kind: str) -> SweepConfig:
    return configuration.load(given.config, given.workload, kind, given.options)


def _load_files(given: Chosen, kinds: Collection[str] = ()) -> list[str]:
    """Load the kernel files that are given, and those of the configuration for these kinds.

    They may define the workload.
    """
    named = listed_kernels(given.options.get("kernels", []))
    files = dict.fromkeys(name for name in named if is_file(name))
    if kinds:
        files |= dict.fromkeys(configuration.kernel_files(given.config, kinds))
    return _loaded([*files])


def _loaded(files: list[str]) -> list[str]:
    with loading():
        for name in files:
            if not name.endswith(".cu"):
                load_file(name)
    return files


def judge(
    file: str | Path,
    workload: str = DEFAULT,
    device: str = "auto",
    *,
    against: str = "",
    timeout_s: float = 60.0,
    max_time_s: float = 1800.0,
    note: Callable[[str], object] = lambda text: None,
    **options: Any,
) -> Decision:
    """Judge a kernel that nobody trusts, in a process of its own, on problems of a workload.

    ``options`` are ``sizes``, ``shapes``, ``precisions`` (by default fp32), ``parameters``,
    ``threads`` and parameters of the workload, as of ``sweep``. ``against`` is a kernel, or a
    trusted file, that it is compared with. It is refused if a request takes ``timeout_s`` seconds,
    or all of them and the judge ``max_time_s``. Raises ``UsageError`` and ``RooflabError``.
    """
    if (threads := options.get("threads")) is not None:
        several = listed(threads) if isinstance(threads, (str, list)) else [threads]
        counts = devices.thread_counts(several)
        if len(counts) != 1:
            raise UsageError("a judge uses one number of threads: write --threads 4")
        options["threads"] = counts[0]
    if against:
        options["kernels"] = [against]
    given = chosen(workload, {"precisions": "fp32", **options})
    if not {"sizes", "shapes"} & given.options.keys():
        raise UsageError("no sizes to judge on: write --sizes 1024,4096, or --shape")
    file, trusted = str(file), _loaded([against] if is_file(against) else [])
    device_id, _ = devices.resolve(device)
    target = devices.open_device(device_id, given.options.get("threads"))
    config = configuration.load(given.config, workload, target.kind, given.options)
    return verdict.judge(
        file,
        config,
        target,
        against,
        trusted=trusted,
        timeout_s=timeout_s,
        max_time_s=max_time_s,
        note=note,
    )


def resume(
    folder: str | Path,
    device: str = "auto",
    kernels: Sequence[str] = (),
    observer: Observer | None = None,
    *,
    max_time_s: float | None = None,
) -> Run:
    """Continue an interrupted run.

    ``kernels`` are the run's kernel files, ``device`` its device class if it used one. Both are
    code: they are loaded only if they are given here, because the run folder may come from somebody
    else. ``max_time_s`` replaces the run's own. Raises ``UsageError`` if one is not given or the
    run cannot be continued.
    """
    path, files, target = _reopen(folder, device, kernels)
    return Run.of(engine.resume(path, target, files, observer or Lines(), max_time_s))


def count(
    folder: str | Path,
    device: str = "auto",
    kernels: Sequence[str] = (),
    observer: Observer | None = None,
) -> Run:
    """Add hardware counters to the rows of a run on a GPU; the parameters are ``resume``'s.

    Rows that have counters keep them. Raises ``UsageError`` if the kernels cannot run as they did.
    """
    path, files, target = _reopen(folder, device, kernels)
    return Run.of(engine.count(path, target, files, observer or Lines()))


def _reopen(
    folder: str | Path, device: str, kernels: Sequence[str]
) -> tuple[Path, list[str], Device]:
    """The run's folder, its kernel files, and its device."""
    run = store.load(Path(folder))
    path, manifest = run.path, run.manifest
    if is_program(run.measurements):
        raise UsageError(
            f"{str(path)[:200]} is the run of a program, which is counted while it runs: "
            "rooflab profile SCRIPT.py"
        )
    recorded = manifest.device.id
    if device == "auto" and not devices.is_builtin(recorded):
        raise UsageError(
            f"this run used a device class, {recorded[:80]}: "
            "if you trust it, add --device with that name"
        )
    files = listed_kernels(list(kernels))
    if names := [name for name in files if not is_file(name)]:
        raise UsageError(
            f"--kernel {names[0][:40]!r} is no file: --resume measures all kernels of the run; "
            "name only its kernel files"
        )
    _loaded(files)
    threads = manifest.config.get("threads")
    target = devices.open_device(
        recorded if device == "auto" else device, threads if isinstance(threads, int) else None
    )
    return path, files, target


def load(path: str | Path) -> Run:
    """Read a run folder of any schema; nothing in it is executed."""
    return Run.of(store.load(Path(path)))


def _run(given: str | Path | store.RunData) -> store.RunData:
    return given if isinstance(given, store.RunData) else load(given)


def compare(
    base: str | Path | store.RunData,
    new: str | Path | store.RunData,
    threshold_percent: float | None = None,
) -> Comparison | Races:
    """Compare two runs of one device point by point, and list their other differences.

    Runs of a program are compared step by step, as a ``ProgramComparison``; others of two devices
    race: from which size on is NEW's faster? ``threshold_percent``, 0.5 unless it is given, or 2 of
    programs, is not for races.
    """
    before, after = _run(base), _run(new)
    if comparable(before, after):
        return compare_any(before, after, threshold_percent)
    return Races(races([before, after]))
