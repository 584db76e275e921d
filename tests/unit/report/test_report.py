"""Runs as text: figures in words, and text from elsewhere that must not become markup."""

from __future__ import annotations

import csv
import html
import io
import json
import re
import shlex
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rooflab.api import Run
from rooflab.model.facts import Fact
from rooflab.model.measurement import COLUMNS, FLAGS, Measurement
from rooflab.model.roofline import Ceiling, MissingCeiling, Provenance, Roofline
from rooflab.model.units import scaled
from rooflab.report import comparison, export, github, markdown, terminal
from rooflab.report.fitting import FigureTable
from rooflab.report.text import digits, heading, interval_percent, label, speed
from rooflab.runs import store
from rooflab.runs.compare import Comparison, compare
from rooflab.workloads import build

ROOFLINE = synthetic.h200_roofline()
HOSTILE = (
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-2+3",
    "@SUM(A1)",
    "\tx",
    "a,b;c",
    'say "hello"',
    "| a | b |",
    "**bold** _x_ `code` <script>alert(1)</script> [link](http://x) ![i](y) # ~~z~~ &amp;",
    "[red]x[/red] [/] [link=http://x]y[/link] \\[bold]",
    ":skull: trailing\\",
    r"\input{/etc/passwd} a&b%c$d#e_f{g}~h^i",
    "µ ± → ×",
)


def row(
    name: str = "tiled", shape: tuple[int, int, int] = (64, 64, 64), **other: Any
) -> Measurement:
    return synthetic.row(name, shape, "fp32", 1.0, ROOFLINE, **other)


def run(*rows: Measurement, name: str = "NVIDIA H200") -> store.RunData:
    return synthetic.run(name, ROOFLINE, list(rows), synthetic.H200_FACTS)


def hostile(text: str) -> Measurement:
    """A row whose every text is ``text``."""
    made = row(text, variant=text, backend=text, bound=text, reason=text, cache=text)
    problem = replace(made.problem, size=text, about=text)
    return replace(made, problem=problem)


def printed(*things: Any, width: int = 200) -> str:
    """What a terminal shows."""
    console = Console(file=io.StringIO(), width=width, highlight=False, emoji=False)
    for thing in things:
        console.print(thing)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


# Figures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "count", "text"),
    [
        (None, 3, ""),
        (0, 3, "0"),
        (nan, 3, "nan"),
        (inf, 3, "inf"),
        (1234.5, 3, "1234"),
        (12.345, 3, "12.3"),
        (1.2345, 3, "1.23"),
        (0.0012345, 3, "0.00123"),
        (-12.345, 3, "-12.3"),
        (1e-40, 3, "1e-40"),
    ],
)
def test_significant_digits(value: float | None, count: int, text: str) -> None:
    assert digits(value, count) == text


@given(st.floats(1e-9, 1e12), st.integers(1, 6))
def test_digits_are_as_many_as_asked_for_and_without_exponent(value: float, count: int) -> None:
    text = digits(value, count)
    assert "e" not in text
    assert float(text) == pytest.approx(value, rel=10 ** (1 - count))


@pytest.mark.parametrize(
    ("intensity", "tflops", "gbps", "text"),
    [
        (100.0, 12.345, 1.0, "12.3 TFLOP/s"),
        (100.0, 0.5, 1.0, "500 GFLOP/s"),
        (0.1, 0.5, 4321.0, "4.32 TB/s"),
        (0.1, 0.5, 43.21, "43.2 GB/s"),
        (None, None, 43.21, "43.2 GB/s"),
    ],
)
def test_speed_is_that_which_a_reader_thinks_in(
    intensity: float | None, tflops: float | None, gbps: float, text: str
) -> None:
    assert speed(replace(row(), intensity=intensity, tflops=tflops, gbps=gbps)) == text


def test_rows_and_tables_are_named_by_what_they_are() -> None:
    one = row(layout="nt", beta=0.5)
    assert heading(one.problem) == "gemm FP32, layout nt, beta 0.5"
    assert label(one) == "tiled gemm fp32 64, layout nt, beta 0.5"
    copy = replace(one, problem=build("copy", "int32", {"columns": 8}).record)
    assert heading(copy.problem) == "copy INT32"
    unknown = replace(copy.problem, precision="fp4")
    assert heading(unknown) == "copy fp4"


def test_an_interval_is_half_of_its_width() -> None:
    assert interval_percent(row(time_us=100, time_lo_us=99, time_hi_us=102)) == 1.5
    assert interval_percent(row()) is None


# Tables ------------------------------------------------------------------------------------------


def test_tables_fit_80_columns() -> None:
    rows = [
        *synthetic.h200_run().measurements,
        row("a_kernel_with_a_long_name", (16384, 28672, 8192)),
        replace(row("x"), status="incorrect", reason="why"),
    ]
    for line in printed(*terminal.tables(rows), width=80).splitlines():
        assert len(line) <= 80


PLAIN: dict[str, Any] = {
    "title": "x [b]y[/]",
    "title_justify": "left",
    "title_style": "bold",
    "box": box.SIMPLE_HEAD,
}


@pytest.mark.parametrize("width", [20, 80, 200])
@pytest.mark.parametrize("text", [*HOSTILE, "", "a\nb", "宽", "[red]SLOW[/]"])
def test_a_plain_table_is_what_rich_would_draw(text: str, width: int) -> None:
    drawn = []
    for table in (FigureTable("x [b]y[/]"), Table(**PLAIN)):
        table.padding = (0, 1, 0, len(text) % 2)
        table.add_column("size", justify="right", no_wrap=True)
        table.add_column("kernel of a name", no_wrap=True)
        cell = text if text.endswith("SLOW[/]") else escape(text)
        for i in range(3):
            table.add_row(f"{10**i}", cell)
            table.add_section()
        drawn.append(printed(table, width=width))
    assert drawn[0] == drawn[1]


def test_a_table_for_each_workload_precision_and_settings() -> None:
    rows = [row("a"), row("b"), row("a", layout="nt"), row("a", alpha=2.0)]
    copy = build("copy", "fp32", {"columns": 64})
    rows.append(replace(row("memcpy", bound="dram", flops=0), problem=copy.record))
    text = printed(*terminal.tables(rows))
    for title in (
        "gemm FP32, layout nn",
        "gemm FP32, layout nt",
        "gemm FP32, layout nn, alpha 2",
        "copy FP32",
    ):
        assert re.search(rf"^ *{re.escape(title)}\s*$", text, re.MULTILINE), title
    assert "–" in text.split("copy FP32")[1]  # no FLOPs, no FLOP/s


def test_remarks_name_what_failed_and_count_flags() -> None:
    rows = [
        row("a", flags="noisy;batch_timed"),
        row("b", flags="noisy"),
        replace(row("c"), status="incorrect", reason="C[0, 0] is off"),
    ]
    assert terminal.remarks(rows) == [
        "incorrect: c gemm fp32 64, layout nn: C[0, 0] is off",
        f"noisy (2 of 3 rows): {FLAGS['noisy']}",
    ]


@pytest.mark.parametrize("width", [40, 50, 62, 70, 80])
def test_columns_are_left_out_and_no_figure_is_cut(width: int) -> None:
    rows = [
        row(name, (size, size, size), time_us=4257.0, time_lo_us=4200.0, time_hi_us=4300.0)
        for name in ("coalesced", "cublas")
        for size in (512, 16384)
    ]
    counted = [
        replace(one, counted_flops=1e12, dram_bytes=2e9, l2_bytes=3e10, l1_bytes=4e11, sm_mhz=1980)
        for one in rows
    ]
    text = printed(*terminal.tables(rows), *terminal.counter_tables(counted), width=width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    assert text.count(" 4257 ") == 4
    assert {"kernel", "time", "%", "roof"} <= set(text.split())
    assert ("bound" in text) == (width >= 80)
    assert [line.split()[0] for line in text.splitlines() if "cublas" in line] != []


def test_a_sentence_compares_the_kernels_of_the_largest_problem() -> None:
    rows = [
        row("slow", (128, 128, 128), time_us=200.0, time_lo_us=198.0, time_hi_us=202.0),
        row("fast", (128, 128, 128), time_us=100.0, time_lo_us=99.0, time_hi_us=101.0),
        row("fast", (64, 64, 64), time_us=1.0),
        row("fast", (256, 256, 256), time_us=500.0),
    ]
    (sentence,) = terminal.sentences(rows)
    assert sentence.startswith("gemm FP32, layout nn at 128: fast reached ")
    assert sentence.endswith("and ran 2.00 ± 0.03 times as fast as slow.")
    for low, high, told in (
        (50.0, 300.0, "roof; its times do not show that it is faster than slow."),
        (1.0, 1e6, "roof; its times do not show that it is faster than slow."),
        (180.0, 222.0, "and ran 2.0 (1.8 to 2.2) times as fast as slow."),
        (199.9, 200.1, "2.00 ± 0.02 times"),
        (0.0, 300.0, "2.0 times"),
    ):
        wide = replace(rows[0], time_lo_us=low, time_hi_us=high)
        assert told in terminal.sentences([wide, *rows[1:]])[0]
    assert terminal.sentences([replace(rows[0], status="failed")]) == []


def test_a_range_that_says_little_is_not_a_claim() -> None:
    fast, slow, slower = (
        row(name, time_us=us, time_lo_us=us / factor, time_hi_us=us * factor)
        for name, us, factor in (("fast", 1.0, 1.01), ("slow", 2.0, 3.0), ("slower", 250.0, 10.0))
    )
    (sentence,) = terminal.sentences([slow, fast, slower])
    assert sentence.endswith(
        "and ran at least 25 times as fast as slower; its times do not show that it is "
        "faster than slow."
    )


# Text from elsewhere -----------------------------------------------------------------------------


@pytest.mark.parametrize("text", HOSTILE)
def test_csv_keeps_text_and_gives_a_spreadsheet_no_formula(text: str) -> None:
    lines = list(csv.reader(io.StringIO(export.to_csv(run(hostile(text))))))
    head, cells = lines
    assert len(cells) == len(head)
    for name in ("kernel", "variant", "size", "reason"):
        cell = cells[head.index(name)]
        assert cell.removeprefix("'") == text
        assert cell[:1] not in ("=", "+", "-", "@", "\t")


def test_negative_numbers_stay_numbers() -> None:
    head, cells = csv.reader(io.StringIO(export.to_csv(run(row(alpha=-0.5)))))
    assert cells[head.index("alpha")] == "-0.5"


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_shows_text_as_it_is(text: str) -> None:
    made = export.to_markdown(run(hostile(text)))
    lines = made.splitlines()
    assert len(lines) == 3
    # The table has as many cells in every line, and nothing in them is markup.
    bars = [len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in lines]
    assert len(set(bars)) == 1
    without = re.sub(r"\\.", "", lines[2])
    assert not set("<>[]*_`~#!&") & set(without)
    assert re.sub(r"\\(.)", r"\1", markdown.escape(text)) == " ".join(text.split())


@pytest.mark.parametrize("text", HOSTILE)
def test_latex_shows_text_as_it_is(text: str) -> None:
    made = export.to_latex(run(hostile(text)))
    body = made.split("\\midrule\n")[1].split("\\bottomrule")[0]
    assert body.count("\\\\\n") == 1
    head = made.split("\\toprule\n")[1].split("\\midrule")[0]
    ampersands = r"(?<!\\)&"
    assert len(re.findall(ampersands, body)) == len(re.findall(ampersands, head))
    known = r"\\(?:text(?:backslash|asciitilde|asciicircum|mu|less|greater|bar)|dots)\{\}"
    known += r"|\$\\(?:pm|rightarrow)\$|\\[&%$#_{}]|\\\\\n"
    assert not set("\\$#%_{}~^") & set(re.sub(known, "", body))


# A tab is cleaned away when a run is loaded.
SHOWN = [text for text in HOSTILE if "\t" not in text]


@pytest.mark.parametrize("text", SHOWN)
def test_a_terminal_shows_text_as_it_is(text: str) -> None:
    shown = " ".join(text.split())
    table = printed(*terminal.tables([hostile(text)]), width=1000)
    assert " ".join(table.split()).count(shown) >= 2  # the kernel and the heading


@pytest.mark.parametrize("text", SHOWN)
def test_a_device_shows_text_as_it_is(text: str) -> None:
    limits = Roofline(
        (Ceiling("compute", text, 1e12, "derived", text, text),),
        (MissingCeiling("compute", text, text),),
    )
    facts = {text: Fact(text, source=text), "gone": Fact(None, reason=text)}
    tables = terminal.device_tables(facts, limits)
    shown = " ".join(printed(*tables, width=1000).replace("_", " ").split())
    wanted = " ".join(text.replace("_", " ").split())
    assert shown.count(wanted) >= 8  # every place where it stands


def test_a_datasheets_value_is_shown_beside_another() -> None:
    higher = Ceiling("compute", "bf16", 1071e12, "derived", "132 SMs × 1980 MHz", datasheet=989e12)
    (_, limits) = terminal.device_tables({}, Roofline((higher,), ()))
    assert "1071 TFLOP/s derived 132 SMs × 1980 MHz; datasheet: 989 TFLOP/s" in " ".join(
        printed(limits, width=100).split()
    )


def test_a_derived_roof_that_was_passed_has_a_footnote() -> None:
    known: tuple[tuple[float, Provenance, str, str], ...] = (
        (115e9, "measured", "FMA microkernel", ""),
        (83e9, "derived", "2 cores × 2596 MHz", "assumes 2 FMA pipes"),
    )
    roofs = [
        Ceiling("compute", key, value * scale, provenance, formula, caveat)
        for key, scale in (("fp32", 2), ("fp64", 1))
        for value, provenance, formula, caveat in known
    ]
    (_, limits) = terminal.device_tables({}, Roofline(tuple(roofs)))
    text = " ".join(printed(limits).split())
    assert text.count("2 cores × 2596 MHz [1] [2]") == 2
    assert text.count("assumes the reported clock, 2.6 GHz; the processor ran faster.") == 1


@pytest.mark.parametrize("text", HOSTILE)
def test_comparisons_show_text_as_it_is(text: str) -> None:
    base = run(replace(hostile(text), time_us=1.0, time_lo_us=0.9, time_hi_us=1.1))
    bad = replace(hostile(text), kernel=f"{text} 2", status="incorrect", reason=text)
    other = replace(base, measurements=[*base.measurements, bad])
    compared = compare(base, other, 0.5)
    shown = " ".join(comparison.comparison_text(compared).split())
    assert text.split()[0][:20] in shown
    if text.startswith("[red]"):
        assert "[red]x[/red]" in shown
    assert ":skull:" in shown or ":skull:" not in text
    made = comparison.comparison_markdown(compared)
    assert not set("<>[]`") & set(re.sub(r"\\.", "", made))
    content = json.loads(comparison.comparison_json(compared))
    assert content["only_new"][0]["reason"] == text


FOR_GITHUB = (
    "@someone #1 GH-7 a/b#2 :skull: $x$ \\\\$y$ me@a.example",
    "http://evil/x www.evil.example WWW.evil.example ftp://e mailto:me@a.example",
    "</pre></details></summary><!-- <script>alert(1)</script> ]]> &lt;",
    "::error::x ##[add-mask]x ::stop-commands::x",
    "`` ` ``` \\` \\| \\<b> **a** --- ===",
)


def changed(text: str) -> Comparison:
    """A comparison with ``text`` wherever a run has text: a broken point, SLOW and SAME ones."""
    times: dict[str, Any] = {"time_us": 100.0, "time_lo_us": 99.9, "time_hi_us": 100.1}
    rows = [replace(hostile(f"{text} {i}"), cache="cold", **times) for i in range(3)]
    slow = replace(rows[1], time_us=200.0, time_lo_us=199.9, time_hi_us=200.1)
    bad = replace(rows[2], status="incorrect", reason=text)
    alone = [replace(rows[0], kernel=f"{text} {name}") for name in "ab"]
    base = run(*rows, alone[0], name=text)
    new = run(rows[0], slow, bad, alone[1], name=text)
    for one in (base, new):
        one.manifest.command = [text, f"a{text}"]
    new.manifest.versions[text] = text
    return compare(base, new, 0.5)


@pytest.mark.parametrize("text", [*HOSTILE, *FOR_GITHUB])
def test_nothing_of_a_run_is_active_on_github(text: str) -> None:
    made = comparison.COMPARISON_EXPORTERS["github"](changed(text))
    commands = re.findall("^<pre>(.*?)</pre>$", made, re.DOTALL | re.MULTILINE)
    assert len(commands) == 1
    assert shlex.split(html.unescape(commands[0]).splitlines()[0]) == [text, f"a{text}"]
    assert not re.search("[^\\w ./=,+&#;\\n-]", commands[0])
    assert "##[" not in made
    assert not re.search(r"^\s*::", made, re.MULTILINE)
    own = r"<pre>.*?</pre>|</?details>|<summary>[\w ]+</summary>|^### "
    # GitHub searches each piece of text between tags for links, mentions, emoji and formulas.
    pieces = re.split(
        "</?span>", re.sub(r"\\(.)", r"\\<\1>", re.sub(own, "", made, flags=re.S | re.M))
    )
    for piece in pieces:
        plain = re.sub(r"\\<.>", "", piece)
        assert not set("<>[]`*_~\\\\!#&") & set(plain)
        shown = re.sub(r"\\<(.)>", r"\1", piece)
        assert not re.search(r"://|www\.|\w@\w|@\w|#\d|GH-\d|:[\w+-]+:", shown, re.IGNORECASE)
        assert shown.count("$") < 2
    rows = [re.sub(r"\\.", "", line) for line in made.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {9, 4}


@pytest.mark.parametrize("text", [*HOSTILE, *FOR_GITHUB, "a\r\nb%0Ac"])
def test_an_annotation_is_one_command(text: str) -> None:
    lines = github.workflow_commands(changed(text), "error", ambiguous=True)
    assert len(lines) == 2
    for line in lines:
        found = re.fullmatch(r"::error title=([^:,\r\n]*)::([^\r\n]*)", line)
        assert found
        command, message = found.groups()
        assert command in ("SLOW", "ok → incorrect")
        shown = message.replace("%0A", "\n").replace("%0D", "\r").replace("%25", "%")
        assert text in shown


@pytest.mark.parametrize("text", [*HOSTILE, *FOR_GITHUB, "a\x00b\x1b\ufffe\ud800\x85c ]]>", "\x00"])
def test_junit_shows_text_as_it_is(text: str) -> None:
    made = comparison.COMPARISON_EXPORTERS["junit"](changed(text))
    allowed = re.sub("[\x00\x1b\ufffe\ud800]", "", text)
    root = ElementTree.fromstring(made)
    cases = root.findall("testsuite/testcase")
    assert [case.attrib["name"].startswith(allowed) for case in cases] == [True] * 5
    assert [case.find("failure") is not None for case in cases].count(True) == 2
    values = {one.attrib["value"] for one in root.iter("property")}
    assert {allowed, f"{allowed} a{allowed}"} <= values
    assert made.isascii()


@pytest.mark.parametrize("text", HOSTILE)
def test_a_notebook_shows_text_as_it_is(text: str) -> None:
    made = Run.of(run(hostile(text), name=text))._repr_html_()
    cells = re.findall(r"<(?:td|caption)>(.*?)</(?:td|caption)>", made, re.DOTALL)
    assert text in [html.unescape(cell) for cell in cells]
    assert not any("<" in cell for cell in cells)
    assert "\n" not in repr(Run.of(run(row())))


def test_json_has_every_column_and_no_nan() -> None:
    odd = replace(row(), time_us=nan, tflops=inf, energy_j=None)
    (made,) = json.loads(export.to_json(run(odd)), parse_constant=pytest.fail)
    assert (made["time_us"], made["tflops"], made["energy_j"]) == (None, None, None)
    assert set(COLUMNS) <= set(made)
    assert (made["workload"], made["m"], made["layout"]) == ("gemm", 64, "nn")


def test_rows_of_several_workloads_are_exported_together(tmp_path: Path) -> None:
    """``tests/data/schema3`` has add and gemm."""
    both = store.load(Path(__file__).parents[2] / "data" / "schema3")
    rows = list(csv.DictReader(io.StringIO(export.to_csv(both))))
    assert {one["workload"] for one in rows} == {"add", "gemm"}
    add = next(one for one in rows if one["workload"] == "add")
    assert (add["columns"], add["m"], add["layout"]) == ("100", "", "")
    for exporter in export.EXPORTERS.values():
        assert "add" in exporter(both)


DIGITS = {
    2: "rel_error",
    3: "roof_percent observed_percent temp_c burst_w share_percent expected_dram_bytes",
    4: "launch_us host_us intensity tflops gbps algorithm_gbps bus_gbps roof_tflops "
    "observed_tflops nvml_mhz mem_mhz energy_j power_w gflop_per_j launches",
    5: "time_us time_lo_us time_hi_us time_min_us time_p05_us time_p95_us pair_us roof_us "
    "serial_us sm_mhz counted_flops tensor_flops fp64_flops fp32_flops fp16_flops dram_bytes "
    "l2_bytes l1_bytes cycles counted_mhz energy_mhz burst_us burst_mhz total_us recoverable_us",
}


def test_every_figure_is_shown_with_as_many_digits_as_mean_something() -> None:
    found: dict[int, set[str]] = {}
    for name, column in COLUMNS.items():
        if column.type is float:
            found.setdefault(column.digits, set()).add(name)
    assert found == {count: set(names.split()) for count, names in DIGITS.items()}
    assert {column.digits for column in COLUMNS.values() if column.type is int} == {4}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5 "),
        (512, "512 "),
        (999, "999 "),
        (1000, "1 k"),
        (950e3, "950 k"),
        (1e6, "1 M"),
        (990e6, "990 M"),
        (1.0737e9, "1.07 G"),
        (999e9, "999 G"),
        (1e12, "1 T"),
        (12.34e12, "12.3 T"),
    ],
)
def test_numbers_have_decimal_prefixes(value: float, text: str) -> None:
    assert scaled(value) == text
