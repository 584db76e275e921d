"""The main job, whole, on a device with an exact clock."""

from __future__ import annotations

import json
import re
from pathlib import Path

import fake
import pytest
from commands import Rooflab, only_run

from rooflab.runs import store

SMALL = ("--precision", "fp32", "--sizes", "32:64:x2")

TABLE = """\
gemm FP32, layout nn

  size   kernel   time µs   ± %   GFLOP/s     GB/s   % roof   bound
 ─────────────────────────────────────────────────────────────────────
    32   fast       153.6   0.0    0.4267   0.0800     80.0   dram
         slow       614.4   0.0    0.1067   0.0200     20.0   dram

    64   fast       655.4   0.0    0.8000   0.0750     80.0   compute
         slow        2621   0.0    0.2000   0.0188     20.0   compute

gemm FP32, layout nn at 64: fast reached 0.800 GFLOP/s, 80.0 % of its roof, and
ran 4.000 times as fast as slow."""


@pytest.mark.pictures
def test_the_whole_job(rooflab: Rooflab) -> None:
    code, out, err = rooflab("sweep", "-k", "fast", "-k", "slow", *SMALL)
    assert code == 0, err
    assert out == TABLE
    lines = [
        *("measuring roofs …", "Exact 1000 (fake:FakeDevice)"),
        *("DRAM 0.1 GB/s measured; FP32 1 GFLOP/s measured", "warming up the device …"),
        "1/4 fast gemm fp32 32, layout nn: 153.6 µs ± 0.0 %, 80.0 % of its roof; about ",
    ]
    said = err.splitlines()[: len(lines)]
    assert re.fullmatch(r"\d+ s left", said[-1].removeprefix(lines[-1]))
    assert said[:-1] == lines[:-1]

    run = only_run()
    assert {path.name for path in run.path.iterdir()} == {
        "manifest.json",
        "measurements.csv",
        "samples.jsonl",
        "roofline.png",
        "size.png",
    }
    assert [(row.kernel, row.problem.size) for row in run.measurements] == [
        ("fast", "32"),
        ("slow", "32"),
        ("fast", "64"),
        ("slow", "64"),
    ]
    fast = run.measurements[2]
    assert fast.roof_tflops == pytest.approx(fake.PEAK / 1e12)
    assert fast.time_us == pytest.approx(2 * 64**3 / (0.8 * fake.PEAK) * 1e6)
    assert fast.cache == "cold"
    assert run.manifest.finished is not None
    assert run.manifest.config["workloads"][0]["sizes"] == [32, 64]
    samples = [json.loads(line) for line in (run.path / store.SAMPLES).read_text().splitlines()]
    assert [sum(map(len, s["rounds"])) for s in samples] == [r.samples for r in run.measurements]


def test_the_parts_of_a_runs_time(rooflab: Rooflab) -> None:
    rooflab("sweep", "-k", "fast", *SMALL)
    parts = dict(only_run().manifest.wall_s)
    total, device = parts.pop("total"), parts.pop("device")
    assert list(parts) == ["start", "prepare", "verify", "timing"]
    assert parts["start"] > 0 and sum(parts.values()) <= total and device > 0


def test_a_narrow_terminal_gets_the_figures_that_matter_most(
    rooflab: Rooflab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    out = rooflab("sweep", "-k", "fast", "-k", "slow", *SMALL)[1]
    assert max(map(len, out.splitlines())) <= 40
    rows = [line.split() for line in out.splitlines()]
    assert ["size", "kernel", "time", "µs", "%", "roof"] in rows
    assert ["32", "fast", "153.6", "80.0"] in rows


def test_what_cannot_fit_is_refused_before_anything_is_measured(rooflab: Rooflab) -> None:
    given = ("sweep", "--device", "cpu", "--dry-run", "--sizes")
    assert rooflab(*given, "64,9000000")[0] == 0  # it is skipped
    code, out, err = rooflab(*given, "9000000")
    assert (code, out) == (2, "")
    assert "gemm fp32 9000000 needs 972 TB, and " in err
    assert err.rstrip().endswith("of memory: give a smaller problem")


def test_each_sweep_gets_its_own_folder(rooflab: Rooflab) -> None:
    for _ in range(2):
        rooflab("sweep", "-k", "fast", "-p", "fp32", "--sizes", "64", "--out", "deep/er")
    assert len(list(Path("deep/er").iterdir())) == 2


def test_a_precision_that_no_kernel_here_has_is_one_line(rooflab: Rooflab) -> None:
    code, out, err = rooflab("sweep", "--device", "cpu", "-p", "fp8")
    assert (code, out) == (2, "")
    assert err == (
        "error: no kernel supports fp8: naive has fp32, fp64; tiled has fp32, fp64; "
        "blas has fp32, fp64 (give another: --precision fp32)"
    )


def test_precisions_that_a_kernel_lacks_are_named(rooflab: Rooflab) -> None:
    code, _, err = rooflab("sweep", "-k", "fast", "-p", "fp64", "-p", "tf32", "--sizes", "64")
    assert code == 0
    assert "fast does not support tf32: skipped" in err


def test_layouts_batch_alpha_beta_reach_the_kernel(rooflab: Rooflab) -> None:
    code, out, _ = rooflab(
        *("sweep", "-k", "fast", "-p", "fp64", "--shape", "12x7x30", "--layout", "all"),
        *("--set", "batch=3", "--alpha", 0.5, "--beta", -2, "--seed", 7),
    )
    assert code == 0
    rows = only_run().measurements
    assert [row.problem.settings["layout"] for row in rows] == ["nn", "nt", "tn", "tt"]
    assert {row.status for row in rows} == {"ok"}
    assert {row.problem.size for row in rows} == {"12x7x30x3"}
    assert {(row.problem.settings["alpha"], row.problem.settings["beta"]) for row in rows} == {
        (0.5, -2.0)
    }
    assert "gemm FP64, layout tt, alpha 0.5, beta -2" in out


def test_nothing_measured_draws_nothing(rooflab: Rooflab, monkeypatch: pytest.MonkeyPatch) -> None:
    from rooflab import figures

    drawn: list[object] = []
    monkeypatch.setattr(figures, "draw_all", drawn.append)
    assert rooflab("sweep", "-k", "nan", *SMALL)[0] == 3
    assert not drawn


# What is asked for wrongly -----------------------------------------------------------------------

BAD = [
    (
        ["-k", "fats"],
        "no kernel for gemm matches 'fats': did you mean fast? (list: rooflab kernels)",
    ),
    (["-k", "zzz*"], "no kernel for gemm matches 'zzz*': there are fast, slow, nan, wrong"),
    (["-k", "absent"], "kernel absent cannot run here: nobody has it: pip install it"),
    (["-k", "mine.cu"], "kernel file mine.cu cannot be read: No such file"),
    (["-k", "mine.py"], "kernel file mine.py cannot be read: no such file"),
    (["-k", "fast", "-p", "fp23"], "unknown precision 'fp23': did you mean"),
    (["-k", "fast", "-p", "tf32"], "no kernel supports tf32: fast has fp32, fp64"),
    (["-k", "fast", "--layout", "nm"], "unknown layout 'nm': choose from nn, nt, tn, tt"),
    (["-k", "fast", "--sizes", "0"], "size 0 is out of range: give 1 to 2147483648"),
    (["-k", "fast", "--sizes", "-5"], "size -5 is out of range"),
    (["-k", "fast", "--sizes", "10000000000"], "size 10000000000 is out of range"),
    (["-k", "fast", "--sizes", "1..5"], "cannot read sizes '1..5': write 512, or 256,512, or"),
    (["-k", "fast", "--shape", "4x4"], "cannot read shape '4x4' of gemm: write MxNxK"),
    (["-k", "fast", "--shape", "4x4x0"], "K = 0 is out of range: give a whole number"),
    (["-k", "fast", "--set", "batch=0"], "batch = 0 is out of range: give a whole number"),
    (["-k", "fast", "--alpha", "nan"], "alpha = nan is not a finite number"),
    (["-k", "fast", "--beta", "inf"], "beta = inf is not a finite number"),
    (["-k", "fast", "--alpha", "1e308"], "alpha = 1e+308 is out of range: give 0, or 1e-30 to"),
    (["-k", "fast", "--beta=-1e-320"], "beta = -9.99989e-321 is out of range: give 0, or 1e-30"),
    (["-k", "fast", "--sizes", "1:8:x1.000000000001"], "sizes '1:8:x1.000000000001' are more than"),
    (["-k", "fast", "--config", "fulll"], "no configuration 'fulll': name a TOML file or one of"),
    (["-k", "fast,slow", "--variant", "x"], "--variant 'x': no variants in fast, slow"),
    ([""], "workload '': name one, or none for gemm (list: rooflab workloads)"),
    (
        ["-k", "fast", "--out", "file"],
        "cannot write to file: Not a directory; name a folder",
    ),
]


@pytest.mark.parametrize(("arguments", "says"), BAD, ids=lambda value: "")
def test_bad_input_gets_one_line_and_writes_nothing(
    rooflab: Rooflab, arguments: list[str], says: str
) -> None:
    Path("file").write_text("")
    code, out, err = rooflab("sweep", *arguments)
    assert code == 2
    assert out == ""
    assert err.splitlines()[-1].startswith(f"error: {says}")
    assert "Traceback" not in err
    assert [path.name for path in Path().iterdir()] == ["file"]


def test_several_mistakes_are_reported_at_once(rooflab: Rooflab) -> None:
    code, _, err = rooflab("sweep", "-k", "fast", "-p", "fp23", "--sizes", "0", "--layout", "q")
    assert code == 2
    assert len(err.splitlines()) == 1
    for part in ("size 0 is out", "unknown precision 'fp23'", "unknown layout 'q'"):
        assert part in err


def test_debug_shows_the_traceback() -> None:
    from rooflab.cli import main
    from rooflab.errors import UsageError

    with pytest.raises(UsageError):
        main(["sweep", "-k", "fats", "--debug"])
