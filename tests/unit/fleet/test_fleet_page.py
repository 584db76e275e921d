"""The page of a fleet: its structure, its figures, and that no text of a run becomes markup."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import fleet_pages
import pytest
from fleet_pages import fleet, hostile, lossy, name, page, sweep
from pages import HOSTILE, Page, parse
from synthetic import with_device

from rooflab.errors import UsageError
from rooflab.figures.model import Axis
from rooflab.fleet.page.page import to_html, write
from rooflab.fleet.page.strips import pixel, spread, tick_text
from rooflab.fleet.page.tables import p_text, shade
from rooflab.fleet.runs import Fleet, assess

SECTIONS = ["summary", "heat", "strips", "suspects", "members", "method", "reproduce"]


def sound(page: Page) -> None:
    """Every tag nests, every id is unique, every link leads somewhere, nothing is loaded."""
    assert not page.errors
    ids = [element.attributes["id"] for element in page.elements if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    assert not {element.name for element in page.elements} & {"img", "iframe", "object", "link"}
    for element in page.elements:
        assert not any(key.startswith("on") for key in element.attributes)
        assert not {"style", "src", "srcset", "action", "srcdoc"} & element.attributes.keys()
        if href := element.attributes.get("href"):
            assert href[:1] == "#" and href[1:] in ids
        for row in (element.attributes.get("data-rows") or "").split():
            assert row in ids


def part(text: str, name: str) -> Page:
    """One section of a page."""
    return parse(text.partition(f'<section id="{name}"')[2].partition("</section>")[0])


def cells(text: str, name: str) -> list[list[str]]:
    """The texts of a section's table, without its head."""
    whole = text.partition(f'<section id="{name}"')[2].partition("</section>")[0]
    body = whole.partition("<tbody>")[2]
    rows = body.partition("</tbody>")[0].split("<tr")[1:]
    return [[one.text for one in parse(f"<tr{row}").elements if one.name in ("td", "th")]
            for row in rows]  # fmt: skip


@pytest.fixture(scope="module")
def text() -> str:
    return page(fleet(8))


@pytest.fixture(scope="module")
def large() -> str:
    return page(fleet(64))


# Structure ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("count", [2, 3, 64])
def test_pages_are_sound(count: int, processes: int) -> None:
    text = page(fleet(count, processes))
    found = parse(text)
    sound(found)
    assert [one.attributes["id"] for one in found.all("section")] == SECTIONS
    assert len(text.encode()) < 300_000
    assert len(cells(text, "heat")) == len(cells(text, "members")) == count
    assert len(found.all("a", "pt")) == count * len(found.all("svg", "strip"))


def test_one_member_has_nothing_to_compare_with() -> None:
    found = parse(page(fleet(1)))
    sound(found)
    assert "there is nothing to compare with" in found.all("li")[0].text
    assert not found.all("svg", "strip")
    assert {one.text for one in found.all("td", "none")} == {"–"}


def test_it_says_who_is_slow_and_what_differs(text: str) -> None:
    summary = part(text, "summary").all("li")
    assert summary[0].text == "8 members, 8 resources: 8 slow, 7 fast."
    assert summary[1].text.startswith(f"{name(5)} is 13 % (")
    assert "driver: 570.86 on 21, 565.57 on 3" in [one.text for one in summary]
    header = parse(text).all("header")[0].text
    assert "fleet of 8, H200" in header
    assert (
        "2026-11-22 19:34 UTC, 8 members on 1 host, 3 processes on each, phases: together" in header
    )
    assert "rooflab fleet sweep --hosts a,b --launch 'ssh {host}'" in (
        part(text, "reproduce").all("pre")[0].text
    )
    assert "docs/fleet.md" in part(text, "method").all("p")[-1].text


def test_the_style_and_the_script_are_those_of_every_report(text: str) -> None:
    found = parse(text)
    assert len(found.all("script")) == len(found.all("style")) == 1
    assert "default-src &#x27;none&#x27;" in text
    assert not re.search(r"https?://|@import|url\(", text)


# The heat map ------------------------------------------------------------------------------------


def test_outliers_are_marked_by_words_and_colours(text: str) -> None:
    found = part(text, "heat")
    out = found.all("td", "out")
    assert len(out) == len(found.all("b")) == 15
    assert all(re.fullmatch(r"\+\d+\.\d+ SLOW|−\d+\.\d+ FAST", one.text) for one in out)
    for one in found.all("td"):
        number = float(re.split(" ", one.text.replace("−", "-"))[0])
        assert (one.attributes["class"] or "").split()[0] in (shade(number), shade(number * 0.99))


def test_colours_are_symmetric_steps() -> None:
    assert [shade(x) for x in (0, 0.49, 0.5, 1.5, 3, 7, 10, 1e9)] == [
        *("e", "e", "s1", "s2", "s3", "s4", "s5", "s5")
    ]
    assert [shade(x) for x in (-0.49, -0.5, -1.5, -3, -7, -99)] == [
        "e",
        "f1",
        "f2",
        "f3",
        "f4",
        "f5",
    ]


# The figures -------------------------------------------------------------------------------------


def test_marks_are_at_their_differences() -> None:
    across = Axis((-0.02, 0.06), log=False)
    assert [pixel(across, x) for x in (-0.02, 0.06, 9.0, -1.0)] == [12, 258, 258, 12]
    assert pixel(across, 0.02) == pytest.approx(135)
    ticks = [tick for tick, _ in across.marks(6)[0]]
    assert [tick_text(tick) for tick in ticks] == ["−2", "0", "+2", "+4", "+6"]
    assert [tick_text(tick) for tick in (-0.005, 0.0, 0.02)] == ["−0.5", "0", "+2"]
    for limits in ((-1e-4, 1e-4), (-0.99, 10.0), (-0.013, 0.014)):
        assert 3 <= len(Axis(limits, log=False).marks(6)[0]) <= 9


def test_names_do_not_overlap(large: str) -> None:
    assert spread([5, 6, 7], 0, 100) == [5, 19, 33]
    assert spread([90, 95, 99], 0, 100) == [72, 86, 100]
    for text in (
        large,
        page(fleet(2)),
        page(fleet(64, slow={i: {"dram": 0.1} for i in range(25)})),
    ):
        for panel in re.findall(r'<svg viewBox[^>]*class="panel strip.*?</svg>', text):
            marks = re.findall(r'translate\([\d.]+,([\d.]+)\)">(.*?)</a>', panel)
            names = [
                float(height) + float(found[1])
                for height, inner in marks
                if (found := re.search(r'<text x="[^"]+" y="([-\d.]+)"', inner))
            ]
            assert all(b - a > 13.5 for a, b in pairwise(names))


def test_all_outliers_have_names(large: str) -> None:
    out = [mark for mark in parse(large).all("a", "pt")
           if {"slow", "fast"} & set((mark.attributes["class"] or "").split())]  # fmt: skip
    assert len(out) == 15
    assert all("…" in mark.text and "%" in mark.text for mark in out)


# Suspects and members ----------------------------------------------------------------------------


def test_suspects_have_their_figures(text: str) -> None:
    rows = cells(text, "suspects")
    assert len(rows) == 15
    first = rows[0]
    assert first[1:3] == ["DRAM", "SLOW"]
    assert first[3].startswith("+1") and "…" in first[4] and first[5] == "< 0.0001"
    assert first[7:13] == ["1289", "1456", "690", "690", "61", "61"]
    assert [p_text(p) for p in (None, 0.0, 0.0123, 1.0)] == ["", "< 0.0001", "0.012", "1"]


def test_the_undecided_have_a_reason() -> None:
    assert cells(page(fleet(2)), "suspects") == []
    two = cells(page(fleet(2, slow={1: {"dram": 0.1}})), "suspects")
    assert {row[-1] for row in two if row[1] == "DRAM"} == {
        "two members have no majority, so either may be odd"
    }


def test_few_suspects_are_shown_of_many() -> None:
    text = page(fleet(64, slow={i: {"compute": 0.05} for i in range(25)}))
    assert len(cells(text, "suspects")) == 100
    assert re.search(r"And \d+ more: rooflab fleet show --json has them\.", text)


def test_members_that_are_missing_are_there() -> None:
    found, record = lossy()
    text = page(found, record)
    sound(parse(text))
    table = {row[0]: row for row in cells(text, "members")}
    assert len(table) == 7
    refused = table["node-77-cuda-0"]
    assert {"node-77", "cuda:0", "refused", "rooflab 0.0.9 there, 0.1.0 here"} <= set(refused)
    assert "5 of 32 points are measured" in table[name(0)]
    assert "69/96" in table[name(0)]
    told = [one.text for one in part(text, "summary").all("li")]
    assert "node-77-cuda-0: refused: rooflab 0.0.9 there, 0.1.0 here" in told
    assert f"{name(0)}: 5 of 32 points are measured" in told
    assert "/home/me" not in text
    heat = {row[0][-6:]: row[1:] for row in cells(text, "heat")}
    assert set(heat["cuda-0"]) == {"–"}


def test_different_devices_are_apart() -> None:
    found = fleet(6)
    members = [
        replace(m, runs=tuple(with_device(run, name="NVIDIA H100") for run in m.runs))
        for m in found.members[:3]
    ]
    text = page(Fleet(found.path, (*members, *found.members[3:])))
    sound(parse(text))
    assert "fleet of 6, H100, H200" in text
    assert any("DRAM of NVIDIA H100" in one.text for one in parse(text).all("th"))


# What is unusual ---------------------------------------------------------------------------------


def test_no_text_of_a_fleet_becomes_markup(tmp_path: Path) -> None:
    text = page(*hostile(tmp_path / "run"))
    found = parse(text)
    sound(found)
    (script,) = found.all("script")
    assert HOSTILE not in script.text + found.all("style")[0].text
    shown = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
    for tag in ("title", "h1", "td", "option", "li", "th", "pre"):
        assert any(shown[:25] in element.text for element in found.all(tag)), tag
    assert text.count("<script") == 1


@pytest.mark.parametrize("factor", [1e-6, 50.0, 1e9])
def test_absurd_times_leave_a_page(factor: float) -> None:
    text = page(fleet(6, slow={2: {"dram": factor, "compute": factor - 1}}))
    found = parse(text)
    sound(found)
    places = [one.attributes.get(key) or "" for one in found.elements
              for key in ("d", "transform", "x", "y")]  # fmt: skip
    assert not any(re.search("nan|inf|e[+-]", place) for place in places)


def test_versions_named_like_columns_are_columns_of_their_own() -> None:
    found = fleet(3)
    runs = []
    for i, run in enumerate(found.members[0].runs):
        versions = run.manifest.versions | {"member": f"x{i}", "status": f"y{i}"}
        manifest = run.manifest.model_copy(update={"versions": versions})
        runs.append(replace(run, manifest=manifest))
    members = (replace(found.members[0], runs=tuple(runs)), *found.members[1:])
    row = cells(page(Fleet(found.path, members)), "members")[0]
    assert row[0] == name(0)
    assert "x0, x1, x2" in row


def test_a_page_without_a_record_of_processes() -> None:
    found = fleet(3)
    text = to_html(assess(found), sweep(found, command=[]))
    sound(parse(text))
    assert "Made by the command" not in text


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    found = fleet(2, 1)
    with pytest.raises(UsageError, match=r"cannot write .*: No such file"):
        write(assess(found), sweep(found), tmp_path / "missing" / "report.html")
    write(assess(found), sweep(found), tmp_path / "report.html")
    assert fleet_pages.page(found) == (tmp_path / "report.html").read_text(encoding="utf-8")
