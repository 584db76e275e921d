"""The command ``rooflab sweep``."""

from __future__ import annotations

import inspect
import shlex
import sys
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rooflab.cli import app, console
from rooflab.cli.options import RESULTS
from rooflab.errors import RooflabError, UsageError
from rooflab.model.precision import PRECISIONS
from rooflab.workloads import catalogue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rooflab.cli.progress import Piped
    from rooflab.devices.base import Device
    from rooflab.model.measurement import Measurement
    from rooflab.model.problem import Parameter, Problem
    from rooflab.planning import Plan, Step
    from rooflab.runs.store import Run


def _described(parameter: Parameter) -> str:
    """The description, with the words to choose from."""
    words = f": {', '.join(parameter.choices)}" if parameter.choices else ""
    return f"{parameter.description}{words}"


def _option(name: str, text: str, panel: str) -> inspect.Parameter:
    """An option with values of a parameter, in a panel of the help."""
    option = typer.Option(f"--{name}", metavar="VALUE", help=f"{text}.", rich_help_panel=panel)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[list[str] | None, option],
    )


def _of_workloads() -> list[inspect.Parameter]:
    """The workloads' parameters that ``--sizes`` does not set, as options."""
    found: dict[str, list[str]] = {}
    streaming: dict[str, str] = {}
    for name, kind in catalogue().items():
        for parameter in kind.parameters().values():
            if parameter.name not in kind.sizes:
                found.setdefault(parameter.name, []).append(f"{name}: {parameter.description}")
        for parameter in kind.placements().values():
            if parameter.kind == "stream":
                streaming[parameter.name] = _described(parameter)
            else:
                found.setdefault(parameter.name, []).append(f"{name}: {_described(parameter)}")
    own = (
        _option(name, "; ".join(texts), "Parameters of workloads") for name, texts in found.items()
    )
    moved = (_option(name, text, "Operands in host memory") for name, text in streaming.items())
    return [*own, *moved]


def including(
    added: Sequence[inspect.Parameter], name: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator for commands: ``added`` options, whose values are passed as the mapping ``name``.

    Typer reads a function's signature.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        def command(**values: Any) -> None:
            mapping = {one.name: values.pop(one.name) for one in added}
            function(**values, **{name: mapping})

        signature = inspect.signature(function, eval_str=True)
        own = [p for given, p in signature.parameters.items() if given != name]
        command.__signature__ = signature.replace(parameters=[*added, *own])  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in (*added, *own)}
        command.__doc__, command.__name__ = function.__doc__, function.__name__
        return command

    return decorate


def _shared(
    *,
    workload: Annotated[
        str | None,
        typer.Argument(metavar="[WORKLOAD]", help="List: rooflab workloads. Default: gemm."),
    ] = None,
    kernel: Annotated[
        list[str] | None,
        typer.Option("--kernel", "-k", help="Name, glob, .cu or .py file; several with commas."),
    ] = None,
    sizes: Annotated[
        str | None, typer.Option(help="Sizes: 512, or 256,512, or 256:8192:x2, or 2^20.")
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(help="All extents, as MxNxK; several with commas.")
    ] = None,
    precision: Annotated[
        list[str] | None,
        typer.Option("--precision", "-p", help=f"{', '.join(PRECISIONS)} or all."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE,…", help="Any other workload parameter."),
    ] = None,
    threads: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NUMBER|all",
            help="CPU threads; all: one per physical core, the default. A run for each value.",
        ),
    ] = None,
    config: Annotated[
        str, typer.Option(help="quick, default, full, memory, llm, cutlass, or a TOML file.")
    ] = "default",
    seed: Annotated[
        int | None, typer.Option(help="Seed of the inputs and of the kernels' order.")
    ] = None,
    fill: Annotated[
        str | None, typer.Option(help="Inputs: uniform, normal, zeros or ints.")
    ] = None,
    cache: Annotated[
        str | None, typer.Option(help="cold: operands are not in the cache; or warm.")
    ] = None,
    compiler: Annotated[
        str | None, typer.Option(help="Of .cu files: nvcc, nvrtc, or auto: nvcc for your files.")
    ] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(help="Only these variants of kernels that have some: name or glob."),
    ] = None,
    retune: Annotated[
        bool | None, typer.Option("--retune", help="Search the fastest variants again.")
    ] = None,
    counters: Annotated[
        bool | None,
        typer.Option("--counters", help="Count FLOPs and bytes after timing (GPU; extra cupti)."),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(min=3, max=1000, help="Exact number of rounds of each point."),
    ] = None,
    precision_percent: Annotated[
        float | None,
        typer.Option(help="A point is done when its 95 % interval is within ± this many percent."),
    ] = None,
    max_time: Annotated[
        float | None, typer.Option(help="Approximate limit for all points together, in seconds.")
    ] = None,
) -> None:
    """The options of every sweep, on one device and on many."""


SHARED: Final = [
    *inspect.signature(_shared, eval_str=True).parameters.values(),
    *_of_workloads(),
]


@app.command()
@including(SHARED, "chosen")
def sweep(
    *,
    chosen: dict[str, Any],
    device: Annotated[
        str, typer.Option(help="auto, cuda:N or cpu; several, or all: every GPU here.")
    ] = "auto",
    one_by_one: Annotated[
        bool, typer.Option("--one-by-one", help="Several devices: one after the other.")
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

    workload = chosen["workload"]
    if workload == "":
        raise UsageError("workload '': name one, or none for gemm (list: rooflab workloads)")
    given = options(chosen)
    if dry_run and not resume:
        _planned(chosen, given, device)
        return
    with ahead(device):
        if not resume:
            raise typer.Exit(_swept(chosen, given, device, out, one_by_one=one_by_one))
        others = set(given) - {"kernels", "max_time_s"}
        if others or workload or chosen["config"] != "default" or out != RESULTS or dry_run:
            raise UsageError(
                "--resume uses the run's settings: the only other options are --device, "
                "--max-time, and --kernel with the run's kernel files"
            )
        raise typer.Exit(_resumed(resume, given, device))


def _planned(chosen: dict[str, Any], given: dict[str, Any], device: str) -> None:
    """Show the plan, that of the first of several devices; of all of them a GPU is the first."""
    from rooflab import api
    from rooflab.config import listed
    from rooflab.devices.open import ALL

    counts = _threads_of(given)
    first = given | ({"threads": counts[0]} if counts else {})
    one = listed(device)[0]
    one = "cuda" if one == ALL else one
    _show(*api.plan_anywhere(chosen["workload"], one, chosen["config"], first), counts)


def _resumed(run: Path, given: dict[str, Any], device: str) -> int:
    from rooflab import api

    kernels, most_s = given.get("kernels", []), given.get("max_time_s")
    code, _ = _finish(lambda one: api.resume(run, device, kernels, one, max_time_s=most_s))
    return code


def _swept(
    chosen: dict[str, Any], given: dict[str, Any], device: str, out: Path, *, one_by_one: bool
) -> int:
    from rooflab import api
    from rooflab.config import listed
    from rooflab.devices.open import ALL

    command = ["rooflab", *sys.argv[1:]]
    if device == ALL or "," in device:
        from rooflab.cli.fleet import sweep_here

        return sweep_here(chosen, listed(device), out, command, one_by_one=one_by_one)
    counts: list[Any] = [{"threads": count} for count in _threads_of(given)]
    plans = [
        api.make_plan(chosen["workload"], device, chosen["config"], given | count)
        for count in counts or [{}]
    ]
    return _sweep_each(plans, out, command)


def _threads_of(given: Mapping[str, Any]) -> list[int]:
    from rooflab.config import listed
    from rooflab.devices.open import thread_counts

    return thread_counts(listed(given["threads"])) if "threads" in given else []


def options(chosen: dict[str, Any]) -> dict[str, Any]:
    """What was given of the ``SHARED`` options, under the names of ``config.load``."""
    from rooflab.config import MOST_PERCENT, MOST_SECONDS
    from rooflab.kernels.base import is_file

    values = dict(chosen)
    workload = values.pop("workload")
    del values["config"]
    if workload and is_file(workload):
        raise UsageError(f"{workload[:200]} is a kernel file: write --kernel {workload[:200]}")
    for name, most in (("max_time", MOST_SECONDS), ("precision_percent", MOST_PERCENT)):
        value = values[name]
        if value is not None and not 0 < value <= most:
            option = name.replace("_", "-")
            raise UsageError(f"--{option} {value:g}: give more than 0 and at most {most:g}")
    renamed = {"kernel": "kernels", "shape": "shapes", "precision": "precisions"}
    renamed |= {"max_time": "max_time_s"}
    timing = _timing(values.pop("rounds"), values.pop("precision_percent"))
    settings = _settings(values.pop("set_") or [])
    named = {renamed.get(name, name): value for name, value in values.items()}
    found = {**named, "timing": timing, **settings}
    return {name: value for name, value in found.items() if value not in (None, [])}


def _timing(rounds: int | None, precision_percent: float | None) -> dict[str, Any] | None:
    given: dict[str, Any] = {}
    if rounds is not None:
        given |= {"min_rounds": rounds, "max_rounds": rounds, "slow_rounds": min(rounds, 100)}
    if precision_percent is not None:
        given["precision_percent"] = precision_percent
    return given or None


def _settings(words: Sequence[str]) -> dict[str, list[str]]:
    """Parameters from ``alpha=2,beta=0.5``; a name may be given more than once."""
    found: dict[str, list[str]] = {}
    for part in (part for word in words for part in word.split(",")):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            example = f"{part.strip()[:20] or 'beta'}=1" if not equals else "beta=1"
            raise UsageError(f"--set {part[:40]!r}: write NAME=VALUE, such as --set {example}")
        found.setdefault(name.strip(), []).append(value.strip())
    return found


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
        line = f"compare them, with a GPU's run at the end if there is one: {command_line}"
        console.err().print(line, style="dim", markup=False, soft_wrap=True)
    return max(codes)


def _threads(counts: Sequence[int | None]) -> str:
    """``1 and 16 threads``."""
    *most, last = map(str, counts)
    numbers = f"{', '.join(most)} and {last}" if most else last
    return f"{numbers} thread{'s' * (numbers != '1')}"


def _finish(action: Callable[[Piped], Run]) -> tuple[int, Run | None]:
    """Sweep, print, draw; returns the exit code for the rows' statuses, and the run with rows."""
    from rooflab.cli import progress
    from rooflab.runs import store

    observer, interrupted = progress.observer(), False
    Thread(target=_load_figures, daemon=True).start()
    try:
        with observer:
            action(observer)
    except KeyboardInterrupt:
        interrupted = True
        console.ignore_interrupts()
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


def _load_figures() -> None:
    """What draws takes half a second to load: as long as the measuring processes start."""
    with suppress(Exception):  # whoever draws will tell
        import_module("rooflab.figures")


def _unread(run: Run) -> BaseException | None:
    """Print the rows; why nobody reads them, such as a full disk, or a reader that has ended."""
    try:
        print_rows(run.measurements)
        _print_timeline(run)
        sys.stdout.flush()
    except (OSError, SystemExit) as error:  # the latter is Rich's answer to a closed pipe
        return error
    return None


def _draw(run: Run) -> bool:
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


def _print_timeline(run: Run) -> None:
    """The fastest streamed row's, if there is one."""
    from rooflab.report import terminal
    from rooflab.runs import timelines

    if found := timelines.fastest(run.path, run.ok):
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
    return 0 if step.problem.placement else step.problem.operand_bytes


def _axes(problem: Problem) -> str:
    """What the numbers of a size such as ``64x64x32`` mean: ``MxNxK``; empty if it is one."""
    parameters = problem.parameters()
    count = problem.size.partition("/")[0].partition("@")[0].count("x") + 1
    return "x".join(parameters[name].title for name in [*problem.extents][:count] if count > 1)


def _show(plan: Plan, device: Device, threads: Sequence[int]) -> None:
    """Print the plan, which is the same for each number of threads, and its estimated time."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from rooflab import estimate
    from rooflab.measure.levels import best_roofs, stored_levels
    from rooflab.model.roofline import Ceiling, Roofline
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
    roofline = Roofline(tuple(one for one in best_roofs(device) if isinstance(one, Ceiling)))
    roofline = roofline if device.measures_roofs else device.roofline()
    seconds = estimate.total_s(plan, device.kind, roofline, known=known, memory=free)
    each = f"{len(threads)} runs, with {_threads(threads)}; each: " if len(threads) > 1 else ""
    out.print(
        f"{each}{plan.points} point{'s' * (plan.points != 1)}; about {estimate.text(seconds)}; "
        "slow kernels take longer",
        soft_wrap=True,
    )
