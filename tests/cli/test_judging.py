"""``rooflab judge``: what is accepted, what is refused and why, and its document."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from cheats.quick import Quick
from commands import Rooflab, gone, joined, started, wait_until, workers_of

import rooflab
from rooflab.devices.cpu.device import CpuDevice
from rooflab.errors import RooflabError, UsageError
from rooflab.judging.submission import Submission
from rooflab.judging.trial import TOO_SHORT, Arena
from rooflab.model.roofline import Roofline

FILE = """
import ctypes, json, os, signal, sys, time
import numpy as np
import rooflab

def kernel(function):
    return rooflab.kernel(workload="add", device="cpu")(function)

def added(operands):
    "Takes longer than the empty launch that is subtracted, also on a busy machine"
    def launch():
        for _ in range(20):
            np.add(operands.a, operands.b, out=operands.c)
    return launch

@kernel
def right(operands, stream):
    return added(operands)

@kernel
def once(operands, stream):
    np.add(operands.a, operands.b, out=operands.c)
    return lambda: None

@kernel
def dies(operands, stream):
    return lambda: os._exit(7)

@kernel
def hangs(operands, stream):
    return lambda: time.sleep(100)

@kernel
def raises(operands, stream):
    raise IndexError("no such tile")

@kernel
def writes(operands, stream):
    open("written", "w")

@kernel
def answers(operands, stream):
    "Tells the judge what it wants to hear, or too much"
    connection = pipe()
    connection.send_bytes(b'{"loaded": true, "accepted": true}')
    return lambda: connection.send_bytes(b"x" * 100_000)

def pipe():
    frame = sys._getframe()
    while "self" not in frame.f_locals or not hasattr(frame.f_locals["self"], "_connection"):
        frame = frame.f_back
    return frame.f_locals["self"]._connection

@kernel
def pickles(operands, stream):
    pipe().send(Evil())
    return lambda: None

@kernel
def half(operands, stream):
    "The beginning of a message"
    os.write(pipe().fileno(), b"00")
    time.sleep(100)

@kernel
def drips(operands, stream):
    "A message, byte by byte"
    os.write(pipe().fileno(), (60_000).to_bytes(4, "big"))
    while True:
        os.write(pipe().fileno(), b"[")
        time.sleep(0.5)

@kernel
def closes(operands, stream):
    pipe().close()
    time.sleep(100)

@kernel
def leaves(operands, stream):
    "Children that nothing ends, nor itself, when the judge ends"
    ctypes.CDLL(None).prctl(1, 0)
    for _ in range(2):
        if os.fork() == 0:
            os.closerange(3, 64)
            time.sleep(1000)
    os.closerange(3, 64)
    time.sleep(1000)

@kernel
def deep(operands, stream):
    pipe().send_bytes(b"[" * 60_000)
    return lambda: None

@kernel
def truncates(operands, stream):
    "What the judge reads"
    for descriptor in range(3, 64):
        try:
            os.ftruncate(descriptor, 0)
        except OSError:
            pass
    return added(operands)

@kernel
def wakes(operands, stream):
    "By a timer that sends SIGCONT to what is stopped"
    import threading
    signal.signal(signal.SIGCONT, lambda *_: None)
    libc, timer = ctypes.CDLL(None), ctypes.c_void_p()
    event = (ctypes.c_int * 16)(0, 0, signal.SIGCONT, 0)
    each = (ctypes.c_long * 4)(0, 10_000_000, 0, 10_000_000)
    assert libc.timer_create(1, event, ctypes.byref(timer)) == 0
    assert libc.timer_settime(timer, 0, each, None) == 0

    def work():
        while True:
            time.sleep(1e-4)

    threading.Thread(target=work, daemon=True).start()
    return added(operands)

class Evil:
    def __reduce__(self):
        return exec, ("open('written', 'w')",)

@rooflab.kernel(workload="copy", device="cpu")
def other(operands, stream):
    return lambda: None
"""

SIZE = 5000
LARGE = 300_000
"""Of which one sum takes longer than an empty launch, also on a busy machine."""

OWN = Path(__file__).resolve().parents[1] / "data" / "own" / "axpby.py"

ADD = ["-w", "add", "--sizes", "8"]

BASE = """

@rooflab.kernel(workload="axpby", device="cpu")
def base(operands, stream):
    return whole(operands, stream)
"""


@pytest.fixture
def command(rooflab: Rooflab) -> Rooflab:
    """The fixture, under a name that is not that of the package."""
    return rooflab


@pytest.fixture(autouse=True)
def file(elsewhere: Path) -> None:
    Path("mine.py").write_text(FILE)


def judged(name: str, **more: Any) -> dict[str, Any]:
    options = {"sizes": SIZE, "device": "cheats.quick:Quick", "timeout_s": 20, **more}
    found: dict[str, Any] = rooflab.judge(f"mine.py:{name}", "add", **options).document
    return found


@pytest.mark.parametrize(
    ("against", "size"),
    [("mine.py:right", SIZE), pytest.param("numpy", LARGE, marks=pytest.mark.slow)],
)
def test_accepted(against: str, size: int) -> None:
    found = judged("right", against=against, sizes=size)
    assert (found["accepted"], found["reason"], found["schema"]) == (True, "", 1)
    assert found["submission"]["file"] == "mine.py:right"
    assert len(found["submission"]["sha256"]) == 64
    assert [one["size"] for one in found["problems"]] == [str(size)]
    for one in found["problems"]:
        assert one["status"] == "ok"
        assert 0 < one["time_lo_us"] <= one["time_us"] <= one["time_hi_us"]
        assert one["rel_error"] < 1e-6
        assert one["speedup_lo"] <= one["speedup"] <= one["speedup_hi"]
        assert one["speedup"] == pytest.approx(one["against_us"] / one["time_us"])
    json.dumps(found)


REFUSED = [
    ("half", "failed", "does not answer as it should"),
    ("drips", "failed", "does not answer as it should"),
    ("closes", "failed", "its process goes on, and has closed its connection to the judge"),
    ("deep", "failed", "does not answer as it should"),
    ("wakes", "incorrect", "goes on working while it is stopped"),
    ("dies", "failed", "its process ended (exit code 7)"),
    ("raises", "failed", "IndexError: no such tile"),
    ("writes", "failed", "PermissionError"),
    ("answers", "failed", "does not answer as it should"),
    ("pickles", "failed", "does not answer as it should"),
    ("nobody", "failed", "has no kernel 'nobody'"),
    ("other", "failed", "it has no cpu kernel of add: it has "),
]


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("once", "incorrect", "are NaN: not written"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in REFUSED),
    ],
)
def test_refused(name: str, status: str, reason: str) -> None:
    found = judged(name)
    (one,) = found["problems"]
    assert not found["accepted"]
    assert (one["status"], one["time_us"]) == (status, None)
    assert reason in one["reason"]
    assert reason in found["reason"]
    assert not Path("written").exists()


def test_what_takes_no_longer_than_an_empty_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is not known, and nothing is divided by it."""
    launch = Submission.launch
    monkeypatch.setattr(Submission, "launch", lambda *given: 0.0 * launch(*given))
    (one,) = judged("right")["problems"]
    assert (one["status"], one["reason"], one["time_us"]) == ("failed", TOO_SHORT, None)


@pytest.mark.slow
def test_inputs_are_written_while_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it could work before its time begins."""
    settle, seen = Arena.settle, []

    def watched(arena: Arena) -> None:
        seen.append([child.status() for child in psutil.Process().children()])
        settle(arena)

    monkeypatch.setattr(Arena, "settle", watched)
    assert judged("right")["accepted"]
    assert len(seen) >= 10
    assert all(states.count(psutil.STATUS_STOPPED) == 1 for states in seen)


@pytest.mark.slow
def test_a_submission_that_hangs() -> None:
    (one,) = judged("hangs", timeout_s=2)["problems"]
    assert (one["status"], one["reason"]) == ("timeout", "no answer within 2 s")


@pytest.mark.slow
@pytest.mark.parametrize("against", ["", "numpy"])
def test_all_must_be_judged_in_time(against: str) -> None:
    """Its launches are on time, or what it is compared with takes the rest of it."""
    found = judged("right", against=against, max_time_s=0.01)
    (one,) = found["problems"]
    assert (one["status"], one["reason"]) == ("timeout", "not judged within 0.01 s")
    assert not found["accepted"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_nothing_survives_the_judge(number: int) -> None:
    words = ["-w", "add", "--sizes", str(SIZE), "--device", "cheats.quick:Quick"]
    with started("judge", "mine.py:leaves", *words) as judge:
        wait_until(lambda: len(workers_of(judge)) >= 4, judge)
        others = workers_of(judge)
        judge.send_signal(number)
        judge.wait()
        wait_until(lambda: gone(others))


@pytest.mark.slow
def test_shared_memory_keeps_its_size() -> None:
    """Who shortened it would end the judge, which reads it."""
    assert judged("truncates")["accepted"]


@pytest.mark.slow
def test_several_kernels() -> None:
    found = rooflab.judge("mine.py", "add", "cheats.quick:Quick", sizes=100)
    assert found.reason.startswith(
        "add fp32 100: ValueError: several kernels: name one of right, once"
    )


@pytest.mark.slow
def test_faster_than_the_roof(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is not believed."""
    monkeypatch.setenv("ROOFLAB_CACHE_DIR", str(Path("cache").absolute()))
    monkeypatch.setattr(Quick, "_ceilings", _slow(Quick))
    (one,) = judged("right")["problems"]
    assert (one["status"], one["time_us"] is None) == ("impossible", False)
    assert "all roofs allow" in one["reason"]


def _slow(kind: type[Quick]) -> Any:
    from dataclasses import replace

    roofline = kind()._ceilings
    slow = [replace(one, value=one.value / 1e7) for one in roofline.ceilings]
    return replace(roofline, ceilings=tuple(slow))


@pytest.mark.slow
def test_a_workload_of_a_trusted_file() -> None:
    Path("trusted.py").write_text(OWN.read_text() + BASE)
    Path("sub.py").write_text(
        "import rooflab\n"
        "@rooflab.kernel(workload='axpby', device='cpu')\n"
        "def sub(operands, stream):\n"
        "    x, y, p = operands.x, operands.y, operands.problem\n"
        "    def launch():\n"
        "        y[...] = p.beta * y + p.alpha * x\n"
        "    return launch\n"
    )
    found = rooflab.judge(
        "sub.py", "axpby", "cheats.quick:Quick", against="trusted.py:base", sizes=SIZE
    )
    assert found.accepted, found.reason
    assert found.problems[0].speedup


@pytest.mark.slow
def test_what_it_is_compared_with_must_be_right() -> None:
    reason = f"mine.py:once cannot be compared with: {SIZE} of {SIZE}"
    with pytest.raises(RooflabError, match=reason):
        judged("right", against="mine.py:once")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["mine.py"], "no sizes to judge on: write --sizes 1024,4096, or --shape"),
        (["nothing.py", "--sizes", "8"], "nothing.py cannot be read: No such file"),
        (["mine", "--sizes", "8"], "mine is no submission: name a .py or .cu file"),
        (["mine.py", "--sizes", "8", "-w", "nowhere"], "nowhere"),
        (["mine.py", "--sizes", "8", "-w", "add", "--layout", "nn"], "add has no parameter"),
        (["mine.py", "--sizes", "8", "--against", "gone.py"], "gone.py"),
        (["mine.py", *ADD, "--against", "nosuch"], "no kernel for add matches 'nosuch'"),
        (["mine.py", *ADD, "--against", "mine.py"], "has several kernels: name one of right, once"),
        (["mine.py", *ADD, "--against", "mine.py:other"], "mine.py:other is for copy, not add"),
        (["mine.py", *ADD, "--against", "numpy", "-p", "fp32,bf16"], "does not support bf16"),
        (["mine.py", *ADD, "--threads", "1", "--against", "nosuch"], "matches 'nosuch'"),
        (["mine.py", *ADD, "--threads", "1,2"], "a judge uses one number of threads"),
        (["mine.py", *ADD, "--out", "nowhere/x.json"], "cannot write nowhere/x.json: No such file"),
        (["mine.py", *ADD, "--out", "folder"], "cannot write folder: it is a folder"),
        (["/dev/zero", *ADD], "/dev/zero is no ordinary file"),
        (["fifo.py", *ADD], "fifo.py is no ordinary file"),
        (["folder.py", *ADD], "folder.py is no ordinary file"),
        (["large.py", *ADD], "large.py has more than 10 MB"),
    ],
)
def test_wrong_usage(
    words: list[str], reason: str, command: Rooflab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said before anything is measured."""
    Path("folder").mkdir()
    Path("folder.py").mkdir()
    os.mkfifo("fifo.py")
    with Path("large.py").open("wb") as large:
        large.truncate(10**7 + 1)
    monkeypatch.setattr(CpuDevice, "roofline", measured)
    code, out, err = command("judge", *words, "--device", "cpu")
    assert (code, out) == (2, "")
    assert reason in joined(err)
    assert err.startswith("error: ")


def measured(_: CpuDevice) -> Roofline:
    raise AssertionError


def test_the_command(command: Rooflab) -> None:
    words = ["-w", "add", "--sizes", str(SIZE), "--device", "cheats.quick:Quick"]
    assert command("judge", "mine.py:right", *words, "--out", "found.json")[0] == 0
    assert json.loads(Path("found.json").read_text())["accepted"]
    code, out, err = command("judge", "mine.py:once", *words)
    assert code == 3
    found = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert found["accepted"] is False
    assert found["problems"][0]["rel_error"] is None
    assert f"error: refused: add fp32 {SIZE}: " in err


def test_host_memory_is_not_judged() -> None:
    with pytest.raises(UsageError, match="only operands in the memory of one device"):
        judged("right", parameters={"host": "pinned"})
