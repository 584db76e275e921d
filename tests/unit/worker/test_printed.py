"""What kernels print is kept in a file, as far as anybody will read it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rooflab.worker import printed as module
from rooflab.worker.printed import Printed


@pytest.fixture
def printed(tmp_path: Path) -> Printed:
    return Printed(tmp_path / "printed.txt")


def pipe_to(printed: Printed) -> int:
    """The end of a pipe that a process writes to."""
    reading, writing = os.pipe()
    printed.collect(reading)
    return writing


def say(printed: Printed, *parts: bytes) -> None:
    """A process that prints these, and ends."""
    pipe = pipe_to(printed)
    for part in parts:
        os.write(pipe, part)
    os.close(pipe)


def test_what_is_printed_is_in_the_file(printed: Printed) -> None:
    assert not printed.path.exists()
    say(printed, b"first\n", b"sec", b"ond\n")
    printed.close()
    assert printed.path.read_bytes() == b"first\nsecond\n"
    assert (printed.lines, printed.last) == (2, "second")


def test_the_last_line_may_come_in_pieces(printed: Printed) -> None:
    for data in (b"first\n", b"sec", b"ond\n", b"\n"):
        printed._keep(data)
    assert printed.last == "second"
    printed._keep(b"x" * 10_000)
    assert len(printed.last) < 10_000


def test_without_a_word_there_is_no_file(printed: Printed) -> None:
    say(printed)
    printed.close()
    assert not printed.path.exists()
    assert (printed.lines, printed.last) == (0, "")


def test_several_processes_print_into_one_file(printed: Printed) -> None:
    pipes = [pipe_to(printed) for _ in range(3)]
    writers = [
        threading.Thread(target=os.write, args=(pipe, f"process {i}\n".encode()))
        for i, pipe in enumerate(pipes)
    ]
    for writer in writers:
        writer.start()
    for writer, pipe in zip(writers, pipes, strict=True):
        writer.join()
        os.close(pipe)
    printed.close()
    assert sorted(printed.path.read_text().splitlines()) == [f"process {i}" for i in range(3)]
    assert printed.lines == 3


def test_what_is_no_text_is_kept_as_it_is(printed: Printed) -> None:
    say(printed, b"\xff\xfe\x00\n", b"\n \n")
    printed.close()
    assert printed.path.read_bytes() == b"\xff\xfe\x00\n\n \n"
    assert printed.last == "\ufffd\ufffd\x00"


def test_only_so_much_is_kept_and_all_lines_are_counted(
    printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(printed, *[b"x" * 1023 + b"\n"] * 3000)
    printed.close()
    content = printed.path.read_bytes()
    kept, rest = content[: module.MOST_BYTES], content[module.MOST_BYTES :]
    assert set(kept) == set(b"x\n")
    assert rest == b"\n(more was printed, and is not kept)\n"
    assert printed.lines == 3000
    say(printed, b"the last word")
    printed.close()
    assert printed.last == "the last word"
    assert printed.path.read_bytes() == content


def test_a_child_that_keeps_the_pipe_open_is_not_waited_for(
    printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel may start a server; what it prints meanwhile is kept, and the sweep ends."""
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)
    pipe = pipe_to(printed)
    server = "import sys, time; print('started', flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", server], stdout=pipe)
    os.close(pipe)
    try:
        limit = time.monotonic() + 60
        while not printed.lines:
            assert time.monotonic() < limit
            time.sleep(0.01)
        started = time.monotonic()
        printed.close()
        assert time.monotonic() - started < 30
        assert child.poll() is None
        assert printed.path.read_text() == "started\n"
    finally:
        child.kill()
        child.wait()


def test_an_interrupt_before_it_collects_is_no_failure(
    printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    reading, writing = os.pipe()
    with pytest.raises(KeyboardInterrupt):
        printed.collect(reading)
    printed.close()
    os.close(reading)
    os.close(writing)


def test_a_file_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    printed = Printed(tmp_path / "no" / "such" / "folder.txt")
    say(printed, b"a\n", b"b\n")
    printed.close()
    assert (printed.lines, printed.last) == (2, "b")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    printed = Printed(tmp_path / "printed.txt")
    printed.path.symlink_to(target)
    say(printed, b"theirs\n")
    printed.close()
    assert target.read_text() == "mine"


def test_what_another_run_of_the_folder_printed_stays(printed: Printed) -> None:
    printed.path.write_text("before\n")
    say(printed, b"after\n")
    printed.close()
    assert printed.path.read_text() == "before\nafter\n"
    mode = stat.S_IMODE(printed.path.stat().st_mode)
    assert mode & 0o111 == 0
