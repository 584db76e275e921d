"""The report of many rows, whose table and marks are made by its script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from many import grown, joined
from window import MANY, Opens, View

from rooflab.report.export import to_csv

pytestmark = pytest.mark.slow

BOX = "document.querySelector('#rows .wide')"
FIRST = "#rooflines .panel"


def rows(view: View) -> list[str]:
    """The ids of the rows that the table has at the moment."""
    return [row for row in view.shown("table.rows tbody tr", "id") if row]


def dots(view: View, section: str = "#rooflines") -> int:
    """The marks of a section."""
    count: int = view.run(
        "(section) => [...document.querySelectorAll(`${section} path.pt`)]"
        ".reduce((sum, path) => sum + (path.getAttribute('d').match(/M/g) ?? []).length, 0)",
        section,
    )
    return count


def point_at(view: View) -> None:
    """Move the pointer over a panel until a point has the card."""
    panel = view.page.locator(FIRST).first
    panel.scroll_into_view_if_needed()
    box: Any = panel.bounding_box()
    for share in range(30, 95):
        for height in (0.25, 0.35, 0.45, 0.55, 0.65):
            view.page.mouse.move(
                box["x"] + box["width"] * share / 100, box["y"] + box["height"] * height
            )
            if view.page.locator("#card").is_visible():
                return
    raise AssertionError("no point has a card")


def card(view: View) -> dict[str, str]:
    heads, texts = (view.page.locator(f"#card {tag}").all_inner_texts() for tag in ("dt", "dd"))
    return dict(zip(heads, texts, strict=True))


def row_of(view: View, row: str) -> list[str]:
    script = "(id) => [...document.getElementById(id).cells].map((cell) => cell.textContent)"
    found: list[str] = view.run(script, row)
    return found


def test_the_table_reaches_every_row(opened: Opens) -> None:
    view = opened("many")
    assert view.page.locator("#shown").inner_text() == f"{MANY} of {MANY} rows"
    seen = set(rows(view))
    assert len(seen) < MANY
    for _ in range(40):
        view.run(f"{BOX}.scrollTop += 2000")
        view.page.wait_for_timeout(30)
        seen |= set(rows(view))
    assert seen == {f"r{i}" for i in range(1, MANY + 1)}
    assert view.quiet, (view.console, view.requests)


def test_sorting_is_of_all_rows(opened: Opens) -> None:
    view = opened("many")
    times = [row.time_us for row in grown(joined(), MANY).ok]
    for extreme in (min, max):
        view.page.locator("table.rows th").get_by_text("time µs", exact=True).click()
        assert float(view.column("time µs")[0]) == pytest.approx(extreme(times), rel=1e-3)  # type: ignore[type-var]


def test_a_filter_chooses_rows_and_points(opened: Opens) -> None:
    view = opened("many")
    before = dots(view)
    for name, value in {"kernel": "naive", "precision": "FP16", "cause": "dram"}.items():
        view.page.locator(f"select[data-filter={name}]").select_option(value)
        count = int(view.page.locator("#shown").inner_text().split()[0])
        assert 0 < len(rows(view)) == min(count, 500) < MANY
        assert set(view.column(name)) == {value}
        assert 0 < dots(view) < before
        assert len(view.shown("#diagnosis > details", "data-any")) > 0
        view.page.locator(f"select[data-filter={name}]").select_option("")
    assert dots(view) == before


def test_a_long_list_of_sizes_is_complete(opened: Opens) -> None:
    view = opened("many")
    sizes = {row.problem.size for row in grown(joined(), MANY).measurements}
    select = view.page.locator("select[data-filter=size]")
    assert select.locator("option").count() == len(sizes) + 1
    select.select_option("8192")
    assert set(view.column("size")) == {"8192"}


def test_a_point_shows_its_row_and_leads_to_it(opened: Opens) -> None:
    view = opened("many")
    point_at(view)
    told = card(view)
    assert view.page.locator(f"{FIRST} .ring").count() == 1
    view.page.mouse.down()
    view.page.mouse.up()
    row = str(view.run("location.hash"))[1:]
    assert [text for text in row_of(view, row) if text] == list(told.values())
    assert view.shown("tr.aimed", "id") == [row]
    box: Any = view.page.locator(f"#{row}").bounding_box()
    assert 0 < box["y"] < 800


def test_the_address_of_a_row_shows_it(opened: Opens) -> None:
    view = opened("many")
    view.run("location.hash = 'r850'")
    view.page.wait_for_function("document.querySelector('tr.aimed')?.id === 'r850'")
    box: Any = view.page.locator("#r850").bounding_box()
    assert 0 < box["y"] < 800


def test_the_keyboard_reaches_points(opened: Opens) -> None:
    """A panel has one stop of the Tab key; arrows move, Enter goes to the row."""
    view = opened("many")
    view.page.locator("#controls input").last.focus()
    view.page.keyboard.press("Tab")
    assert view.run("document.activeElement.matches('#rooflines .panel')")
    first = card(view)
    view.page.keyboard.press("ArrowRight")
    view.page.keyboard.press("ArrowRight")
    assert card(view) != first
    told = card(view)
    view.page.keyboard.press("Enter")
    row = str(view.run("location.hash"))[1:]
    assert [text for text in row_of(view, row) if text] == list(told.values())
    view.page.locator(FIRST).nth(1).focus()
    view.page.keyboard.press("Escape")
    assert not view.page.locator("#card").is_visible()


def test_counted_bytes_move_the_points(opened: Opens) -> None:
    view = opened("many")
    places = "[...document.querySelectorAll('#rooflines path.pt')].map((p) => p.getAttribute('d'))"
    modelled = view.run(places)
    view.page.locator("input[value=counted]").check()
    assert view.run(places) != modelled
    assert 0 < dots(view) < MANY, "only rows with counters"
    view.page.locator("input[value=modelled]").check()
    assert view.run(places) == modelled


def test_the_rows_can_be_downloaded(opened: Opens) -> None:
    view = opened("many")
    with view.page.expect_download() as download:
        view.page.locator("a[download]").click()
    assert Path(download.value.path()).read_text(encoding="utf-8") == to_csv(grown(joined(), MANY))
    assert view.console == []


def test_every_row_is_printed(opened: Opens) -> None:
    view = opened("many")
    view.run("dispatchEvent(new Event('beforeprint'))")
    assert len(rows(view)) == MANY
    view.run("dispatchEvent(new Event('afterprint'))")
    assert len(rows(view)) < MANY


def test_accessible(opened: Opens) -> None:
    """Contrasts, which a page of few rows has too, are computed there in both schemes."""
    view = opened("many", color_scheme="dark")
    view.open_all()
    view.page.locator(FIRST).first.focus()
    assert view.violations() == []


def test_the_page_does_not_scroll_sideways(opened: Opens) -> None:
    view = opened("many")
    view.open_all()
    for width in (320, 768, 1280):
        view.page.set_viewport_size({"width": width, "height": 800})
        assert view.run("document.documentElement.scrollWidth") <= width


def test_without_javascript_all_rows_are_there_as_text(opened: Opens) -> None:
    view = opened("many", java_script_enabled=False)
    view.open_all()
    assert not view.page.locator("#controls").is_visible()
    assert len(view.page.locator("#data").inner_text().split("\n")) == MANY
    assert len(view.shown("path.dots", "d")) > 20
    assert not view.page.locator("a[download]").is_visible()
