"""The figure of tokens per second by batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rooflab.figures import drawing, tokens
from rooflab.figures.model import Page
from rooflab.figures.style import THEMES, styled
from rooflab.llm.config import read
from rooflab.llm.estimate import BEST, estimate, fastest, problems
from rooflab.llm.machine import of_files
from rooflab.llm.operators import PHASES, ModelStep
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS

H200 = of_files(Path(__file__).resolve().parents[2] / "data" / "runs" / "two_gpus")
LLAMA = read("llama-3.1-8b")
STEP = ModelStep("decode", 1, 2048, PRECISIONS["bf16"])
STEPS = [
    replace(STEP, phase=phase, batch=batch, context=context)
    for phase in PHASES
    for context in (2048, 32768)
    for batch in (1, 8, 64)
]


def page() -> Page:
    rows = [
        Measurement(problem=one.record, kernel="mine", time_us=1000.0)
        for one in problems(LLAMA, STEPS)
    ]
    stacks = {BEST: fastest(rows), "torch": {}}
    return tokens.make(
        LLAMA, [estimate(LLAMA, one, H200, stacks) for one in STEPS], H200, [*stacks]
    )


def test_a_panel_for_each_context_of_decode() -> None:
    titles = [panel.title for panel in page().panels]
    assert titles == ["decode BF16, context 2048", "decode BF16, context 32768"]


def test_no_point_is_above_the_roofs() -> None:
    for panel in page().panels:
        curve = panel.lines[-3]
        roofs = [line for line in panel.lines if line.provenance]
        for roof in roofs:
            allowed = dict(roof.points)
            assert all(y <= allowed.get(x, y) * (1 + 1e-9) for x, y in curve.points)


def test_labels_say_what_limits() -> None:
    first, second = ([label.text for label in panel.labels] for panel in page().panels)
    roofs = ["compute roof (derived)", "memory roof (derived)"]
    assert first == [*roofs, "150 GB are full: 499", "ridge: 244"]
    assert "150 GB are full: 31" in second


def test_the_batches_that_were_asked_for_are_marked() -> None:
    drawn = page()
    roof, best = drawn.panels[0].marks  # nothing is measured of the other stack
    assert [x for x, _ in roof.points] == [1, 8, 64] == [x for x, _ in best.points]
    assert all(high > low for (_, high), (_, low) in zip(roof.points, best.points, strict=True))
    assert [key.name for key in drawn.legend] == [tokens.ROOF, "best", "torch"]
    assert any("upper bounds" in note for note in drawn.notes)
    assert not any("fits" in note for note in drawn.notes)


def test_a_model_that_does_not_fit_is_told() -> None:
    large = read("deepseek-v3")
    drawn = tokens.make(large, [estimate(large, STEP, H200)], H200, [])
    assert drawn.notes[0] == "No batch here fits in 150 GB: the smallest needs 1.34 TB."


@pytest.mark.parametrize("style", THEMES)
def test_every_style_draws_it(style: str) -> None:
    with styled(style):
        assert drawing.draw(page()).axes
