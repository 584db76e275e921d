"""How much faster are several GPUs than one? Pure.

Strong scaling: the same problem on more GPUs. Weak scaling: a problem that grows with them, so that
each GPU always has the same work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
        return [self._times_one(row) for row in self.rows]

    def _times_one(self, row: Measurement) -> float:
        growth = row.problem.gpus if self.weak else 1
        return growth * (self.base.time_us or 0) / (row.time_us or 1)


def scalings(rows: Iterable[Measurement]) -> list[Scaling]:
    """Strong ones, then weak ones, of the rows with possible times."""
    usable = [row for row in rows if is_possible(row.time_us)]
    alone = {_key(row, row.problem.extents): row for row in usable if row.problem.resident}
    found: dict[_Key, list[Measurement]] = {}
    for row in usable:
        if row.problem.settings.get("split") in GROWS and row.problem.gpus > 1:
            for weak in (False, True):
                base = _key(row, _extents_of_one(row.problem, weak=weak))
                found.setdefault((weak, _split(row), base), []).append(row)
    return list(_with_one(found, alone))


def _with_one(
    found: Mapping[_Key, Sequence[Measurement]], alone: Mapping[_Key, Measurement]
) -> Iterator[Scaling]:
    for (weak, split, base), rows in sorted(found.items(), key=lambda item: bool(item[0][0])):
        if isinstance(base, tuple) and base in alone:
            several = sorted(rows, key=lambda row: row.problem.gpus)
            yield Scaling(str(split), bool(weak), (alone[base], *several))


def _split(row: Measurement) -> str:
    return str(row.problem.settings["split"])


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
