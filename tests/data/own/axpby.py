"""A workload of a user's own and a kernel for it, in one file: y = alpha·x + beta·y."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import rooflab


@rooflab.workload
class Axpby(rooflab.Problem):
    workload = "axpby"
    title = "scaled sum of two vectors"
    formula = "y = alpha·x + beta·y"
    work = "3·elements"
    sizes = ("elements",)

    elements: int = rooflab.extent("elements of each vector")
    alpha: float = rooflab.setting(2.0, "factor of x")
    beta: float = rooflab.setting(0.5, "factor of the old y")

    @property
    def operands(self) -> tuple[rooflab.Operand, ...]:
        shape = (self.elements,)
        return (
            rooflab.Operand("x", shape, self.precision.input),
            rooflab.Operand("y", shape, self.precision.output, "inout"),
        )

    @property
    def flops(self) -> int:
        return 3 * self.elements

    @property
    def tolerance(self) -> float:
        return self.precision.rounding(3)

    def reference(self, arrays: Any, inputs: Any) -> Mapping[str, Any]:
        return {"y": self.alpha * inputs["x"] + self.beta * inputs["y"]}


@rooflab.kernel(workload="axpby", device="exact", precisions=["fp32", "fp64"])
def whole(operands: Any, stream: Any) -> Callable[[], None]:
    """One expression"""
    problem = operands.problem

    def launch() -> None:
        operands.y[...] = problem.alpha * operands.x + problem.beta * operands.y

    return launch


@rooflab.kernel(workload="axpby", device="exact")
def forgets_beta(operands: Any, stream: Any) -> Callable[[], None]:
    problem = operands.problem

    def launch() -> None:
        operands.y[...] = problem.alpha * operands.x + operands.y

    return launch
