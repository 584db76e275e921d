"""The main job, whole, on a device with an exact clock."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import fake
import pytest

from rooflab import run

Rooflab = Callable[..., tuple[int, str, str]]

SMALL = ("--precision", "fp32", "--sizes", "32:64:x2")

TABLE = """\
FP32, layout nn

  size   kernel   time µs   ± %   GFLOP/s     GB/s   % roof   bound
 ─────────────────────────────────────────────────────────────────────
    32   fast       153.6   0.0    0.4267   0.0800     80.0   memory
         slow       614.4   0.0    0.1067   0.0200     20.0   memory

    64   fast       655.4   0.0    0.8000   0.0750     80.0   compute
         slow        2621   0.0    0.2000   0.0188     20.0   compute

FP32 at 64: fast reached 0.800 GFLOP/s, 80.0 % of its roof, and ran 4.00 ± 0.00
times as fast as slow."""


def only_run(results: Path = Path("results")) -> run.Run:
    (folder,) = results.iterdir()
    return run.load(folder)


@pytest.mark.pictures
def test_the_whole_job(rooflab: Rooflab) -> None:
    code, out, err = rooflab("sweep", "-k", "fast", "-k", "slow", *SMALL)
    assert code == 0
    assert out == TABLE
    assert err.startswith(
        "Exact 1000 (fake:FakeDevice)\nDRAM 0.1 GB/s measured; FP32 1 GFLOP/s measured\n\nresults/"
    )

    one = only_run()
    assert {path.name for path in one.path.iterdir()} == {
        "manifest.json",
        "measurements.csv",
        "samples.jsonl",
        "roofline.png",
        "size.png",
    }
    assert [(row.kernel, row.m) for row in one.measurements] == [
        ("fast", 32),
        ("slow", 32),
        ("fast", 64),
        ("slow", 64),
    ]
    fast = one.measurements[2]
    assert fast.roof_tflops == pytest.approx(fake.PEAK / 1e12)
    assert fast.time_us == pytest.approx(2 * 64**3 / (0.8 * fake.PEAK) * 1e6)
    assert fast.cache == "cold"
    assert one.manifest.finished is not None
    assert one.manifest.config["sizes"] == [32, 64]
    samples = [json.loads(line) for line in (one.path / run.SAMPLES).read_text().splitlines()]
    assert [sum(map(len, s["rounds"])) for s in samples] == [r.samples for r in one.measurements]


def test_each_sweep_gets_its_own_folder(rooflab: Rooflab) -> None:
    for _ in range(3):
        rooflab("sweep", "-k", "fast", "--sizes", "8", "--out", "deep/er")
    assert len(list(Path("deep/er").iterdir())) == 3


def test_a_precision_that_no_kernel_here_has_is_one_line(rooflab: Rooflab) -> None:
    code, out, err = rooflab("sweep", "--device", "cpu", "-p", "fp8")
    assert (code, out) == (2, "")
    assert err == (
        "error: no kernel has fp8: naive has fp32, fp64; tiled has fp32, fp64; blas has fp32, fp64"
    )


def test_wrong_results_get_no_figure_and_exit_3(rooflab: Rooflab) -> None:
    code, out, err = rooflab("sweep", "-k", "nan", "-k", "wrong", "-k", "fast", *SMALL)
    assert code == 3
    bad = [row for row in only_run().measurements if row.kernel != "fast"]
    assert {row.status for row in bad} == {"incorrect"}
    assert all(row.time_us is None and row.tflops is None for row in bad)
    assert "warning: incorrect: nan fp32 nn 32x32x32: 1 of 1024 elements are NaN" in err
    assert "fast reached" in out
    assert "nan reached" not in out


def test_a_kernel_that_does_not_compile_costs_its_own_rows(rooflab: Rooflab) -> None:
    code, _, err = rooflab("sweep", "-k", "broken", "-k", "fast", *SMALL)
    assert code == 1
    assert 'broken.cu(3): error: identifier "x" is undefined\n    x = 1;\n' in err
    assert [row.status for row in only_run().measurements] == ["failed", "ok", "failed", "ok"]


def test_a_problem_beyond_memory_is_skipped(
    rooflab: Rooflab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MEMORY", "1000000")
    code, _, err = rooflab("sweep", "-k", "fast", "-p", "fp32", "--sizes", "64,512")
    assert code == 0
    assert "skipped: fast fp32 nn 512x512x512: needs 0.00629 GB of memory, 0.001 GB are free" in err
    assert [row.status for row in only_run().measurements] == ["ok", "skipped"]


def test_a_kernel_that_kills_its_process_costs_its_own_rows(rooflab: Rooflab) -> None:
    code, out, err = rooflab("sweep", "-k", "slow", "-k", "dies", "-k", "fast", *SMALL)
    assert code == 1
    assert [row.status for row in only_run().measurements] == ["ok", "failed", "ok"] * 2
    assert (
        "failed: dies fp32 nn 32x32x32: the measuring process died of SIGSEGV while verifying"
        in " ".join(err.split())
    )
    assert "2 of 6 points failed" in err
    assert "4.00 ± 0.00" in out


def test_a_kernel_that_never_returns_is_killed(rooflab: Rooflab) -> None:
    Path("short.toml").write_text("[timing]\ntimeout_s = 1\nslow_s = 0.9\nwarmup_s = 0.01\n")
    code, _, err = rooflab(
        "sweep",
        "-k",
        "hangs",
        "-k",
        "fast",
        "-p",
        "fp32",
        "--sizes",
        "64",
        "--config",
        "short.toml",
    )
    assert code == 1
    assert [row.status for row in only_run().measurements] == ["timeout", "ok"]
    assert "no sign of life for 1 s while verifying; killed" in " ".join(err.split())


def test_nothing_measured_draws_nothing(rooflab: Rooflab) -> None:
    code, _, _ = rooflab("sweep", "-k", "nan", *SMALL)
    assert code == 3
    assert not list(only_run().path.glob("*.png"))


def test_precisions_that_a_kernel_lacks_are_named(rooflab: Rooflab) -> None:
    code, _, err = rooflab("sweep", "-k", "fast", "-p", "fp64", "-p", "tf32", "--sizes", "8")
    assert code == 0
    assert "fast has no tf32: left out there" in err


def test_layouts_batch_alpha_beta_reach_the_kernel(rooflab: Rooflab) -> None:
    code, out, _ = rooflab(
        *("sweep", "-k", "fast", "-p", "fp64", "--shape", "12x7x30", "--layout", "all"),
        *("--batch", 3, "--alpha", 0.5, "--beta", -2, "--seed", 7),
    )
    assert code == 0
    rows = only_run().measurements
    assert [row.layout for row in rows] == ["nn", "nt", "tn", "tt"]
    assert {(row.shape, row.alpha, row.beta, row.status) for row in rows} == {
        ("12x7x30x3", 0.5, -2.0, "ok")
    }
    assert "FP64, layout tt, alpha 0.5, beta -2" in out


BAD = [
    (["-k", "fats"], "no kernel matches 'fats': did you mean fast? (list: rooflab kernels)"),
    (
        ["-k", "zzz*"],
        "no kernel matches 'zzz*': there are fast, slow, nan, wrong, broken, dies",
    ),
    (["-k", "absent"], "kernel absent cannot run here: nobody has it: pip install it"),
    (["-k", "mine.cu"], "mine.cu needs an NVIDIA GPU (see: rooflab doctor)"),
    (["-k", "fast", "-p", "fp23"], "unknown precision 'fp23': did you mean"),
    (["-k", "fast", "-p", "tf32"], "no kernel has tf32: fast has fp32, fp64"),
    (["-k", "fast", "--layout", "nm"], "unknown layout 'nm': did you mean"),
    (["-k", "fast", "--sizes", "0"], "size 0 is out of range: give 1 to 1048576"),
    (["-k", "fast", "--sizes", "-5"], "size -5 is out of range"),
    (["-k", "fast", "--sizes", "10000000"], "size 10000000 is out of range"),
    (["-k", "fast", "--sizes", "1..5"], "cannot read sizes '1..5': write 512, or 256,512, or"),
    (["-k", "fast", "--shape", "4x4"], "cannot read shape '4x4': write MxNxK"),
    (["-k", "fast", "--shape", "4x4x0"], "K = 0 is out of range: give a whole number"),
    (["-k", "fast", "--batch", "0"], "batch: Input should be greater than or equal to 1"),
    (["-k", "fast", "--alpha", "nan"], "alpha: Input should be a finite number"),
    (["-k", "fast", "--beta", "inf"], "beta: Input should be a finite number"),
    (["-k", "fast", "--config", "fulll"], "no configuration 'fulll': name a TOML file or one of"),
    (["-k", "fast", "--out", "file"], "cannot write to file: Not a directory; give --out a folder"),
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


def test_a_real_sweep_survives_ctrl_c(elsewhere: Path) -> None:
    """The whole process, on the CPU of this machine: rows, pictures and exit code 130."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "rooflab", "sweep", "-k", "blas", "--device", "cpu"),
            *("-p", "fp32", "--sizes", "16:1024:+16"),
        ],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background has Ctrl-C switched off.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        results = elsewhere / "results"
        while process.poll() is None:
            tables = list(results.glob("*/measurements.csv"))
            if tables and len(tables[0].read_text().splitlines()) > 3:
                break
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "finished rows are in results/" in err
    assert len(only_run().ok) >= 3
    assert (only_run().path / "roofline.png").exists()
    (warning,) = only_run().warnings
    assert warning == (
        f"{len(only_run().ok)} of 64 points are measured: rooflab sweep --resume {only_run().path}"
    )
