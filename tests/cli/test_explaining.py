"""The command ``explain`` on a run of the exact device, whose kernels take a known share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import Rooflab, exact_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exact_run(tmp_path_factory.mktemp("measured"), ["fast", "slow"], [128, 256])


def test_the_largest_gain_comes_first(rooflab: Rooflab, run: Path) -> None:
    code, out, _ = rooflab("explain", run)
    assert code == 0
    headings = [line for line in out.splitlines() if line and not line.startswith(" ")]
    assert [heading.split(",")[0] for heading in headings] == ["slow", "fast"]
    assert "gemm FP32 256, layout nn" in headings[0]
    assert "  fast is 4.00 times as fast here (" in out


def test_the_same_is_said_once_unless_all_rows_are_wanted(rooflab: Rooflab, run: Path) -> None:
    _, out, _ = rooflab("explain", run)
    assert out.count("\n  The same cause and advice at 128.") == 2
    _, out, _ = rooflab("explain", run, "--all")
    headings = [line.split(",")[0] for line in out.splitlines() if line[:1].strip()]
    assert headings == ["slow", "slow", "fast", "fast"]
    assert "The same" not in out


def test_one_kernel_and_size(rooflab: Rooflab, run: Path) -> None:
    code, out, _ = rooflab("explain", run, "fast", "256")
    assert code == 0
    assert out.startswith("fast, gemm FP32 256, layout nn: ")
    assert "Limited by arithmetic: 33.6 MFLOP at " in out
    assert "80.0 % of its roof" in out.splitlines()[0]
    assert out.count("Try: ") == 1


def test_json(rooflab: Rooflab, run: Path) -> None:
    _, out, _ = rooflab("explain", run, "--json")
    content = json.loads(out)
    assert [one["kernel"] for one in content] == ["slow", "slow", "fast", "fast"]
    assert content[-1]["bound"] == "compute"
    assert content[-1]["shares"]["compute"] == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("faster",), "the run has no kernel 'faster'; it has fast, slow"),
        (("s",), "'s' is a part of 2 kernels' names: give more of fast, slow"),
        (("fast", "65"), "the run has no size '65'; it has 128, 256"),
        ((".",), "explain takes one run: rooflab explain RUN KERNEL SIZE"),
    ],
)
def test_wrong_names_get_one_line(
    rooflab: Rooflab, run: Path, words: tuple[str, ...], message: str
) -> None:
    code, out, err = rooflab("explain", run, *words)
    assert (code, out) == (2, "")
    assert message in err
