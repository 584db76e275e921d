"""The process that measures: it ends with the sweep, and leaves the caller as it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import (
    EXACT,
    gone,
    joined,
    only_run,
    rows_on_disk,
    started,
    statuses,
    wait_until,
    workers_of,
)
from kills import CONFIG

from rooflab.cli import main

# A launch that never returns: it waits, or it keeps Python's lock as a hanging C call does.
STUCK = """
import re, signal
from pathlib import Path
import rooflab

def stuck(name, hang):
    @rooflab.kernel(device="exact", name=name)
    def prepare(operands, stream):
        def launch():
            Path("hanging").touch()
            hang()
        return launch

def wait():
    while True:
        signal.pause()

stuck("waits", wait)
stuck("computes", lambda: re.match(r"(a+)+$", "a" * 64 + "b"))
"""


@pytest.mark.parametrize(
    ("number", "kernel"),
    [
        (signal.SIGKILL, "computes"),
        pytest.param(signal.SIGTERM, "waits", marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, "computes", marks=pytest.mark.slow),
    ],
)
def test_the_worker_ends_with_its_parent_whatever_it_does(
    number: signal.Signals, kernel: str
) -> None:
    Path("stuck.py").write_text(STUCK)
    with started("sweep", "-k", f"stuck.py:{kernel}", "-p", "fp32", "--sizes", "64") as process:
        wait_until(Path("hanging").exists, process)
        workers = workers_of(process)
        assert len(workers) == 1
        process.send_signal(number)
        process.wait()
        wait_until(lambda: gone(workers))


def test_the_worker_ends_with_its_parent_before_it_has_opened_its_device() -> None:
    with started("sweep", "-k", "fast", "-p", "fp32", "--sizes", "64") as process:
        wait_until(lambda: workers_of(process), process)
        workers = workers_of(process)
        process.kill()
        wait_until(lambda: gone(workers))


# Ctrl-C ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_sweep_that_is_interrupted_keeps_its_rows_and_draws_them(number: signal.Signals) -> None:
    Path("small.toml").write_text(CONFIG)
    with started("sweep", "--config", "small.toml", start_new_session=True) as process:
        wait_until(lambda: rows_on_disk() >= 3, process)
        workers = workers_of(process)
        os.killpg(process.pid, number)  # as a terminal and ``timeout`` do
        out, err = process.communicate()
    assert process.returncode == 130, err
    wait_until(lambda: gone(workers))
    run = only_run()
    assert f"interrupted; {len(run.ok)} finished rows are in {run.path}" in joined(err)
    assert f"go on with: rooflab sweep --resume {run.path}" in joined(err)
    assert "gemm FP64, layout nn" in out
    assert (run.path / "roofline.png").exists()
    assert run.manifest.finished is not None
    assert run.warnings == [
        f"{len(run.ok)} of 64 points are measured; to continue: rooflab sweep --resume {run.path}"
    ]


@pytest.mark.parametrize("reader", ["full", pytest.param("ended", marks=pytest.mark.slow)])
def test_a_sweep_whose_table_nobody_reads_still_draws_and_says_where(reader: str) -> None:
    end, output = os.pipe()
    os.close(end)
    if reader == "full":
        os.close(output)
        output = os.open("/dev/full", os.O_WRONLY)
    with started("sweep", "-k", "fast", "-p", "fp32", "--sizes", "64", stdout=output) as process:
        os.close(output)
        _, err = process.communicate()
    assert process.returncode == 1
    run = only_run()
    assert "roofline.png" in joined(err)
    assert (run.path / "roofline.png").exists()
    assert ("No space left" in err) == (reader == "full")


def test_ctrl_c_again_and_again_ends_the_same_way() -> None:
    Path("small.toml").write_text(CONFIG)
    with started("sweep", "--config", "small.toml") as process:
        wait_until(lambda: rows_on_disk() >= 1, process)

        def ended() -> bool:
            process.send_signal(signal.SIGINT)
            return process.poll() is not None

        wait_until(ended)
        _, err = process.communicate()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert f"go on with: rooflab sweep --resume {only_run().path}" in joined(err)


def test_ctrl_c_while_the_worker_starts_is_one_line_and_leaves_nothing() -> None:
    with started("sweep", "-k", "fast", "-p", "fp32", "--sizes", "64") as process:
        wait_until(lambda: workers_of(process), process)
        workers = workers_of(process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130
    assert err.splitlines()[-1] == "error: interrupted before anything was measured"
    assert "EOFError" not in err
    assert not list(Path("results").iterdir())
    wait_until(lambda: gone(workers))


# The caller --------------------------------------------------------------------------------------

SCRIPT = """
import os, signal, sys, threading

import numpy
from threadpoolctl import threadpool_info

numpy.ones((64, 64)) @ numpy.ones((64, 64))


def state():
    signals = {each: signal.getsignal(each) for each in signal.valid_signals()}
    pools = {pool["filepath"]: pool["num_threads"] for pool in threadpool_info()}
    return {
        "environment": dict(os.environ),
        "signals": signals,
        "affinity": os.sched_getaffinity(0),
        "pools": pools,
        "threads": threading.active_count(),
        "folder": os.getcwd(),
    }


before = state()
import rooflab

from rooflab.devices.registry import open_device

open_device("cpu").facts
run = rooflab.sweep("copy", precisions="fp32", sizes=[4096], device=sys.argv[1])
thread = threading.Thread(
    target=lambda: rooflab.sweep(
        kernels="fast", precisions="fp32", sizes=64, device="fake:FakeDevice"
    )
)
thread.start()
thread.join()
after = state()
for name in before:
    assert before[name] == after[name], (name, before[name], after[name])
assert "multiprocessing.resource_tracker" not in sys.modules
print(run.measurements[0].status, run.manifest.device.id)
"""


@pytest.mark.parametrize("device", ["fake:FakeDevice", pytest.param("cpu", marks=pytest.mark.slow)])
def test_a_plain_script_can_sweep_and_stays_as_it_was(device: str) -> None:
    """No main guard is needed: a second run of the script would print twice."""
    Path("script.py").write_text(SCRIPT)
    with started(device, command=[sys.executable, "script.py"]) as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert out == f"ok {device}\n"
    assert len(list(Path("results").iterdir())) == 2


def test_files_beside_the_user_are_not_taken_for_modules() -> None:
    """Neither the installed command nor its worker looks for modules in the working folder."""
    for name in ("multiprocessing", "json", "socket", "numpy", "rooflab", "typing"):
        Path(f"{name}.py").write_text("from pathlib import Path\nPath('hijacked').touch()\n")
    command = [str(Path(sys.executable).with_name("rooflab"))]
    arguments = ("sweep", "-k", "fast", "-p", "fp32", "--sizes", "64")
    with started(*arguments, command=command) as process:
        _, err = process.communicate()
    assert process.returncode == 0, err
    assert not Path("hijacked").exists()
    assert statuses(only_run()) == [("fast", "ok")]


def test_what_a_kernel_prints_is_not_data(capfd: pytest.CaptureFixture[str]) -> None:
    Path("loud.py").write_text(
        "import numpy, os, rooflab\n"
        '@rooflab.kernel(device="exact")\n'
        "def loud(operands, stream):\n"
        '    print("from Python")\n'
        '    os.write(1, b"from C\\n")\n'
        "    raise RuntimeError\n"
    )
    with pytest.raises(SystemExit, match="1"):
        main(["sweep", "-k", "loud.py", "-p", "fp32", "--sizes", "64", *EXACT])
    out, err = capfd.readouterr()
    assert "from" not in out
    printed = only_run().path / "printed.txt"
    assert printed.read_text() == "from Python\nfrom C\n"
    assert f"kernels printed 2 lines, which are in {printed}" in joined(err)
    assert only_run().measurements[0].reason == "RuntimeError"


def test_help_loads_nothing_that_takes_long() -> None:
    """A quarter of a second is for Python, typer and rich."""
    text = (
        "import sys\n"
        "from rooflab.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'pandas', 'scipy', 'pydantic', 'matplotlib', 'cupy', 'numba'}\n"
        "print(*heavy & sys.modules.keys(), file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert "sweep" in ended.stdout and ended.stderr.strip() == ""
