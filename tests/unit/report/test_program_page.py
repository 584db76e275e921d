"""The pictures of a program in its report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pages
import program_runs
import synthetic
from profiled import group, program

from rooflab.model.measurement import Measurement
from rooflab.report.html import comparing
from rooflab.report.html.content import report
from rooflab.report.html.page import to_html

RUN = program_runs.run(recorded=program_runs.step())


def test_a_program_has_its_pictures_and_no_panels_of_sweeps() -> None:
    page = pages.parse(to_html([RUN]))
    assert not page.errors
    titles = [element.text for element in page.all("figcaption")]
    assert titles == ["Roofline", "Where the time goes", "Timeline of one step"]
    assert {e.attributes.get("id") for e in page.all("section")} >= {"program", "rows"}
    assert not {e.attributes.get("id") for e in page.all("section")} & {"rooflines", "sizes"}


def test_bubbles_are_links_to_their_rows() -> None:
    page = pages.parse(to_html([RUN]))
    targets = {element.attributes["href"] for element in page.all("a", "pt")}
    rows = {
        f"#{element.attributes['id']}" for element in page.all("tr") if "id" in element.attributes
    }
    assert len(targets) == 7 and targets <= rows


def test_pictures_without_links_are_no_panels_of_the_script() -> None:
    page = pages.parse(to_html([RUN]))
    panels = page.all("svg", "panel")
    assert len(panels) == 1 and len(page.all("svg", "whole")) == 3


def test_two_programs_are_before_and_after() -> None:
    other = replace(program_runs.run(day=21, step_us=9000), path=Path("results/after"))
    page = pages.parse(to_html([RUN, other]))
    titles = [element.text for element in page.all("figcaption")]
    assert titles[0] == "Before → after" and titles.count("Roofline") == 2
    assert any("results" not in e.text and "after has no timeline" in e.text for e in page.all("p"))


def test_a_program_beside_a_sweep_has_its_own_section() -> None:
    page = pages.parse(to_html([RUN, synthetic.h200_run(["fp32"])]))
    sections = {element.attributes.get("id") for element in page.all("section")}
    assert {"program", "rooflines", "sizes"} <= sections


def test_hostile_names_stay_text() -> None:
    rows = [
        replace(row, kernel=pages.HOSTILE + str(i), backend=pages.HOSTILE)
        for i, row in enumerate(program_runs.ROWS)
    ]
    run = program_runs.run(rows, recorded=program_runs.step(), name=pages.HOSTILE)
    page = pages.parse(to_html([run]))
    assert not page.errors
    assert len(page.all("script")) == 1 and not page.all("img")
    assert not [e for e in page.elements if any(name.startswith("on") for name in e.attributes)]
    for element in page.elements:
        assert "style" not in element.attributes  # the page's policy forbids it


def test_two_programs_are_compared_step_by_step_as_compare_does() -> None:
    other = replace(program_runs.run(day=21, step_us=9000), path=Path("results/after"))
    page = pages.parse(to_html([RUN, other]))
    text = " ".join(element.text for element in page.all("p"))
    assert "One step takes 10.0 ms in BASE and 9.00 ms in NEW" in text
    assert not any("points in common" in element.text for element in page.all("p"))


def test_rows_of_parts_that_are_compared_together_have_one_verdict() -> None:
    def of(us: float, part: int) -> Measurement:
        problem = program_runs.problem("bf16", part=part)
        row = program_runs.group("a", us, intensity=800, problem=problem, samples=9)
        return replace(row, time_p05_us=1.0, time_p95_us=1.01)

    base = program_runs.run([of(3000, 0)])
    parts = [of(1500, 1), of(500, 2)]
    new = replace(program_runs.run(parts, day=21), path=Path("results/after"))
    about = report([base, new])
    found = comparing.compared(about)
    verdicts, changes = comparing.columns(about, found)
    assert verdicts.texts == ["", "FAST", "FAST"]
    assert changes.texts == ["", "-33.3", "-33.3"]
    assert {now: was.number for now, was in comparing.before(about, found).items()} == {2: 1, 3: 1}


def test_a_program_and_a_sweep_of_one_device_are_not_compared() -> None:
    about = report([RUN, synthetic.h200_run(["fp32"])])
    assert comparing.compared(about) == []


def test_a_program_is_told_and_not_called_verified() -> None:
    text = " ".join(element.text for element in pages.parse(to_html([RUN])).elements)
    assert "One step takes 10.0 ms" in text and "Launches of a program were timed" in text
    assert "were verified" not in text and "was verified" not in text
    beside = to_html([RUN, synthetic.h200_run(["fp32"])])
    assert "Launches of a program were timed" in beside and "Every kernel was verified" in beside


def test_without_roofs_nothing_is_to_gain() -> None:
    rows = [group("nvjet", 9000.0, percent=None, counted_flops=1e9, dram_bytes=1e6)]
    text = " ".join(element.text for element in pages.parse(to_html([program(*rows)])).elements)
    assert "unknown: no row has work with a roof." in text and "not known" in text
    assert "times as fast" not in text
