"""How long a step takes: at the roofs, and with kernels that were measured. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rooflab.errors import UsageError
from rooflab.llm.config import LanguageModel, Latent
from rooflab.llm.formulas import Formula
from rooflab.llm.machine import Machine
from rooflab.llm.operators import ModelStep, Operator, operators, warm
from rooflab.model.measurement import Measurement
from rooflab.model.problem import DRAM, PEER, Problem
from rooflab.model.roofline import Roof, Roofline

BEST: Final = "best"
"""The name of the fastest kernels of all."""

MOST: Final = 2**16
"""The largest batch that is looked for."""

RowKey = tuple[bool, tuple[object, ...]]
"""Whether the cache is warm, and a problem's key."""

RowsByKey = Mapping[RowKey, Measurement]
"""The fastest row of each problem."""


@dataclass(frozen=True, slots=True)
class TimedOperator:
    """An operator with its roof, and by stack the row that was measured for it, if there is one."""

    operator: Operator
    roof: Roof
    rows: Mapping[str, Measurement | None]

    @property
    def roof_us(self) -> float:
        """The least time of all of them in a step."""
        return self.roof.us * self.operator.times

    def us(self, stack: str) -> float | None:
        """Their time as it was measured; None if it was not."""
        row = self.rows[stack]
        return row.time_us * self.operator.times if row and row.time_us else None


@dataclass(frozen=True, slots=True)
class Estimate:
    """A step of a model on a device. Weights and cache are bytes of one device."""

    step: ModelStep
    operators: tuple[TimedOperator, ...]
    weights: int
    cache: int
    memory: float | None

    @property
    def needs(self) -> int:
        """Bytes of weights and cache."""
        return self.weights + self.cache

    @property
    def fits(self) -> bool:
        """Whether weights and cache have room in the device's memory."""
        return self.memory is None or self.needs <= self.memory

    @property
    def roof_us(self) -> float:
        """The sum of the operators' least times."""
        return sum(one.roof_us for one in self.operators)

    def us(self, stack: str) -> float:
        """The time as measured; an operator that was not measured has its least time."""
        return sum(one.us(stack) or one.roof_us for one in self.operators)

    def unmeasured(self, stack: str) -> list[TimedOperator]:
        """The operators without a row: then ``us`` is a lower bound."""
        return [one for one in self.operators if one.us(stack) is None]

    def measured(self, stack: str) -> bool:
        """Whether an operator has a row."""
        return len(self.unmeasured(stack)) < len(self.operators)

    def tokens_per_s(self, us: float) -> float:
        """Tokens of all sequences in a second, if a step takes so long."""
        return self.step.tokens * 1e6 / us

    @property
    def bound(self) -> tuple[str, float]:
        """The cause that limits most of the time, and its part."""
        causes: dict[str, float] = {}
        for one in self.operators:
            causes[one.roof.bound] = causes.get(one.roof.bound, 0.0) + one.roof_us
        cause = max(causes, key=causes.__getitem__)
        return cause, causes[cause] / self.roof_us


def estimate(
    model: LanguageModel,
    step: ModelStep,
    machine: Machine,
    stacks: Mapping[str, RowsByKey] | None = None,
) -> Estimate:
    """The estimate of a step; raises ``UsageError`` if a roof is missing."""
    found = operators(model, step)
    timed = tuple(_timed(one, machine, stacks or {}) for one in found)
    cache = step.batch * cache_bytes(model, step)
    return Estimate(step, timed, weight_bytes(found), cache, machine.memory)


def _timed(one: Operator, machine: Machine, stacks: Mapping[str, RowsByKey]) -> TimedOperator:
    roof = _roof(one.work, machine.roofline)
    if roof is None:
        raise UsageError(_lacking(one, machine))
    return TimedOperator(one, roof, {name: _row(one, rows) for name, rows in stacks.items()})


def _row(one: Operator, rows: RowsByKey) -> Measurement | None:
    """The fastest that may stand for it: in a warm cache none takes longer than in a cold one."""
    if not isinstance(one.work, Problem):
        return None
    caches = (False, True) if warm(one.work) else (False,)
    found = [row for cache in caches if (row := rows.get((cache, one.work.key)))]
    return min(found, key=lambda row: row.time_us or 0.0, default=None)


def _roof(work: Problem | Formula, roofline: Roofline) -> Roof | None:
    units = work.units
    return roofline.roof(work.precision.name, work.flops_each, work.traffic, units)


def _lacking(one: Operator, machine: Machine) -> str:
    if PEER in one.work.traffic and not machine.roofline.bandwidth(PEER):
        return f"no link between GPUs is known of {machine.name}: give --link GB/s"
    return (
        f"{machine.name} has no roof for {one.work.precision.title}: give another --precision, or "
        "--device-facts of another device"
    )


# Memory ------------------------------------------------------------------------------------------


def parameters(model: LanguageModel, step: ModelStep) -> int:
    """Numbers of all weights, on one of the step's GPUs."""
    return sum(one.times * one.weights for one in operators(model, step))


def weight_bytes(found: Iterable[Operator]) -> int:
    """Bytes of weights, in the types of the products that read them."""
    return sum(one.times * one.weights * one.work.precision.input.bytes for one in found)


def token_bytes(model: LanguageModel, step: ModelStep) -> int:
    """Bytes that one token has in the cache of one GPU."""
    of = model.attention
    numbers = (
        of.rank + of.rope if isinstance(of, Latent) else 2 * step.kept(of.kv_heads) * of.head_size
    )
    return model.layers * numbers * step.between.input.bytes


def cache_bytes(model: LanguageModel, step: ModelStep) -> int:
    """Bytes that one sequence has in the cache of one GPU."""
    return token_bytes(model, step) * min(step.context, model.window or step.context)


def largest_batch(model: LanguageModel, step: ModelStep, memory: float | None) -> int | None:
    """Of how many sequences the cache has room beside the weights; None if it is not known."""
    if memory is None:
        return None
    room = memory - weight_bytes(operators(model, step))
    return max(0, int(room // cache_bytes(model, step)))


# The ridge ---------------------------------------------------------------------------------------


def seconds(found: Iterable[Operator], roofline: Roofline) -> tuple[float, float]:
    """What FLOPs alone and what bytes of device memory alone would take."""
    compute = memory = 0.0
    for one in found:
        ceiling, bandwidth = roofline.compute(one.work.precision.name), roofline.bandwidth()
        compute += one.times * one.work.flops_each / ceiling.value if ceiling else 0.0
        memory += one.times * one.work.traffic[DRAM] / bandwidth.value if bandwidth else 0.0
    return compute, memory


def ridge_batch(model: LanguageModel, step: ModelStep, roofline: Roofline) -> int | None:
    """The least batch whose products with weights take as long to compute as to read."""

    def computes(batch: int) -> bool:
        found = operators(model, replace(step, batch=batch))
        products = [one for one in found if one.weights and one.work.flops]
        compute, memory = seconds(products, roofline)
        return compute >= memory

    return _first(computes)


def _first(holds: Callable[[int], bool]) -> int | None:
    """The least number up to MOST that holds, of numbers of which all above it hold too."""
    high = 1
    while not holds(high):
        if high >= MOST:
            return None
        high *= 2
    below = range(high // 2 + 1, high)
    return high // 2 + 1 + bisect_left(below, True, key=holds)


# What was measured -------------------------------------------------------------------------------


def fastest(rows: Iterable[Measurement], names: Sequence[str] = ()) -> RowsByKey:
    """The fastest ``ok`` row of each problem, in a cold and in a warm cache.

    With ``names`` only rows whose kernel or backend begins with one of them.
    """
    found: dict[RowKey, Measurement] = {}
    right = (row for row in rows if row.status == "ok" and row.time_us and _named(row, names))
    for row in sorted(right, key=lambda row: row.time_us or 0.0):
        found.setdefault((row.cache == "warm", row.problem.key), row)
    return found


def _named(row: Measurement, names: Sequence[str]) -> bool:
    return not names or (
        row.kernel.startswith(tuple(names)) or row.backend.startswith(tuple(names))
    )


def problems(model: LanguageModel, steps: Iterable[ModelStep]) -> list[Problem]:
    """The problems to sweep, each once."""
    works = (one.work for step in steps for one in operators(model, step))
    return list({work.key: work for work in works if isinstance(work, Problem)}.values())
