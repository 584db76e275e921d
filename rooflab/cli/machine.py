"""Commands about this machine: workloads, kernels, devices, selftest, doctor."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from fnmatch import fnmatchcase
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rooflab.cli import app, console
from rooflab.errors import RooflabError, UsageError
from rooflab.model.precision import PRECISIONS
from rooflab.workloads import catalogue, find

SMALL: Final = (11, 13, 17, 19, 23, 29)
LARGE: Final = (1409, 2819, 5639, 11279, 22543, 45077)
"""Primes whose products differ, and of large ones the halves and 128th parts."""

if TYPE_CHECKING:
    from rooflab.devices.base import Device
    from rooflab.model.problem import Problem


@app.command()
def workloads(
    names: Annotated[
        list[str] | None, typer.Argument(help="Only these.", metavar="WORKLOAD")
    ] = None,
) -> None:
    """List the workloads: what they compute, their parameters, operands, FLOPs and bytes."""
    from rooflab.kernels.cuda_file.arguments import signature

    out = console.out()
    chosen = [find(name) for name in names] if names else catalogue().values()
    for kind in chosen:
        problem = kind.smallest(PRECISIONS["fp32"])
        title = f"[bold]{kind.workload}[/]: {escape(kind.title)}: {escape(kind.formula)}"
        out.print(title, soft_wrap=True)
        operands = "; ".join(_operands(kind))
        out.print(f"    FLOPs {escape(kind.work)}; operands {escape(operands)}", soft_wrap=True)
        if problem.gpus == 1:
            out.print(f"    a .cu file's entry: {escape(signature(problem))}", soft_wrap=True)
        for parameter in kind.parameters().values():
            default = "" if parameter.default is None else f", {parameter.default} by default"
            choices = f" ({', '.join(parameter.choices)})" if parameter.choices else ""
            sized = " [--sizes]" if parameter.name in kind.sizes else ""
            line = f"    {parameter.name}{sized}: {parameter.description}{choices}{default}"
            out.print(escape(line), soft_wrap=True)
    types = 'Input, Accumulate and Output are types of the precision: #include "types.cuh".'
    out.print(types, soft_wrap=True)
    out.print("Bytes are compulsory: each input read once, each output written once.")


def _operands(kind: type[Problem]) -> list[str]:
    """Each operand with its shape in extents: ``c (batch, m, n), out``."""
    extents = [p.name for p in kind.parameters().values() if p.kind == "extent"]
    for primes in (LARGE, SMALL):
        sizes: dict[str, Any] = dict(zip(extents, primes, strict=False))
        with suppress(UsageError):  # some workloads are for other sizes only
            return _shapes(kind(precision=PRECISIONS["fp32"], **sizes), sizes)
    return [one.name for one in kind.smallest(PRECISIONS["fp32"]).operands]


def _shapes(problem: Problem, sizes: Mapping[str, int]) -> list[str]:
    """Its operands, whose shapes are ``sizes``, products of two, or halves and 128th parts."""
    names = {-(-n // d): f"{x}/{d}" for x, n in sizes.items() for d in (2, 128) if n > 128}
    names |= {a * b: f"{x}·{y}" for (x, a), (y, b) in combinations(sizes.items(), 2)}
    names |= {size: name for name, size in sizes.items()}
    return [
        f"{one.name} ({', '.join(str(names.get(size, size)) for size in one.shape)})"
        + (f", {one.role}" if one.written else "")
        for one in problem.operands
    ]


@app.command()
def kernels(
    pattern: Annotated[str, typer.Argument(help="Name or glob, or a workload.")] = "*",
    workload: Annotated[
        str | None, typer.Option("--workload", "-w", help="Only kernels of this workload.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Add what each kernel teaches, and its file.")
    ] = False,
) -> None:
    """List the kernels; for those that cannot run here, show why."""
    from rooflab.kernels.sources import discover
    from rooflab.report.fitting import Fitting

    if workload is not None:
        find(workload)
    every = [kernel for kernel in discover().all() if workload in (None, kernel.workload)]
    found = [kernel for kernel in every if fnmatchcase(kernel.name, pattern)]
    if not found and pattern in catalogue():
        found = [kernel for kernel in every if kernel.workload == pattern]
    if not found:
        raise UsageError(f"no kernel matches {pattern[:40]!r} (list: rooflab kernels)")
    here: dict[str, Device | None] = {
        kind: _device_or_none(kind)
        for kind in dict.fromkeys(kernel.device_kind for kernel in found)
    }
    reasons: dict[str, list[str]] = {}
    out = console.out()
    for name in dict.fromkeys(kernel.workload for kernel in found):
        table = Fitting(spare=("precisions", "on"), title=name, title_justify="left")
        table.title_style, table.box = "bold", box.SIMPLE_HEAD
        table.add_column("kernel", no_wrap=True)
        for heading in ("on", "precisions", "what it is"):
            table.add_column(heading, overflow="fold")
        for kernel in (kernel for kernel in found if kernel.workload == name):
            reason = kernel.unavailable(here[kernel.device_kind])
            if reason:
                reasons.setdefault(reason, []).append(f"{kernel.name} ({kernel.device_kind})")
            compiler = "" if reason or not verbose else kernel.compiler()
            built = f"compiled by {compiler}" if compiler else ""
            lesson = [kernel.teaches, str(kernel.source or ""), built] if verbose else []
            table.add_row(
                f"[dim]{escape(kernel.name)} ✗[/]" if reason else f"[bold]{escape(kernel.name)}[/]",
                kernel.device_kind,
                " ".join(kernel.precisions),
                escape("\n".join([kernel.title, *filter(None, lesson)])),
            )
        out.print(table)
    for reason, names in reasons.items():
        which = ", ".join(names) if len(names) <= 3 else f"{len(names)} kernels"
        out.print(f"✗ {which}: {reason}", markup=False, soft_wrap=True)


def _device_or_none(kind: str) -> Device | None:
    from rooflab.devices import registry as devices

    try:
        return devices.open_device(kind)
    except RooflabError:
        return None


@app.command("devices")
def devices_command(
    device: Annotated[str | None, typer.Argument(help="cuda:N or cpu; default: all.")] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure all ceilings, also of caches; takes seconds.")
    ] = False,
    links: Annotated[
        bool, typer.Option("--links", help="Measure the links between all GPUs instead.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Print facts and ceilings, each with its formula and source."""
    if links:
        _print_links(device, as_json=as_json)
        return

    from rooflab.devices import registry as devices
    from rooflab.kernels.sources import discover
    from rooflab.measure.levels import known_levels, library_ceilings, stored_levels
    from rooflab.report.terminal import device_tables

    ids = [devices.resolve(device)[0]] if device else devices.all_ids()
    for kind, one in devices.kinds().items() if not device else ():
        if reason := one.probe()[1]:
            console.note(f"no {kind.upper()} device: {reason}")
    collected = []
    for name in ids:
        target = devices.open_device(name)
        with console.err().status(f"measuring {escape(name)}"):
            if measure or target.measures_roofs:
                target.claim()
            levels = known_levels(target, again=True) if measure else stored_levels(target)
            roofline = target.roofline().with_limits(*levels or ())
            if measure and not target.measures_roofs:
                roofline = roofline.with_limits(*library_ceilings(target, discover()))
        if as_json:
            facts = {key: asdict(fact) for key, fact in target.facts.items()}
            record = {"id": name, "name": target.name, "facts": facts, **asdict(roofline)}
            collected.append(record)
            continue
        console.out().print(f"[bold]{escape(target.name)}[/] ({escape(name)})")
        for table in device_tables(target.facts, roofline):
            console.out().print(table)
    if as_json:
        sys.stdout.write(json.dumps(collected, indent=1) + "\n")


def _print_links(device: str | None, *, as_json: bool) -> None:
    from rooflab.devices import registry as devices
    from rooflab.model.roofline import MissingCeiling
    from rooflab.report.terminal import route_tables

    target = devices.open_device(devices.resolve(device or "cuda")[0])
    if target.group_size < 2:
        raise UsageError(f"{target.name} is the only one here: there are no links to measure")
    target.claim()
    with console.err().status("measuring links"):
        routes = target.routes()
    if as_json:
        pairs = [
            {"from": here, "to": there, "limits": [asdict(one) for one in limits]}
            for (here, there), limits in routes.items()
        ]
        sys.stdout.write(json.dumps(pairs, indent=1) + "\n")
        return
    for title, table in route_tables(routes).items():
        console.out().print(f"[bold]{title}[/], from rows to columns")
        console.out().print(table)
    missing = [
        one for limits in routes.values() for one in limits if isinstance(one, MissingCeiling)
    ]
    for reason in dict.fromkeys(one.reason for one in missing):
        console.warn(reason)


@app.command()
def selftest(
    device: Annotated[str, typer.Option(help="auto, cuda:N or cpu.")] = "auto",
) -> None:
    """Measure which differences this machine can resolve; takes up to two minutes."""
    from rooflab import selftest
    from rooflab.devices import registry as devices
    from rooflab.functions.selftest import cold
    from rooflab.kernels.sources import discover

    device_id, why = devices.resolve(device)
    if why:
        console.note(why)
    target = devices.open_device(device_id)
    target.claim()
    kernel = selftest.choose(target, discover())
    with console.err().status(f"testing {escape(device_id)}"):
        checks = list(selftest.run(target, kernel))
        if target.kind in ("cuda", "cpu"):  # whose arrays tell where they are
            checks.append(cold(target))
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("check", "measured", "limit", "result"):
        table.add_column(heading, overflow="fold")
    for check in checks:
        result = {True: "passed", False: "failed", None: "–"}[check.ok]
        style = {True: "green", False: "red", None: ""}[check.ok]
        table.add_row(check.name, Text(check.found), check.limit or "–", Text(result, style))
    passed, sentence = selftest.verdict(checks)
    out = console.out()
    out.print(f"[bold]{escape(target.name)}[/] ({escape(device_id)}), kernel {kernel.name}")
    out.print(table)
    out.print(sentence, markup=False, soft_wrap=True)
    raise typer.Exit(0 if passed else 1)


@app.command()
def doctor() -> None:
    """Show what works here, what does not, and the command that fixes it."""
    from rooflab.doctor import checks

    out = console.out()
    for check in checks():
        mark = "[green]✓[/]" if check.ok else "–" if check.optional else "[yellow]✗[/]"
        kind = ", optional" if check.optional else ""
        out.print(f"{mark} [bold]{check.name}[/]{kind}: ", end="")
        out.print(check.found, markup=False, soft_wrap=True)
        if check.remedy:
            out.print(f"    → {check.remedy}", markup=False, soft_wrap=True)
