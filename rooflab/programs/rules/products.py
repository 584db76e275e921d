"""Products of matrices."""

from __future__ import annotations

from math import prod
from typing import Any

from rooflab.model.traffic import MEASURED, Product
from rooflab.programs.rules.base import Model, Operation, rule
from rooflab.programs.tensors import PACKED, Tensor, tensors, type_of


@rule("mm", "bmm", "_int_mm", takes="a b")
@rule("addmm", "baddbmm", "_addmm_activation", takes="added a b | beta")
@rule("_scaled_mm", takes="a b scale_a scale_b | bias scale_result kind")
def _product(
    call: Operation,
    a: Tensor,
    b: Tensor,
    added: Tensor | None = None,
    beta: Any = 1,
    kind: Any = None,
    more: Any = (),
    **read: Any,
) -> Model:
    """``a @ b``, of matrices or batches of them. ``added`` is read too, and written in place.

    The addition is not counted, as usual; with a ``beta`` of 0 nothing is added. Two numbers in an
    element, of FP4, are two products.
    """
    *batch, m, k = a.shape
    n = b.shape[-1]
    if len(a.shape) not in (2, 3) or b.shape != (*batch, k, n):
        raise ValueError("no product")
    k *= 2 if a.type == PACKED else 1
    if beta == 0 and not call.in_place:
        added = None
    given = "int32" if call.base == "_int_mm" else type_of(kind)
    out = added if call.in_place else Tensor((*batch, m, n), given or a.type)
    writes = [out] if call.in_place else call.made(out)
    reads = tensors([a, b, added, *read.values()])
    what = _measured(Product(m, n, k, prod(batch)), a, b)
    return Model(2 * prod(batch) * m * n * k, reads, writes, [a], once=False, again=what)


def _measured(what: Product, *operands: Tensor) -> Product | None:
    """The product if traffic of its kind has been compared with counts."""
    return what if all(one.precision in MEASURED for one in operands) else None


@rule("mv", "dot", "vdot")
def _mv(call: Operation, a: Tensor, x: Tensor, *_: Any) -> Model:
    return Model(2 * a.elements, [a, x], call.made(Tensor(a.shape[:-1], a.type)), [a])


@rule("linear")
def _linear(call: Operation, x: Tensor, weight: Tensor, bias: Any = None, *_: Any) -> Model:
    n, k = weight.shape
    if x.shape[-1] != k:
        raise ValueError("no product")
    out = Tensor((*x.shape[:-1], n), x.type)
    what = _measured(Product(x.elements // k if k else 0, n, k), x, weight)
    reads = tensors([x, weight, bias])
    return Model(2 * x.elements * n, reads, call.made(out), [x], once=False, again=what)


@rule("_grouped_mm", takes="a b | offs bias kind")
@rule("_scaled_grouped_mm", takes="a b scale_a scale_b | offs bias scale_result kind")
def _grouped_mm(
    call: Operation,
    a: Tensor,
    b: Tensor,
    offs: Any = None,
    kind: Any = None,
    more: Any = (),
    **read: Any,
) -> Model:
    """``offs`` splits the dimension that one side has and the other lacks, or K if none is a batch.

    So each row, column or slice of K is in one product, whatever ``offs`` says, if it ends with the
    last.
    """
    (m, k), n = a.shape[-2:], b.shape[-1]
    if b.shape[-2] != k:
        raise ValueError("no product")
    k *= 2 if a.type == PACKED else 1
    sides = len(a.shape), len(b.shape)
    batch = a.shape[:1] if sides == (3, 3) else offs.shape if sides == (2, 2) else ()
    flops = 2 * m * n * k * (a.shape[0] if sides == (3, 3) else 1)
    out = Tensor((*batch, m, n), type_of(kind) or a.type)
    reads = tensors([a, b, offs, *read.values()])
    return Model(flops, reads, call.made(out), [a], once=False)
