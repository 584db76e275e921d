"""Optimizers: a step that updates the parameters of a model in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar, Final

from rooflab.errors import UsageError
from rooflab.model.problem import SFU, Inputs, Operand, extent, setting
from rooflab.workloads.parts import Parts

LEAST_ROOT: Final = 2.0**-50
"""A root of a second moment that FP32 holds as a normal number."""


@dataclass(frozen=True, kw_only=True)
class AdamW(Parts):
    """Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019, algorithm 2.

    Parameters have the output's type, gradients the input's, and both moments that of sums: FP32
    beside BF16 parameters.
    """

    workload: ClassVar = "adamw"
    title: ClassVar = "one step of AdamW, in place"
    formula: ClassVar = (
        "m = β₁·m + (1 - β₁)·g, v = β₂·v + (1 - β₂)·g², "
        "p = p - lr·(m / (1 - β₁ᵗ) / (√(v / (1 - β₂ᵗ)) + epsilon) + decay·p)"
    )
    work: ClassVar = "14·elements"
    sizes: ClassVar = ("elements",)
    axes: ClassVar = ("elements",)
    each: ClassVar = 14
    """Three for the first moment, four for the second, and seven for the parameter.

    These are decay, root, its correction, epsilon, quotient, learning rate and difference.
    """
    roundings: ClassVar = 16
    """A rounding for each operation, and two for a fast root and quotient each."""
    arguments: ClassVar = (
        *("elements", "kept", "rate", "beta1", "rest1", "beta2", "rest2", "correction", "epsilon"),
        *("p", "g", "m", "v"),
    )

    elements: int = extent("parameters")
    lr: float = setting(1e-3, "learning rate")
    beta1: float = setting(0.9, "share of the first moment that is kept")
    beta2: float = setting(0.999, "share of the second moment that is kept")
    epsilon: float = setting(1e-8, "keeps parameters without gradients finite")
    decay: float = setting(0.01, "weight decay")
    step: float = setting(10.0, "number of the step, t, from 1 on")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"{name} = {getattr(self, name):g} is no share: give 0 to 0.9999")
        if self.step < 1:
            raise UsageError(f"step = {self.step:g} is no number of a step: give 1 or more")

    @property
    def kept(self) -> float:
        """The share of a parameter that weight decay leaves."""
        return 1 - self.lr * self.decay

    @property
    def rest1(self) -> float:
        """The share of a gradient in the first moment."""
        return 1 - self.beta1

    @property
    def rest2(self) -> float:
        """The share of a gradient's square in the second moment."""
        return 1 - self.beta2

    @property
    def rate(self) -> float:
        """Learning rate with the correction of the first moment, which began as zero."""
        return float(self.lr / (1 - self.beta1**self.step))

    @property
    def correction(self) -> float:
        """Factor of the root of the second moment, which began as zero."""
        return float((1 - self.beta2**self.step) ** -0.5)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Parameters, gradients, first and second moments."""
        shape, types = (self.elements,), self.precision
        return (
            Operand("p", shape, types.output, "inout"),
            Operand("g", shape, types.input),
            Operand("m", shape, types.accumulate, "inout"),
            Operand("v", shape, types.accumulate, "inout", within=(0, 1)),
        )

    @property
    def units(self) -> Mapping[str, int]:
        """A root and a quotient for each element."""
        return {SFU: 2 * self.elements}

    def tolerance_of(self, operand: Operand) -> float:
        """Moments are as exact as sums, whatever parameters are stored as.

        But 1 - β is as exact as β in the type of sums, if that is rounded first, as in PyTorch.
        """
        if operand.name == "p":
            return self.tolerance
        kept = self.beta1 if operand.name == "m" else self.beta2
        return self.precision.accumulate.epsilon * (16 + kept / 2 / (1 - kept))

    def magnitude_of(self, operand: Operand, rms: Mapping[str, float]) -> float:
        """Of parameters, that below which FP16 has fewer digits: they may be the update alone.

        An update is only as exact as 1 - βᵗ, if β and its power are rounded first, as in PyTorch.
        """
        if operand.name != "p":
            return 0.0
        kind, first = operand.type, self.beta1 * rms["m"] + self.rest1 * rms["g"]
        root = max(LEAST_ROOT, self.correction * sqrt(rms["v"]) + self.epsilon)
        inexact = self._inexact(self.beta1) + self._inexact(self.beta2) / 2
        return max(
            kind.smallest / kind.epsilon, self.rate * first / root * inexact / self.tolerance
        )

    def _inexact(self, beta: float) -> float:
        """Relative error of 1 - βᵗ by the roundings of β and of its power."""
        power = float(beta**self.step)
        return self.precision.accumulate.epsilon / 2 * (self.step + 1) * power / (1 - power)

    def hard_parts(self) -> dict[str, dict[str, float]]:
        """Gradients whose squares overflow in FP16, or are nothing beside the second moment.

        And updates that no parameter hides, also those that epsilon halves or keeps finite.
        """
        scale = self.precision.input.scale
        kinds = {"large gradients": scale, "small gradients": 1 / scale, "gradients of zero": 0.0}
        parts = {title: {"g": number} for title, number in kinds.items()}
        parts["parameters of zero"] = {"p": 0.0}
        if self.epsilon:
            root = min(1.0, max(LEAST_ROOT, self.epsilon))
            moments = {"m": root, "v": (root / self.correction) ** 2}
            parts["no gradients so far"] = {"g": 0.0, "m": 0.0, "v": 0.0}
            parts["moments as small as epsilon"] = {"p": 0.0, "g": 0.0, **moments}
        return parts

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """The moments, then the parameters."""
        g = inputs["g"]
        m = self.beta1 * inputs["m"] + self.rest1 * g
        v = self.beta2 * inputs["v"] + self.rest2 * (g * g)
        root = self.correction * arrays.sqrt(v) + self.epsilon
        return {"p": self.kept * inputs["p"] - self.rate * m / root, "m": m, "v": v}
