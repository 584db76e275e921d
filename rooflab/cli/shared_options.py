"""Options of several commands; those of a sweep are made from ``rooflab.options``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from rooflab.errors import UsageError
from rooflab.kernels.base import is_file
from rooflab.options import OPTIONS, Chosen, Option, chosen, listed
from rooflab.workloads import DEFAULT, catalogue

RESULTS: Final = Path("results")

RunPath = Annotated[
    Path | None,
    typer.Argument(metavar="[RUN]", help="Run folder; default: the newest in results/."),
]
OutFile = Annotated[str, typer.Option("--out", "-o", help="Output file; - is stdout.")]


Added = Callable[[], Iterable[inspect.Parameter]]


class Including:
    """A command with more options, which are made when Typer reads its signature.

    It is called with all values; ``made`` of those that are given is the function's ``chosen``.
    """

    def __init__(
        self, function: Callable[..., None], added: Added, made: Callable[[dict[str, Any]], Any]
    ) -> None:
        self._function, self._more, self._made = function, added, made
        self.__doc__, self.__name__ = function.__doc__, function.__name__

    def __call__(self, **values: Any) -> None:
        """Run the command with the values of all its options."""
        options = {one.name: values.pop(one.name) for one in self._added}
        given = {name: value for name, value in options.items() if value not in (None, [])}
        self._function(**values, chosen=self._made(given))

    @cached_property
    def _added(self) -> list[inspect.Parameter]:
        return list(self._more())

    @cached_property
    def __signature__(self) -> inspect.Signature:
        signature = inspect.signature(self._function, eval_str=True)
        own = [one for one in signature.parameters.values() if one.name != "chosen"]
        every = sorted([*self._added, *own], key=lambda one: one.kind)
        return signature.replace(parameters=every)

    @property
    def __annotations__(self) -> dict[str, Any]:  # type: ignore[override]
        return {one.name: one.annotation for one in self.__signature__.parameters.values()}


def including(
    added: Added, made: Callable[[dict[str, Any]], Any] = dict
) -> Callable[[Callable[..., None]], Including]:
    """A decorator for commands: adds options, and passes ``made`` of those that are given."""
    return lambda function: Including(function, added, made)


def takes_a_sweep(function: Callable[..., None]) -> Including:
    """A decorator for commands: adds every option of a sweep, passed as ``chosen``."""
    return Including(
        function,
        lambda: [_WORKLOAD, *map(_argument, OPTIONS.values()), *_of_workloads()],
        lambda given: _chosen(given.pop("workload", None), given),
    )


PROBLEMS: Final = ("sizes", "shapes", "precisions", "parameters", "threads")
"""Options of a sweep that say what is computed."""


def takes_problems(function: Callable[..., None]) -> Including:
    """A decorator for commands: adds the options that choose problems, passed as ``chosen``."""
    workload = keyword(
        "workload",
        DEFAULT,
        Annotated[str, typer.Option("--workload", "-w", help="List: rooflab workloads.")],
    )
    return Including(
        function,
        lambda: [workload, *(_argument(OPTIONS[name]) for name in PROBLEMS), *_of_workloads()],
        lambda given: Chosen(given.pop("workload"), "", given),
    )


def _argument(one: Option) -> inspect.Parameter:
    """An option for Typer. The bounds of keys are checked with the configuration."""
    least = None if one.key else one.bounds.get("ge")
    most = one.bounds["le"] if least is not None else None
    info = typer.Option(*one.flags, metavar=one.metavar, help=one.text, min=least, max=most)
    kind = one.typed | None if one.unset is None else one.typed
    return keyword(one.name, one.unset, Annotated[kind, info])


def keyword(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    """A parameter of a command, for Typer."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


_WORKLOAD: Final = keyword(
    "workload",
    None,
    Annotated[
        str | None,
        typer.Argument(metavar="[WORKLOAD]", help="List: rooflab workloads. Default: gemm."),
    ],
)


def _of_workloads() -> Iterator[inspect.Parameter]:
    """The workloads' parameters that ``--sizes`` does not set, as options."""
    own: dict[str, dict[str, list[str]]] = {}
    moved: dict[str, str] = {}
    for name, kind in catalogue().items():
        given = [one for one in kind.parameters().values() if one.name not in kind.sizes]
        for one in (*given, *kind.placements().values()):
            text = one.description + (f" ({', '.join(one.choices)})" if one.choices else "")
            if one.kind == "stream":  # the same for every workload
                moved[one.name] = text
            else:
                own.setdefault(one.name, {}).setdefault(text, []).append(name)
    texts = {
        name: "; ".join(f"{', '.join(kinds)}: {text}" for text, kinds in found.items())
        for name, found in own.items()
    }
    for panel, found in (("Parameters of workloads", texts), ("Operands in host memory", moved)):
        for name, text in found.items():
            help = f"{text}."
            spelt = f"--{name.replace('_', '-')}"
            option = typer.Option(spelt, metavar="VALUE", help=help, rich_help_panel=panel)
            yield keyword(name, None, Annotated[list[str] | None, option])


def _chosen(workload: str | None, given: dict[str, Any]) -> Chosen:
    """The sweep that the options describe; ``threads`` is a list of numbers."""
    if workload == "":
        raise UsageError("workload '': name one, or none for gemm (list: rooflab workloads)")
    if workload and is_file(workload):
        raise UsageError(f"{workload[:200]} is a kernel file: write --kernel {workload[:200]}")
    for name, one in OPTIONS.items():
        most = one.bounds.get("le", 0)
        if name in given and "gt" in one.bounds and not 0 < given[name] <= most:
            raise UsageError(
                f"{one.flags[0]} {given[name]:g}: give more than 0 and at most {most:g}"
            )
    if "threads" in given:
        from rooflab.devices.registry import thread_counts

        given["threads"] = thread_counts(listed(given["threads"]))
    return chosen(workload, given)
