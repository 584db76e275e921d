"""The HTML report: its structure, its figures, and that no text of a run becomes markup."""

from __future__ import annotations

import base64
import csv
import io
import re
from dataclasses import replace
from hashlib import sha256
from math import cos, inf, log10, nan, radians
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from measured import COUNTED, CPUS, CUTLASS, HOST_MEMORY, LADDER, MEMORY_BOUND
from pages import HOSTILE, Page, hostile_run, parse
from synthetic import cpu_run, under

from rooflab.errors import UsageError
from rooflab.figures.kinds import FIGURES, size
from rooflab.figures.model import linear_ticks, log_ticks
from rooflab.figures.selection import Wanted
from rooflab.figures.style import WEB, styled
from rooflab.model.measurement import Measurement
from rooflab.report.html.figure import brief
from rooflab.report.html.page import to_html, write
from rooflab.runs.store import RunData, load

ELEMENTS = {
    *("html", "head", "meta", "title", "style", "script", "body", "header", "main", "footer"),
    *("section", "h1", "h2", "h3", "p", "ul", "li", "strong", "b", "a", "dl", "dt", "dd", "pre"),
    *("svg", "defs", "path", "text", "use", "details", "summary", "div"),
    *("table", "caption", "thead", "tbody", "tr", "th", "td"),
    *("form", "label", "select", "option", "input", "fieldset", "legend", "output"),
}


@pytest.fixture(scope="module")
def text() -> str:
    return to_html([load(LADDER)])


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return parse(text)


def part(text: str, name: str) -> str:
    """One section of a page."""
    return text.partition(f'<section id="{name}"')[2].partition("</section>")[0]


def sound(page: Page) -> None:
    """Every tag nests, every id is unique, every link leads somewhere, nothing is loaded."""
    assert not page.errors
    assert {element.name for element in page.elements} <= ELEMENTS
    ids = [element.attributes["id"] for element in page.elements if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    for element in page.elements:
        names = element.attributes.keys()
        assert not any(name.startswith("on") for name in names)
        assert not {"style", "src", "srcset", "action", "srcdoc"} & names
        if href := element.attributes.get("href"):
            assert href.startswith("data:text/csv;charset=utf-8,") or href[1:] in ids
        for name in ("aria-labelledby",):
            assert element.attributes.get(name) in (None, *ids)


# Structure ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "folders", [[LADDER], [COUNTED], [*CPUS, HOST_MEMORY], [COUNTED, LADDER]], ids=len
)
def test_pages_are_sound(folders: list[Path]) -> None:
    runs = [load(folder) for folder in folders]
    page = parse(to_html(runs))
    sound(page)
    rows = [row for row in page.all("tr") if (row.attributes.get("id") or "").startswith("r")]
    assert len(rows) == sum(len(run.measurements) for run in runs)


def test_a_run_of_a_hundred_points_is_small(text: str) -> None:
    assert len(load(LADDER).measurements) == 96
    assert len(text.encode()) < 300_000


def test_every_section_is_there(page: Page) -> None:
    ids = [section.attributes["id"] for section in page.all("section")]
    assert ids == [
        *("summary", "rooflines", "sizes", "diagnosis", "rows", "devices", "method", "reproduce")
    ]
    (summary,) = (one for one in page.all("section") if one.attributes["id"] == "summary")
    assert "Closest to its roof: cublas gemm fp64 4096, layout nn reached 60.3 TFLOP/s" in (
        summary.text
    )
    assert "Most to gain: of the fastest kernels, tiled gemm fp8 8192" in summary.text
    assert "Uncertain: of 96 rows, 21 flagged power_capped" in summary.text
    assert "16896 cores / 128 per SM = 132 SMs × 256 FLOP/clock × 1980 MHz" in (
        "".join(cell.text for cell in page.all("td"))
    )


def test_no_gain_is_promised_from_times_that_say_little() -> None:
    run = cpu_run()
    rows = [replace(row, flags="contended") for row in run.measurements]
    page = parse(to_html([replace(run, measurements=rows)]))
    assert any("Most to gain: unknown: no time is well known" in one.text for one in page.elements)


def test_every_row_has_its_point_and_its_verdict(page: Page) -> None:
    ids = {f"r{i}" for i in range(1, 97)}
    assert {row.attributes.get("id") for row in page.all("tr")} - {None} == ids
    links = [a.attributes["href"] for a in page.all("a", "pt")]
    assert set(links) == {f"#{name}" for name in ids}
    told = {one.attributes.get("data-row") for one in page.elements} - {None}
    assert told == ids
    causes = [one for one in page.all("details") if {"data-any", "data-row"} & set(one.attributes)]
    assert len(causes) == 32, "the same is said once"


def test_the_policy_allows_only_this_style_and_script(page: Page) -> None:
    (policy,) = (
        meta.attributes["content"]
        for meta in page.all("meta")
        if meta.attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for name in ("style", "script"):
        (element,) = page.all(name)
        digest = base64.b64encode(sha256(element.text.encode()).digest()).decode()
        assert rules[f"{name}-src"] == f"'sha256-{digest}'"
    assert "unsafe" not in policy


def test_it_loads_nothing(text: str) -> None:
    assert not re.search(r"(https?:)?//[a-z]|@import|url\(", re.sub(r"//[^\n]*", "", text))
    assert "fetch(" not in text
    assert "innerHTML" not in text


def test_the_table_in_the_link_is_the_export(page: Page) -> None:
    (link,) = (a for a in page.all("a") if "download" in a.attributes)
    data = unquote((link.attributes["href"] or "").partition(",")[2])
    rows = list(csv.DictReader(io.StringIO(data)))
    assert [row["kernel"] for row in rows] == [row.kernel for row in load(LADDER).measurements]


def test_several_runs_are_compared() -> None:
    races = parse(to_html([load(folder) for folder in (*CPUS, HOST_MEMORY)]))
    text = " ".join(element.text for element in races.all("li"))
    assert "with pinned host memory: H200 beats Xeon Processor (1 thread) from 256 on" in text
    again = parse(to_html([load(LADDER), load(LADDER)]))
    assert any(p.text.startswith("96 points in common") for p in again.all("p"))
    other = parse(to_html([load(COUNTED), load(HOST_MEMORY)]))
    assert any(one.attributes["id"] == "comparison" for one in other.all("section"))


# Figures -----------------------------------------------------------------------------------------


def test_points_are_at_their_coordinates(page: Page) -> None:
    """Left, right, top and bottom of the frame are the ends of the axes."""
    run = load(LADDER)
    with styled(WEB):
        panels = FIGURES["roofline"].make(Wanted([run], whole=True)).panels
    assert [panel.title for panel in panels][:2] == ["FP64", "FP32"]
    ids = {id(row): f"#r{i}" for i, row in enumerate(run.measurements, 1)}
    for panel in panels[:2]:
        (left, right), (low, high) = panel.x.limits, panel.y.limits
        for row in (row for marks in panel.marks for row in marks.rows):
            share_x = log10((row.intensity or 0) / left) / log10(right / left)
            share_y = log10((row.tflops or 0) / low) / log10(high / low)
            x, y = 54 + share_x * (372 - 54), 244 - share_y * (244 - 44)
            assert 54 < x < 372
            assert 44 < y < 244
            drawn = next(a for a in page.all("a", "pt") if a.attributes["href"] == ids[id(row)])
            numbers = re.findall(r"[\d.]+", drawn.attributes["transform"] or "")
            assert [float(n) for n in numbers] == pytest.approx([x, y], abs=0.051)


def test_arrows_lead_from_before_to_after() -> None:
    """Of each row that has moved, with its tip at the later point; none beside one run."""
    base = load(LADDER)
    faster = [
        replace(row, tflops=3 * (row.tflops or 0)) if row.kernel == "tiled" else row
        for row in base.measurements
    ]
    page = parse(part(to_html([base, replace(base, measurements=faster)]), "rooflines"))
    places = {
        point.attributes["href"]: re.findall(r"[\d.]+", point.attributes["transform"] or "")
        for point in page.all("a", "pt")
    }
    arrows = page.all("path", "arrow")
    assert len(arrows) == sum(row.kernel == "tiled" for row in base.ok)
    for arrow in arrows:
        before, after = (f"#{name}" for name in (arrow.attributes["data-rows"] or "").split())
        x, y, tip_x, tip_y, *_ = re.findall(r"[\d.]+", arrow.attributes["d"] or "")
        assert [x, y] == places[before]
        assert tip_x == places[after][0]
        assert float(tip_y) == pytest.approx(float(places[after][1]) + 3, abs=0.11)


def test_roofs_have_their_provenance(page: Page) -> None:
    roofs = {one.attributes["data-roof"] for one in page.all("path", "roof")}
    assert roofs == {"derived", "observed"}
    counted = parse(to_html([load(COUNTED)]))
    assert {one.attributes["data-roof"] for one in counted.all("path", "roof")} == {
        *("derived", "measured", "observed")
    }


@pytest.mark.parametrize("folder", [LADDER, CUTLASS, *CPUS], ids=lambda path: path.name)
def test_a_short_slope_has_its_label(folder: Path) -> None:
    """Beside the slope, in the frame and left of the ridge."""
    page = parse(part(to_html([load(folder)]), "rooflines"))
    panels, turned = len(page.all("svg", "panel")), re.compile(r"translate\((.*)\) rotate\((.*)\)")
    labels = [
        (one.text, [float(x) for x in f"{found[1]},{found[2]}".split(",")])
        for one in page.all("text", "halo")
        if (found := turned.match(one.attributes.get("transform") or ""))
    ]
    ridges = [
        float(re.findall(r"[\d.]+", one.attributes["d"] or "")[0])
        for one in page.all("path", "ridge")
    ]
    assert len(labels) == len(ridges) == panels
    for (text, (x, _, angle)), ridge in zip(labels, ridges, strict=True):
        half = 6.4 * len(text) / 2 * cos(radians(angle))
        assert 54 < x - half < x + half < ridge, text


@pytest.mark.parametrize("folder", [LADDER, COUNTED, MEMORY_BOUND], ids=lambda path: path.name)
def test_every_flat_roof_has_its_value(folder: Path) -> None:
    """Also where all points are far left of the ridge."""
    page = parse(part(to_html([load(folder)]), "rooflines"))
    lines = [re.findall(r"[\d.]+", one.attributes["d"] or "") for one in page.all("path", "roof")]
    flat = [line for line in lines if line[1] == line[3]]
    values = [one for one in page.all("text", "halo") if "FLOP/s" in one.text]
    assert len(flat) == len(values) > 0


def test_the_roofs_of_several_runs_are_the_highest() -> None:
    low = cpu_run()
    ceilings = (replace(one, value=1.5 * one.value) for one in low.manifest.roofline.ceilings)
    high = replace(under(low, ceilings), path=low.path.with_name("high"))

    def values(*runs: RunData) -> list[str]:
        page = parse(part(to_html(list(runs)), "rooflines"))
        return [one.text for one in page.all("text", "halo") if "FLOP/s" in one.text]

    assert values(low) != values(high)
    assert values(low, high) == values(high, low) == values(high)


@pytest.mark.parametrize("value", [1.0, 1e21])
def test_roofs_out_of_reach_leave_a_page(value: float) -> None:
    run = cpu_run()
    for kind in ("compute", "bandwidth"):
        ceilings = (
            replace(one, value=value) if one.kind == kind else one
            for one in run.manifest.roofline.ceilings
        )
        sound(parse(to_html([under(run, ceilings)])))


def test_one_point_without_a_compute_roof_has_a_figure() -> None:
    run = cpu_run()
    ceilings = (one for one in run.manifest.roofline.ceilings if one.kind == "bandwidth")
    rows = [replace(run.measurements[0], roof_us=None, roof_percent=None, bound="")]
    page = parse(to_html([changed(under(run, ceilings), rows)]))
    sound(page)
    assert page.all("a", "pt")


def test_counted_bytes_have_a_place_of_their_own() -> None:
    page = parse(to_html([load(COUNTED)]))
    (modelled, counted) = (i for i in page.all("input") if i.attributes.get("name") == "bytes")
    assert (modelled.attributes["value"], counted.attributes["value"]) == ("modelled", "counted")
    moved = [a for a in page.all("a", "pt") if "data-counted" in a.attributes]
    assert any(f"translate({a.attributes['data-counted']})" != a.attributes["transform"]
               for a in moved)  # fmt: skip


@pytest.mark.parametrize("room", [2.3, 5, 8.6])
def test_an_axis_has_few_ticks(room: float) -> None:
    for limits in ((0.7, 1.6), (1e-9, 1e21), (3.0, 40.0), (0.01, 1e6)):
        numbered, others = log_ticks(limits, room)
        assert 1 <= len(numbered) <= max(room + 1, 6)
        assert all(limits[0] <= tick <= limits[1] for tick in (*numbered, *others))
        assert not set(numbered) & set(others)
    for end in (0.3, 7.0, 700.0):
        numbered, _ = linear_ticks((0, end), room)
        assert numbered[0] == 0
        assert 1 < len(numbered) <= room + 1
        assert linear_ticks((end, 0), room) == (numbered, [])


def test_a_power_axis_begins_at_zero() -> None:
    with styled(WEB):
        panels = size.parts([load(LADDER)])["Power"]
    assert {panel.y.limits[0] for panel in panels} == {0.0}
    assert not any(panel.y.log for panel in panels)


def test_the_roof_at_each_size(text: str) -> None:
    """It goes through the sizes of the run; FP16 reaches its compute roof only with the third."""
    sizes = parse(part(text, "sizes"))
    assert len(sizes.all("path", "roof")) == 7
    roofs = [one.attributes["d"] or "" for one in sizes.all("path", "roof")]
    assert all(path.count("L") == 5 for path in roofs)
    heights = [float(y) for y in re.findall(r" ([\d.]+)", roofs[3])]
    assert heights == sorted(heights, reverse=True)
    assert [height == heights[-1] for height in heights] == [False, False, True, True, True, True]


def test_problems_of_one_size_with_several_roofs_have_no_line() -> None:
    run = cpu_run()
    assert 'class="roof' in part(to_html([run]), "sizes")
    first = run.measurements[0]
    less = (first.intensity or 0) / 1000
    other = replace(first, kernel="other", intensity=less)
    assert 'class="roof' not in part(to_html([changed(run, [*run.measurements, other])]), "sizes")


def test_long_names_keep_their_ends() -> None:
    assert brief("H200") == "H200"
    assert brief("EPYC 9654 96-Core Processor (2 threads)") == "EPYC 9654 96-C…r (2 threads)"


# What is unusual ---------------------------------------------------------------------------------


def test_no_text_of_a_run_becomes_markup(tmp_path: Path) -> None:
    run = load(hostile_run(tmp_path / "run"))
    text = to_html([run, load(CPUS[0])])
    page = parse(text)
    sound(page)
    (script,) = page.all("script")
    assert HOSTILE not in script.text
    assert "alert" not in script.text + page.all("style")[0].text
    shown = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
    for name in ("title", "h1", "td", "option", "summary", "dt", "li"):
        assert any(shown in element.text for element in page.all(name)), name
    assert any(element.text.startswith("</script>") for element in page.all("text"))
    assert any("<script>alert(1)</script>" in element.text for element in page.all("pre"))
    assert text.count("<script") == 1


@pytest.mark.parametrize("value", [nan, inf, -inf, 0.0, -1.0, 1e308, 5e-324, 10**400])
def test_absurd_numbers_leave_a_page(value: Any) -> None:
    run = cpu_run()
    fields = ("time_us", "flops", "bytes", "intensity", "tflops", "gbps", "roof_percent", "power_w")
    absurd = [replace(run.measurements[i], **{name: value}) for i, name in enumerate(fields)]
    everywhere = replace(run.measurements[-1], **dict.fromkeys(fields, value))
    rows = [*absurd, *run.measurements[len(absurd) : -1], everywhere]
    page = parse(to_html([changed(run, rows)]))
    sound(page)
    coordinates = [one.attributes.get(name) or "" for one in page.elements
                   for name in ("d", "transform", "x", "y")]  # fmt: skip
    assert not any(re.search("nan|inf", text) for text in coordinates)
    everything = parse(to_html([changed(run, [everywhere])]))
    sound(everything)


@pytest.mark.parametrize("size", ["0", "²", "9" * 400, ""])
def test_a_size_without_a_place_on_an_axis_leaves_a_page(size: str) -> None:
    run = cpu_run()
    first = run.measurements[0]
    odd = replace(first, problem=replace(first.problem, size=size))
    sound(parse(to_html([changed(run, [odd, *run.measurements[1:]])])))


def changed(run: RunData, rows: list[Measurement]) -> RunData:
    return replace(run, measurements=rows)


def test_rows_without_figures_are_listed() -> None:
    run = cpu_run()
    rows = [replace(row, status="failed", reason="out of luck") for row in run.measurements]
    page = parse(to_html([changed(run, rows)]))
    sound(page)
    assert not page.all("a", "pt")
    assert any("out of luck" in cell.text for cell in page.all("td"))
    assert any(f"of {len(rows)} rows, {len(rows)} failed" in one.text for one in page.all("li"))


def test_without_a_row_there_is_nothing_to_report() -> None:
    with pytest.raises(UsageError, match="has no row: there is nothing to report"):
        to_html([changed(cpu_run(), [])])


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot write .*: No such file"):
        write([cpu_run()], tmp_path / "missing" / "report.html")
