"""How much faster are several GPUs than one? Pure.

Strong scaling: the same problem on more GPUs. Weak scaling: a problem that grows with them, so that
each GPU always has the same work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from rooflab.model.measurement import Measurement, is_possible
from rooflab.model.problem import ProblemRecord

GROWS: Final = {"rows": "m", "columns": "n"}
"""The extent that grows with the GPUs, by the split."""

_SPREADING: Final = ("gpus", "split")
_Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Scaling:
    """One kernel on 1, 2, … GPUs; ``rows`` is in this order, the first on one GPU.

    ``weak`` says that the problem grows with the number of GPUs.
    """

    split: str
    weak: bool
    rows: tuple[Measurement, ...]

    @property
    def base(self) -> Measurement:
        """The row on one GPU."""
        return self.rows[0]

    @property
    def gpus(self) -> list[int]:
        """The number of GPUs of each row."""
        return [row.problem.gpus for row in self.rows]

    @property
    def times_one(self) -> list[float]:
        """The rate of work of each row over that of one GPU."""
        one_us = self.base.time_us or 0
        growths = self.gpus if self.weak else [1] * len(self.rows)
        pairs = zip(growths, self.rows, strict=True)
        return [growth * one_us / (row.time_us or 1) for growth, row in pairs]


def scalings(rows: Iterable[Measurement]) -> list[Scaling]:
    """Strong ones, then weak ones, of the rows with possible times."""
    usable = [row for row in rows if is_possible(row.time_us)]
    alone = {_key(row, row.problem.extents): row for row in usable if row.problem.resident}
    found: dict[tuple[bool, str, _Key], list[Measurement]] = {}
    for weak in (False, True):
        for row in usable:
            split = str(row.problem.settings.get("split"))
            if split in GROWS and row.problem.gpus > 1:
                base = alone.get(_key(row, _extents_of_one(row.problem, weak=weak)))
                if base:
                    found.setdefault((weak, split, base.key), [base]).append(row)
    return [
        Scaling(split, weak, tuple(sorted(group, key=lambda row: row.problem.gpus)))
        for (weak, split, _), group in found.items()
    ]


def _key(row: Measurement, extents: Mapping[str, int]) -> _Key:
    """The kernel and the problem on one GPU with these extents."""
    settings = {n: v for n, v in row.problem.settings.items() if n not in _SPREADING}
    problem = (row.problem.workload, row.problem.precision, *sorted(settings.items()))
    return (row.kernel, *problem, *sorted(extents.items()))


def _extents_of_one(problem: ProblemRecord, *, weak: bool) -> dict[str, int]:
    """Of one GPU's problem. Rows that do not divide evenly have no weak scaling."""
    extents = dict(problem.extents)
    if weak:
        name = GROWS[str(problem.settings["split"])]
        whole, rest = divmod(extents.get(name, 0), problem.gpus)
        extents[name] = 0 if rest else whole
    return extents
