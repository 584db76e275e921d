"""The commands that read runs, on a run of a program."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from commands import Rooflab, joined
from profiled import REAL

from rooflab.runs import store
from rooflab.runs.program import total

FUSED = "multi_tensor_apply_kernel<FusedAdamMathFunctor, BFloat16>"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(REAL, tmp_path / "run"))


@pytest.fixture
def slower(tmp_path: Path) -> Path:
    """The same program, whose FusedAdam takes three times as long."""
    whole = store.load(REAL)
    before = [row for row in whole.measurements if row.kernel == FUSED]
    times = ("time_us", "time_lo_us", "time_hi_us", "time_p05_us", "time_p95_us", "total_us")
    thrice = [replace(row, **{name: 3 * getattr(row, name) for name in times}) for row in before]
    assert thrice
    program = {**whole.manifest.program}
    for name in ("step_us", "plain_us", "busy_us", "kernels_us"):
        program[name] += 2 * sum(map(total, before))
    manifest = whole.manifest.model_copy(update={"program": program})
    others = [row for row in whole.measurements if row.kernel != FUSED]
    return store.save(tmp_path / "slower", manifest, [*thrice, *others])


def test_show_has_sentences_and_one_table(rooflab: Rooflab, run: Path) -> None:
    code, out, err = rooflab("show", run)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("One step takes 13.9 ms (mean of 5). Its kernels take 11.9 ms; at")
    heads = [line for line in lines if line.lstrip().startswith("kernel")]
    assert len(heads) == 1
    table = lines[lines.index(heads[0]) :]
    assert max(map(len, table)) <= 80
    assert [line.split()[0] for line in table[-2:]] == ["idle", "memsets"]
    assert "rooflab profile train.py" in err
    assert "warning" not in err


@pytest.mark.parametrize("width", [40, 80, 120])
def test_show_fits(
    rooflab: Rooflab, run: Path, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    _, out, _ = rooflab("show", run)
    table = out[out.index("\n kernel") :]
    assert max(map(len, table.splitlines())) <= width


def test_explain_starts_with_the_most_time_above_a_roof(rooflab: Rooflab, run: Path) -> None:
    code, out, err = rooflab("explain", run)
    assert code == 0
    assert out.startswith("cudnn_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128_1x4x1 132x1x1")
    assert out.count("Try: ") == 10
    assert "7 more rows: add --all" in err
    code, out, _ = rooflab("explain", run, FUSED, "320x1x1 512 #2")
    assert code == 0
    assert out.startswith(f"{FUSED} 320x1x1 512 #2: 1.27 ms of a step (9.2 % of it)")


def test_a_run_is_the_same_as_itself(rooflab: Rooflab, run: Path) -> None:
    code, out, _ = rooflab("compare", run, run, "--fail-on", "slow", "--fail-on", "ambiguous")
    assert code == 0
    assert "One step takes 13.9 ms in BASE and 13.9 ms in NEW, +0.00 % (" in out
    assert "): SAME." in out


def test_a_slower_step_fails_if_that_is_asked(rooflab: Rooflab, run: Path, slower: Path) -> None:
    code, out, _ = rooflab("compare", run, slower)
    assert code == 0
    assert "%" in out
    assert "): SLOW." in out
    assert "Slower: FusedAdam by 3.80 ms (27 % of the step)." in out
    assert max(map(len, out[out.index("\n kernel") :].splitlines()[:-1])) <= 80
    code, _, err = rooflab("compare", run, slower, "--fail-on", "slow")
    assert code == 3
    assert "1 SLOW (--fail-on slow)" in err
    code, out, _ = rooflab("compare", slower, run, "--fail-on", "slow")
    assert code == 0
    assert "): FAST." in out


def test_a_threshold_can_be_given(rooflab: Rooflab, run: Path, slower: Path) -> None:
    _, out, _ = rooflab("compare", run, slower, "--threshold", "50", "-f", "json")
    content = json.loads(out)
    assert content["threshold_percent"] == 50
    assert content["points"][0]["verdict"] == "SAME"


@pytest.mark.parametrize("kind", ["markdown", "github", "junit", "json", "table"])
def test_each_format_is_written(rooflab: Rooflab, run: Path, slower: Path, kind: str) -> None:
    code, out, _ = rooflab("compare", run, slower, "-f", kind)
    assert code == 0
    assert "SLOW" in out


def test_three_programs_are_too_many(rooflab: Rooflab, run: Path) -> None:
    code, _, err = rooflab("compare", run, run, run)
    assert code == 2
    assert "a program is compared with one other run of it" in joined(err)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("csv", "program,nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN,"),
        ("json", '"recoverable_us": 245.23289'),
        ("markdown", "| kernel | grid, block | launches | total µs | % of step |"),
        ("latex", "kernel & grid, block & launches & total"),
    ],
)
def test_export(rooflab: Rooflab, run: Path, kind: str, expected: str) -> None:
    code, out, _ = rooflab("export", run, "-f", kind)
    assert code == 0
    assert expected in out
