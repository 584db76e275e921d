"""A call of an operation, what it does, and the table of rules that say so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from rooflab.model.traffic import Again
from rooflab.programs.tensors import Tensor

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Operation:
    """One call. ``results`` are what it returned, None if only its arguments are known."""

    name: str
    arguments: Sequence[Any]
    results: Sequence[Tensor] | None = None

    @property
    def base(self) -> str:
        """The operation's name without ``aten::`` and without the sign of one in place."""
        return self.name.removeprefix("aten::").removesuffix("_")

    @property
    def in_place(self) -> bool:
        """Whether it changes its first argument."""
        return self.name.endswith("_")

    def made(self, *derived: Tensor | None) -> list[Tensor | None]:
        """Its results: what it returned, or what follows from its arguments; None is not known.

        What it returned beyond that, such as states of random numbers, is left out.
        """
        return list(derived if self.results is None else self.results[: len(derived)])


@dataclass(frozen=True, slots=True)
class Model:
    """What a call does. ``main`` are the tensors whose precision is that of its arithmetic.

    A tensor that is None is not known, so bytes are not. ``once``: as far as is known DRAM is read
    no more than once for each tensor; ``again`` is what says how often it is read instead.
    """

    flops: int | None
    reads: Sequence[Tensor | None] = ()
    writes: Sequence[Tensor | None] = ()
    main: Sequence[Tensor] = ()
    once: bool = True
    again: Again | None = None


Rule = Callable[..., Model | None]
"""Takes the call, and then its arguments in the order of the operation's schema."""

R = TypeVar("R", bound=Rule)

RULES: Final[dict[str, Rule]] = {}
"""By the name of the operation, without ``aten::``."""


def rule(*names: str, takes: str = "") -> Callable[[R], R]:
    """Make a function the rule of these operations, and of those that do the same in place.

    ``takes`` names their arguments in the order of the schema, after a bar those that may be
    missing: the function is given each by its name, and the tuple of all others as ``more``. Raises
    ``ValueError`` if an operation has a rule.
    """

    def added(function: R) -> R:
        for name in names:
            if name in RULES:
                raise ValueError(f"{name} has a rule")
            RULES[name] = _by_name(function, takes) if takes else function
        return function

    return added


def _by_name(function: Rule, takes: str) -> Rule:
    needed, _, further = (part.split() for part in takes.partition("|"))
    order = [*needed, *further]

    def named(call: Operation, *given: Any) -> Model | None:
        if len(given) < len(needed):
            raise TypeError("arguments are missing")
        return function(call, more=given[len(order) :], **dict(zip(order, given, strict=False)))

    return named


def each(names: str, what: T) -> dict[str, T]:
    """The same of these operations, in a table."""
    return dict.fromkeys(names.split(), what)


def like(one: Tensor, kind: str = "") -> Tensor:
    """A result of this shape, in memory of its own."""
    return Tensor(one.shape, kind or one.type)


def statistics(one: Tensor, *shape: int) -> Tensor:
    """Means and the like, which are kept in FP32 at least."""
    return Tensor(shape, one.type if one.type == "float64" else "float32" if one.type else "")
