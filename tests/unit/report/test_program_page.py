"""The pictures of a program in its report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pages
import program_runs
import synthetic

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
