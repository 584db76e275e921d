"""Whether a function's results are right: compared with those of another, on inputs of its kind."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import inf, isfinite, nan
from typing import Any, Final

from rooflab.functions import arrays
from rooflab.functions.call import Arguments, Function
from rooflab.measure.verify import Accuracy

OUTLIER: Final = 16.0
"""Largest error of an element, in tolerances of the largest one."""

Way = Callable[[arrays.ArrayLibrary, Any, float], Any]
"""Other numbers from an array of a library and a number between 0 and 1."""


def copied(arguments: Arguments) -> Arguments:
    """The same numbers in other arrays."""
    return arguments.changed(lambda one: arrays.of(one).copy(one), modules=arguments.modules)


class Others:
    """Makes other inputs of the same kind: what keeps results is right only on old ones.

    Numbers change their places or, if the functions then fail or differ, as they do where an
    argument must be sorted, their sizes. If both fail on that too, all are smaller.
    """

    def __init__(self, judge: Judge, function: Function, pristine: Arguments) -> None:
        self.pristine = pristine
        self._way = self._found(judge, function)

    @property
    def vary(self) -> bool:
        """Whether inputs can be others."""
        return self._way is not None

    def put(self, target: Arguments, draw: random.Random) -> Arguments:
        """``target`` with floating-point numbers that differ from all before."""
        way, chance = self._way, draw.random()
        if way is None:
            return target
        made = {
            id(one): _put(way, one, source, chance)
            for one, source in zip(target.leaves, self.pristine.leaves, strict=True)
        }
        target = target.changed(lambda one: made[id(one)])
        if way is _rolled:
            self._nudge(target, draw)  # so that no sum is what it was
        return target

    def renew(self, target: Arguments, draw: random.Random) -> None:
        """Change at least a few numbers, where arrays can be changed."""
        if self._way is _rolled:
            self._nudge(target, draw)
        else:
            self.put(target, draw)

    def _nudge(self, target: Arguments, draw: random.Random) -> None:
        """A few numbers of one argument are smaller."""
        given = target.leaves
        draw.shuffle(given)
        for one in given:
            library = arrays.of(one)
            if library.floating(one) and library.nudge(one, draw.random()):
                return

    def _found(self, judge: Judge, function: Function) -> Way | None:
        if not any(arrays.of(one).floating(one) for one in self.pristine.leaves):
            return None
        differ, given = False, all(map(_finite, self.pristine.leaves))
        for way in (_rolled, _warped, _scaled):
            self._way = way
            try:
                other = self.put(copied(self.pristine), random.Random(0))
                before = copied(other)
                results = other.call(function)
                after = [*arrays.leaves(results), *before.leaves]
                whole = not given or all(map(_finite, after))
                verdict = judge.verdict(before, other, results)
            except Exception:  # it does not take such numbers
                continue
            if whole and not verdict.reason and not (way is _scaled and differ):
                return way
            differ = differ or bool(verdict.reason)
        return _rolled if differ else None  # what differs on all of them will be told


def _finite(array: Any) -> bool:
    return all(isfinite(float(piece.sum())) for piece in arrays.of(array).pieces(array))


def _put(way: Way, target: Any, source: Any, chance: float) -> Any:
    library = arrays.of(source)
    if not library.floating(source):
        return target
    return library.put(target, way(library, source, chance))


def _rolled(library: arrays.ArrayLibrary, source: Any, chance: float) -> Any:
    size = max(2, arrays.size_bytes(source) // library.item_bytes(source))
    return library.rolled(source, 1 + int(chance * (size - 1)))


def _warped(library: arrays.ArrayLibrary, source: Any, chance: float) -> Any:
    return library.warped(source, 0.85 + 0.1 * chance)


def _scaled(library: arrays.ArrayLibrary, source: Any, chance: float) -> Any:
    return library.scaled(source, 0.6 + 0.3 * chance)


class Judge:
    """Compares results with those of another function on the same inputs."""

    def __init__(self, name: str, function: Function, tolerance: float) -> None:
        self.name, self.tolerance = name, tolerance
        self._function = function

    def verdict(self, given: Arguments, after: Arguments, results: Any) -> Accuracy:
        """Of ``results`` for ``given``, which are the arguments ``after`` the call.

        What both leave in their arguments is compared too. NaN if there is nothing to compare.
        """
        # Copies: both may write into one buffer.
        found = [arrays.of(one).copy(one) for one in arrays.values(results)]
        after, reference = copied(after), copied(given)
        expected = arrays.values(reference.call(self._function))
        if not found and not expected and not changed(given, reference):
            return Accuracy(nan)
        if len(found) != len(expected):
            counts = f"returns {len(found)} arrays, and {self.name} returns {len(expected)}"
            return Accuracy(nan, counts)
        named = [f" (result {i})" if len(found) > 1 else "" for i in range(len(found))]
        named += [f" (argument {i})" for i in range(len(after.leaves))]
        pairs = zip([*found, *after.leaves], [*expected, *reference.leaves], named, strict=True)
        worst = Accuracy(0.0)
        for one, right, which in pairs:
            verdict = self._of_one(one, right, which)
            if verdict.reason:
                return verdict
            worst = max(worst, verdict, key=lambda verdict: verdict.rel_error)
        return worst

    def written(self, given: Arguments, function: Function) -> str:
        """Which argument only one of both writes: they then differ in how they give a result."""
        mine, right = copied(given), copied(given)
        mine.call(function)
        right.call(self._function)
        sides = zip(given.leaves, mine.leaves, right.leaves, strict=True)
        for i, (before, one, other) in enumerate(sides):
            if _differ(before, one) != _differ(before, other):
                who = f"{self.name} does not write" if _differ(before, one) else "does not write"
                return f"; {who} into argument {i}: let all of them return or write results"
        return ""

    def _of_one(self, one: Any, right: Any, which: str) -> Accuracy:
        kinds = ["complex" in arrays.of(a).dtype(a) for a in (one, right)]
        if tuple(one.shape) != tuple(right.shape) or kinds[0] != kinds[1]:
            found, expected = arrays.described(one), arrays.described(right)
            return Accuracy(nan, f"returns {found}{which}, and {self.name} returns {expected}")
        error, largest = errors(one, right)
        if error <= self.tolerance and largest <= OUTLIER * self.tolerance:
            return Accuracy(error)
        return Accuracy(
            error,
            f"differs from {self.name}{which}: relative error {error:.2g}, largest difference "
            f"{largest:.2g} of the largest element; {self.tolerance:.2g} is allowed",
        )


def changed(before: Arguments, after: Arguments) -> bool:
    """Whether some arrays hold other numbers."""
    pairs = zip(after.leaves, before.leaves, strict=True)
    return any(_differ(one, other) for one, other in pairs)


def _differ(one: Any, other: Any) -> bool:
    return errors(one, other)[1] > 0


def errors(one: Any, right: Any) -> tuple[float, float]:
    """‖one - right‖ / ‖right‖, and the largest difference in relation to the largest element.

    The same infinity or NaN on both sides is no difference; one side's is an infinite one.
    """
    import numpy

    with numpy.errstate(all="ignore"):
        return _errors(one, right)


def _errors(one: Any, right: Any) -> tuple[float, float]:
    a, b = arrays.of(one), arrays.of(right)
    host = a.name != b.name or a.device(one) != b.device(right)
    error = norm = largest = top = 0.0
    pieces = zip(a.pieces(one, host=host), b.pieces(right, host=host), strict=True)
    for found, expected in pieces:
        sizes = abs(expected)
        finite = sizes[sizes < inf]
        if finite.shape[0]:
            norm, top = norm + float((finite * finite).sum()), max(top, float(finite.max()))
        unlike = (found != expected) & ((found == found) | (expected == expected))
        if bool(unlike.any()):
            off = abs(found - expected)[unlike]
            off[off != off] = inf
            error, largest = error + float((off * off).sum()), max(largest, float(off.max()))
    error, norm = error**0.5, norm**0.5
    return (error / norm if norm else error), (largest / top if top else largest)
