"""The page of a fleet as its readers meet it."""

from __future__ import annotations

from itertools import combinations
from math import hypot

import pytest
from window import CHARACTERS, Opens, View

pytestmark = pytest.mark.slow


def exercise(view: View) -> None:
    """Use everything once."""
    view.open_all()
    view.page.locator("a.pt").first.hover(force=True)
    view.page.locator("a.pt").last.focus()
    view.page.keyboard.press("ArrowLeft")
    for select in view.page.locator("#controls select").all():
        select.select_option(index=1)
        select.select_option(index=0)
    for head in view.page.locator("table.rows th button").all():
        head.click()


@pytest.mark.parametrize("name", ["small fleet", "large fleet", "lossy fleet"])
def test_silent_and_alone(opened: Opens, name: str) -> None:
    view = opened(name)
    exercise(view)
    assert view.quiet, (view.console, view.dialogs, view.requests)


def test_hostile_text_does_nothing(opened: Opens) -> None:
    view = opened("hostile fleet")
    exercise(view)
    assert view.harmed(opened("small fleet")) == ""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["shades fleet", "lossy fleet"])
def test_accessible(opened: Opens, name: str, scheme: str) -> None:
    """By axe-core, which also computes the contrast of every colour of the heat map."""
    view = opened(name, color_scheme=scheme)
    view.open_all()
    view.page.locator("a.pt").first.focus()
    assert view.violations() == []


@pytest.mark.parametrize("name", ["small fleet", "large fleet", "lossy fleet", "hostile fleet"])
def test_the_page_does_not_scroll_sideways(opened: Opens, name: str) -> None:
    view = opened(name)
    view.open_all()
    for width in (320, 768, 1280):
        view.page.set_viewport_size({"width": width, "height": 800})
        assert view.run("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("name", ["small fleet", "shades fleet", "large fleet"])
def test_no_text_of_a_figure_is_over_another(opened: Opens, name: str) -> None:
    view = opened(name)
    for width in (320, 1280):
        view.page.set_viewport_size({"width": width, "height": 800})
        for panel in view.page.locator(".panel").all():
            texts = panel.evaluate(CHARACTERS)
            nearest = min(
                hypot(x - u, y - v)
                for one, other in combinations(texts, 2)
                for x, y in one
                for u, v in other
            )
            assert nearest > 6, panel.get_attribute("aria-label")


def test_sorting_is_numerical(opened: Opens) -> None:
    view = opened("large fleet")
    before = [float(cell) for cell in view.column("DRAM %")]
    assert before != sorted(before)
    for down in (False, True):
        view.page.locator("table.rows th").get_by_text("DRAM %", exact=True).click()
        assert [float(cell) for cell in view.column("DRAM %")] == sorted(before, reverse=down)


def test_filters_reach_the_heat_map_and_the_figures(opened: Opens) -> None:
    view = opened("lossy fleet")
    view.page.locator("select[data-filter=verdict]").select_option("SLOW")
    (row,) = view.shown("table.rows tbody tr", "id")
    assert view.shown(".heat tbody tr", "data-rows") == [row]
    assert set(view.shown("a.pt", "href")) == {f"#{row}"}
    assert set(view.shown("#suspects tbody tr", "data-rows")) == {row}


def test_a_mark_shows_its_member(opened: Opens) -> None:
    view = opened("shades fleet")
    point = view.page.locator("a.pt.slow").first
    point.hover()
    assert view.shown("tr.lit", "id") == [str(point.get_attribute("href"))[1:]]
    assert "SLOW" in view.page.locator("#card").inner_text()


def test_paper_is_white_and_has_every_member(opened: Opens) -> None:
    view = opened("large fleet", 1032, color_scheme="dark")
    view.page.emulate_media(media="print")
    assert view.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not view.page.locator("#controls").is_visible()
    assert len(view.shown("table.rows tbody tr", "id")) == 64
    assert view.run("document.documentElement.scrollWidth") <= 1032


def test_without_javascript_everything_is_there(opened: Opens) -> None:
    usual, view = opened("lossy fleet"), opened("lossy fleet", java_script_enabled=False)
    assert not view.page.locator("#controls").is_visible()
    for selector in ("section", "table.rows tbody tr", ".heat td", "a.pt", "#suspects tr"):
        count = view.page.locator(selector).count()
        assert count == usual.page.locator(selector).count() > 0
