"""Pure modules pass values around: nobody changes one, and a misspelt name is an error."""

from __future__ import annotations

from dataclasses import is_dataclass
from importlib import import_module
from types import ModuleType

import pytest

from rooflab.model.problem import Problem

PURE = (
    *("model.precision", "model.problem", "model.roofline", "model.measurement", "model.diagnosis"),
    *("fleet.outliers", "model.timeline", "model.facts"),
    *("measure.statistics", "measure.telemetry", "measure.verify", "runs.compare", "runs.races"),
    *("devices.cuda.peaks", "devices.base"),
)
CHANGES = {"_Tally"}
"""Sums that grow."""


def values(module: ModuleType) -> list[type]:
    """The dataclasses that the module defines."""
    return [
        one
        for one in vars(module).values()
        if isinstance(one, type) and is_dataclass(one) and one.__module__ == module.__name__
    ]


@pytest.mark.parametrize("name", PURE)
def test_values_are_fixed(name: str) -> None:
    found = values(import_module(f"rooflab.{name}"))
    for one in found:
        parameters = one.__dataclass_params__  # type: ignore[attr-defined]
        assert parameters.frozen != (one.__name__ in CHANGES), one
        if not issubclass(one, Problem):  # its instances keep what they have computed
            assert "__slots__" in vars(one), one
