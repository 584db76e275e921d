"""Kernels that go wrong cost their own rows, and each row says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import odd  # noqa: F401  registers kernels
import psutil
import pytest
from commands import Rooflab, gone, joined, only_run, started, statuses, wait_until

from rooflab import api
from rooflab.engine import Observer
from rooflab.model.measurement import Measurement

SMALL = ("-p", "fp32", "--sizes", "32:64:x2")
ONE = ("-p", "fp32", "--sizes", "64")


def test_wrong_results_get_no_figure_and_exit_3(rooflab: Rooflab) -> None:
    """``ahead`` computes while it is prepared, and a launch only copies: other inputs show it."""
    code, out, err = rooflab("sweep", "-k", "nan,wrong,ahead,beats_the_roof,fast", *ONE)
    assert code == 3
    *bad, roofless, fast = only_run().measurements
    assert [row.kernel for row in bad] == ["nan", "wrong", "ahead"]
    assert {row.status for row in bad} == {"incorrect"}
    assert all(row.time_us is None and row.tflops is None for row in bad)
    remarks = joined(err)
    assert "incorrect: nan gemm fp32 64, layout nn: 1 of 4096 elements of C are NaN" in remarks
    assert "C[0, 0]" in bad[1].reason
    assert (
        "right at first, wrong on other inputs: keeps the results of earlier inputs"
        in bad[2].reason
    )
    assert "nan reached" not in out

    # Faster than all roofs allow is no result.
    assert (roofless.status, fast.status) == ("impossible", "ok")
    assert roofless.reason == "all roofs allow 499.3 µs at least"
    assert "beats_the_roof" not in out.splitlines()[-1]
    assert "impossible: beats_the_roof gemm fp32 64, layout nn: all roofs allow" in remarks


def test_a_sweep_goes_on_if_nobody_can_be_told() -> None:
    words = ("sweep", "-k", "fast", *ONE)
    with Path("/dev/full").open("w") as full, started(*words, stdout=full, stderr=full) as process:
        process.wait()
    assert process.returncode == 1
    assert statuses(only_run()) == [("fast", "ok")]


def test_one_reason_for_many_sizes_is_said_once(rooflab: Rooflab) -> None:
    Path("mine.py").write_text(
        "import rooflab\n"
        "@rooflab.kernel(device='exact', precisions=['fp32'])\n"
        "def fails(operands, stream):\n"
        "    raise RuntimeError('first\\nsecond line')\n"
    )
    code, _, err = rooflab("sweep", "-k", "mine.py", "-p", "fp32", "--sizes", "16,32,64")
    assert code == 1
    assert err.count("second line") == 1
    line = "failed: fails gemm fp32 16, layout nn, and 2 more: RuntimeError: first"
    assert joined(err).count(line) == 1
    assert err.count("failed: fails gemm") == 1


def test_a_roof_that_was_too_low_is_measured_again(
    rooflab: Rooflab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOFLAB_CACHE_DIR", str(tmp_path))
    arguments = ("sweep", "-k", "beats_the_roof", *ONE)
    code, _, err = rooflab(*arguments, "--device", "fake:BusyAtFirst")
    assert code == 0
    assert "a kernel exceeded a measured roof; roofs measured again: " in joined(err)
    assert "fp32 8 GFLOP/s" in joined(err)
    run = only_run()
    (row,) = run.measurements
    assert row.roof_percent == pytest.approx(50)
    assert "above_roof" not in row.flag_names
    compute = run.manifest.roofline.compute("fp32")
    assert compute is not None
    assert compute.value == 8e9


def test_rows_are_kept_if_roofs_cannot_be_measured_again(rooflab: Rooflab) -> None:
    arguments = ("sweep", "-k", "beats_the_roof,fast", *ONE)
    _, _, err = rooflab(*arguments, "--device", "fake:NeverAgain")
    assert "the roofs were not measured again: " in joined(err)
    assert [row.status for row in only_run().measurements] == ["impossible", "ok"]


def test_a_kernel_that_fails_costs_its_own_rows(rooflab: Rooflab) -> None:
    """By an error of rooflab's, or by any other; the process goes on."""
    code, out, err = rooflab("sweep", "-k", "broken,raises,fast", *SMALL)
    assert code == 1
    once = [("broken", "failed"), ("raises", "failed"), ("fast", "ok")]
    assert statuses(only_run()) == once * 2
    assert 'broken.cu(3): error: identifier "x" is undefined\n    x = 1;\n' in err
    assert only_run().measurements[1].reason == "ValueError: an error of its own"
    again = "failed: raises gemm fp32 32, layout nn, and 1 more: ValueError: an error of its own"
    assert again in joined(err)
    assert "4 of 6 points failed" in err
    assert "fast reached" in out


def test_a_kernel_that_kills_its_process_fails_its_own_rows(rooflab: Rooflab) -> None:
    code, out, err = rooflab("sweep", "-k", "slow,dies,fast", *ONE)
    assert code == 1
    assert statuses(only_run()) == [("slow", "ok"), ("dies", "failed"), ("fast", "ok")]
    assert (
        "failed: dies gemm fp32 64, layout nn: the measuring process died of SIGSEGV while "
        "verifying" in joined(err)
    )
    assert "1 of 3 points failed" in err
    assert "4.000 times as fast as" in out


def test_a_kernel_that_never_returns_is_killed(rooflab: Rooflab) -> None:
    Path("short.toml").write_text("[timing]\ntimeout_s = 1\nslow_s = 0.9\nwarmup_s = 0.01\n")
    code, _, err = rooflab("sweep", "-k", "hangs,fast", *ONE, "--config", "short.toml")
    assert code == 1
    assert statuses(only_run()) == [("hangs", "timeout"), ("fast", "ok")]
    assert "no answer for 1 s while verifying; killed" in joined(err)


def test_a_problem_beyond_memory_is_skipped(
    rooflab: Rooflab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MEMORY", "1000000")
    code, _, err = rooflab("sweep", "-k", "fast", "-p", "fp32", "--sizes", "64,512")
    assert code == 0
    assert [row.status for row in only_run().measurements] == ["ok", "skipped"]
    reason = only_run().measurements[1].reason
    assert reason.startswith("needs 0.0")
    assert reason.endswith("GB of memory, 0.001 GB are free")
    assert f"skipped: fast gemm fp32 512, layout nn: {reason}" in joined(err)


def test_a_sweep_whose_rows_are_all_skipped_has_failed(
    rooflab: Rooflab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MEMORY", "1000")
    code, _, err = rooflab("sweep", "-k", "fast", *SMALL)
    assert code == 1
    assert {row.status for row in only_run().measurements} == {"skipped"}
    assert "every point was skipped" in err


# The measuring process ---------------------------------------------------------------------------


class Killer(Observer):
    """Kills the measuring process whenever a row is written, when no kernel runs in it."""

    def __init__(self) -> None:
        self.killed = 0

    def measured(self, row: Measurement, detail: str) -> None:
        workers = psutil.Process().children()
        for worker in workers:
            worker.kill()
        wait_until(lambda: gone(workers))
        self.killed += len(workers)


@pytest.mark.processes
def test_a_process_that_dies_between_problems_blames_no_kernel() -> None:
    killer = Killer()
    run = api.sweep(
        kernels="fast",
        precisions="fp32",
        sizes=[48, 64],
        device="fake:FakeDevice",
        observer=killer,
    )
    assert killer.killed == 2
    assert statuses(run) == [("fast", "ok")] * 2


def test_what_was_built_is_kept_when_a_process_is_replaced(rooflab: Rooflab) -> None:
    sweep = ("sweep", "--device", "odd:Recorded", "-k", "steady,mortal", "--sizes", "64")
    assert rooflab(*sweep, "-p", "fp32,fp64")[0] == 1
    run = only_run()
    assert statuses(run)[2:] == [("steady", "ok"), ("mortal", "failed")]
    both = [{"precision": name, "registers": 32} for name in ("fp32", "fp64")]
    assert run.manifest.kernels["gemm/steady"].compiled == both
    # On a machine's first run all is compiled before it is measured.
    assert run.manifest.kernels["gemm/mortal"].compiled in (both[:1], both)


def test_what_was_built_is_kept_when_a_run_is_continued(rooflab: Rooflab) -> None:
    rooflab(
        *("sweep", "--device", "odd:Recorded", "-k", "steady", "--sizes", "64", "-p", "fp32,fp64")
    )
    run = only_run()
    table = run.path / "measurements.csv"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:-1]))
    assert rooflab("sweep", "--resume", run.path, "--device", "odd:Recorded")[0] == 0
    compiled = only_run().manifest.kernels["gemm/steady"].compiled
    assert [build["precision"] for build in compiled] == ["fp32", "fp64"]


# What the device does ----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [32, 64])
def test_launches_that_did_not_queue_are_flagged(
    rooflab: Rooflab, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """At 32 launches are timed in batches, at 64 one by one."""
    monkeypatch.setenv("FAKE_UNGATED", "1")
    code, _, err = rooflab("sweep", "-k", "fast", "-p", "fp32", "--sizes", size)
    assert code == 0
    assert "ungated" in only_run().measurements[0].flag_names
    assert "ungated (1 of 1 rows): launches did not queue behind the gate" in joined(err)


def test_a_round_spoiled_by_heat_leaves_no_trace_in_the_figures(
    rooflab: Rooflab, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A heat wave is waited for: not at the pace of a real device.
    monkeypatch.setenv("FAKE_VOID", "1")
    code, _, err = rooflab("sweep", "-k", "fast", "-p", "fp32", "--sizes", "32")
    (row,) = only_run().measurements
    assert code == 0
    assert row.flag_names == ["batch_timed", "voided"]
    assert row.time_us == pytest.approx(153.6)
    assert row.pair_us == pytest.approx(153.6)
    assert "voided (1 of 1 rows): up to 3 rounds were measured again because of heat" in joined(err)


def test_a_cache_of_unknown_size_is_flagged(
    rooflab: Rooflab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CACHE", "0")
    code, _, err = rooflab("sweep", "-k", "fast", *ONE)
    assert code == 0
    assert "cache_unknown" in only_run().measurements[0].flag_names
    assert "cache_unknown (1 of 1 rows): " in joined(err)


# Warming up --------------------------------------------------------------------------------------


class Steps(Observer):
    """Keeps what was done with which kernel."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def progress(self, problem: Any, kernel: str, step: str) -> None:
        self.seen.append((kernel, step))


WARMING = "warming up the device with"


def warmed_up(device: str, *kernels: str) -> tuple[api.Run, list[str]]:
    """A sweep and the kernels that warmed its device up."""
    steps = Steps()
    run = api.sweep(
        kernels=kernels,
        precisions="fp32",
        sizes=[64],
        device=device,
        observer=steps,
        timing={"device_warmup_s": 0.1},
    )
    return run, [kernel for kernel, step in steps.seen if step == WARMING]


def test_one_broken_kernel_does_not_cancel_the_warm_up() -> None:
    run, kernels = warmed_up("odd:Sensed", "broken", "raises", "fast")
    assert kernels == ["broken", "raises", "fast"]
    assert run.manifest.warm_up["sm_mhz"] == 1000
    assert run.manifest.warm_up["power_w"] == 100
    assert statuses(run)[2] == ("fast", "ok")


@pytest.mark.parametrize("clockless", [True, False], ids=["power only", "no sensors"])
def test_without_a_clock_to_watch_nothing_is_warmed_up(
    monkeypatch: pytest.MonkeyPatch, clockless: bool
) -> None:
    if clockless:
        monkeypatch.setenv("FAKE_CLOCKLESS", "1")
    run, kernels = warmed_up("fake:FakeDevice", "fast")
    assert (kernels, run.manifest.warm_up) == ([], {})


def test_the_device_warms_up_with_what_is_large_but_soon_over() -> None:
    from rooflab.planning import Step, warm_up_step
    from rooflab.workloads import build

    def step(size: int) -> Step:
        return Step(build("gemm", "fp32", {"m": size, "n": size, "k": size}), ())

    def warms(*sizes: int) -> str:
        return warm_up_step([step(size) for size in sizes]).problem.size

    assert warms(512, 2048, 1024) == "2048"
    assert warms(1024, 16384, 2048) == "2048"
    assert warms(32768, 16384) == "16384"
