"""The commands. Each body imports what it needs, so that ``rooflab --help`` starts at once."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from rooflab import __version__, console
from rooflab.errors import RooflabError, UsageError
from rooflab.problem import PRECISIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rooflab.config import SweepConfig
    from rooflab.devices.base import Device
    from rooflab.measurement import Measurement
    from rooflab.registry import Kernel
    from rooflab.roofline import Roofline
    from rooflab.run import Manifest, Run

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
        typer.Option("--kernel", "-k", help="Name, glob or .cu file; repeatable."),
    ] = None,
    sizes: Annotated[
        str | None, typer.Option(help="Square sizes: 512, or 256,512, or 256:8192:x2.")
    ] = None,
    shape: Annotated[list[str] | None, typer.Option(help="MxNxK; repeatable.")] = None,
    precision: Annotated[
        list[str] | None,
        typer.Option("--precision", "-p", help="fp64, fp32, tf32, fp16, bf16, fp16_fp32 or all."),
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
        str, typer.Option(help="quick, default, full, llm, or a TOML file.")
    ] = "default",
    out: Annotated[Path, typer.Option(help="Where the run folder goes.")] = RESULTS,
    seed: Annotated[int | None, typer.Option(help="Seed of inputs and order.")] = None,
) -> None:
    """Measure kernels over sizes; write CSV and draw the roofline."""
    from datetime import UTC, datetime

    from rooflab import config as configuration
    from rooflab import devices, run, sweep

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
    }
    device_id, why = devices.resolve(device)
    kind = device_id.partition(":")[0]
    settings = configuration.load(
        config, kind, {name: value for name, value in options.items() if value is not None}
    )
    if why:
        console.note(why)
    chosen = _named(settings.kernels, kind)
    target = devices.open_device(device_id)
    chosen = _available(chosen, settings.kernels, target)
    steps = sweep.plan(settings, chosen)
    for line in sweep.left_out(settings, chosen):
        console.note(line)
    folder = run.create_folder(out, target.name, datetime.now(UTC))
    try:
        roofline = _announce(target, list(dict.fromkeys(s.problem.precision.name for s in steps)))
    except KeyboardInterrupt:
        folder.rmdir()
        raise typer.Exit(130) from None
    manifest = _manifest(target, roofline, settings, chosen)
    raise typer.Exit(_run_sweep(target, roofline, steps, settings, manifest, folder))


def _named(patterns: Sequence[str], kind: str) -> list[Kernel]:
    """Kernels by name, glob or file."""
    from rooflab.backends import cuda, discover

    registry = discover()
    names = []
    for pattern in patterns:
        if pattern.endswith(".cu") or os.sep in pattern:
            if kind != "cuda":
                raise UsageError(f"{pattern} needs an NVIDIA GPU (see: rooflab doctor)")
            mine = cuda.load_file(Path(pattern))
            registry.add(mine)
            names.append(mine.name)
        else:
            names.append(pattern)
    return registry.select(names, kind)


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


def _announce(device: Device, precisions: Sequence[str]) -> Roofline:
    """Say what is going to be measured on, and under which roofs."""
    err = console.err()
    err.print(f"[bold]{device.name}[/] ({device.id})")
    with err.status("reading its peaks"):
        roofline = device.roofline(measure=device.kind == "cpu")
    roofs = [("", roofline.bandwidth())]
    roofs += [(PRECISIONS[name].title, roofline.compute(name)) for name in precisions]
    found = [f"{name or roof.key} {roof.amount} {roof.provenance}" for name, roof in roofs if roof]
    console.note("; ".join(found) or "no ceiling is known (see: rooflab devices)")
    return roofline


def _manifest(
    device: Device, roofline: Roofline, config: SweepConfig, kernels: Sequence[Kernel]
) -> Manifest:
    import platform
    from datetime import UTC, datetime
    from hashlib import sha256
    from importlib.metadata import PackageNotFoundError, version

    from rooflab.run import DeviceRecord, KernelRecord, Manifest

    versions = {"rooflab": __version__, "python": platform.python_version()}
    for package in ("numpy", "numba", "cupy-cuda12x", "cupy-cuda13x", "nvidia-ml-py"):
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
        roofline=roofline,
        config=config.model_dump(),
        kernels={
            kernel.name: KernelRecord(
                backend=kernel.backend,
                title=kernel.title,
                source=kernel.source.name if kernel.source else "",
                sha256=sha256(kernel.source.read_bytes()).hexdigest() if kernel.source else "",
            )
            for kernel in kernels
        },
    )


def _run_sweep(
    device: Device,
    roofline: Roofline,
    steps: Sequence[Any],
    config: SweepConfig,
    manifest: Manifest,
    folder: Path,
) -> int:
    """Measure, print, draw; return the exit code."""
    from datetime import UTC, datetime

    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from rooflab import plot, sweep
    from rooflab.backends import cuda
    from rooflab.run import Run, RunWriter

    rows: list[Measurement] = []
    interrupted = False
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console.err(),
        transient=True,
    )
    with RunWriter(folder, manifest) as writer:
        with progress:
            task = progress.add_task("", total=sweep.points(steps))

            def report(problem: Any, kernel: Kernel, what: str) -> None:
                progress.update(
                    task,
                    description=f"{what} {kernel.name} {problem.precision.name} {problem.shape}",
                )

            try:
                for row, outcome in sweep.sweep(device, roofline, steps, config, writer, report):
                    rows.append(row)
                    progress.advance(task)
                    if outcome.detail:
                        console.warn(f"{row.kernel} failed:\n{outcome.detail}")
            except KeyboardInterrupt:
                interrupted = True
        for name, builds in cuda.compiled_info().items():
            if name in manifest.kernels:
                manifest.kernels[name].compiled = builds
        manifest.finished = datetime.now(UTC)
        writer.write_manifest()

    _print_rows(rows)
    if interrupted:
        console.warn(f"interrupted; {len(rows)} finished rows are in {folder}")
    else:
        console.note(f"{folder}/")
    if any(row.status == "ok" for row in rows):
        for path in plot.draw_all(Run(folder, manifest, rows)):
            console.note(f"{path}")
    if interrupted:
        return 130
    statuses = {row.status for row in rows}
    return 3 if "incorrect" in statuses else 1 if statuses & {"failed", "timeout"} else 0


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
            "--out", "-o", help="PNG, SVG or PDF by suffix; else redraws in the run folder."
        ),
    ] = None,
    precision: Annotated[
        list[str] | None, typer.Option("--precision", "-p", help="Only these; repeatable.")
    ] = None,
    by_size: Annotated[
        bool, typer.Option("--by-size", help="Throughput and bandwidth against size instead.")
    ] = False,
) -> None:
    """Draw rooflines from run folders; needs no GPU."""
    from rooflab import plot

    runs = [_load(path) for path in paths] if paths else [_load(None)]
    if out is None and len(runs) == 1 and not precision:
        for drawn in plot.draw_all(runs[0]):
            console.note(str(drawn))
        return
    figure = (plot.size_figure if by_size else plot.roofline_figure)(runs, precision)
    target = out or Path("size.png" if by_size else "roofline.png")
    plot.save(figure, target)
    console.note(str(target))


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
    for heading in ("kernel", "on", "precisions", "what it is"):
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
        console.out().print(f"✗ {', '.join(names)}: {reason}", markup=False, soft_wrap=True)


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
    from dataclasses import asdict

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
