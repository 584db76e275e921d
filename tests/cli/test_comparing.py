"""compare, from files alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import Rooflab, joined
from compared import BROKEN, measured, written

from rooflab.runs import manifest, store


@pytest.fixture
def base() -> Path:
    return written(
        "base",
        measured("tiled", 512, 100, 0.2),
        measured("cublas", 512, 20, 0.05, sm_mhz=1980),
        measured("tiled", 1024, 800, 1),
        measured("cublas", 1024, 150, 0.5, sm_mhz=1980),
        measured("naive", 1024, 9000, 3),
        measured("tiled", 2048, 6400, 5),
        measured("tiled", 512, 50, 0.1, precision="fp16", layout="nt"),
        measured("wmma_64x64", 512, 10, 0.01, precision="fp16", layout="nt"),
    )


@pytest.fixture
def new() -> Path:
    return written(
        "new",
        measured("tiled", 512, 110, 0.2),
        measured("cublas", 512, 22, 0.05, sm_mhz=1800),
        measured("tiled", 1024, 720, 1),
        measured("cublas", 1024, 151, 5, sm_mhz=1980),
        measured("naive", 1024, 9001, 3),
        measured("cublas", 2048, 1000, 1),
        measured("tiled", 512, 50, 0.1, precision="fp16", layout="nt"),
        measured(
            "wmma_64x64",
            512,
            0,
            0,
            **(BROKEN | {"precision": "fp16", "layout": "nt"}),
            status="incorrect",
            reason="a | b",
        ),
        driver="590",
    )


TABLE = """\
BASE: base, NVIDIA H200, 2026-01-02 03:04 UTC
NEW: new, NVIDIA H200, 2026-01-02 03:04 UTC

  what differs     BASE   NEW
 ─────────────────────────────
  driver version   580    590

gemm FP32, layout nn

  kernel   size   base µs   new µs   change %      interval   verdict
 ───────────────────────────────────────────────────────────────────────
  tiled     512    100.00   110.00      +10.0   +9.58…+10.4   SLOW
  cublas    512    20.000   22.000      +10.0   +9.48…+10.5   AMBIGUOUS
  tiled    1024    800.00   720.00      -10.0   -10.2…-9.76   FAST
  cublas   1024    150.00   151.00      +0.67   -2.99…+4.35   AMBIGUOUS
  naive    1024    9000.0   9001.0      +0.01   -0.06…+0.08   SAME

gemm FP16, layout nt

  kernel   size   base µs   new µs   change %      interval   verdict
 ─────────────────────────────────────────────────────────────────────
  tiled     512    50.000   50.000      +0.00   -0.40…+0.40   SAME

AMBIGUOUS, slower in time, the same in cycles (1980 → 1800 MHz): cublas gemm fp32 512, layout nn
AMBIGUOUS, interval wider than ±0.5 %: cublas gemm fp32 1024, layout nn
ok → incorrect: wmma_64x64 gemm fp16 512, layout nt: a | b
only in BASE: tiled gemm fp32 2048, layout nn
only in NEW: cublas gemm fp32 2048, layout nn
7 points in common: 1 SLOW, 2 AMBIGUOUS, 1 FAST, 2 SAME; 1 broken, 1 only in BASE, 1 only in NEW."""

MARKDOWN = (
    r"""- BASE: base, NVIDIA H200, 2026-01-02 03:04 UTC
- NEW: new, NVIDIA H200, 2026-01-02 03:04 UTC

| what differs | BASE | NEW |
| :-- | :-- | :-- |
| driver version | 580 | 590 |

| verdict | kernel | problem | size | base µs | new µs | change % | why |
| :-- | :-- | :-- | --: | --: | --: | --: | :-- |
| ok → incorrect | wmma\_64x64 | gemm FP16, layout nt | 512 | 10.000 |  |  | a \| b |
| SLOW | tiled | gemm FP32, layout nn | 512 | 100.00 | 110.00 | +10.0 (+9.58…+10.4) |  |
| AMBIGUOUS | cublas | gemm FP32, layout nn | 512 | 20.000 | 22.000 | +10.0 (+9.48…+10.5) | $CLOCK |
| AMBIGUOUS | cublas | gemm FP32, layout nn | 1024 | 150.00 | 151.00 | +0.67 (-2.99…+4.35) | $WIDE |
| FAST | tiled | gemm FP32, layout nn | 1024 | 800.00 | 720.00 | -10.0 (-10.2…-9.76) |  |
| SAME | naive | gemm FP32, layout nn | 1024 | 9000.0 | 9001.0 | +0.01 (-0.06…+0.08) |  |
| SAME | tiled | gemm FP16, layout nt | 512 | 50.000 | 50.000 | +0.00 (-0.40…+0.40) |  |

only in BASE: tiled gemm fp32 2048, layout nn

only in NEW: cublas gemm fp32 2048, layout nn

""".replace("$CLOCK", "slower in time, the same in cycles (1980 → 1800 MHz)").replace(
        "$WIDE", "interval wider than ±0.5 %"
    )
    + TABLE.splitlines()[-1]
)


def test_the_table(rooflab: Rooflab, base: Path, new: Path) -> None:
    assert rooflab("compare", base, new) == (0, TABLE, "")


def test_a_file_within_names_its_run(rooflab: Rooflab, base: Path, new: Path) -> None:
    assert rooflab("compare", base / store.MEASUREMENTS, new / store.MANIFEST)[1] == TABLE


def test_markdown_puts_regressions_first(rooflab: Rooflab, base: Path, new: Path) -> None:
    assert rooflab("compare", base, new, "--format", "markdown") == (0, MARKDOWN, "")


def test_json_holds_every_figure(rooflab: Rooflab, base: Path, new: Path) -> None:
    code, out, _ = rooflab("compare", base, new, "-f", "json", "--threshold", "1")
    content = json.loads(out)
    assert code == 0
    assert content["base"] == {
        "path": "base",
        "created": "2026-01-02T03:04:00+00:00",
        "device": "NVIDIA H200",
    }
    assert content["threshold_percent"] == 1
    assert content["differences"] == [{"name": "driver version", "base": "580", "new": "590"}]
    slow = content["points"][0]
    assert (slow["verdict"], slow["reason"]) == ("SLOW", "")
    assert slow["change_percent"] == pytest.approx(10)
    assert slow["change_lo_percent"] == pytest.approx(100 * (109.8 / 100.2 - 1))
    assert slow["change_hi_percent"] == pytest.approx(100 * (110.2 / 99.8 - 1))
    assert (slow["base"]["time_us"], slow["new"]["time_hi_us"]) == (100, 110.2)
    (change,) = content["status_changes"]
    assert change["broken"] is True
    assert change["new"]["time_us"] is None
    assert [row["kernel"] for row in content["only_base"] + content["only_new"]] == [
        "tiled",
        "cublas",
    ]
    assert content["counts"] == {
        "SLOW": 1,
        "AMBIGUOUS": 2,
        "FAST": 1,
        "SAME": 2,
        "broken": 1,
        "unmeasured": 0,
    }


def test_a_file_goes_by_its_suffix(rooflab: Rooflab, base: Path, new: Path) -> None:
    for name, start in (("c.md", "- BASE"), ("c.json", "{"), ("c.txt", "BASE: base")):
        assert rooflab("compare", base, new, "-o", name) == (0, "", name)
        assert Path(name).read_text().startswith(start)
    assert Path("c.txt").read_text().strip() == TABLE
    code, _, err = rooflab("compare", base, new, "-o", "nowhere/c.md")
    said = "error: cannot write nowhere/c.md: No such file or directory; name another file"
    assert (code, err) == (2, said)


def test_regressions_fail_where_asked(rooflab: Rooflab, base: Path, new: Path) -> None:
    code, out, err = rooflab("compare", base, new, "--fail-on", "slow")
    assert (code, out) == (3, TABLE)
    assert err.splitlines()[-1] == "error: 1 SLOW, 1 broken (--fail-on slow)"
    code, out, err = rooflab("compare", base, new, "--fail-on", "slow", "--fail-on", "ambiguous")
    assert (code, out) == (3, TABLE)
    assert err == "error: 1 SLOW, 1 broken, 2 AMBIGUOUS (--fail-on slow ambiguous)"


def test_a_slower_but_unclear_point_does_not_pass_in_silence(rooflab: Rooflab) -> None:
    base = written("base", measured("tiled", 64, 100, 0.1), measured("tiled", 128, 800, 1))
    new = written("new", measured("tiled", 64, 113, 14), measured("tiled", 128, 800, 1))
    code, _, err = rooflab("compare", base, new, "--fail-on", "slow")
    assert code == 0
    assert joined(err) == (
        "warning: 1 AMBIGUOUS point took 0.5 % longer or more: look at them, "
        "or add --fail-on ambiguous"
    )
    code, _, err = rooflab("compare", base, new, "--fail-on", "ambiguous")
    assert (code, err) == (3, "error: 1 AMBIGUOUS (--fail-on ambiguous)")
    assert rooflab("compare", base, new) == (0, rooflab("compare", base, new)[1], "")


def test_sweeps_of_other_kernels_are_no_equal_environments(rooflab: Rooflab) -> None:
    """Kernels of one sweep share a clock at the power limit."""

    def record(*names: str) -> dict[str, manifest.KernelRecord]:
        return {f"gemm/{name}": manifest.KernelRecord(backend="", title="") for name in names}

    row = measured("tiled", 64, 100, 0.1)
    base = written("base", row, kernels=record("tiled", "cublas"))
    new = written("new", row, kernels=record("tiled"))
    _, out, _ = rooflab("compare", base, new)
    assert "The environments are the same." not in out
    assert "kernels of the sweep cublas, tiled tiled" in joined(out)


def test_what_became_wrong_fails_however_fast(rooflab: Rooflab) -> None:
    one, two = measured("tiled", 64, 5, 0), measured("tiled", 128, 40, 0)
    base = written("base", one, two)
    wrong = replace(two, status="incorrect", reason="NaN", **BROKEN)
    new = written("new", one, wrong)
    code, out, err = rooflab("compare", base, new, "--fail-on", "slow")
    assert (code, err) == (3, "error: 1 broken (--fail-on slow)")
    assert "ok → incorrect: tiled gemm fp32 128, layout nn: NaN" in out
    code, out, err = rooflab("compare", new, base, "--fail-on", "slow")
    assert (code, err) == (0, "")
    assert out.endswith("2 points in common: 1 SAME; 1 with another status.")


def test_a_run_equals_itself(rooflab: Rooflab, base: Path) -> None:
    code, out, err = rooflab("compare", base, base, "--fail-on", "slow", "--fail-on", "ambiguous")
    assert (code, err) == (0, "")
    assert "The environments are the same." in out
    assert out.endswith("8 points in common: 8 SAME.")


def test_long_names_fit_80_columns(rooflab: Rooflab) -> None:
    name = "cutlass_128x256x64_stages4"
    shape = (16384, 131072, 16384)
    row = measured(name, 1, 123456.7, 100, shape=shape)
    base = written("base", row, versions={"rooflab": "0.1.0+" + 60 * "a"})
    row = measured(name, 1, 300000.5, 100, shape=shape)
    new = written("new", row, versions={"rooflab": 70 * "b"})
    _, out, _ = rooflab("compare", base, new)
    assert max(map(len, out.splitlines())) <= 80
    (line,) = [line.split() for line in out.splitlines() if "16384x131072x16384" in line]
    assert line[1:] == ["16384x131072x16384", "123457", "300000", "+143", "+143…+143", "SLOW"]


@pytest.mark.parametrize(
    ("manifest", "kernel", "message"),
    [
        ({"config": {"fill": "zeros"}}, "tiled", "fill is uniform in BASE and zeros in NEW"),
        ({}, "naive", "no point in common: kernel is tiled in BASE, naive in NEW"),
    ],
)
def test_runs_that_do_not_compare(
    rooflab: Rooflab, manifest: dict[str, Any], kernel: str, message: str
) -> None:
    base = written("base", measured("tiled", 64, 5, 0))
    new = written("new", measured(kernel, 64, 5, 0), **manifest)
    code, out, err = rooflab("compare", base, new)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert len(err.splitlines()) == 1


def test_bad_arguments(rooflab: Rooflab, base: Path) -> None:
    code, _, err = rooflab("compare", base, "nowhere")
    assert code == 2
    assert err.startswith("error: nowhere is not a run folder")
    code, _, err = rooflab("compare", base, base, "--threshold=-1")
    assert (code, err) == (2, "error: the threshold cannot be -1: give 0 or more, in %")
    assert rooflab("compare", base)[0] == 2


def test_formats_that_compare_has_not_are_refused(rooflab: Rooflab, base: Path) -> None:
    code, _, err = rooflab("compare", base, base, "-o", "x.csv")
    assert code == 2
    assert err == "error: x.csv: compare writes .md, .json, .xml or a table: add --format"
    assert not Path("x.csv").exists()
