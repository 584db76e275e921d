"""Options of several commands; those of a sweep are made from ``rooflab.options``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from rooflab.errors import UsageError
from rooflab.kernels.base import is_file
from rooflab.model.problem import Parameter
from rooflab.options import Option, declared, settings
from rooflab.workloads import catalogue

RESULTS: Final = Path("results")

RunPath = Annotated[
    Path | None,
    typer.Argument(metavar="[RUN]", help="Run folder; default: the newest in results/."),
]
OutFile = Annotated[str, typer.Option("--out", "-o", help="Output file; - is stdout.")]


class Chosen(NamedTuple):
    """What was given of the options of a sweep; ``options`` as ``config.load`` takes them."""

    workload: str | None
    config: str
    options: dict[str, Any]


def takes_a_sweep(function: Callable[..., None]) -> Callable[..., None]:
    """A decorator for commands: adds every option of a sweep, passed as ``chosen``.

    Typer reads a function's signature.
    """
    added = [*map(_argument, declared().values()), *_of_workloads()]

    def command(**values: Any) -> None:
        chosen = _chosen({one.name: values.pop(one.name) for one in added})
        function(**values, chosen=chosen)

    signature = inspect.signature(function, eval_str=True)
    own = [one for one in signature.parameters.values() if one.name != "chosen"]
    command.__signature__ = signature.replace(parameters=[*added, *own])  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in (*added, *own)}
    command.__doc__, command.__name__ = function.__doc__, function.__name__
    return command


def _argument(one: Option) -> inspect.Parameter:
    """An option for Typer. Only one that is no key has a default: files set the others."""
    if one.positional:
        info = typer.Argument(metavar=one.metavar, help=one.help)
    else:
        limits = {} if one.key else {"min": one.bounds.get("ge"), "max": one.bounds.get("le")}
        limits = limits if "ge" in one.bounds else {}
        info = typer.Option(*one.flags, metavar=one.metavar, help=one.help, **limits)  # type: ignore[arg-type]
    default = None if one.key else one.default
    kind = one.typed if default is not None else one.typed | None
    return _keyword(one.name, default, Annotated[kind, info])


def _keyword(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _of_workloads() -> Iterator[inspect.Parameter]:
    """The workloads' parameters that ``--sizes`` does not set, as options."""
    found: dict[str, list[str]] = {}
    streaming: dict[str, list[str]] = {}
    for name, kind in catalogue().items():
        for parameter in kind.parameters().values():
            if parameter.name not in kind.sizes:
                found.setdefault(parameter.name, []).append(f"{name}: {parameter.description}")
        for parameter in kind.placements().values():
            if parameter.kind == "stream":
                streaming[parameter.name] = [_described(parameter)]
            else:
                found.setdefault(parameter.name, []).append(f"{name}: {_described(parameter)}")
    panels = {"Parameters of workloads": found, "Operands in host memory": streaming}
    for panel, options in panels.items():
        for name, texts in options.items():
            text = f"{'; '.join(texts)}."
            option = typer.Option(f"--{name}", metavar="VALUE", help=text, rich_help_panel=panel)
            yield _keyword(name, None, Annotated[list[str] | None, option])


def _described(parameter: Parameter) -> str:
    """The description, with the words to choose from."""
    words = f": {', '.join(parameter.choices)}" if parameter.choices else ""
    return f"{parameter.description}{words}"


def _chosen(values: dict[str, Any]) -> Chosen:
    workload, config = values.pop("workload"), values.pop("config")
    if workload == "":
        raise UsageError("workload '': name one, or none for gemm (list: rooflab workloads)")
    if workload and is_file(workload):
        raise UsageError(f"{workload[:200]} is a kernel file: write --kernel {workload[:200]}")
    given = {name: value for name, value in values.items() if value not in (None, [])}
    for name, one in declared().items():
        most = one.bounds.get("le", 0)
        if name in given and "gt" in one.bounds and not 0 < given[name] <= most:
            raise UsageError(
                f"{one.flags[0]} {given[name]:g}: give more than 0 and at most {most:g}"
            )
    return Chosen(workload, config, settings(given))
