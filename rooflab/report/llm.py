"""Estimates of a language model as tables, sentences, JSON, and the sweeps that they lack."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from rich.markup import escape
from rich.table import Table

from rooflab.llm.config import LanguageModel
from rooflab.llm.estimate import (
    MOST,
    Estimate,
    TimedOperator,
    largest_batch,
    parameters,
    ridge_batch,
    token_bytes,
)
from rooflab.llm.formulas import Formula
from rooflab.llm.machine import GIVEN, Machine
from rooflab.llm.operators import ModelStep, warm
from rooflab.model.problem import PEER, Problem
from rooflab.model.roofline import Ceiling
from rooflab.model.units import scaled
from rooflab.report.fitting import FigureTable
from rooflab.report.text import as_json, digits, share_text

OWN: Final = " *"
"""After the work of an operator that no workload describes."""

LEAST: Final = 0.005
"""Operators with a smaller part of the time are one line together."""

SPARE: Final = ("work", "owes µs", "%", "roof µs")
"""Columns that are left out of narrow tables of operators if there are measured ones."""

FEW: Final = 3
"""Operators without a row that are named."""


def heading(step: ModelStep) -> str:
    """``decode BF16, context 2048``."""
    what = "prompt" if step.phase == "prefill" else "context"
    gpus = f", {step.gpus} GPUs" if step.gpus > 1 else ""
    return f"{step.phase} {step.precision.title}, {what} {step.context}{gpus}"


def facts(model: LanguageModel, one: Estimate, machine: Machine) -> Iterator[str]:
    """The model, and the roofs that an estimate refers to."""
    step = one.step
    where = "on each GPU " if step.gpus > 1 else ""
    count = f"{_counted(parameters(model, step))} parameters"
    yield (
        f"{model.name}: {where}{count}, {scaled(one.weights)}B; "
        f"cache {scaled(token_bytes(model, step))}B for a token"
    )
    roofline, names = machine.roofline, (step.precision.name, step.between.name)
    found = [*map(roofline.compute, dict.fromkeys(names)), roofline.bandwidth()]
    found += [roofline.bandwidth(PEER)] if step.gpus > 1 else []
    told = (f"{limit.key} {limit.amount} ({_source(limit)})" for limit in found if limit)
    yield f"{machine.name}: {', '.join(told)}"


def _source(limit: Ceiling) -> str:
    return "given" if limit.formula == GIVEN else limit.provenance


def _counted(count: int) -> str:
    for least, name in ((10**9, "billion"), (10**6, "million")):
        if count >= least:
            return f"{digits(count / least, 3)} {name}"
    return str(count)


# Tables ------------------------------------------------------------------------------------------


def tables(estimates: Sequence[Estimate], stacks: Sequence[str]) -> Iterator[Table]:
    """For each phase, precision and context a table of batches, and one of the operators.

    That is of the largest batch that fits, or of the smallest one if none does; with measured rows
    of the largest one that has some.
    """
    for title, group in groupby(estimates, key=lambda one: heading(one.step)):
        some = list(group)
        yield _batches(title, some, stacks)
        fitting = [one for one in some if one.fits]
        measured = [one for one in fitting if any(map(one.measured, stacks))]
        least = min(some, key=lambda one: one.step.batch)
        shown = max(measured or fitting, key=lambda one: one.step.batch, default=least)
        yield _operators(f"{title}, batch {shown.step.batch}: operators", shown, stacks)


def _batches(title: str, some: Sequence[Estimate], stacks: Sequence[str]) -> Table:
    table = FigureTable(title, ("bound", "memory", "tokens/s", "roof ms"))
    if stacks:
        table.padding = (0, 1, 0, 0)  # so that it fits 80 columns
    all_fit = all(one.fits for one in some)
    for name in ("batch", "memory", *["fits"] * (not all_fit), "roof ms", "tokens/s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("bound", no_wrap=True)
    for stack in stacks:
        table.add_column(f"{escape(_first(stack))} ms", justify="right", no_wrap=True)
        table.add_column("tokens/s", justify="right", no_wrap=True)
    for one in some:
        cause, part = one.bound
        fits = [] if all_fit else ["yes" if one.fits else "[yellow]no[/]"]
        cells = [str(one.step.batch), f"{scaled(one.needs)}B", *fits, *_speed(one, one.roof_us)]
        cells.append(f"{cause} {share_text(part, 1)}")
        for stack in stacks:
            unmeasured = bool(one.unmeasured(stack))
            speed = _speed(one, one.us(stack), least=unmeasured)
            cells += speed if one.measured(stack) else ("–", "")
        table.add_row(*cells)
    return table


def _first(stack: str) -> str:
    """The first name of a stack: the head of a column has no room for all."""
    return stack.partition(",")[0]


def _speed(one: Estimate, us: float, *, least: bool = False) -> tuple[str, str]:
    """Milliseconds and tokens per second; ``least`` if the time is a lower bound."""
    longer, fewer = ("≥ ", "≤ ") if least else ("", "")
    return f"{longer}{digits(us / 1e3, 3)}", f"{fewer}{digits(one.tokens_per_s(us), 3)}"


def _operators(title: str, one: Estimate, stacks: Sequence[str]) -> Table:
    table = FigureTable(title, ("kernel", "bound", "times", *SPARE * bool(stacks)))
    table.padding = (0, 1, 0, 0)
    table.add_column("operator", overflow="fold")
    table.add_column("work", overflow="fold", no_wrap=bool(stacks))
    last = stacks[-1] if stacks else ""
    for name in ("times", "roof µs", f"% of {escape(_first(last))}" if last else "%"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("bound", no_wrap=True)
    for stack in stacks:
        table.add_column(f"{escape(_first(stack))} µs", justify="right", no_wrap=True)
        table.add_column("owes µs", justify="right", no_wrap=True)
    if stacks:
        table.add_column("kernel", overflow="fold")
    whole = one.us(last) if last else one.roof_us
    ordered = sorted(one.operators, key=lambda each: -_us(each, last))
    shown = [each for each in ordered if _us(each, last) >= LEAST * whole]
    for timed in shown:
        of = [timed.operator.name, escape(work(timed)), str(timed.operator.times)]
        row = timed.rows[last] if last else None
        kernel = [escape(row.kernel) if row else ""] * bool(stacks)
        table.add_row(*of, *_times([timed], stacks, whole), *kernel)
    if rest := ordered[len(shown) :]:
        kernel = [""] * bool(stacks)
        table.add_row(f"{len(rest)} others", "", "", *_times(rest, stacks, whole), *kernel)
    return table


def _times(some: Sequence[TimedOperator], stacks: Sequence[str], whole: float) -> list[str]:
    """Microseconds at the roof, the part of the step, the bound, and what was measured."""
    roof_us, last = sum(one.roof_us for one in some), stacks[-1] if stacks else ""
    part = sum(_us(one, last) for one in some) / whole
    bounds = {one.roof.bound for one in some}
    cells = [digits(roof_us, 3), f"{100 * part:.1f}", bounds.pop() if len(bounds) == 1 else ""]
    for stack in stacks:
        us = [one.us(stack) for one in some]
        measured = [one for one in us if one is not None]
        total = sum(measured)
        known = len(measured) == len(us)
        cells += [digits(total, 3), digits(total - roof_us, 3)] if known else ["–", ""]
    return cells


def _us(timed: TimedOperator, stack: str) -> float:
    return (timed.us(stack) if stack else None) or timed.roof_us


def work(timed: TimedOperator) -> str:
    """``gemm 64x6144x4096``; with a mark if no workload describes it."""
    of = timed.operator.work
    if isinstance(of, Formula):
        return f"{of.kind} {of.size}{OWN}"
    return f"{of.workload} {of.size}"


# Sentences ---------------------------------------------------------------------------------------


def sentences(
    model: LanguageModel, estimates: Sequence[Estimate], machine: Machine, stacks: Sequence[str]
) -> Iterator[str]:
    """What the tables do not say."""
    decodes = [one.step for one in estimates if one.step.phase == "decode"]
    for title, steps in groupby(decodes, key=heading):
        yield f"{title}: {_limits(model, next(steps), machine)}"
    every = (each.operator for one in estimates for each in one.operators)
    if own := dict.fromkeys(one.name for one in every if isinstance(one.work, Formula)):
        which = ", ".join(own)
        yield f"* no workload yet ({which}): FLOPs and bytes are modelled, and nothing is measured"
    if model.experts:
        yield "experts: modelled as if each token chose at random"
    if estimates[0].step.gpus > 1:
        yield "several GPUs: modelled, one operator after the other, links at their roof"
    for stack in stacks:
        if "," in stack:
            yield f"{_first(stack)}: the fastest of {stack}"
        names = dict.fromkeys(
            each.operator.name
            for one in estimates
            if one.measured(stack)
            for each in one.unmeasured(stack)
        )
        if names:
            missing = f"{_some(list(names))} not measured, at the roof here"
            yield f"{_first(stack)} is a lower bound: {missing}"


def _limits(model: LanguageModel, step: ModelStep, machine: Machine) -> str:
    ridge = ridge_batch(model, step, machine.roofline)
    most = largest_batch(model, step, machine.memory)
    where = f"the ridge at batch {ridge}" if ridge else f"no ridge up to batch {MOST}"
    room = "" if most is None else f"; memory has room for {f'batch {most}' if most else 'none'}"
    return f"products with weights meet {where}{room}"


def _some(names: Sequence[str]) -> str:
    rest = len(names) - FEW
    more = f"; and {rest} more are" if rest > 0 else " are" if len(names) > 1 else " is"
    return f"{'; '.join(names[:FEW])}{more}"


def too_large(estimates: Iterable[Estimate], machine: Machine) -> Iterator[str]:
    """How much the smallest batch of a table needs that does not fit; the table has the others."""
    large = [one for one in estimates if not one.fits]
    for title, group in groupby(large, key=lambda one: heading(one.step)):
        one = min(group, key=lambda one: one.needs)
        each = " on each GPU" if one.step.gpus > 1 else ""
        yield (
            f"{title}, batch {one.step.batch} does not fit: weights and cache need "
            f"{scaled(one.needs)}B{each}, {machine.name} has {scaled(one.memory or 0)}B"
        )


# Sweeps ------------------------------------------------------------------------------------------


def commands(problems: Iterable[Problem]) -> list[str]:
    """The sweeps that measure these problems, a command each for those with the same options."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for one in problems:
        words = ["rooflab", "sweep", one.workload, "-p", one.precision.name]
        words += ["--cache", "warm"] * warm(one)
        for name, value in one.settings.items():
            if value != one.parameters()[name].default:
                words += [f"--{name.replace('_', '-')}", str(value)]
        groups.setdefault(tuple(words), []).append(_shape(one))
    return [shlex.join([*words, "--shape", ",".join(shapes)]) for words, shapes in groups.items()]


def _shape(one: Problem) -> str:
    """The size in the notation of ``--shape``, which has two numbers or more."""
    first, second, *_ = one.extents.values()
    return f"{first}x{second}" if one.size.isdecimal() else one.size


# JSON --------------------------------------------------------------------------------------------


def to_json(
    model: LanguageModel, estimates: Sequence[Estimate], machine: Machine, stacks: Sequence[str]
) -> str:
    """Everything, for other programs."""
    step = estimates[0].step
    return as_json(
        {
            "model": model.name,
            "model_type": model.family,
            "parameters": parameters(model, step),
            "device": machine.name,
            "memory_bytes": machine.memory,
            "gpus": step.gpus,
            "modelled": step.gpus > 1 or model.experts is not None,
            "steps": [_step(model, one, machine, stacks) for one in estimates],
        }
    )


def _step(
    model: LanguageModel, one: Estimate, machine: Machine, stacks: Sequence[str]
) -> dict[str, Any]:
    step = one.step
    return {
        "phase": step.phase,
        "precision": step.precision.name,
        "batch": step.batch,
        "context": step.context,
        "weight_bytes": one.weights,
        "cache_bytes": one.cache,
        "fits": one.fits,
        "roof_us": one.roof_us,
        "tokens_per_s": one.tokens_per_s(one.roof_us),
        "bound": one.bound[0],
        "ridge_batch": ridge_batch(model, step, machine.roofline)
        if step.phase == "decode"
        else None,
        "stacks": {
            name: {
                "us": one.us(name),
                "tokens_per_s": one.tokens_per_s(one.us(name)),
                "lower_bound": bool(one.unmeasured(name)),
            }
            for name in stacks
        },
        "operators": [_operator(timed, stacks) for timed in one.operators],
    }


def _operator(timed: TimedOperator, stacks: Sequence[str]) -> dict[str, Any]:
    of, operator = timed.operator.work, timed.operator
    known = isinstance(of, Problem)
    return {
        "name": operator.name,
        "workload": of.workload if isinstance(of, Problem) else None,
        "size": of.size,
        "parameters": {**of.extents, **of.settings} if isinstance(of, Problem) else {},
        "modelled": not known,
        "precision": of.precision.name,
        "times": operator.times,
        "weights": operator.weights,
        "flops": of.flops_each,
        "traffic": of.traffic,
        "roof_us": timed.roof.us,
        "bound": timed.roof.bound,
        "measured": {
            name: {"kernel": row.kernel, "time_us": row.time_us, "cache": row.cache}
            for name in stacks
            if (row := timed.rows[name])
        },
    }
