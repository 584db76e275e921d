"""What is launched inside of a range."""

from __future__ import annotations

from dataclasses import replace

import pytest
from launched import launch

from rooflab.devices.records import Recording, StepTime, Transfer
from rooflab.errors import UsageError
from rooflab.programs.parts import part_of

STEP = (("embed", ()), ("mm", ("forward", "layer.0")), ("norm", ("forward",)), ("adam", ("step",)))


def recorded(steps: int = 3) -> Recording:
    launches = [
        launch(name, 10, 100 * step + 20 * place, phase=phase)
        for step in range(steps)
        for place, (name, phase) in enumerate(STEP)
    ]
    starts = [100_000 * step + at for step in range(steps) for at in (15_000, 35_000)]
    copies = [Transfer(kind="h2d", bytes=1, start_ns=at, end_ns=at + 5) for at in starts]
    windows = [StepTime("step", 100_000 * i, 100_000 * (i + 1)) for i in range(steps)]
    return Recording(launches=launches, copies=copies, steps=windows, source="made")


def test_it_lasts_from_its_first_launch_to_the_end_of_its_last() -> None:
    part = part_of(recorded(), "forward")
    assert [one.kernel for one in part.launches] == ["mm", "norm"] * 3
    assert [(one.name, one.start_ns, one.ns) for one in part.steps] == [
        ("forward", 20_000, 30_000),
        ("forward", 120_000, 30_000),
        ("forward", 220_000, 30_000),
    ]
    assert [one.start_ns % 100_000 for one in part.copies] == [35_000] * 3
    assert part.source == "made"


def test_an_inner_range_is_one_too() -> None:
    part = part_of(recorded(), "layer.0")
    assert [one.ns for one in part.steps] == [10_000] * 3 and not part.copies


def test_steps_without_it_are_none_of_its() -> None:
    whole = recorded()
    first = [one for one in whole.launches if one.start_ns < 100_000 or one.kernel != "adam"]
    assert len(part_of(replace(whole, launches=first), "step").steps) == 1


def test_a_program_without_steps_has_one_part() -> None:
    (step,) = part_of(replace(recorded(), steps=()), "forward").steps
    assert (step.start_ns, step.end_ns) == (20_000, 250_000)


def test_the_ranges_that_there_are_are_named() -> None:
    with pytest.raises(UsageError, match=r"'none': there are forward, layer\.0, step$"):
        part_of(recorded(), "none")
    bare = [replace(one, phase=()) for one in recorded().launches]
    with pytest.raises(UsageError, match=r"no ranges are known$"):
        part_of(replace(recorded(), launches=bare), "forward")
    many = [replace(one, phase=(f"range {i}",)) for i, one in enumerate(recorded().launches)]
    with pytest.raises(UsageError, match=r"range 7, and 4 more$"):
        part_of(replace(recorded(), launches=many), "forward")
