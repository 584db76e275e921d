"""The commands. Each body imports what it needs, so that ``rooflab --help`` starts at once."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from rooflab import __version__, console
from rooflab.errors import RooflabError, UsageError
from rooflab.problem import PRECISIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rooflab.config import SweepConfig
    from rooflab.devices.base import Device
    from rooflab.measure.worker import Worker
    from rooflab.measurement import Measurement
    from rooflab.problem import Problem
    from rooflab.registry import Kernel
    from rooflab.run import Manifest, Run, RunWriter
    from rooflab.sweep import Step

app = typer.Typer(
    help="How close is a matrix-multiply kernel to what this machine can do?\n\n"
    "Start with: rooflab sweep --kernel tiled",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

RunPath = Annotated[
    Path | None, typer.Argument(metavar="[RUN]", help="Run folder; else the newest in results/.")
]
RESULTS = Path("results")


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line; every ``RooflabError`` becomes one line and an exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments
    try:
        app(args=[argument for argument in arguments if argument != "--debug"], prog_name="rooflab")
    except RooflabError as error:
        if debug:
            raise
        console.fail(str(error))
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader (head, less) has left; keep Python from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(0)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"rooflab {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback behind an error.")
    ] = False,
) -> None:
    pass


# --- sweep -------------------------------------------------------------------------------------


@app.command()
def sweep(
    kernel: Annotated[
        list[str] | None,
        typer.Option("--kernel", "-k", help="Name, glob or .cu file; several with commas."),
    ] = None,
    sizes: Annotated[
        str | None, typer.Option(help="Square sizes: 512, or 256,512, or 256:8192:x2.")
    ] = None,
    shape: Annotated[list[str] | None, typer.Option(help="MxNxK; several with commas.")] = None,
    precision: Annotated[
        list[str] | None,
        typer.Option("--precision", "-p", help=f"{', '.join(PRECISIONS)} or all."),
    ] = None,
    layout: Annotated[
        list[str] | None,
        typer.Option(help="nn, nt, tn, tt or all: row-major transposition of A and B."),
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Matrices per launch.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Factor of the product.")] = None,
    beta: Annotated[float | None, typer.Option(help="Factor of the old C.")] = None,
    device: Annotated[str, typer.Option(help="auto, cuda:N or cpu.")] = "auto",
    config: Annotated[
        str, typer.Option(help="quick, default, full, llm, cutlass, or a TOML file.")
    ] = "default",
    out: Annotated[Path, typer.Option(help="Where the run folder goes.")] = RESULTS,
    seed: Annotated[int | None, typer.Option(help="Seed of inputs and order.")] = None,
    fill: Annotated[str | None, typer.Option(help="uniform, normal, zeros or ints.")] = None,
    cache: Annotated[
        str | None, typer.Option(help="cold: operands rotate through memory; or warm.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Continue this run; it knows its settings.")
    ] = None,
) -> None:
    """Measure kernels over sizes; write CSV and draw the roofline."""
    from datetime import UTC, datetime

    from rooflab import config as configuration
    from rooflab import devices, run, sweep
    from rooflab.measure.worker import Job, Worker

    options = {
        "kernels": kernel,
        "sizes": sizes,
        "shapes": shape,
        "precisions": precision,
        "layouts": layout,
        "batch": batch,
        "alpha": alpha,
        "beta": beta,
        "seed": seed,
        "fill": fill,
        "cache": cache,
    }
    given = {name: value for name, value in options.items() if value is not None}
    if resume:
        if given or config != "default" or device != "auto" or out != RESULTS:
            raise UsageError("--resume takes its settings from the run: give no others with it")
        old = run.load(resume)
        device = old.manifest.device.id
    device_id, why = devices.resolve(device)
    if why:
        console.note(why)
    target = devices.open_device(device_id)
    if resume:
        try:
            settings = configuration.of_run(old.manifest.config)
        except UsageError as error:
            raise UsageError(f"cannot continue {resume}: {error}") from error
    else:
        settings = configuration.load(config, target.kind, given)
    chosen, files = _named(settings.kernels, target.kind)
    chosen = _available(chosen, settings.kernels, target)
    steps = sweep.plan(settings, chosen)
    for line in sweep.left_out(settings, chosen):
        console.note(line)
    manifest = _manifest(target, settings, chosen)
    folder, done = None, []
    if resume:
        if differences := run.resumable(old.manifest, manifest):
            raise UsageError(f"cannot continue {resume}: {'; '.join(differences)}")
        folder, done, manifest = old.path, old.measurements, old.manifest
        steps = sweep.pending(steps, done)
    else:
        folder = run.create_folder(out, target.name, datetime.now(UTC))
        manifest.points = sweep.points(steps)

    candidates = settings.timing.contexts if target.kind == "cuda" else 1
    job = Job(device_id, settings, files, devices.affinity(), candidates)
    session = _Session(target, folder, manifest, done)
    with Worker(job, session.report) as worker:
        raise typer.Exit(session.run(steps, worker))


def _named(patterns: Sequence[str], kind: str) -> tuple[list[Kernel], tuple[Path, ...]]:
    """Kernels by name, glob or file; and the files among them."""
    from rooflab.backends import cuda, discover
    from rooflab.config import is_path

    registry = discover()
    names, files = [], []
    for pattern in patterns:
        if is_path(pattern):
            if kind != "cuda":
                raise UsageError(f"{pattern} needs an NVIDIA GPU (see: rooflab doctor)")
            mine = cuda.load_file(Path(pattern))
            registry.add(mine)
            names.append(mine.name)
            files.append(Path(pattern))
        else:
            names.append(pattern)
    return registry.select(names, kind), tuple(files)


def _available(kernels: list[Kernel], patterns: Sequence[str], device: Device) -> list[Kernel]:
    """Leave out what cannot run here; refuse it where it was asked for by its name."""
    usable = []
    for kernel in kernels:
        reason = kernel.unavailable(device)
        if reason and kernel.name in patterns:
            raise UsageError(f"kernel {kernel.name} cannot run here: {reason}")
        if reason:
            console.note(f"{kernel.name} left out: {reason}")
        else:
            usable.append(kernel)
    if not usable:
        raise UsageError("none of these kernels can run here (see: rooflab kernels)")
    return usable


def _manifest(device: Device, config: SweepConfig, kernels: Sequence[Kernel]) -> Manifest:
    import platform
    from datetime import UTC, datetime
    from importlib.metadata import PackageNotFoundError, version

    from rooflab.backends import nvrtc
    from rooflab.roofline import Roofline
    from rooflab.run import DeviceRecord, KernelRecord, Manifest

    versions = {"rooflab": __version__, "python": platform.python_version()}
    packages = ["numpy", "numba"]
    if device.kind == "cuda":
        packages += ["cupy-cuda12x", "cupy-cuda13x", "nvidia-ml-py", "nvidia-cutlass"]
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return Manifest(
        created=datetime.now(UTC),
        command=["rooflab", *sys.argv[1:]],
        versions=versions,
        host={"system": platform.system(), "machine": platform.machine()},
        device=DeviceRecord(id=device.id, kind=device.kind, name=device.name, facts=device.facts),
        roofline=Roofline(()),
        config=config.model_dump(),
        kernels={
            kernel.name: KernelRecord(
                backend=kernel.backend,
                title=kernel.title,
                source=kernel.source.name if kernel.source else "",
                sha256=nvrtc.source_sha256(kernel.source) if kernel.source else "",
            )
            for kernel in kernels
        },
    )


class _Session:
    """One sweep on the terminal: measures, shows progress, prints, draws."""

    def __init__(
        self, device: Device, folder: Path, manifest: Manifest, done: list[Measurement]
    ) -> None:
        from rich.progress import (
            BarColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self.device = device
        self.folder = folder
        self.manifest = manifest
        self.rows = list(done)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console.err(),
            transient=True,
        )
        self._task = self._progress.add_task("", total=None)

    def report(self, problem: Problem, kernel: str, what: str) -> None:
        """Show what happens now."""
        where = f"{problem.precision.name} {problem.shape}"
        self._progress.update(self._task, description=f"{what} {kernel} {where}")

    def run(self, steps: Sequence[Step], worker: Worker) -> int:
        """Measure ``steps``; returns the exit code."""
        from rooflab import plot
        from rooflab.run import Run, RunWriter

        interrupted = False
        with RunWriter(self.folder, self.manifest) as writer:
            try:
                self._measure(steps, worker, writer)
            except KeyboardInterrupt:
                interrupted = True
            self._close(worker, writer)
        _print_rows(self.rows)
        if interrupted:
            console.warn(
                f"interrupted; {len(self.rows)} finished rows are in {self.folder} "
                f"(go on with: rooflab sweep --resume {self.folder})"
            )
        else:
            console.note(f"{self.folder}/")
        if any(row.status == "ok" for row in self.rows):
            for path in plot.draw_all(Run(self.folder, self.manifest, self.rows)):
                console.note(f"{path}")
        if interrupted:
            return 130
        return self._exit_code()

    def _measure(self, steps: Sequence[Step], worker: Worker, writer: RunWriter) -> None:
        from time import perf_counter

        from rooflab import sweep

        started = perf_counter()
        err = console.err()
        err.print(f"[bold]{self.device.name}[/] ({self.device.id})")
        # A continued run keeps the roofs that its first rows stand under.
        if not self.manifest.roofline.ceilings:
            with err.status("reading its peaks"):
                self.manifest.roofline = worker.roofline(measure=self.device.kind != "cuda")
        console.note(self._roofs(steps))
        if missing := self.device.missing_telemetry():
            console.note(missing)
        writer.write_manifest()
        if not steps:
            return
        self._progress.update(self._task, total=sweep.points(steps))
        with self._progress:
            first = sweep.warm_up_step(steps)
            names = [kernel.name for kernel in first.kernels]
            self.manifest.settled = worker.warm_up(first.problem, names)
            rows = sweep.sweep(self.device, self.manifest.roofline, steps, worker, writer)
            for row, outcome in rows:
                self.rows.append(row)
                self._progress.advance(self._task)
                if "\n" in outcome.detail:
                    console.warn(f"{row.kernel} failed:\n{outcome.detail}")
                self.manifest.wall_s = {
                    "total": round(perf_counter() - started, 3),
                    **{name: round(value, 3) for name, value in asdict(worker.clock).items()},
                }

    def _roofs(self, steps: Sequence[Step]) -> str:
        """Under which roofs the points will lie."""
        roofline = self.manifest.roofline
        names = dict.fromkeys(step.problem.precision.name for step in steps)
        roofs = [("", roofline.bandwidth())]
        roofs += [(PRECISIONS[name].title, roofline.compute(name)) for name in names]
        found = [
            f"{name or roof.key} {roof.amount} {roof.provenance}" for name, roof in roofs if roof
        ]
        return "; ".join(found) or "no ceiling is known (see: rooflab devices)"

    def _close(self, worker: Worker, writer: RunWriter) -> None:
        from datetime import UTC, datetime

        self.manifest.contexts += worker.launches_us
        for name, builds in worker.builds.items():
            if name in self.manifest.kernels:
                self.manifest.kernels[name].compiled = builds
        self.manifest.finished = datetime.now(UTC)
        writer.write_manifest()

    def _exit_code(self) -> int:
        statuses = [row.status for row in self.rows]
        failed = sum(status in ("failed", "timeout") for status in statuses)
        if failed:
            console.warn(f"{failed} of {len(statuses)} points failed; the reasons stand above")
        return 3 if "incorrect" in statuses else 1 if failed else 0


def _print_rows(rows: Sequence[Measurement]) -> None:
    from rooflab import report

    out = console.out()
    for table in report.tables(rows):
        out.print(table)
    for line in report.remarks(rows):
        console.warn(line)
    for line in report.sentences(rows):
        out.print(line, markup=False)


# --- reading runs ------------------------------------------------------------------------------


def _load(path: Path | None) -> Run:
    from rooflab import run

    loaded = run.load(path or run.newest(RESULTS))
    for warning in loaded.warnings:
        console.warn(warning)
    return loaded


@app.command()
def show(path: RunPath = None) -> None:
    """Print a run's table."""
    loaded = _load(path)
    manifest = loaded.manifest
    console.err().print(f"[bold]{manifest.device.name}[/], {manifest.created:%Y-%m-%d %H:%M} UTC")
    console.note(" ".join(manifest.command))
    _print_rows(loaded.measurements)


class Format(StrEnum):
    """What ``export`` writes."""

    csv = "csv"
    markdown = "markdown"
    latex = "latex"
    json = "json"


_SUFFIXES = {".csv": "csv", ".md": "markdown", ".tex": "latex", ".json": "json"}


@app.command()
def export(
    path: RunPath = None,
    format: Annotated[
        Format | None, typer.Option("--format", "-f", help="Else by the suffix of --out, else csv.")
    ] = None,
    out: Annotated[str, typer.Option("--out", "-o", help="File; - is stdout.")] = "-",
) -> None:
    """Write a run as CSV, Markdown, LaTeX or JSON."""
    from rooflab.report import EXPORTERS

    chosen = format.value if format else "csv"
    if not format and out != "-":
        if Path(out).suffix not in _SUFFIXES:
            raise UsageError(f"{out}: which format? name it {', '.join(_SUFFIXES)} or add --format")
        chosen = _SUFFIXES[Path(out).suffix]
    text = EXPORTERS[chosen](_load(path).measurements)
    if out == "-":
        sys.stdout.write(text)
        return
    try:
        Path(out).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}") from error
    console.note(out)


@app.command()
def plot(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN]...", help="Run folders; several are overlaid."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="PNG, SVG or PDF by suffix; else redraws both pictures of a single run in its "
            "folder, or what is chosen or overlaid in ./roofline.png or ./size.png.",
        ),
    ] = None,
    precision: Annotated[
        list[str] | None, typer.Option("--precision", "-p", help="Only these; several with commas.")
    ] = None,
    by_size: Annotated[
        bool, typer.Option("--by-size", help="Throughput and bandwidth against size instead.")
    ] = False,
) -> None:
    """Draw rooflines from run folders; needs no GPU."""
    from rooflab import plot
    from rooflab.config import listed

    precision = listed(precision)
    runs = [_load(path) for path in paths] if paths else [_load(None)]
    if out is None and len(runs) == 1 and not precision and not by_size:
        for drawn in plot.draw_all(runs[0]):
            console.note(str(drawn))
        return
    figure = (plot.size_figure if by_size else plot.roofline_figure)(runs, precision)
    target = out or Path("size.png" if by_size else "roofline.png")
    plot.save(figure, target)
    console.note(str(target))


class ComparisonFormat(StrEnum):
    """What ``compare`` writes."""

    table = "table"
    markdown = "markdown"
    json = "json"


class FailOn(StrEnum):
    """What makes ``compare`` exit 3."""

    slow = "slow"
    ambiguous = "ambiguous"


@app.command()
def compare(
    base: Annotated[Path, typer.Argument(metavar="BASE", help="Run folder: how it was.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Run folder: how it is.")],
    threshold: Annotated[
        float, typer.Option(help="Smallest change that counts, in percent of the time.")
    ] = 0.5,
    fail_on: Annotated[
        list[FailOn] | None,
        typer.Option(
            help="Exit 3 if any point is SLOW or broken; with ambiguous, if any is AMBIGUOUS too."
        ),
    ] = None,
    format: Annotated[
        ComparisonFormat | None,
        typer.Option("--format", "-f", help="Else by the suffix of --out, else table."),
    ] = None,
    out: Annotated[str, typer.Option("--out", "-o", help="File; - is stdout.")] = "-",
) -> None:
    """Say which points became slower or faster, and what else differs between two runs."""
    from rooflab import compare, report

    result = compare.compare(_load(base), _load(new), threshold)
    chosen = format.value if format else _SUFFIXES.get(Path(out).suffix)
    if chosen in ("csv", "latex"):
        raise UsageError(f"{out}: compare writes .md, .json, or a table; or add --format")
    if out != "-":
        exporter = report.COMPARISON_EXPORTERS.get(chosen or "", report.comparison_text)
        try:
            Path(out).write_text(exporter(result), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write {out}: {error.strerror}") from error
        console.note(out)
    elif chosen in report.COMPARISON_EXPORTERS:
        sys.stdout.write(report.COMPARISON_EXPORTERS[chosen](result))
    else:
        report.print_comparison(result, console.out())
    counts = result.counts
    failures = [(counts[compare.Verdict.SLOW], "SLOW"), (result.broken, "broken")]
    if FailOn.ambiguous in (fail_on or []):
        failures.append((counts[compare.Verdict.AMBIGUOUS], "AMBIGUOUS"))
    if fail_on and (found := [f"{count} {what}" for count, what in failures if count]):
        console.fail(f"{', '.join(found)} (--fail-on {' '.join(fail_on)})")
        raise typer.Exit(3)


# --- this machine ------------------------------------------------------------------------------


@app.command()
def kernels(
    pattern: Annotated[str, typer.Argument(help="Name or glob.")] = "*",
) -> None:
    """List the kernels, and why any of them cannot run here."""
    from fnmatch import fnmatchcase

    from rich import box
    from rich.table import Table

    from rooflab.backends import discover

    found = [kernel for kernel in discover().all() if fnmatchcase(kernel.name, pattern)]
    if not found:
        raise UsageError(f"no kernel matches {pattern!r} (list: rooflab kernels)")
    here: dict[str, Device | None] = {
        kind: _device_or_none(kind)
        for kind in dict.fromkeys(kernel.device_kind for kernel in found)
    }
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("kernel", no_wrap=True)
    for heading in ("on", "precisions", "what it is"):
        table.add_column(heading, overflow="fold")
    reasons: dict[str, list[str]] = {}
    for kernel in found:
        reason = kernel.unavailable(here[kernel.device_kind])
        if reason:
            reasons.setdefault(reason, []).append(f"{kernel.name} ({kernel.device_kind})")
        table.add_row(
            f"[dim]{kernel.name} ✗[/]" if reason else f"[bold]{kernel.name}[/]",
            kernel.device_kind,
            " ".join(kernel.precisions),
            kernel.title,
        )
    console.out().print(table)
    for reason, names in reasons.items():
        which = ", ".join(names) if len(names) <= 3 else f"{len(names)} kernels"
        console.out().print(f"✗ {which}: {reason}", markup=False, soft_wrap=True)


def _device_or_none(kind: str) -> Device | None:
    from rooflab import devices

    try:
        return devices.open_device(kind)
    except RooflabError:
        return None


@app.command("devices")
def devices_command(
    device: Annotated[str | None, typer.Argument(help="cuda:N or cpu; else all.")] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure ceilings on GPUs too; takes seconds.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Print facts and ceilings, each with its formula and where it comes from."""
    import json

    from rooflab import devices
    from rooflab.backends import discover
    from rooflab.devices import cuda
    from rooflab.measure.ceilings import library_ceilings
    from rooflab.report import device_tables

    ids = [devices.resolve(device)[0]] if device else devices.all_ids()
    if not device and (reason := cuda.availability()):
        console.note(f"no CUDA device: {reason}")
    collected = []
    for name in ids:
        target = devices.open_device(name)
        with console.err().status(f"measuring {name}"):
            roofline = target.roofline(measure=measure or target.kind == "cpu")
            if measure and target.kind == "cuda":
                (library,) = discover().select(["cublas"], "cuda")
                roofline = roofline.with_limits(*library_ceilings(target, library))
        if as_json:
            facts = {key: asdict(fact) for key, fact in target.facts.items()}
            record = {"id": name, "name": target.name, "facts": facts, **asdict(roofline)}
            collected.append(record)
            continue
        console.out().print(f"[bold]{target.name}[/] ({name})")
        for table in device_tables(target.facts, roofline):
            console.out().print(table)
    if as_json:
        sys.stdout.write(json.dumps(collected, indent=1) + "\n")


@app.command()
def selftest(
    device: Annotated[str, typer.Option(help="auto, cuda:N or cpu.")] = "auto",
) -> None:
    """Say what differences this machine can tell apart; takes seconds."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from rooflab import devices, selftest
    from rooflab.backends import discover

    device_id, why = devices.resolve(device)
    if why:
        console.note(why)
    target = devices.open_device(device_id)
    kernel = selftest.choose(target, discover())
    with console.err().status(f"testing {device_id}"):
        checks = list(selftest.run(target, kernel))
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("check", "measured", "limit", "result"):
        table.add_column(heading, overflow="fold")
    for check in checks:
        result = {True: "passed", False: "failed", None: "–"}[check.ok]
        style = {True: "green", False: "red", None: ""}[check.ok]
        table.add_row(check.name, Text(check.found), check.limit or "–", Text(result, style))
    passed, sentence = selftest.verdict(checks)
    out = console.out()
    out.print(f"[bold]{target.name}[/] ({device_id}), kernel {kernel.name}")
    out.print(table)
    out.print(sentence, markup=False, soft_wrap=True)
    raise typer.Exit(0 if passed else 1)


@app.command()
def doctor() -> None:
    """Say what works here, what does not, and the command that mends it."""
    from rooflab.doctor import checks

    out = console.out()
    for check in checks():
        mark = "[green]✓[/]" if check.ok else "[yellow]✗[/]"
        out.print(f"{mark} [bold]{check.name}[/]: ", end="")
        out.print(check.found, markup=False, soft_wrap=True)
        if check.remedy:
            out.print(f"    → {check.remedy}", markup=False, soft_wrap=True)
