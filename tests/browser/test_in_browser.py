"""The HTML report as its readers meet it: with pointer, keyboard, paper, and without JavaScript."""

from __future__ import annotations

import re
from itertools import combinations
from math import hypot
from pathlib import Path

import pytest
from measured import COUNTED
from window import CHARACTERS, Opens, View

from rooflab.report.export import to_csv
from rooflab.runs.store import load

pytestmark = pytest.mark.slow

REPORTS = ("ladder", "counted", "devices", "hostile")


def exercise(view: View) -> None:
    """Use everything once."""
    view.open_all()
    points = view.page.locator("#rooflines a.pt:visible")
    points.first.hover(force=True)  # another may be over it
    points.last.focus()
    view.page.keyboard.press("ArrowLeft")
    for select in view.page.locator("#controls select").all():
        select.select_option(index=1)
        select.select_option(index=0)
    for box in view.page.locator("#controls input").all():
        box.click()
    for head in view.page.locator("table.rows th button").all()[:2]:
        head.click()


@pytest.mark.parametrize("name", ["counted", "devices"])
def test_silent_and_alone(opened: Opens, name: str) -> None:
    view = opened(name)
    exercise(view)
    assert view.quiet, (view.console, view.dialogs, view.requests)


def test_hostile_text_does_nothing(opened: Opens) -> None:
    view = opened("hostile")
    exercise(view)
    assert view.harmed(opened("ladder")) == ""


@pytest.mark.parametrize(
    ("name", "scheme"), [("counted", "light"), ("counted", "dark"), ("cpus", "light")]
)
def test_accessible(opened: Opens, name: str, scheme: str) -> None:
    """By axe-core, which also computes contrasts."""
    view = opened(name, color_scheme=scheme)
    view.open_all()
    view.page.locator("#rooflines a.pt").first.focus()
    assert view.violations() == []


# A point and its row -----------------------------------------------------------------------------


def lit(view: View) -> str:
    """The row that the card shows; every text of the row is on the card."""
    (row,) = view.shown("tr.lit", "id")
    texts = view.run(
        "(id) => [...document.getElementById(id).cells].map((c) => c.textContent)", row
    )
    card = view.page.locator("#card dd").all_inner_texts()
    assert card == [text for text in texts if text]
    return row


def test_hovering_a_point_shows_its_row(opened: Opens) -> None:
    view = opened("ladder")
    card = view.page.locator("#card")
    assert not card.is_visible()
    for point in view.page.locator("#rooflines a.pt").all()[3:8:4]:
        point.hover()
        assert f"#{lit(view)}" == point.get_attribute("href")
    view.page.locator("h1").hover()
    assert not card.is_visible()
    assert view.shown("tr.lit", "id") == []


def test_the_keyboard_reaches_every_point(opened: Opens) -> None:
    """Tab goes from panel to panel, an arrow to the next point, Enter to its row."""
    view = opened("ladder")
    focus = "document.activeElement.getAttribute('href')"
    view.page.locator("#controls input").last.focus()
    view.page.keyboard.press("Tab")
    panel = view.page.locator("#rooflines .panel").first
    links = [point.get_attribute("href") for point in panel.locator("a.pt").all()]
    for link in links:
        assert view.run(focus) == link == f"#{lit(view)}"
        view.page.keyboard.press("ArrowRight")
    view.page.keyboard.press("Escape")
    assert not view.page.locator("#card").is_visible()
    view.page.keyboard.press("Tab")
    assert view.run(focus) not in links
    row = lit(view)
    view.page.keyboard.press("Enter")
    assert view.run("location.hash") == f"#{row}"
    assert view.page.locator(f"#{row}").bounding_box()["y"] < 800  # type: ignore[index]


def test_a_figure_is_enlarged_and_small_again(opened: Opens) -> None:
    """By a double click and by a key; its points still show their rows."""
    view = opened("ladder")
    panel = view.page.locator("#rooflines .panel").first

    def width() -> float:
        box = panel.bounding_box()
        assert box
        return box["width"]

    small = width()
    panel.locator(".title").dblclick()
    assert width() > 2 * small
    point = panel.locator("a.pt").nth(3)
    point.hover()
    assert f"#{lit(view)}" == point.get_attribute("href")
    point.focus()
    view.page.keyboard.press("z")
    assert width() == small
    assert view.run("scrollX") == 0


def test_the_card_is_on_the_screen(opened: Opens) -> None:
    """Beside its point, if there is room."""
    view = opened("counted")
    for width in (1280, 320):
        view.page.set_viewport_size({"width": width, "height": 800})
        for point in view.page.locator("#rooflines a.pt").all()[:6]:
            point.focus()
            box, at = view.page.locator("#card").bounding_box(), point.bounding_box()
            assert box
            assert at
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
            assert box["y"] >= 0
            assert box["y"] + box["height"] <= 800
            beside = box["x"] >= at["x"] + at["width"] or box["x"] + box["width"] <= at["x"]
            assert beside or width == 320


# Controls ----------------------------------------------------------------------------------------


VALUES = {"workload": "copy", "kernel": "tiled", "precision": "FP16", "size": "4096"}


def test_a_filter_chooses_rows_and_points(opened: Opens) -> None:
    view = opened("counted")
    view.open_all()
    for name, value in VALUES.items():
        rows = view.column(name)
        chosen = [cell for cell in rows if cell == value]
        assert 0 < len(chosen) < len(rows)
        view.page.locator(f"select[data-filter={name}]").select_option(value)
        assert view.column(name) == chosen
        links = {f"#{row}" for row in view.shown("table.rows tbody tr", "id")}
        assert set(view.shown("#sizes a.pt", "href")) == links
        assert set(view.shown("#rooflines a.pt", "href")) <= links
        assert {f"#{row}" for row in view.shown("#diagnosis [data-row]", "data-row")} == links
        assert view.page.locator("#shown").inner_text() == f"{len(chosen)} of {len(rows)} rows"
        view.page.locator(f"select[data-filter={name}]").select_option("")
        assert view.column(name) == rows


def test_filters_are_one(opened: Opens) -> None:
    view = opened("ladder")
    view.page.locator("select[data-filter=kernel]").select_option("cublas")
    view.page.locator("select[data-filter=precision]").select_option("FP16")
    assert set(view.column("kernel")) == {"cublas"}
    assert view.column("precision") == ["FP16"] * 6
    assert len(view.shown("#rooflines .panel", "aria-label")) == 1


def test_sorting_is_numerical(opened: Opens) -> None:
    """Cells without a number are last in both directions."""
    view = opened("ladder")
    for heading in ("GFLOP/J", "time µs", "% of roof"):
        before = [float(cell) for cell in view.column(heading) if cell]
        assert before != sorted(before)
        for down, said in ((False, "ascending"), (True, "descending")):
            view.page.locator("table.rows th").get_by_text(heading, exact=True).click()
            cells = view.column(heading)
            numbers = [float(cell) for cell in cells if cell]
            assert numbers == sorted(before, reverse=down)
            assert cells[len(numbers) :] == [""] * (96 - len(numbers))
            assert view.shown("th[aria-sort]", "aria-sort") == [said]


def test_counted_bytes_move_the_points(opened: Opens) -> None:
    view = opened("counted")
    places = (
        "[...document.querySelectorAll('#rooflines a.pt')].map((p) => p.getBoundingClientRect().x)"
    )
    modelled = view.run(places)
    view.page.locator("input[value=counted]").check()
    counted = view.run(places)
    assert len(modelled) == len(counted) > 0
    assert sum(abs(x - y) > 3 for x, y in zip(modelled, counted, strict=True)) >= 6
    view.page.locator("input[value=modelled]").check()
    assert view.run(places) == modelled


def test_switches_hide_roofs(opened: Opens) -> None:
    view = opened("counted")
    kinds = {"derived", "measured", "observed"}
    assert set(view.shown("#rooflines path[data-roof]", "data-roof")) == kinds
    assert set(view.shown("#sizes path[data-roof]", "data-roof")) == {"derived"}
    for kind in sorted(kinds):
        view.page.locator(f"input[data-show={kind}]").uncheck()
        assert set(view.shown("[data-roof]", "data-roof")) == kinds - {kind}
        view.page.locator(f"input[data-show={kind}]").check()
    assert set(view.shown("[data-roof]", "data-roof")) == kinds


def test_the_table_can_be_downloaded(opened: Opens) -> None:
    view = opened("counted")
    with view.page.expect_download() as download:
        view.page.locator("a[download]").click()
    assert download.value.suggested_filename == f"{COUNTED.name}.csv"
    assert Path(download.value.path()).read_text(encoding="utf-8") == to_csv(load(COUNTED))
    assert view.console == []


# Layout ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REPORTS)
def test_the_page_does_not_scroll_sideways(opened: Opens, name: str) -> None:
    view = opened(name)
    view.open_all()
    for width in (320, 768, 1280):
        view.page.set_viewport_size({"width": width, "height": 800})
        assert view.run("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("name", ["counted", "devices"])
def test_no_text_of_a_figure_is_over_another(opened: Opens, name: str) -> None:
    view = opened(name)
    view.open_all()
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


def test_roofs_name_their_devices(opened: Opens) -> None:
    view = opened("devices")
    for section in ("#rooflines", "#sizes"):
        labels = " ".join(view.page.locator(f"{section} .halo").all_text_contents())
        for name in ("H200", "(1 thread)", "(16 threads)", "192 GB"):
            assert name in labels


# Paper -------------------------------------------------------------------------------------------


def test_it_prints(opened: Opens) -> None:
    view = opened("ladder", color_scheme="dark")
    data = view.page.pdf(prefer_css_page_size=True)
    assert data.startswith(b"%PDF-")
    pages = re.findall(rb"/MediaBox ?\[0 0 ([\d.]+) ([\d.]+)\]", data)
    assert len(pages) >= 5
    assert all(float(width) > float(height) for width, height in pages)


def test_paper_is_white_and_has_every_row(opened: Opens) -> None:
    """Within the width of an A4 sheet less its margins, 273 mm."""
    view = opened("devices", 1032, color_scheme="dark")
    rows = view.shown("table.rows tbody tr", "id")
    view.page.emulate_media(media="print")
    assert view.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not view.page.locator("#controls").is_visible()
    assert view.shown("table.rows tbody tr", "id") == rows
    assert view.run("document.documentElement.scrollWidth") <= 1032
    boxes = "[...document.querySelectorAll('.wide')].map((b) => b.scrollHeight - b.clientHeight)"
    assert set(view.run(boxes)) == {0}
    heads = "[...document.querySelectorAll('th button')].map((b) => getComputedStyle(b).display)"
    assert set(view.run(heads)) == {"contents"}


# Without JavaScript ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["counted", "devices"])
def test_without_javascript_everything_is_there(opened: Opens, name: str) -> None:
    usual, view = opened(name), opened(name, java_script_enabled=False)
    usual.open_all()
    view.open_all()
    assert not view.page.locator("#controls").is_visible()
    for selector, attribute in (
        ("table.rows tbody tr", "id"),
        ("a.pt", "href"),
        ("path.roof", "d"),
        ("#diagnosis [data-row]", "data-row"),
        ("section", "id"),
        ("a[download]", "download"),
    ):
        found = view.shown(selector, attribute)
        assert len(found) > 0
        assert found == usual.shown(selector, attribute)
    assert view.page.locator("#diagnosis").inner_text() == (
        usual.page.locator("#diagnosis").inner_text()
    )
    point = view.page.locator("#rooflines a.pt").last
    point.click()
    assert view.page.url.endswith(str(point.get_attribute("href")))
