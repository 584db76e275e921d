"""The roofline in characters: widths, characters, and where points and roofs are."""

from __future__ import annotations

import re

import measured
import pytest

from rooflab.errors import UsageError
from rooflab.figures.kinds import FIGURES
from rooflab.figures.selection import Wanted
from rooflab.figures.text import HEIGHT, LEFT, chart
from rooflab.runs.store import RunData, load

RUNS = [load(folder) for folder in measured.ALL]
LADDER = load(measured.LADDER)


def drawn(run: RunData, width: int = 80, *, unicode: bool = True) -> list[str]:
    try:
        panels = FIGURES["roofline"].make(Wanted([run], whole=True)).panels
    except UsageError:
        return []
    return [chart(panel, width, unicode=unicode).plain for panel in panels]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.path.name)
@pytest.mark.parametrize("width", [20, 80, 300])
def test_every_line_fits(run: RunData, width: int) -> None:
    for text in drawn(run, width):
        *lines, _legend = text.splitlines()
        assert max(map(len, lines)) <= min(120, max(40, width)) - 1
    assert bool(drawn(run)) == any(row.tflops and row.problem.resident for row in run.ok)


def test_plain_characters_where_there_are_no_others() -> None:
    assert all(text.isascii() for text in drawn(LADDER, unicode=False) if "→" not in text)


def test_a_chart_per_precision_with_all_its_kernels() -> None:
    found = drawn(LADDER)
    titles = [text.partition(",")[0] for text in found]
    assert titles[:3] == ["FP64", "FP32", "TF32"]
    legend = found[1].splitlines()[-1]
    assert re.findall(r"[A-Z] (\w+)", legend) == ["naive", "coalesced", "tiled", "cublas"]


def test_a_place_of_several_kernels_is_in_the_legend() -> None:
    found = []
    for text in (text for run in RUNS for text in drawn(run)):
        _, *plot, legend = text.splitlines()
        found.append("* several" in legend)
        assert any("*" in line for line in plot) == found[-1]
    assert set(found) == {True, False}


def test_points_are_below_the_roof_and_faster_kernels_higher() -> None:
    lines = drawn(LADDER)[1].splitlines()[1 : HEIGHT + 1]
    rows = {letter: _rows(lines, letter) for letter in "AD"}
    assert max(rows["D"]) < min(rows["A"])  # cuBLAS is above naive everywhere
    roof = [next(i for i, line in enumerate(lines) if line[column] in "─╱D") for column in (60, 70)]
    assert roof[0] == roof[1]  # the flat part
    assert all(min(found) >= roof[0] for found in rows.values())


def _rows(lines: list[str], letter: str) -> list[int]:
    return [i for i, line in enumerate(lines) if letter in line[LEFT:]]
