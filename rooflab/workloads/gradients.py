"""Gradients of layers over the rows of a matrix: of norms and of cross entropy."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar, Final

from rooflab.model.problem import Hard, Inputs, Operand, in_and_out, setting
from rooflab.workloads import rows

WITHIN: Final = {"rstd": (0.0, 2.0)}
"""Limits of what is saved: of numbers between -1 and 1 the inverse root is 1.7."""

EPSILON: Final = 1e-6
"""What the forward pass adds, in hard rows."""

FOLLOWED: Final = "rows whose gradients follow them"


def _inverse_root(arrays: Any, x: Any) -> Any:
    """Of the mean square of each row, within the limits of such an operand."""
    _, most = WITHIN["rstd"]
    return arrays.minimum(most, ((x * x).mean(axis=1) + EPSILON) ** -0.5)


@dataclass(frozen=True, kw_only=True)
class NormGradient(rows.Normalisation):
    """The base of gradients of norms.

    What the forward pass saves of each row is an operand in the type of sums, as in the kernels of
    PyTorch, Liger and QuACK. A kernel must use it: random numbers do not fit to the rows.
    """

    stream_extent: ClassVar = "batch"  # there is none: sums over rows need all of them
    saved: ClassVar[tuple[str, ...]]
    """What the forward pass has saved of each row."""

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Rows, their gradients, weights, what is saved; gradients of rows and of columns."""
        shape, types = (self.rows, self.columns), self.precision
        *given, dx = in_and_out(types, x=shape, dy=shape, w=shape[1:], dx=shape)
        saved = (
            Operand(name, shape[:1], types.accumulate, within=WITHIN.get(name))
            for name in self.saved
        )
        sums = (Operand(name, shape[1:], types.output, "out") for name in self.summed)
        return (*given, *saved, dx, *sums)

    def tolerance_of(self, operand: Operand) -> float:
        """Gradients of weights are sums over all rows."""
        is_sum = operand.name in self.summed
        return self.precision.dot_product(self.rows) if is_sum else self.tolerance

    def magnitude_of(self, operand: Operand, rms: Mapping[str, float]) -> float:
        """Of the terms: those of a row cancel if its gradient follows it."""
        if operand.name == "dx":
            return rms["rstd"] * rms["w"] * rms["dy"]
        normal = rms["x"] * rms["rstd"] if operand.name == "dw" else 1.0
        return sqrt(self.rows) * rms["dy"] * normal

    def hard(self, arrays: Any, draw: random.Random) -> Iterator[Hard]:
        """Rows with what the forward pass saves of them.

        With random numbers the means hardly matter: they are small beside the largest of wide rows.
        Where gradients follow their rows, and weights are alike, everything cancels.
        """
        for one in super().hard(arrays, draw):
            index, x = one.values["x"]
            saved = self.forward(arrays, x)
            values = {**one.values, **{name: (index[:1], saved[name]) for name in saved}}
            if FOLLOWED in one.title:
                values["dy"] = (index, self.normal(x, saved))
                values["w"] = ((slice(None),), 0.75)
            yield Hard(one.title, values, one.piece)

    def forward(self, arrays: Any, x: Any) -> dict[str, Any]:
        """What the forward pass saves of these rows, within its limits."""
        raise NotImplementedError

    def normal(self, x: Any, saved: Any) -> Any:
        """The rows as the norm makes them, before weights."""
        return x * saved["rstd"][:, None]

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """Of each row what is left of its gradient, less its mean and the part along the row."""
        dy, normal = inputs["dy"], self.normal(inputs["x"], inputs)
        each = inputs["w"] * dy
        along = (each * normal).mean(axis=1, keepdims=True)
        rest = each - each.mean(axis=1, keepdims=True) if "mean" in self.saved else each
        dx = inputs["rstd"][:, None] * (rest - normal * along)
        return {"dx": dx, "dw": (dy * normal).sum(axis=0), "db": dy.sum(axis=0)}

    def hard_rows(self) -> dict[str, tuple[float, float, float]]:
        """Products that overflow in FP16, a number whose gradient cancels, and rows of padding."""
        return {
            "rows of large numbers": (300.0, 0.0, 0.0),
            "rows with one large number": (0.0, 0.0, 300.0),
            "rows of zeros": (0.0, 0.0, 0.0),
            FOLLOWED: (1.0, 0.0, 0.0),
        }


@dataclass(frozen=True, kw_only=True)
class RmsNormBackward(NormGradient):
    """The gradient of ``rmsnorm``, for rows and weights; 1 / √(mean(x²) + epsilon) is given."""

    workload: ClassVar = "rmsnorm_backward"
    title: ClassVar = "gradient of the RMS norm of each row"
    formula: ClassVar = "n = x·rstd, dx = rstd·(w·dy - n·mean(w·dy·n)), dw = Σ dy·n over rows"
    work: ClassVar = "9·rows·columns"
    saved: ClassVar = ("rstd",)
    summed: ClassVar = ("dw",)
    each: ClassVar = 9
    """Products x·rstd and w·dy, two for the mean, three for dx and two for dw."""

    def forward(self, arrays: Any, x: Any) -> dict[str, Any]:
        """The inverse root of the mean square."""
        return {"rstd": _inverse_root(arrays, x)}


@dataclass(frozen=True, kw_only=True)
class LayerNormBackward(NormGradient):
    """The gradient of ``layernorm``, for rows, weights and biases; mean and 1 / σ are given."""

    workload: ClassVar = "layernorm_backward"
    title: ClassVar = "gradient of the layer norm of each row"
    formula: ClassVar = (
        "n = (x - mean)·rstd, dx = rstd·(w·dy - mean(w·dy) - n·mean(w·dy·n)), "
        "dw = Σ dy·n and db = Σ dy over rows"
    )
    work: ClassVar = "13·rows·columns"
    saved: ClassVar = ("mean", "rstd")
    summed: ClassVar = ("dw", "db")
    each: ClassVar = 13
    """Two for n and one for w·dy, three for the means, four for dx and three for the sums."""
    roundings: ClassVar = 128
    """In hard rows the mean is 55 standard deviations, and may come first or last."""

    def hard_rows(self) -> dict[str, tuple[float, float, float]]:
        """Also rows whose differences from their mean need more digits than their numbers have."""
        kinds = super().hard_rows()
        del kinds[FOLLOWED]
        kinds[f"{FOLLOWED}, far from zero"] = (1.0, 32.0, 0.0)
        return kinds

    def forward(self, arrays: Any, x: Any) -> dict[str, Any]:
        """The mean, and the inverse root of the variance."""
        mean = x.mean(axis=1)
        return {"mean": mean, "rstd": _inverse_root(arrays, x - mean[:, None])}

    def normal(self, x: Any, saved: Any) -> Any:
        """Differences from the mean, of size 1."""
        return (x - saved["mean"][:, None]) * saved["rstd"][:, None]


@dataclass(frozen=True, kw_only=True)
class CrossEntropyBackward(rows.CrossEntropy):
    """The gradient of ``cross_entropy`` times the gradient of its result, the same for all rows."""

    workload: ClassVar = "cross_entropy_backward"
    title: ClassVar = "gradient of the cross entropy of each row"
    formula: ClassVar = "dx = scale·(softmax(x) - [column = target])"
    work: ClassVar = "6·rows·columns"
    each: ClassVar = 6
    """Those of softmax, and a multiplication."""

    scale: float = setting(1.0, "gradient of each row's loss, such as 1 / rows of a mean")

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Logits, the column that each row should choose, the gradients of logits."""
        x, targets, _ = super().operands
        return (x, targets, Operand("dx", x.shape, self.precision.output, "out"))

    @property
    def tolerance(self) -> float:
        """That of softmax. A row's size is that of its target, spread over all columns."""
        lost = 0.5 * self.precision.output.smallest * sqrt(self.columns)
        return super().tolerance + (lost / abs(self.scale) if self.scale else 0.0)

    def magnitude(self, rms: Mapping[str, float]) -> float:
        """Of an element that is no target: rows that are certain and right have no others."""
        return abs(self.scale) / self.columns

    def hard_rows(self) -> dict[str, tuple[float, float, float]]:
        """Also rows in which a few of many columns matter: else the target hides all others."""
        kinds = super().hard_rows()
        far = max(peak for _, _, peak in kinds.values())
        return kinds | {"rows of large numbers": (far, 0.0, 0.0)}

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """Softmax, less one at each target."""
        x, targets = inputs["x"], inputs["targets"].astype(int)
        powers = arrays.exp(x - x.max(axis=1, keepdims=True))
        shares = powers / powers.sum(axis=1, keepdims=True)
        shares[arrays.arange(len(x)), targets] -= 1
        return {"dx": self.scale * shares}
