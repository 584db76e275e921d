"""Runs of many rows: reading them takes work in proportion, and their page stays small."""

from __future__ import annotations

import base64
import gzip
import io
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any

import measured
import pytest
from many import grown, joined, saved
from pages import HOSTILE, Page, parse
from rich.console import Console

import rooflab
from rooflab import figures
from rooflab.report import comparison, export, terminal
from rooflab.report.explain import alike, explanations, others, paragraphs, to_json
from rooflab.report.html import comparing, content, frame
from rooflab.report.html.page import to_html
from rooflab.runs.compare import compare
from rooflab.runs.store import RunData, load

pytestmark = pytest.mark.slow

ROOFLAB = str(Path(rooflab.__file__).parent)
FEW, TWICE = 260, 520
MOST = 250
"""Fewer rows than those are all that a page has elements for here."""

MIXED, STREAMED, CPU = "mixed", "streamed", "CPU"
TEMPLATES = {
    STREAMED: (measured.STREAMED,),
    CPU: (measured.CPU,),
    "20 kernels": (measured.LADDER,),
}


@cache
def made(name: str, count: int) -> RunData:
    """A run of many rows."""
    if name == MIXED:
        return grown(joined(), count)
    measured = joined(TEMPLATES[name])
    if name == "20 kernels":
        rows = [row for row in measured.ok if row.problem.precision == "fp32"]
        return grown(replace(measured, measurements=rows), count, [f"k{i}" for i in range(20)])
    return grown(measured, count, ("naive", "tiled", "blas") if name == CPU else ())


def work(action: Callable[[], object]) -> int:
    """How many lines of rooflab's code ``action`` runs."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(ROOFLAB):
            return None
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def show(run: RunData) -> None:
    """What ``rooflab show`` prints."""
    console = Console(file=io.StringIO(), width=120)
    for table in (*terminal.tables(run.measurements), *terminal.counter_tables(run.measurements)):
        console.print(table)
    terminal.remarks(run.measurements)
    terminal.sentences(run.measurements)


def explain(run: RunData) -> None:
    found = explanations(run)
    for group in alike(found):
        list(paragraphs(group[0]))
        others(group)
    to_json(found)


def compared(run: RunData) -> None:
    result = compare(run, run, 0.5)
    comparison.comparison_text(result)
    for exporter in comparison.COMPARISON_EXPORTERS.values():
        exporter(result)


def exported(run: RunData) -> None:
    for exporter in export.EXPORTERS.values():
        exporter(run)


READERS: dict[str, Callable[[RunData], object]] = {
    "show": show,
    "export": exported,
    "explain": explain,
    "compare": compared,
    "report": lambda run: to_html([run]),
    "report of two": lambda run: to_html([run, run]),
    "roofline": lambda run: figures.draw("roofline", [run]),
    "size": lambda run: figures.draw("size", [run]),
}


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (content, comparing, frame):
        monkeypatch.setattr(module, "MANY", MOST)


def doubles(read: Callable[[RunData], object], name: str) -> bool:
    """Whether reading twice the rows is at most 2.2 times the work."""
    read(made(name, 40))  # what is read once: kernels, ladders, fonts
    runs = made(name, FEW), made(name, TWICE)
    few, twice = (work(partial(read, run)) for run in runs)
    assert few > FEW, "it reads all rows"
    return twice < 2.2 * few


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("reader", READERS)
def test_twice_the_rows_are_twice_the_work(reader: str) -> None:
    assert doubles(READERS[reader], MIXED)


OTHERS: dict[str, tuple[str, Callable[[RunData], object]]] = {
    "explain": ("20 kernels", explain),
    "report": ("20 kernels", READERS["report"]),
    "size": ("20 kernels", READERS["size"]),
    "speed-up": ("20 kernels", lambda run: figures.draw("speedup", [run], value="k0")),
    "energy": ("20 kernels", lambda run: figures.draw("energy", [run])),
    "roofline of a CPU": (CPU, READERS["roofline"]),
    "report of streamed": (STREAMED, READERS["report"]),
    "transfers": (STREAMED, lambda run: figures.draw("transfers", [run])),
}


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("what", OTHERS)
def test_so_they_are_in_other_runs_and_figures(what: str) -> None:
    name, read = OTHERS[what]
    assert doubles(read, name)


def test_a_file_of_twice_the_rows_is_twice_the_work(tmp_path: Path) -> None:
    folders = {n: saved(made(MIXED, n), tmp_path / str(n)) for n in (40, FEW, TWICE)}
    assert doubles(lambda run: load(folders[len(run.measurements)]), MIXED)


# The page ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunData, str]:
    """A run of 4,000 rows, and its page."""
    run = load(saved(made(MIXED, 4000), tmp_path_factory.mktemp("many") / "run"))
    return run, to_html([run])


def test_a_page_of_4000_rows_is_below_two_megabytes(large: tuple[RunData, str]) -> None:
    assert len(large[1].encode()) < 2_000_000


def test_every_row_is_in_a_large_page(large: tuple[RunData, str]) -> None:
    """As text, whose line is its number, as a point, and in the file for download."""
    run, text = large
    page = parse(text)
    assert not page.errors
    (data,) = (one for one in page.elements if one.attributes.get("id") == "data")
    lines = [line.split("\t") for line in data.text.split("\n")]
    heads = [head.text for head in page.all("th") if "scope" in head.attributes][: len(lines[0])]
    kernel, size, cause = (heads.index(name) for name in ("kernel", "size", "cause"))
    assert [(line[kernel], line[size]) for line in lines] == [
        (row.kernel, row.problem.size) for row in run.measurements
    ]
    assert all(line[cause] for line, row in zip(lines, run.measurements, strict=True)
               if row.status == "ok")  # fmt: skip
    ok = {i for i, row in enumerate(run.measurements, 1) if row.status == "ok"}
    assert _drawn(text, "sizes") == ok
    assert _drawn(text, "rooflines") == {i for i in ok if run.measurements[i - 1].flops}
    (packed,) = re.findall(r'data-gzip="([^"]*)"', text)
    assert gzip.decompress(base64.b64decode(packed)).decode() == export.to_csv(run)


def _drawn(text: str, section: str) -> set[int]:
    part = text.partition(f'<section id="{section}"')[2].partition("</section>")[0]
    numbers = re.findall(r'data-points="([^"]*)"', part)
    return {int(number) for some in numbers for number in some.split()}


def test_dots_are_at_the_places_of_points() -> None:
    """The same rows, in a page of few rows and of many."""
    few, many = made(MIXED, 500), made(MIXED, 501)
    given = parse(to_html([few])).all("a", "pt")
    number, place = 'href="#r(\\d+)"', r'transform="translate\(([\d.]+),([\d.]+)\)"'
    assert len(given) > 500
    spots = re.findall(f"{number}[^>]*{place}", to_html([few]))
    dots = re.findall(r'd="(M[^"]*h0)" data-points="([^"]*)"', to_html([many]))
    found = {
        (row, *spot.split())
        for path, rows in dots
        for row, spot in zip(rows.split(), re.findall(r"M([^h]*)h0", path), strict=True)
    }
    # The last row of the larger run may move an axis: most places are the same.
    assert len(found & set(spots)) > 0.7 * len(spots)


def test_no_text_of_many_rows_becomes_markup() -> None:
    run = made(MIXED, 600)
    rows = [replace(row, kernel=f"{HOSTILE}\t\n{i % 7}") for i, row in enumerate(run.measurements)]
    text = to_html([replace(run, measurements=rows)])
    page: Page = parse(text)
    assert not page.errors
    assert text.count("<script") == 1
    (data,) = (one for one in page.elements if one.attributes.get("id") == "data")
    lines = data.text.split("\n")
    assert len(lines) == 600
    assert len({line.count("\t") for line in lines}) == 1
    assert f"\t{HOSTILE} 0\t" in lines[0]


def test_a_cause_is_said_once() -> None:
    """Of hundreds of rows, with the sizes for which it holds."""
    run = made(MIXED, 4000)
    found = explanations(run)
    groups = alike(found)
    assert sum(map(len, groups)) == len(found) == len(run.ok)
    assert len(groups) < 200
    largest = max(groups, key=len)
    assert re.fullmatch(
        r"The same cause and advice at \d+ other sizes, from \S+ to \S+\.", others(largest)
    )
    assert others(largest[:4]).count(",") == 2
    assert others(largest[:1]) == ""


# Figures and tables ------------------------------------------------------------------------------


def test_a_figure_has_few_marks_for_many_series() -> None:
    """Each shape is a series of its own."""
    run = made(MIXED, 1040)
    for figure in (
        figures.draw("roofline", [run], ["fp32"], "softmax"),
        figures.draw("size", [run]),
    ):
        for axes in figure.axes:
            assert len(axes.lines) < 40
            assert len(axes.texts) < 80


def test_rows_that_failed_for_one_reason_are_counted() -> None:
    rows = [row for row in made(MIXED, 4000).measurements if row.status != "ok"]
    assert len(rows) == 40
    lines = terminal.remarks(rows)
    assert len(lines) == len({row.kernel for row in rows}) < 40
    for line in lines:
        assert re.fullmatch(r"failed: \w+ \w+ fp\d+ [^:]+(, and \d+ more)?: out of luck", line)
