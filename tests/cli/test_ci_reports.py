"""compare for CI: a job summary, annotations, JUnit XML."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from commands import Rooflab, joined
from compared import BROKEN, measured, written

from rooflab.report import github, markdown
from rooflab.runs import store

FP16: dict[str, Any] = {"precision": "fp16", "layout": "nt"}


@pytest.fixture
def base() -> Path:
    return written(
        "base",
        measured("tiled", 512, 100, 0.2),
        measured("tiled", 1024, 800, 1),
        measured("cublas", 1024, 150, 0.5),
        measured("naive", 1024, 9000, 3),
        measured("tiled", 2048, 6400, 5),
        measured("tiled", 512, 10, 0.01, **FP16),
        measured("naive", 512, 1, 1, **(BROKEN | FP16), status="failed", reason="no"),
        command=["rooflab", "sweep", "-k", "t*"],
    )


@pytest.fixture
def new() -> Path:
    return written(
        "new",
        measured("tiled", 512, 110, 0.2),
        measured("tiled", 1024, 720, 1),
        measured("cublas", 1024, 151, 5),
        measured("naive", 1024, 9001, 3),
        measured("cublas", 2048, 1000, 1),
        measured("tiled", 512, 1, 1, **(BROKEN | FP16), status="incorrect", reason="a | b: 3 %"),
        measured("naive", 512, 1, 1, **(BROKEN | FP16), status="failed", reason="no"),
        driver="590",
    )


# GitHub ------------------------------------------------------------------------------------------

SUMMARY = r"""### 6 points in common: 1 SLOW, 1 AMBIGUOUS, 1 FAST, 1 SAME; $REST.

- BASE: base, NVIDIA H200, 2026-01-02 03:04 UTC
- NEW: new, NVIDIA H200, 2026-01-02 03:04 UTC

| verdict | kernel | problem | size | base µs | new µs | change % | why |
| :-- | :-- | :-- | --: | --: | --: | --: | :-- |
| ok → incorrect | tiled | gemm FP16, layout nt | 512 | 10.000 |  |  | a \| b: 3 % |
| SLOW | tiled | gemm FP32, layout nn | 512 | 100.00 | 110.00 | +10.0 (+9.58…+10.4) |  |
| AMBIGUOUS | cublas | gemm FP32, layout nn | 1024 | 150.00 | 151.00 | +0.67 (-2.99…+4.35) | $WIDE |
| FAST | tiled | gemm FP32, layout nn | 1024 | 800.00 | 720.00 | -10.0 (-10.2…-9.76) |  |

- only in BASE: tiled gemm fp32 2048, layout nn
- only in NEW: cublas gemm fp32 2048, layout nn

<details>
<summary>1 unchanged</summary>

| verdict | kernel | problem | size | base µs | new µs | change % | why |
| :-- | :-- | :-- | --: | --: | --: | --: | :-- |
| SAME | naive | gemm FP32, layout nn | 1024 | 9000.0 | 9001.0 | +0.01 (-0.06…+0.08) |  |

</details>

| what differs | BASE | NEW |
| :-- | :-- | :-- |
| driver version | 580 | 590 |

<details>
<summary>Commands</summary>

<pre>rooflab sweep -k &#39;t&#42;&#39;
rooflab sweep
rooflab compare base new --threshold 0.5</pre>

</details>""".replace("…", "\u2060…\u2060")
SUMMARY = SUMMARY.replace("$WIDE", "interval wider than ±0.5 %").replace(
    "$REST", "1 broken, 1 without figures in both, 1 only in BASE, 1 only in NEW"
)


def test_a_summary_shows_what_changed_and_folds_the_rest(
    rooflab: Rooflab, base: Path, new: Path
) -> None:
    assert rooflab("compare", base, new, "--format", "github") == (0, SUMMARY, "")


def parsed(text: str) -> list[list[list[str]]]:
    """The cells of each table, as a parser of GitHub's Markdown shows them."""
    parser = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable("table")
    tables: list[list[list[str]]] = []
    tokens = iter(parser.parse(text))
    for token in tokens:
        if token.type == "table_open":
            tables.append([])
        elif token.type == "tr_open":
            tables[-1].append([])
        elif token.type in ("th_open", "td_open"):
            shown = next(tokens).children or []
            words = "".join(part.content for part in shown if part.type != "html_inline")
            tables[-1][-1].append(words.replace("\u2060", ""))
    return tables


def test_a_summary_is_three_tables_to_a_parser(rooflab: Rooflab, base: Path, new: Path) -> None:
    _, out, _ = rooflab("compare", base, new, "--format", "github")
    changed, same, differing = parsed(out)
    assert [line[0] for line in changed] == [
        "verdict",
        "ok → incorrect",
        "SLOW",
        "AMBIGUOUS",
        "FAST",
    ]
    assert changed[1][-1] == "a | b: 3 %"
    assert changed[2][4:7] == ["100.00", "110.00", "+10.0 (+9.58…+10.4)"]
    assert [line[:2] for line in same] == [["verdict", "kernel"], ["SAME", "naive"]]
    assert differing == [["what differs", "BASE", "NEW"], ["driver version", "580", "590"]]
    assert {len(line) for line in changed + same} == {8}


def test_names_with_markup_stay_in_their_cell(rooflab: Rooflab) -> None:
    name = "a|b <b>*c*_d_` @e #1"
    base = written("base", measured(name, 512, 100, 0.2))
    new = written("new", measured(name, 512, 110, 0.2))
    _, out, _ = rooflab("compare", base, new, "--format", "github")
    [changed] = [table for table in parsed(out) if table[0][0] == "verdict"]
    assert changed[1][:2] == ["SLOW", name]


def test_a_summary_of_equal_runs_is_short(rooflab: Rooflab, base: Path) -> None:
    _, out, _ = rooflab("compare", base, base, "--format", "github")
    assert "\nNothing changed.\n" in out
    assert "\nThe environments are the same.\n" in out
    assert out.count("<details>") == out.count("</details>") == 2


def test_a_summary_fits_what_github_accepts(
    rooflab: Rooflab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(markdown, "MOST_LINES", 2)
    rows = [measured("tiled", 8 * i, 100, 0.1) for i in range(1, 6)]
    base = written("base", *rows)
    _, out, _ = rooflab("compare", base, base, "--format", "github")
    assert out.count("| SAME |") == 2
    assert "\nand 3 more\n" in out


@pytest.mark.parametrize("to", ["stdout", "file"])
def test_annotations_are_on_stderr_and_never_in_the_summary(
    rooflab: Rooflab, base: Path, new: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    words = ("--fail-on", "slow", "-f", "github", "-o", "-" if to == "stdout" else "summary.md")
    code, out, err = rooflab("compare", base, new, *words)
    made = out if to == "stdout" else Path("summary.md").read_text(encoding="utf-8").rstrip("\n")
    assert (code, made) == (3, SUMMARY)
    lines = [line for line in err.splitlines() if line.startswith("::")]
    assert lines == [
        "::error title=ok → incorrect::tiled gemm fp16 512, layout nt: a | b: 3 %25",
        "::error title=SLOW::tiled gemm fp32 512, layout nn: "
        "100.00 → 110.00 µs, +10.0 (+9.58…+10.4) %25",
    ]
    assert err.splitlines()[-1].startswith("error: 1 SLOW, 1 broken")


def test_annotations_follow_fail_on(
    rooflab: Rooflab, base: Path, new: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "::" not in rooflab("compare", base, new, "-f", "github", "--fail-on", "slow")[2]
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    _, _, err = rooflab("compare", base, new, "-f", "github")
    assert re.findall("^::(\\w+) title=([^:]+)", err, re.M) == [
        ("warning", "ok → incorrect"),
        ("warning", "SLOW"),
    ]
    _, _, err = rooflab("compare", base, new, "-f", "github", "--fail-on", "ambiguous")
    assert re.findall("^::(\\w+) title=([^:]+)", err, re.M)[-1] == ("error", "AMBIGUOUS")
    assert "::" not in rooflab("compare", base, new, "-f", "markdown", "--fail-on", "slow")[2]


def test_more_annotations_than_github_shows_are_counted(
    rooflab: Rooflab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    sizes = range(8, 8 * 13, 8)
    base = written("base", *(measured("tiled", size, 100, 0.1) for size in sizes))
    new = written("new", *(measured("tiled", size, 200, 0.1) for size in sizes))
    _, _, err = rooflab("compare", base, new, "-f", "github")
    lines = err.splitlines()
    assert len(lines) == github.MOST_ANNOTATIONS
    assert lines[-1] == "::warning title=and more::3 more points"


# JUnit -------------------------------------------------------------------------------------------


def suite(text: str) -> ElementTree.Element:
    """The one suite, with what Apache Ant's JUnit.xsd requires."""
    root = ElementTree.fromstring(text)
    (found,) = root
    assert (root.tag, found.tag) == ("testsuites", "testsuite")
    tags = [child.tag for child in found]
    cases = found.findall("testcase")
    assert tags == ["properties", *["testcase"] * len(cases), "system-out", "system-err"]
    decimal = "[0-9]+[.][0-9]+"
    for name, form in {
        "name": ".+",
        "package": ".+",
        "hostname": ".+",
        "id": "0",
        "timestamp": "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}",
        "time": decimal,
        "tests": str(len(cases)),
        "failures": str(len(found.findall("testcase/failure"))),
        "skipped": str(len(found.findall("testcase/skipped"))),
        "errors": "0",
    }.items():
        assert re.fullmatch(form, found.attrib[name], re.DOTALL), name
    for case in cases:
        assert set(case.attrib) == {"name", "classname", "time"}
        assert re.fullmatch(decimal, case.attrib["time"])
        assert len(case) <= 1
    assert all(failure.attrib["type"] for failure in found.findall("testcase/failure"))
    return found


def test_a_test_case_for_each_point(rooflab: Rooflab, base: Path, new: Path) -> None:
    code, out, err = rooflab("compare", base, new, "--format", "junit", "--fail-on", "slow")
    assert code == 3
    assert err.splitlines()[-1] == "error: 1 SLOW, 1 broken (--fail-on slow)"
    assert out.startswith('<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>')
    found = suite(out)
    cases = [
        (
            case.attrib["classname"],
            case.attrib["name"],
            float(case.attrib["time"]),
            *(f"{child.tag}: {child.attrib['message']}" for child in case),
        )
        for case in found.findall("testcase")
    ]
    assert cases == [
        (
            "gemm.fp32",
            "tiled 512, layout nn",
            110e-6,
            "failure: SLOW: 100.00 → 110.00 µs, +10.0 (+9.58…+10.4) %",
        ),
        ("gemm.fp32", "tiled 1024, layout nn", 720e-6),
        ("gemm.fp32", "cublas 1024, layout nn", 151e-6),
        ("gemm.fp32", "naive 1024, layout nn", 9001e-6),
        ("gemm.fp16", "tiled 512, layout nt", 0, "failure: ok → incorrect: a | b: 3 %"),
        ("gemm.fp16", "naive 512, layout nt", 0, "skipped: failed in both"),
        ("gemm.fp32", "tiled 2048, layout nn", 6400e-6, "skipped: only in BASE"),
        ("gemm.fp32", "cublas 2048, layout nn", 1000e-6, "skipped: only in NEW"),
    ]
    assert found.findtext("testcase/failure") == (
        "BASE: 100.00 µs, 95 % interval 99.800 to 100.20 µs\n"
        "NEW: 110.00 µs, 95 % interval 109.80 to 110.20 µs"
    )
    assert "AMBIGUOUS, interval wider than ±0.5 %: cublas" in found.findtext("system-out", "")


def test_the_properties_are_both_environments(rooflab: Rooflab, base: Path, new: Path) -> None:
    _, out, _ = rooflab("compare", base, new, "--format", "junit", "--threshold", "2")
    properties = {
        one.attrib["name"]: one.attrib["value"] for one in suite(out).findall("properties/property")
    }
    wanted = {
        "threshold_percent": "2",
        "BASE path": "base",
        "BASE command": "rooflab sweep -k t*",
        "BASE driver version": "580",
        "NEW driver version": "590",
        "NEW device": "NVIDIA H200",
        "NEW version of rooflab": "0.1.0",
    }
    assert wanted.items() <= properties.items()


def test_an_xml_file_is_junit(rooflab: Rooflab, base: Path, new: Path) -> None:
    assert rooflab("compare", base, new, "-o", "c.xml") == (0, "", "c.xml")
    suite(Path("c.xml").read_text(encoding="utf-8"))
    assert rooflab("export", base, "-o", "e.xml")[0] == 2
    assert not Path("e.xml").exists()


def test_what_was_repaired_passes_and_what_was_left_out_is_skipped(rooflab: Rooflab) -> None:
    failed: dict[str, Any] = {**BROKEN, "status": "failed", "reason": "no"}
    skipped: dict[str, Any] = {**BROKEN, "status": "skipped", "reason": "why"}
    same = measured("tiled", 8, 1, 0)
    base = written("base", same, measured("tiled", 16, 1, 0, **failed), measured("tiled", 32, 1, 0))
    new = written("new", same, measured("tiled", 16, 1, 0), measured("tiled", 32, 1, 0, **skipped))
    code, out, _ = rooflab("compare", base, new, "-f", "junit", "--fail-on", "slow")
    _, repaired, left_out = suite(out).findall("testcase")
    assert (code, len(repaired)) == (0, 0)
    assert left_out[0].attrib == {"message": "ok → skipped: why"}


@pytest.mark.parametrize("time", ["nan", "inf", "-1", "1e300"])
def test_impossible_times_are_refused_and_endless_ones_break_nothing(
    rooflab: Rooflab, base: Path, time: str
) -> None:
    table = base / store.MEASUREMENTS
    text = table.read_text()
    damaged = text.replace(",100,99.8,100.2,", f",{time},{time},{time},")
    assert damaged != text
    table.write_text(damaged)
    code, out, err = rooflab("compare", base, base, "-f", "junit")
    if time == "1e300":
        assert code == 0
        suite(out)
    else:
        assert (code, out) == (1, "")
        assert f"measurements.csv line 2: time_us is '{time}', not a time" in joined(err)
