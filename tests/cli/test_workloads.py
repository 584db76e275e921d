"""What a sweep takes beside GEMM: other workloads, their parameters, a plan, a limit of time."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from commands import Rooflab, joined, only_run, statuses
from rich.console import Console

from rooflab import api, engine, estimate
from rooflab.cli import console, progress
from rooflab.config import SweepConfig, Timing
from rooflab.engine import Observer
from rooflab.errors import RooflabError, UsageError
from rooflab.files import kernels_dir
from rooflab.kernels.sources import discover
from rooflab.model.measurement import Measurement
from rooflab.planning import Plan, Step
from rooflab.workloads import build, find

VECTORS = ("add", "copy", "triad", "sum")
BUILTIN = (
    *VECTORS,
    *("gemm", "gemv", "softmax", "rmsnorm", "blur", "fft", "spectrum", "filter"),
    *("attention", "layernorm", "cross_entropy", "swiglu", "rope", "adamw"),
    *("grouped_gemm", "w4a16", "block_gemm"),
    *("rmsnorm_backward", "layernorm_backward", "cross_entropy_backward", "attention_backward"),
    *("embedding", "quantize", "route", "sort_experts", "combine", "linear"),
)


@pytest.mark.parametrize("workload", BUILTIN)
def test_every_workload_is_swept(rooflab: Rooflab, workload: str) -> None:
    sized = find(workload).sizes
    power = 12 if workload in VECTORS else 6
    arguments = ("-k", "fast", "-p", "fp32", "--sizes", f"2^{power}")
    code, out, err = rooflab("sweep", workload, *arguments)
    assert code == 0, err
    (row,) = only_run().measurements
    problem = build(workload, "fp32", dict.fromkeys(sized, 2**power))
    assert (row.status, row.problem) == ("ok", problem.record)
    assert row.problem.size == str(2**power)
    assert (row.flops, row.bytes) == (problem.flops, problem.bytes)
    assert row.roof_percent == pytest.approx(80)
    assert f"{workload} FP32" in out.splitlines()[0]
    assert "80.0 % of its roof" in joined(out)


def test_without_a_name_it_is_gemm_and_rounds_are_as_given(rooflab: Rooflab) -> None:
    rooflab("sweep", "-k", "fast", "-p", "fp32", "--sizes", "64", "--rounds", "3")
    (row,) = only_run().measurements
    assert (row.problem.workload, row.rounds) == ("gemm", 3)


SEVERAL = """
kernels = "fast"
precisions = "fp32"

[workloads.add]
sizes = "4096:8192:x2"

[workloads.gemm]
shapes = "80x40x20"
layouts = ["nt", "nn"]

[workloads.copy]
sizes = "5000"
"""


@pytest.mark.pictures
def test_several_workloads_in_one_run(rooflab: Rooflab) -> None:
    Path("several.toml").write_text(SEVERAL)
    code, out, _ = rooflab("sweep", "--config", "several.toml")
    assert code == 0
    run = only_run()
    assert [(row.problem.workload, row.problem.size) for row in run.measurements] == [
        ("add", "4096"),
        ("add", "8192"),
        ("gemm", "80x40x20"),
        ("gemm", "80x40x20"),
        ("copy", "5000"),
    ]
    for title in ("add FP32", "gemm FP32, layout nt", "gemm FP32, layout nn", "copy FP32"):
        assert title in out.splitlines()
    assert (run.path / "roofline.png").exists()
    assert (run.path / "size.png").exists()
    assert list(run.manifest.kernels) == ["add/fast", "gemm/fast", "copy/fast"]

    _, exported, _ = rooflab("export")
    rows = list(csv.DictReader(io.StringIO(exported)))
    assert (rows[0]["columns"], rows[0]["m"], rows[0]["layout"]) == ("4096", "", "")
    assert (rows[2]["columns"], rows[2]["m"], rows[2]["layout"]) == ("", "80", "nt")
    assert rooflab("show")[1] == out
    assert rooflab("sweep", "--resume", run.path)[0] == 0
    assert len(only_run().measurements) == 5
    code, out, _ = rooflab("compare", run.path, run.path)
    assert out.endswith("5 points in common: 5 SAME.")


def test_one_workload_of_a_file_for_several(rooflab: Rooflab) -> None:
    Path("several.toml").write_text(SEVERAL)
    rooflab("sweep", "copy", "--config", "several.toml", "--sizes", "6000")
    assert [row.problem.size for row in only_run().measurements] == ["6000"]
    assert only_run().measurements[0].flops == 0


def test_parameters_and_their_combinations(rooflab: Rooflab) -> None:
    arguments = ("--layout", "nt,nn", "--set", "alpha=2,beta=0.5", "--set", "batch=3")
    rooflab("sweep", "-k", "fast", "-p", "fp32", "--sizes", "40", "--shape", "41x20x62", *arguments)
    rows = only_run().measurements
    assert [(row.problem.settings["layout"], row.problem.size) for row in rows] == [
        ("nt", "41x20x62x3"),
        ("nt", "40x40x40x3"),
        ("nn", "41x20x62x3"),
        ("nn", "40x40x40x3"),
    ]
    assert {(row.problem.settings["alpha"], row.problem.settings["beta"]) for row in rows} == {
        (2.0, 0.5)
    }
    assert {row.status for row in rows} == {"ok"}


# What is asked for wrongly -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["gemmm"], "no workload 'gemmm': did you mean gem"),
        (["matmul"], "no workload 'matmul': there are gemm, gemv, add, copy"),
        (
            ["add", "-k", "slow"],
            "kernel 'slow' computes gemm, not add: rooflab sweep gemm --kernel",
        ),
        (
            ["add", "--layout", "nt"],
            "add has no parameter 'layout': there are rows, columns, batch",
        ),
        (["--set", "gamma=1"], "gemm has no parameter 'gamma': there are m, n, k, batch, layout"),
        (["--set", "lay=nn"], "gemm has no parameter 'lay': did you mean layout?"),
        (["--set", "beta"], "--set 'beta': write NAME=VALUE, such as --set beta=1"),
        (["--set", "=1"], "--set '=1': write NAME=VALUE"),
        (["--layuot", "nt"], "No such option: --layuot (Possible options: --layout"),
        (["--threads", "2"], "--threads is for --device cpu, not for fake:FakeDevice"),
        (["--rounds", "1"], "Invalid value for '--rounds': "),
        (["--max-time", "0"], "--max-time 0: give more than 0 and at most 1e+09"),
        (["--sizes", "2^32"], "size 4294967296 is out of range"),
        (["add", "--shape", "1x2x3x4"], "cannot read shape '1x2x3x4' of add: write rowsxcolumns"),
        (["--fill", "ones"], "fill: Input should be 'uniform', 'normal', 'zeros' or 'ints'"),
        (["--cache", "hot"], "cache: Input should be 'cold' or 'warm'"),
        (["softmax", "-p", "int32"], "no kernel supports int32: fast has fp32, fp64"),
    ],
    ids=lambda value: "",
)
def test_wrong_requests_are_one_line(rooflab: Rooflab, arguments: list[str], says: str) -> None:
    code, out, err = rooflab("sweep", *arguments, "--out", "somewhere")
    assert (code, out) == (2, "")
    assert joined(err).startswith(f"error: {says}")
    assert not Path("somewhere").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("timing = 5", "timing must be a section: [timing]"),
        ("timing = []", "timing must be a section: [timing]"),
        ("[timing]\nwarmup = 1", "unknown key 'timing.warmup', did you mean warmup_s"),
        ("sizes = -inf", "cannot read sizes '-inf'"),
        ("layouts = []", "layout has no value: give one or more"),
        ("kernels = []", "kernels: Value should have at least 1 item"),
        ("workloads = 3", "workloads must hold sections: [workloads.gemm]"),
        ("workload = 3", "workload = '3' must be a name"),
        ("[workloads.gem]\nsizes = 3", "no workload 'gem': did you mean gem"),
        ("[workloads.add]\nlayouts = 'nt'", "unknown key 'layouts'"),
        ("cpu = 3", "cpu must be a section: [cpu]"),
        ("[cpu]\nfill = 'ones'\nsizes = 8", "[cpu] fill: Input should be 'uniform'"),
        ("sizes = 8\n[cpu]\nsize = 8", "[cpu] unknown key 'size', did you mean sizes"),
        ("seed = 1\nseed = 2", "Cannot overwrite a value"),
        (f"seed = {'9' * 5000}", "Exceeds the limit"),
        (f"seed = {'[' * 5000}", "it is nested too deeply"),
        ("kernels = 'fast'", "has no sizes for gemm: add --sizes"),
    ],
    ids=lambda value: "",
)
def test_a_wrong_configuration_names_file_and_mistake(
    rooflab: Rooflab, content: str, says: str
) -> None:
    Path("mine.toml").write_text(content)
    code, out, err = rooflab("sweep", "--config", "mine.toml")
    assert (code, out) == (2, "")
    assert joined(err).startswith("error: mine.toml")
    assert says in joined(err)
    assert len(err) < 600


# Plans and time ----------------------------------------------------------------------------------


def test_a_dry_run_shows_the_plan_and_writes_nothing(rooflab: Rooflab) -> None:
    Path("several.toml").write_text(SEVERAL)
    code, out, _ = rooflab("sweep", "--config", "several.toml", "--dry-run")
    assert code == 0
    lines = [line.split() for line in out.splitlines() if line]
    assert lines[0] == ["problems", "sizes", "kernels", "memory"]
    assert "gemm FP32, layout nt, MxNxK 80x40x20 fast 22.4 kB" in [" ".join(line) for line in lines]
    assert "add FP32 4096, 8192 fast 98.3 kB" in [" ".join(line) for line in lines]
    assert joined(out).split("copy FP32")[1].startswith(" 5000 fast 40 kB 5 points; ")
    assert not Path("results").exists()


def test_a_plan_says_what_numbers_mean(rooflab: Rooflab) -> None:
    shape = ("-k", "fast", "-p", "FP32", "--shape", "1048577x1x1")
    code, out, err = rooflab("sweep", *shape, "--beta", "1,5", "--dry-run")
    assert code == 0
    assert "gemm FP32, layout nn, beta 5, MxNxK" in joined(out)
    assert joined(err) == "beta is 1, then 5: write 1.5 for one number"
    code, out, err = rooflab("sweep", *shape[:-2], "--sizes", "64", "--beta", "0.5,2", "--dry-run")
    assert (code, "MxNxK" in out, err) == (0, False, "")


def test_a_dry_run_needs_no_gpu(rooflab: Rooflab, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = "rooflab.devices.cuda.device.CudaDevice.probe"
    monkeypatch.setattr(probe, lambda: (0, "CUDA finds no GPU"))
    size = ("-p", "fp32", "--sizes", "64", "--dry-run")
    file = kernels_dir() / "gemm" / "03_tiled.cu"
    code, out, err = rooflab("sweep", "-k", file, *size, "--device", "auto")
    assert (code, "1 point; " in out) == (0, True)
    assert f"only a plan, it cannot be measured here: {file} needs an NVIDIA GPU" in joined(err)
    for words in (("-k", "coalesced"), ("-k", "cublas", "--device", "cuda:3"), ("--gpus", "2")):
        device = () if "--device" in words else ("--device", "auto")
        code, _, err = rooflab("sweep", *words, *size, *device)
        assert (code, "only a plan" in err) == (0, True)
    code, _, err = rooflab("sweep", "-k", "coalesced", *size, "--device", "cpu")
    assert (code, "needs an NVIDIA GPU" in err) == (2, True)
    code, _, err = rooflab("sweep", "-k", "coalesced", *size[:-1], "--device", "auto")
    assert (code, "needs an NVIDIA GPU" in err) == (2, True)
    assert not Path("results").exists()


def test_a_dry_run_tells_what_will_not_fit(rooflab: Rooflab) -> None:
    code, out, err = rooflab(
        *("sweep", "-k", "blas", "--sizes", "2^20,64", "-p", "fp32", "--device", "cpu"), "--dry-run"
    )
    assert code == 0
    assert "warning: 1048576 will be skipped: only " in joined(err)
    assert "of warming up" not in joined(out)


class OutOfTime(Observer):
    """After the first row a lot of time has passed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.notes: list[str] = []
        self._passed_s = 0.0
        monkeypatch.setattr(engine, "perf_counter", lambda: self._passed_s)

    def measured(self, row: Measurement, detail: str) -> None:
        self._passed_s += 1000

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_sweep_stops_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    observer = OutOfTime(monkeypatch)
    run = api.sweep(
        kernels="fast",
        precisions="fp32",
        sizes=[40, 48, 64],
        device="fake:FakeDevice",
        max_time_s=500,
        observer=observer,
    )
    assert statuses(run) == [("fast", "ok")]
    assert observer.notes == [
        "--max-time is reached: 2 points not measured "
        f"(go on with: rooflab sweep --resume {run.path})"
    ]


def test_no_time_at_all_measures_nothing_and_leaves_nothing(rooflab: Rooflab) -> None:
    code, out, err = rooflab("sweep", "-k", "fast", "--sizes", "8", "--max-time", "1e-9")
    assert (code, out) == (1, "")
    assert "--max-time is reached: 2 points not measured" in err
    assert err.splitlines()[-1] == "error: nothing was measured"
    assert not list(Path("results").iterdir())


def test_the_time_left_follows_from_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from the number of points: the first ones are the small ones."""
    screen = io.StringIO()
    monkeypatch.setattr(
        console, "err", lambda: Console(file=screen, force_terminal=True, width=120)
    )
    (kernel,) = (k for k in discover().all() if (k.device_kind, k.id) == ("exact", "gemm/fast"))
    sizes = (64, 128, 256, 8192, 16384, 16384 * 2)
    problems = [build("gemm", "fp32", dict.fromkeys("mnk", size)) for size in sizes]
    steps = tuple(Step(problem, (kernel,)) for problem in problems)
    run = api.sweep(kernels="fast", precisions="fp32", sizes=40, device="fake:FakeDevice")
    roofline = run.manifest.roofline
    (row,) = run.measurements  # the kernel's share is known from it
    share = (row.roof_percent or 0) / 100
    expected = [estimate.row_s(one, kernel, Timing(), roofline, share) for one in problems]
    terminal = progress.Terminal()
    with terminal.bar:
        terminal.planned(Plan(SweepConfig(), steps))
        terminal.began(run, len(steps))
        for problem in problems[:3]:
            terminal.measured(Measurement(problem=problem.record, kernel="fast"), "")
    left = sum(expected[3:])
    assert left > 10 * sum(expected[:3])  # counting points would say as long again
    assert f"about {estimate.text(left)} left" in screen.getvalue()


def test_a_python_argument_that_is_near_to_one_is_offered() -> None:
    for wrong, right in (("kernel", "kernels"), ("size", "sizes"), ("max_time", "max_time_s")):
        given: dict[str, Any] = {wrong: "x"}
        with pytest.raises(UsageError, match=f"no argument '{wrong}': did you mean {right}"):
            api.sweep("gemm", device="fake:FakeDevice", **given)


def test_a_sweep_from_python_without_time_is_an_error() -> None:
    with pytest.raises(RooflabError, match="nothing was measured: raise max_time_s"):
        api.sweep(
            kernels="fast",
            precisions="fp32",
            sizes=64,
            device="fake:FakeDevice",
            max_time_s=1e-9,
        )
    assert not list(Path("results").iterdir())
