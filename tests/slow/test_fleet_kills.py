"""Members and the coordinator of a fleet are killed at any moment: nothing received is lost."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
from commands import gone, started, wait_until
from kills import CONFIG, POINTS, fleets, kept

from rooflab import api
from rooflab.fleet import record as fleet_record
from rooflab.fleet.runs import assess

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("FLEET_KILLS", "4"))
HOSTS = tuple(f"h{i}" for i in range(int(os.environ.get("FLEET_MEMBERS", "3"))))
RESUMES = 5
"""After the kills. The first may still find members that are about to end."""
LONGEST_S = 300 + 10 * len(HOSTS)
WAY = (
    *("--launch", "env FAKE_MEMBER={host}", "--python", sys.executable),
    *("--hosts", ",".join(HOSTS), "--device", "fake:Member"),
)


def test_killed_at_random_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL for a member, or for the coordinator, whose members then end by themselves."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    Path("small.toml").write_text(CONFIG)
    draw = random.Random()
    killed, known = 0, {f"{host}-{host}": 0 for host in HOSTS}
    while killed < KILLS:
        seen: set[psutil.Process] = set()
        with started(*command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            while process.poll() is None and killed < KILLS:
                time.sleep(draw.uniform(0.5, 4.0))
                with suppress(psutil.Error):
                    seen |= set(psutil.Process(process.pid).children(recursive=True))
                killed += 1
                members = [one for one in seen if is_member(one)]
                if not members or draw.random() < 1.2 / len(HOSTS):
                    process.kill()
                else:
                    draw.choice(members).kill()
            process.wait(LONGEST_S)
            wait_until(partial(gone, list(seen)))
        known = kept(known)
    for _ in range(RESUMES):
        with started(*command(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            out = process.communicate(timeout=LONGEST_S)[0]
        known = kept(known)
        if process.returncode == 0:
            break
    assert process.returncode == 0, out
    assert set(known.values()) == {POINTS}
    assert {one.status for one in fleet_record.load(fleets()[0]).members.values()} == {"done"}


NOISE = os.environ.get("FLEET_NOISE", "0.003")
MEMBERS = int(os.environ.get("FLEET_MEMBERS", "5"))


def test_the_slow_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """3 % slower than the others, with some noise between processes."""
    path = os.pathsep.join(filter(None, sys.path))
    for name, value in {"PYTHONPATH": path, "FAKE_SLOW": "h3", "FAKE_NOISE": NOISE}.items():
        monkeypatch.setenv(name, value)
    fleet = api.fleet_sweep(
        hosts=[f"h{i}" for i in range(MEMBERS)],
        launch="env FAKE_MEMBER={host}",
        python=sys.executable,
        devices="fake:Member",
        repeats=3,
        kernels="fast",
        sizes=[64, 128],
        precisions="fp32",
    )
    assert not fleet.remarks
    (found,) = assess(fleet).outliers
    assert (found.member, found.finding.verdict.name) == ("h3-h3", "SLOW")


def command() -> tuple[object, ...]:
    """Go on with the fleet, or begin one."""
    there = fleets()
    how = ("--resume", there[0]) if there else ("--config", "small.toml")
    return ("fleet", "sweep", *how, *WAY)


def is_member(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return "rooflab.fleet.member" in process.cmdline()
    return False
