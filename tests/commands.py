"""Command lines for tests: in this process, or in one of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from rooflab import api, figures
from rooflab.cli import main
from rooflab.runs import store

Rooflab = Callable[..., tuple[int, str, str]]

EXACT = ("--device", "fake:FakeDevice")
PATIENCE_S = 60.0
"""No condition takes so long, however busy the machine is."""


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns without colour."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture(autouse=True)
def pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes a second: only tests marked ``pictures`` do it."""
    if not request.node.get_closest_marker("pictures"):
        monkeypatch.setattr(figures, "draw_all", lambda run, style="default": [])


@pytest.fixture
def rooflab(capsys: pytest.CaptureFixture[str]) -> Rooflab:
    """Runs a command line; returns exit code, stdout, stderr, without trailing blanks.

    ``sweep`` runs on the exact device, unless a device is named.
    """

    def run(*arguments: object) -> tuple[int, str, str]:
        words = [str(argument) for argument in arguments]
        if words[0] == "sweep" and "--device" not in words:
            words += EXACT
        with pytest.raises(SystemExit) as ended:
            main(words)
        out, err = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return code, _trimmed(out), _trimmed(err)

    return run


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def joined(text: str) -> str:
    """``text`` as one line, however it was wrapped."""
    return " ".join(text.split())


def exact_run(out: Path, kernels: list[str], sizes: list[int]) -> Path:
    """The folder of a sweep of the exact device, made by the Python face: nothing is drawn."""
    device = "fake:FakeDevice"
    return api.sweep(kernels=kernels, precisions="fp32", sizes=sizes, device=device, out=out).path


def only_run(results: str | Path = "results") -> store.RunData:
    """The one run below ``results``."""
    (folder,) = Path(results).iterdir()
    return store.load(folder)


def rows_on_disk(results: str | Path = "results") -> int:
    """Rows of the one run below ``results`` that may still be going on."""
    tables = list(Path(results).glob(f"*/{store.MEASUREMENTS}"))
    return max(0, tables[0].read_text().count("\n") - 1) if tables else 0


def statuses(run: store.RunData) -> list[tuple[str, str]]:
    """Kernel and status of each row."""
    return [(row.kernel, row.status) for row in run.measurements]


# Processes ---------------------------------------------------------------------------------------


def _hear() -> None:
    """Signals do what they usually do, though the tests run in the background, or by nohup."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def started(*arguments: object, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """``rooflab`` in a process of its own, with the exact device at hand; killed in the end."""
    words = [str(argument) for argument in arguments]
    if words[:1] == ["sweep"] and "--device" not in words:
        words += EXACT
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        options.pop("command", [sys.executable, "-m", "rooflab"]) + words,
        **{
            "env": environment | options.pop("env", {}),
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            "preexec_fn": _hear,
            **options,
        },
    )
    try:
        with process:
            try:
                yield process
            finally:
                process.kill()
    finally:
        assert process.poll() is not None


def wait_until(
    condition: Callable[[], object],
    process: subprocess.Popen[str] | None = None,
    patience_s: float = PATIENCE_S,
) -> None:
    """Wait for something to become true, and not to be waited for in vain."""
    limit = time.monotonic() + patience_s
    while not condition():
        ended = process is not None and process.poll() is not None
        assert not ended, f"it ended before: {process.communicate() if process else ''}"
        assert time.monotonic() < limit, "nothing happened"
        time.sleep(0.005)


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes that it has started."""
    return psutil.Process(process.pid).children(recursive=True)


def gone(processes: list[psutil.Process]) -> bool:
    """Whether none of them runs any more; what nobody has waited for yet does not run."""
    return not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes)
