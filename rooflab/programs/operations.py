"""Modelled work of PyTorch's operations, from the shapes of their arguments. Pure.

Where hardware counters may not be read, this is what an operation must do at least:

- **Bytes** are compulsory: each argument is read once and each result is written once, an argument
  that is changed in place counts for both, and of an expanded tensor only what is in memory.
- **FLOPs** of a product of M × K and K × N are 2·M·N·K, as ``torch.utils.flop_counter`` counts
  them; so are those of convolutions and attention, except causal attention (``rules.attention``)
  and gradients of grouped convolutions (``rules.convolutions``).
- **Other FLOPs** are one for each element and each addition, multiplication, division, root,
  exponential, logarithm and maximum in the definition. What has no such definition (``gelu``, and
  copies) has none, but bytes. Complex numbers are not counted: None.

An operation has a rule in ``rules``: a function that takes the arguments in the order of the
operation's schema (aten/src/ATen/native/native_functions.yaml) and says what is read and written.
An operation without a rule has no work: it is never guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rooflab.devices.records import Needs
from rooflab.programs.equivalents import equivalent
from rooflab.programs.rules import (  # noqa: F401  each adds its rules
    attention,
    convolutions,
    optimizers,
    products,
    reductions,
    rows,
)
from rooflab.programs.rules.base import RULES, Operation, Rule
from rooflab.programs.rules.elements import foreach
from rooflab.programs.tensors import Tensor, from_trace, tensors
from rooflab.runs.notation import written

MISFITS: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What a rule raises if the arguments are not those of its operation."""


def work_of(
    name: str,
    shapes: Sequence[Any],
    types: Sequence[str],
    concrete: Sequence[str],
    strides: Sequence[Any] = (),
) -> Needs | None:
    """The work of a call as a trace of ``torch.profiler`` with ``record_shapes`` describes it.

    The arguments are its name and the trace's "Input Dims", "Input type", "Concrete Inputs" and
    "Input Strides". The result is None for an operation without a rule, and for arguments that do
    not fit. A trace lacks the types of lists of tensors: their bytes are None.
    """
    try:
        return modelled(Operation(name, from_trace(shapes, types, concrete, strides)))
    except MISFITS:
        return None


def modelled(call: Operation) -> Needs | None:
    """The work of a call, None without a rule.

    Raises one of ``MISFITS`` if its arguments are not those of the operation.
    """
    rule = _rule(call)
    model = rule(call, *call.arguments) if rule else None
    if model is None:
        return None
    moved = [one.bytes if one else None for one in (*model.reads, *model.writes)]
    known = [one for one in moved if one is not None]
    given = model.main or tensors(model.reads) or tensors(model.writes)
    strange = any(one.type.startswith("complex") for one in given)
    return Needs(
        None if strange and model.flops else model.flops,
        sum(known) if len(known) == len(moved) else None,
        _precision(given),
        _same_as(call),
        model.once,
        model.again,
    )


def _same_as(call: Operation) -> str:
    try:
        problem = equivalent(call)
    except MISFITS:
        return ""
    return written(problem) if problem else ""


def _rule(call: Operation) -> Rule | None:
    if not call.name.startswith("aten::"):
        return None
    base = call.base
    if base.startswith("_foreach_") and base.removeprefix("_foreach_") in RULES:
        return foreach
    return RULES.get(base)


def _precision(given: Sequence[Tensor]) -> str:
    """That of the largest tensor of real numbers, or of the largest; empty if not known."""
    largest = max(given, key=lambda one: (one.floating, one.elements), default=None)
    return largest.precision if largest else ""
