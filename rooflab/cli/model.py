"""The command ``rooflab model``."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from rich.markup import escape

from rooflab.cli import app, console
from rooflab.cli.runs import refuse_unwritable, write_text
from rooflab.errors import UsageError
from rooflab.options import listed, parse_sizes

if TYPE_CHECKING:
    from rooflab.llm.config import LanguageModel
    from rooflab.llm.estimate import Estimate, RowsByKey
    from rooflab.llm.machine import Machine
    from rooflab.llm.operators import ModelStep
    from rooflab.runs.store import RunData

PICTURES: Final = (".png", ".svg", ".pdf")

LINKS: Final = (1e-3, 1e6)
"""Rates of links that are taken, GB/s."""

MOST_PANELS: Final = 16
"""Panels for which a figure has room."""


@app.command("model")
def model_command(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG",
            help="A Hugging Face config.json, its folder, or a shipped name (docs/llm.md).",
        ),
    ],
    batch: Annotated[
        list[str], typer.Option("--batch", "-b", help="Sequences at once; several with commas.")
    ] = ["1,8,64"],  # noqa: B006  Typer copies it
    context: Annotated[
        list[str], typer.Option("--context", "-c", help="Tokens that a decoded token sees.")
    ] = ["2048"],  # noqa: B006
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", help="Tokens of a prompt; default: --context.")
    ] = None,
    precision: Annotated[
        list[str], typer.Option("--precision", "-p", help="Of the products with weights.")
    ] = ["bf16"],  # noqa: B006
    tensor_parallel: Annotated[
        int, typer.Option("--tensor-parallel", min=1, help="GPUs that share each layer (modelled).")
    ] = 1,
    link: Annotated[
        float | None, typer.Option("--link", help="GB/s that a GPU receives from the others.")
    ] = None,
    separate: Annotated[
        bool,
        typer.Option(
            "--separate", help="Query, key and value by products of their own; so gate and up."
        ),
    ] = False,
    fused: Annotated[
        bool, typer.Option("--fused", help="Gate, up and their activation by one kernel.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cuda:N or cpu.")] = "auto",
    device_facts: Annotated[
        Path | None,
        typer.Option("--device-facts", help="Roofs of this run, or manifest.json; needs no GPU."),
    ] = None,
    measured: Annotated[
        list[Path] | None,
        typer.Option("--with", metavar="RUN", help="Runs with the times of kernels."),
    ] = None,
    stack: Annotated[
        list[str] | None,
        typer.Option("--stack", help="Also with these kernels or backends only: torch,cublas."),
    ] = None,
    problems: Annotated[
        bool, typer.Option("--problems", help="Print the sweeps that measure the operators.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", help="A .png, .svg or .pdf; or .json with a .png beside it."),
    ] = None,
    style: Annotated[
        Literal["default", "paper", "slides", "dark"], typer.Option(help="Of the figure.")
    ] = "default",
) -> None:
    """Say how fast a language model can be: by operator, at the roofs and as measured."""
    from rooflab.llm.config import read

    _check(out, link)
    if device_facts and device != "auto":
        raise UsageError("--device and --device-facts both say whose roofs: leave out one")
    if separate and fused:
        raise UsageError("--separate and --fused exclude each other: leave out one")
    if problems and (as_json or out is not None):
        raise UsageError("--problems prints commands: leave out --json and --out")
    model = read(config)
    lengths = _sizes(context, "--context")
    prompts = _sizes(prompt, "--prompt") if prompt else lengths
    batches = _sizes(batch, "--batch")
    launched = {"gpus": tensor_parallel, "separate": separate, "fused": fused}
    steps = _steps((prompts, lengths), batches, listed(precision), launched)
    if out is not None:
        _check_panels(steps)
    if problems:
        _print_problems(model, steps)
        return
    runs = _runs(measured or [])
    stacks = _stacks(runs, listed(stack or []))
    machine = _machine(device_facts, runs, device, link)
    found = _estimates(model, steps, machine, stacks)
    _print(model, found, machine, list(stacks), as_json=as_json)
    if out:
        _write(Path(out), model, found, machine, list(stacks), style)


def _check(out: str | None, link: float | None) -> None:
    if out is not None:
        if Path(out).suffix not in (*PICTURES, ".json"):
            raise UsageError(f"--out {out[:200]!r}: name a {', '.join(PICTURES)} or .json file")
        refuse_unwritable(out)
        refuse_unwritable(str(_picture(Path(out))))
    if link is not None and not LINKS[0] <= link <= LINKS[1]:
        raise UsageError(f"--link {link:g}: give {LINKS[0]:g} to {LINKS[1]:g} GB/s")


def _check_panels(steps: list[ModelStep]) -> None:
    panels = {(step.precision, step.context) for step in steps if step.phase == "decode"}
    if len(panels) > MOST_PANELS:
        raise UsageError(
            f"--out: a figure has room for {MOST_PANELS} panels, these are {len(panels)}: give "
            "fewer of --context and --precision"
        )


def _picture(out: Path) -> Path:
    return out.with_suffix(".png") if out.suffix == ".json" else out


def _sizes(given: list[str], option: str) -> list[int]:
    """Each once; raises ``UsageError``, which names the option."""
    try:
        return list(dict.fromkeys(parse_sizes(given)))
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from error


def _steps(
    lengths: tuple[list[int], list[int]],
    batches: list[int],
    precisions: list[str],
    launched: dict[str, Any],
) -> list[ModelStep]:
    """All prefills, then all decodes, by precision and context."""
    from rooflab.llm.operators import KNOWN, PHASES, ModelStep
    from rooflab.model.precision import PRECISIONS, precision_name
    from rooflab.model.problem import MAX_EXTENT

    names = list(dict.fromkeys(map(precision_name, precisions)))
    if unknown := [name for name in names if name not in KNOWN]:
        raise UsageError(f"--precision {unknown[0][:40]!r}: choose from {', '.join(KNOWN)}")
    steps = [
        ModelStep(phase, batch, length, PRECISIONS[name], **launched)
        for phase, some in zip(PHASES, lengths, strict=True)
        for name, length, batch in product(names, some, batches)
    ]
    longest = max(steps, key=lambda step: step.tokens)
    if longest.tokens > MAX_EXTENT:
        sizes = f"batch {longest.batch} times prompt {longest.context}"
        sizes = sizes if longest.phase == "prefill" else f"batch {longest.batch}"
        raise UsageError(f"{sizes} are more than {MAX_EXTENT} tokens in a step: give fewer")
    return steps


def _runs(paths: list[Path]) -> list[RunData]:
    from rooflab.runs import store

    runs = [store.load(path) for path in paths]
    for warning in (warning for run in runs for warning in run.warnings):
        console.warn(warning)
    names = list(dict.fromkeys(run.manifest.device.name for run in runs))
    if len(names) > 1:
        raise UsageError(
            f"--with: these runs are of {' and '.join(names)}: give those of one device"
        )
    return runs


def _stacks(runs: list[RunData], names: list[str]) -> dict[str, RowsByKey]:
    """The fastest rows of all kernels, and of those with one of the names."""
    from rooflab.llm.estimate import BEST, fastest

    if names and not runs:
        raise UsageError("--stack chooses among measured kernels: give them by --with RUN")
    names = list(dict.fromkeys(names))
    if "" in names or BEST in names:
        raise UsageError(f"--stack: {BEST!r} are all kernels; give names, such as torch,cublas")
    rows = [row for run in runs for row in run.ok]
    for name in names:
        if not fastest(rows, [name]):
            raise UsageError(f"--stack {name[:80]}: no row of the runs is of it")
    found = {BEST: fastest(rows)} if runs else {}
    return found | ({",".join(names): fastest(rows, names)} if names else {})


def _machine(facts: Path | None, runs: list[RunData], device: str, link: float | None) -> Machine:
    from rooflab.devices import registry as devices
    from rooflab.llm import machine

    if facts:
        found = machine.of_files(facts)
    elif runs:
        found = machine.of_manifest(runs[0].manifest)
    else:
        device_id, why = devices.resolve(device)
        if why:
            console.note(why)
        with console.err().status(f"reading the roofs of {escape(device_id)}"):
            found = machine.here(device_id)
    if runs and (name := runs[0].manifest.device.name) != found.name:
        raise UsageError(f"the runs are of {name}, the roofs of {found.name}: leave out one")
    return found.linked(link * 1e9) if link else found


def _estimates(
    model: LanguageModel, steps: list[ModelStep], machine: Machine, stacks: dict[str, RowsByKey]
) -> list[Estimate]:
    from rooflab.llm.estimate import BEST, estimate

    for note in model.notes:
        console.note(f"{model.name}: {note}")
    longest = max(step.context for step in steps)
    if model.longest and longest > model.longest:
        console.warn(f"{model.name} was made for {model.longest} tokens, not for {longest}")
    found = [estimate(model, step, machine, stacks) for step in steps]
    for name in stacks:
        if not any(one.measured(name) for one in found):
            raise UsageError(
                f"--with: no row of {'the runs' if name == BEST else name[:80]} is of an operator "
                "here: measure the sweeps of --problems, each in the cache that it names, or give "
                "other sizes"
            )
    return found


def _print_problems(model: LanguageModel, steps: list[ModelStep]) -> None:
    from rooflab.llm.estimate import problems
    from rooflab.report.llm import commands

    for line in commands(problems(model, steps)):
        print(line)


def _print(
    model: LanguageModel,
    found: list[Estimate],
    machine: Machine,
    stacks: list[str],
    *,
    as_json: bool,
) -> None:
    from rooflab.report import llm as report

    if as_json:
        sys.stdout.write(report.to_json(model, found, machine, stacks))
    else:
        out = console.out()
        for line in report.facts(model, found[0], machine):
            out.print(line, markup=False, soft_wrap=True)
        for table in report.tables(found, stacks):
            out.print(table)
        for line in report.sentences(model, found, machine, stacks):
            out.print(line, markup=False, soft_wrap=True)
    for line in report.too_large(found, machine):
        console.warn(line)


def _write(
    path: Path,
    model: LanguageModel,
    found: list[Estimate],
    machine: Machine,
    stacks: list[str],
    style: str,
) -> None:
    """The figure, and JSON if that is what was named."""
    from rooflab.figures import drawing, save, tokens
    from rooflab.figures.style import styled
    from rooflab.report.llm import to_json

    picture = _picture(path)
    if path.suffix == ".json":
        write_text(str(path), to_json(model, found, machine, stacks))
    with styled(style):
        figure = drawing.draw(tokens.make(model, found, machine, stacks))
    save(figure, picture)
    console.note(str(picture))
