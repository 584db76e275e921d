"""The command ``rooflab sweep``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from rooflab.cli import app, console
from rooflab.cli.shared_options import RESULTS, takes_a_sweep
from rooflab.errors import RooflabError, UsageError
from rooflab.fleet.commands import sweep_here
from rooflab.options import Chosen, listed

if TYPE_CHECKING:
    from rooflab.devices.base import Device
    from rooflab.model.measurement import Measurement
    from rooflab.model.problem import Problem
    from rooflab.observers import Lines
    from rooflab.planning import Plan, Step
    from rooflab.runs.store import RunData


@app.command()
@takes_a_sweep
def sweep(
    *,
    chosen: Chosen,
    device: Annotated[
        str, typer.Option(help="auto, cuda:N or cpu; several with commas; all: every GPU here.")
    ] = "auto",
    one_by_one: Annotated[
        bool, typer.Option("--one-by-one", help="Measure several devices one after the other.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Parent of the run folder.")] = RESULTS,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show the plan, its memory and time; measure nothing."),
    ] = False,
    resume: Annotated[
        Path | None, typer.Option(help="Continue this run with its settings.")
    ] = None,
) -> None:
    """Measure kernels over sizes; write CSV and draw the roofline."""
    from rooflab.worker.process import ahead

    if dry_run and not resume:
        _planned(chosen, device)
        return
    with ahead(device):
        if not resume:
            raise typer.Exit(_swept(chosen, device, out, one_by_one=one_by_one))
        others = set(chosen.options) - {"kernels", "max_time_s"}
        if others or chosen.workload or chosen.config != "default" or out != RESULTS or dry_run:
            raise UsageError(
                "--resume uses the run's settings: the only other options are --device, "
                "--max-time, and --kernel with the run's kernel files"
            )
        from rooflab import api

        kernels, most_s = chosen.options.get("kernels", []), chosen.options.get("max_time_s")
        code, _ = _finish(lambda one: api.resume(resume, device, kernels, one, max_time_s=most_s))
        raise typer.Exit(code)


def _planned(chosen: Chosen, device: str) -> None:
    """Show the plan; of several devices, the first one's."""
    from rooflab import api
    from rooflab.devices.registry import ALL

    one = listed(device)[0]
    planned = api.plan_anywhere(_each(chosen)[0], "cuda" if one == ALL else one)
    _show(*planned, chosen.options.get("threads", []))


def _swept(chosen: Chosen, device: str, out: Path, *, one_by_one: bool) -> int:
    from rooflab import api
    from rooflab.devices.registry import ALL

    if device == ALL or "," in device:
        return sweep_here(chosen, device, out, one_by_one=one_by_one)
    command = ["rooflab", *sys.argv[1:]]
    return _sweep_each([api.make_plan(one, device) for one in _each(chosen)], out, command)


def _each(chosen: Chosen) -> list[Chosen]:
    """The same with each number of threads."""
    if "threads" not in chosen.options:
        return [chosen]
    return [
        chosen._replace(options=chosen.options | {"threads": count})
        for count in chosen.options["threads"]
    ]


def _sweep_each(plans: Sequence[tuple[Plan, Device]], out: Path, command: list[str]) -> int:
    """Measure one plan after the other, a run each; returns the largest exit code."""
    from rooflab import engine

    codes, folders = [], []
    for i, (plan, device) in enumerate(plans):
        if len(plans) > 1:
            console.out().print(_threads([plan.config.threads]), style="bold")
        code, run = _finish(partial(engine.execute, plan, device, out, command=command))
        codes.append(code)
        folders += [str(run.path)] if run else []
        if code == 130:
            if left := [other.config.threads for other, _ in plans[i + 1 :]]:
                console.warn(f"not measured: {_threads(left)}")
            return code
    if len(folders) > 1:
        command_line = shlex.join(["rooflab", "compare", *folders])
        # Not ``note``, which cuts long lines: this one is there to be copied.
        line = f"compare them, a GPU's run last: {command_line}"
        console.err().print(line, style="dim", markup=False, soft_wrap=True)
    return max(codes)


def _threads(counts: Sequence[int | None]) -> str:
    """``1 and 16 threads``."""
    *most, last = map(str, counts)
    numbers = f"{', '.join(most)} and {last}" if most else last
    return f"{numbers} thread{'s' * (numbers != '1')}"


def _finish(action: Callable[[Lines], RunData]) -> tuple[int, RunData | None]:
    """Sweep, print, draw; returns the exit code for the rows' statuses, and the run with rows."""
    from rooflab.cli import progress
    from rooflab.runs import store

    observer = progress.observer()
    Thread(target=_load_figures, daemon=True).start()
    interrupted = _interrupted(action, observer)
    run = observer.run
    if run and interrupted and run.path.exists():
        run = store.load(run.path)  # the interrupt may have come just after a row was written
    if run is None or not run.measurements:
        console.fail(f"{'interrupted before anything' if interrupted else 'nothing'} was measured")
        return (130 if interrupted else 1), None
    unread = _unread(run)
    if interrupted:
        console.warn(
            f"interrupted; {len(run.measurements)} finished rows are in {run.path} "
            f"(go on with: rooflab sweep --resume {run.path})"
        )
    else:
        console.note(f"{run.path}/")
    drawn = _draw(run)
    if unread:
        raise unread
    return (130 if interrupted else _exit_code(run.measurements) or int(not drawn)), run


def _interrupted(action: Callable[[Lines], RunData], observer: Lines) -> bool:
    """Whether a Ctrl-C ended the sweep; further ones are ignored."""
    try:
        try:
            with observer.bar:
                action(observer)
            return False
        except KeyboardInterrupt:
            console.ignore_interrupts()
    except KeyboardInterrupt:  # another one came before they were ignored
        console.ignore_interrupts()
    return True


def _load_figures() -> None:
    """Loading takes half a second: do it while the measuring processes start."""
    with suppress(Exception):  # whoever draws will tell
        import_module("rooflab.figures")


def _unread(run: RunData) -> BaseException | None:
    """Print the rows; returns the error if they cannot be read: a full disk, a closed pipe."""
    try:
        print_rows(run.measurements)
        _print_timeline(run)
        sys.stdout.flush()
    except (OSError, SystemExit) as error:  # the latter is Rich's answer to a closed pipe
        return error
    return None


def _draw(run: RunData) -> bool:
    """Draw the run's figures; False if they cannot be written."""
    from rooflab import figures

    if not run.ok:
        return True
    try:
        for path in figures.draw_all(run):
            console.note(f"{path}")
    except RooflabError as error:
        cause = error.__cause__
        why = cause.strerror if isinstance(cause, OSError) else str(error)
        console.warn(
            f"no picture: {why}; all rows are safe in {run.path} "
            f"(draw them with: rooflab plot {run.path})"
        )
        return False
    return True


def _exit_code(rows: Sequence[Measurement]) -> int:
    statuses = [row.status for row in rows]
    failed = sum(status in ("failed", "timeout") for status in statuses)
    if failed:
        console.warn(f"{failed} of {len(statuses)} points failed; the reasons are above")
    nothing = all(status == "skipped" for status in statuses)
    if nothing:
        console.warn("every point was skipped; the reasons are above")
    wrong = {"incorrect", "impossible"}.intersection(statuses)
    return 3 if wrong else 1 if failed or nothing else 0


def _print_timeline(run: RunData) -> None:
    """The fastest streamed row's, if there is one."""
    from rooflab.report import terminal
    from rooflab.runs.samples import fastest

    if found := fastest(run.path, run.ok):
        out = console.out()
        for line in terminal.timeline(*found, min(out.width, 100)):
            out.print(line, markup=False, highlight=False, soft_wrap=True)


def print_rows(rows: Sequence[Measurement]) -> None:
    """Print tables and sentences on stdout, remarks on stderr."""
    from rooflab.report import terminal

    out = console.out()
    for table in terminal.tables(rows):
        out.print(table)
    for table in terminal.counter_tables(rows):
        out.print(table)
    for line in terminal.remarks(rows):
        console.warn(line)
    lines = (terminal.sentences, terminal.bursts, terminal.scaling_sentences)
    for line in (line for one in lines for line in one(rows)):
        out.print(line, markup=False)


def _on_device(step: Step) -> int:
    """Bytes of the operands of a step that must fit into the memory of the device."""
    return 0 if step.problem.placement.parameters else step.problem.operand_bytes


def _axes(problem: Problem) -> str:
    """What the numbers of a size such as ``64x64x32`` mean: ``MxNxK``; empty if it is one."""
    parameters = problem.parameters()
    count = problem.size.partition("/")[0].partition("@")[0].count("x") + 1
    return "x".join(parameters[name].title for name in [*problem.extents][:count] if count > 1)


def _show(plan: Plan, device: Device, threads: Sequence[int]) -> None:
    """Print the plan, which is the same for each number of threads, and its estimated time."""
    from rooflab import estimate
    from rooflab.measure.levels import best_roofline, stored_levels
    from rooflab.model.units import scaled
    from rooflab.report.text import heading

    for line in plan.notes:
        console.note(line)
    free = device.free_bytes()
    if large := [step for step in plan.steps if _on_device(step) > free]:
        sizes = ", ".join(dict.fromkeys(step.problem.size for step in large))
        console.warn(f"{sizes} will be skipped: only {scaled(free)}B of memory are free")
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("problems", overflow="fold")
    for name in ("sizes", "kernels", "memory"):
        table.add_column(name, overflow="fold")
    groups: dict[tuple[str, str], list[Step]] = {}
    for step in plan.steps:
        kernels = ", ".join(kernel.name for kernel in step.kernels)
        title = ", ".join(filter(None, (heading(step.problem.record), _axes(step.problem))))
        groups.setdefault((title, kernels), []).append(step)
    for (title, kernels), steps in groups.items():
        sizes = ", ".join(step.problem.size for step in steps)
        memory = f"{scaled(max(step.problem.operand_bytes for step in steps))}B"
        table.add_row(*map(escape, (title, sizes, kernels, memory)))
    out = console.out()
    out.print(table)
    known = stored_levels(device) is not None
    roofline = best_roofline(device) if device.measures_roofs else device.roofline()
    seconds = estimate.total_s(plan, device.kind, roofline, known=known, memory=free)
    each = f"{len(threads)} runs, with {_threads(threads)}; each: " if len(threads) > 1 else ""
    out.print(
        f"{each}{plan.points} point{'s' * (plan.points != 1)}; about {estimate.text(seconds)}; "
        "slow kernels take longer",
        soft_wrap=True,
    )
