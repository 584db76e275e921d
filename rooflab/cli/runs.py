"""Commands that read runs: show, export, counters, plot, compare, explain, report."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from rooflab.cli import app, console
from rooflab.cli.shared_options import RESULTS, OutFile, RunPath, including, keyword
from rooflab.errors import RooflabError, UsageError
from rooflab.files import unwritable, write_named
from rooflab.options import listed

SHOWN: Final = 10
"""Explanations that are shown unless ``--all`` is given; each is of one or more rows."""

if TYPE_CHECKING:
    from rooflab.runs.compare import Comparison
    from rooflab.runs.store import RunData


def _load(path: Path | None) -> RunData:
    from rooflab.runs import store

    loaded = store.load(path or store.newest(RESULTS))
    for warning in loaded.warnings:
        console.warn(warning)
    return loaded


def _load_all(paths: list[Path] | None) -> list[RunData]:
    return [_load(path) for path in paths] if paths else [_load(None)]


def write_text(out: str, text: str) -> None:
    """Write ``text`` to the file ``out``; ``-`` is stdout."""
    if out == "-":
        sys.stdout.write(text)
        return
    write_named(Path(out), text)
    console.note(out)


def refuse_unwritable(out: str) -> None:
    """Raise ``UsageError`` before anything is measured if ``write_text`` will; writes nothing."""
    path = Path(out)
    try:
        if out == "-" or (path.exists() and not (path.is_file() or path.is_dir())):
            return  # opening a pipe would wait for its reader
        there = path.exists()
        path.open("ab").close()
        if not there:
            path.unlink()
    except (OSError, ValueError) as error:
        raise unwritable(out, error) from error


@app.command()
def show(
    path: RunPath = None,
    plot: Annotated[bool, typer.Option("--plot", help="Also draw the roofline, here.")] = False,
) -> None:
    """Print a run's table, or what a fleet's members show."""
    from rooflab.cli.sweep import print_rows
    from rooflab.fleet import progress
    from rooflab.runs.program import is_program
    from rooflab.runs.store import is_fleet

    if path and is_fleet(path):
        raise typer.Exit(progress.report(path))
    loaded = _load(path)
    manifest = loaded.manifest
    name = escape(manifest.device.name)
    console.err().print(f"[bold]{name}[/], {manifest.created:%Y-%m-%d %H:%M} UTC")
    if manifest.command:  # rooflab.bench has none
        console.note(" ".join(manifest.command))
    if is_program(loaded.measurements):
        print_program(loaded)
    else:
        print_rows(loaded.measurements)
    if plot:
        _print_charts(loaded)


def print_program(run: RunData) -> None:
    """Print what is to say about a program, then the table of its groups."""
    from rooflab.report import program, terminal

    program.show(run, console.out())
    for line in terminal.remarks(run.measurements):
        console.warn(line)


def _print_charts(run: RunData) -> None:
    """The roofline of each precision, in characters that the terminal has."""
    from rooflab.figures.kinds import FIGURES
    from rooflab.figures.selection import Wanted
    from rooflab.figures.text import chart

    out = console.out()
    try:
        panels = FIGURES["roofline"].make(Wanted([run], whole=True)).panels
    except UsageError:
        console.warn("nothing to draw: no row has FLOPs and its operands in device memory")
        return
    for panel in panels:
        drawn = chart(panel, out.width, unicode=_speaks_unicode(out))
        out.print(drawn, no_wrap=True, overflow="crop")
        out.print()


def _speaks_unicode(out: Console) -> bool:
    """Whether the output's encoding has the characters of lines."""
    try:
        "─╱┤".encode(out.encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


_SUFFIXES = {".csv": "csv", ".md": "markdown", ".tex": "latex", ".json": "json", ".xml": "junit"}


def _format(given: str | None, out: str) -> str | None:
    """The format, by the suffix of the file unless it is given; None if the suffix has none."""
    return given or _SUFFIXES.get(Path(out).suffix)


@app.command()
def export(
    path: RunPath = None,
    format: Annotated[
        Literal["csv", "markdown", "latex", "json"] | None,
        typer.Option("--format", "-f", help="Default: by the suffix of --out, else csv."),
    ] = None,
    out: OutFile = "-",
) -> None:
    """Write a run as CSV, Markdown, LaTeX or JSON."""
    from rooflab.report.export import EXPORTERS

    chosen = "csv" if out == "-" and not format else _format(format, out)
    if chosen not in EXPORTERS:
        known = [suffix for suffix, name in _SUFFIXES.items() if name in EXPORTERS]
        raise UsageError(f"{out[:200]}: unknown suffix: use {', '.join(known)} or add --format")
    write_text(out, EXPORTERS[chosen](_load(path)))


@app.command()
def counters(
    path: RunPath = None,
    kernel: Annotated[
        list[str] | None, typer.Option("--kernel", "-k", help="The run's kernel files.")
    ] = None,
    device: Annotated[str, typer.Option(help="The run's device class, if it used one.")] = "auto",
) -> None:
    """Count FLOPs and bytes of a measured run on its GPU (extra cupti, or ncu)."""
    from rooflab import api
    from rooflab.cli import progress
    from rooflab.report import terminal

    run, observer = _load(path), progress.observer()
    with observer.bar:
        run = api.count(run.path, device, kernel or [], observer)
    for table in terminal.counter_tables(run.measurements):
        console.out().print(table)
    if not any(row.counted_flops is not None for row in run.measurements):
        raise RooflabError("nothing was counted; the reason is above")


def _figures() -> Iterator[inspect.Parameter]:
    """The options that choose a figure."""
    from rooflab.figures.kinds import FIGURES

    for kind in FIGURES.values():
        if kind.option:
            flag, metavar = f"--{kind.option.replace('_', '-')}", kind.metavar or None
            info = typer.Option(flag, metavar=metavar, help=kind.help)
            values = (None, str | None) if metavar else (False, bool)
            yield keyword(kind.option, values[0], Annotated[values[1], info])


@app.command()
@including(_figures)
def plot(
    *,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN]...", help="Run folders; several are overlaid."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="PNG, SVG or PDF file. Default: both figures in the folder of a single run; with "
            "several runs or another option, a file here with the figure's name.",
        ),
    ] = None,
    precision: Annotated[
        list[str] | None,
        typer.Option("--precision", "-p", help="Only these precisions; several with commas."),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option("--workload", "-w", help="This workload with all its kernels."),
    ] = None,
    style: Annotated[
        Literal["default", "paper", "slides", "dark"],
        typer.Option(help="paper: one column wide, 8-point type; slides: large type."),
    ] = "default",
    chosen: dict[str, str | bool | None],
) -> None:
    """Draw rooflines of run folders; needs no GPU."""
    from rooflab import figures
    from rooflab.fleet.ranks import load_ranks

    precision = listed(precision) if precision else None
    if fleet := _ranks_folder(paths):
        runs = [one.run for one in load_ranks(fleet).ranks]
        chosen["ranks"], out = True, out or fleet / "ranks.png"
    else:
        runs = _load_all(paths)
    named = any(value not in (None, False) for value in chosen.values())
    if out is None and len(runs) == 1 and not (precision or workload or named):
        for drawn in (every := figures.draw_all(runs[0], style)):
            console.note(str(drawn))
        if every:
            return
    name, value = figures.chosen(chosen)
    target = out or Path(f"{name}.png")
    figure = figures.draw(name, runs, precision, workload, style=style, value=value)
    figures.save(figure, target)
    console.note(str(target))


def _ranks_folder(paths: list[Path] | None) -> Path | None:
    """The folder, if it is the only path and that of a program's ranks."""
    from rooflab.fleet import record
    from rooflab.runs.store import is_fleet

    alone = paths and len(paths) == 1 and is_fleet(paths[0])
    return paths[0] if paths and alone and record.load(paths[0]).ranks else None


class FailOn(StrEnum):
    """Verdicts for which ``compare`` exits with 3."""

    slow = "slow"
    ambiguous = "ambiguous"


Threshold = Annotated[
    float | None,
    typer.Option(
        help="Smallest change that counts, in percent of the time; default: 0.5, of programs 2."
    ),
]
FailOns = Annotated[
    list[FailOn] | None,
    typer.Option(
        help="slow: exit 3 if a point, or a program's step, is SLOW or broken; ambiguous: also "
        "if one is AMBIGUOUS."
    ),
]


@app.command()
def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="BASE... NEW",
            help="Run folders: old and new results of one device, or runs of several devices.",
        ),
    ],
    threshold: Threshold = None,
    fail_on: FailOns = None,
    format: Annotated[
        Literal["table", "markdown", "json", "github", "junit"] | None,
        typer.Option("--format", "-f", help="Default: by the suffix of --out, else table."),
    ] = None,
    out: OutFile = "-",
) -> None:
    """Show what became slower or faster; for several devices, from which size the last wins."""
    from rooflab.runs.compare_programs import comparable
    from rooflab.runs.program import is_program

    if len(runs) < 2:
        raise UsageError("compare needs two runs or more: rooflab compare BASE NEW")
    loaded = [_load(path) for path in runs]
    chosen = _format(format, out)
    if chosen in ("csv", "latex"):
        raise UsageError(f"{out[:200]}: compare writes .md, .json, .xml or a table: add --format")
    if len(loaded) == 2 and comparable(*loaded):
        compare_points(loaded, threshold, fail_on or [], chosen, out)
    elif any(is_program(run.measurements) for run in loaded):
        raise UsageError("a program is compared with one other run of it: rooflab compare BASE NEW")
    elif threshold is not None or fail_on:
        raise UsageError("--threshold and --fail-on are for two runs of one device")
    elif chosen == "junit":
        raise UsageError("junit is for two runs of one device: use --format github or json")
    else:
        _race(loaded, chosen, out)


def _race(runs: list[RunData], chosen: str | None, out: str) -> None:
    from rooflab.report import races as report
    from rooflab.runs.races import races

    found = races(runs)
    exporter = report.RACE_EXPORTERS.get(chosen or "")
    if exporter or out != "-":
        write_text(out, (exporter or report.races_text)(found))
        return
    screen = console.out()
    for race in found:
        # Whole lines for other programs; a terminal breaks them between words.
        screen.print(report.sentence(race), markup=False, soft_wrap=not screen.is_terminal)


def compare_points(
    runs: list[RunData],
    threshold: float | None,
    fail_on: list[FailOn],
    chosen: str | None,
    out: str,
    screen: Console | None = None,
) -> None:
    """Print the verdict on each point; exit with 3 if one is in ``fail_on``."""
    from rooflab.report import comparison as report
    from rooflab.runs.compare import Verdict
    from rooflab.runs.compare_programs import compare_any

    base, new = runs
    result = compare_any(base, new, threshold)
    exporter = report.COMPARISON_EXPORTERS.get(chosen or "")
    if exporter or out != "-":
        write_text(out, (exporter or report.comparison_text)(result))
    else:
        report.print_comparison(result, screen or console.out())
    if chosen == "github" and os.environ.get("GITHUB_ACTIONS") == "true":
        _annotate(result, fail_on)
    counts = result.counts
    failures = [(counts[Verdict.SLOW], "SLOW"), (result.broken, "broken")]
    if FailOn.ambiguous in fail_on:
        failures.append((counts[Verdict.AMBIGUOUS], "AMBIGUOUS"))
    elif fail_on and result.unclear:
        console.warn(
            f"{result.unclear} AMBIGUOUS point{'s' * (result.unclear > 1)} took "
            f"{result.threshold_percent:g} % longer or more: look at them, or add --fail-on "
            "ambiguous"
        )
    if fail_on and (found := [f"{count} {what}" for count, what in failures if count]):
        console.fail(f"{', '.join(found)} (--fail-on {' '.join(fail_on)})")
        raise typer.Exit(3)


def _annotate(result: Comparison, fail_on: list[FailOn]) -> None:
    """Tell GitHub's runner, which reads both streams, what became slow or broke."""
    from rooflab.report.github import workflow_commands

    level = "error" if fail_on else "warning"
    for line in workflow_commands(result, level, FailOn.ambiguous in fail_on):
        console.err().print(line, markup=False, soft_wrap=True)


@app.command()
def explain(
    path: RunPath = None,
    kernel: Annotated[
        str, typer.Argument(metavar="[KERNEL]", help="Only this kernel: its name or a part of it.")
    ] = "",
    size: Annotated[str, typer.Argument(metavar="[SIZE]", help="Only this size.")] = "",
    every: Annotated[bool, typer.Option("--all", help="Show every row separately.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write all rows as JSON.")] = False,
) -> None:
    """Say what holds each kernel back and what to try; the most time to save first."""
    from rooflab.report import explain as report

    if kernel and Path(kernel).is_dir():
        raise UsageError("explain takes one run: rooflab explain RUN KERNEL SIZE")
    found = report.explanations(_load(path), kernel, size)
    if as_json:
        sys.stdout.write(report.to_json(found))
        return
    groups = [[one] for one in found] if every else report.alike(found)
    for group in groups if every else groups[:SHOWN]:
        _print_paragraph([*report.paragraphs(group[0]), *filter(None, [report.others(group)])])
    if rest := 0 if every else sum(map(len, groups[SHOWN:])):
        console.note(f"{rest} more rows: add --all, or name a kernel and a size")


def _print_paragraph(lines: list[str]) -> None:
    """A heading and lines, which a terminal breaks between words."""
    out = console.out()
    if not out.is_terminal:
        out.print("\n  ".join(lines) + "\n", markup=False, soft_wrap=True)
        return
    out.print(Text(lines[0], style="bold"))
    for line in lines[1:]:
        out.print(Padding(Text(line), (0, 0, 0, 2)))
    out.print()


@app.command()
def report(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Run folders, or the folder of one fleet; default: the newest run in results/.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="HTML file.")] = Path("report.html"),
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=100.0,
            help="Of a fleet: ignore smaller differences, in %.",
            show_default="1",
        ),
    ] = None,
) -> None:
    """Write runs, or a fleet, as one HTML page that needs no network: figures, verdicts, rows."""
    from rooflab import api
    from rooflab.report.html import page
    from rooflab.runs.store import is_fleet

    if out.suffix.lower() not in ("", ".html", ".htm"):
        raise UsageError(f"a report is an HTML file: --out {out.stem[:80]}.html")
    fleets = [path for path in paths or () if is_fleet(path)]
    if fleets and paths != fleets[:1]:
        raise UsageError(
            f"{str(fleets[0])[:200]} is a fleet and has a page of its own: report it alone"
        )
    if fleets:
        given = {} if threshold is None else {"threshold_percent": threshold}
        api.report_fleet(fleets[0], out, **given)
    elif threshold is not None:
        raise UsageError("--threshold is for fleets; for two runs: rooflab compare --threshold")
    else:
        page.write(_load_all(paths), out)
    console.note(str(out))
