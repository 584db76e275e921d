"""What a process cannot do once it has given it up. Each test needs a process of its own."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from rooflab.files import package_root
from rooflab.judging.sandbox import Enforced

pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="Landlock is of Linux")

START = """
import os, socket, subprocess, sys
sys.path.append({root!r})
from rooflab.judging import sandbox
refused = sandbox.enter({folder!r})
assert refused.{needed}, refused
"""


def result(action: str, needed: str = "files") -> str:
    """``done``, or the type of what was raised."""
    Path("folder").mkdir(exist_ok=True)
    start = START.format(root=str(package_root()), folder=str(Path("folder")), needed=needed)
    attempt = "\n".join(f"    {line}" for line in action.splitlines())
    code = f"{start}\ntry:\n{attempt}\n    print('done')\nexcept OSError as error:\n"
    code += "    print(type(error).__name__)"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    if "AssertionError" in ended.stderr:
        pytest.skip(f"this kernel cannot refuse {needed}")
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@pytest.mark.parametrize(
    "action",
    [
        "open('mine', 'w')",
        "open('known', 'a')",
        "os.truncate('known', 0)",
        "os.unlink('known')",
        "os.rename('known', 'other')",
        "os.mkdir('there')",
        "os.symlink('known', 'link')",
        "os.mkfifo('pipe')",
        "os.rename('known', 'folder/known')",
    ],
)
def test_files_stay(action: str) -> None:
    Path("known").write_text("as before")
    assert result(action) == "PermissionError"
    assert Path("known").read_text() == "as before"


def test_children_and_threads_are_refused_too() -> None:
    assert result(
        "code = subprocess.run([sys.executable, '-c', 'open(\"mine\", \"w\")'],"
        " capture_output=True).returncode\n"
        "if code: raise PermissionError"
    ) == ("PermissionError")
    assert not Path("mine").exists()
    result("import threading\nt = threading.Thread(target=open, args=('mine', 'w'))\nt.start()")
    assert not Path("mine").exists()


@pytest.mark.parametrize(
    "action",
    [
        "open('known').read()",
        "open('folder/mine', 'w').write('x')",
        "os.mkdir('folder/a')\nos.mkdir('folder/b')\nos.rename('folder/a', 'folder/b/a')",
        "open('/dev/null', 'w').write('x')",
        "socket.socketpair()",
        "subprocess.run([sys.executable, '-c', ''], check=True)",
    ],
)
def test_what_honest_code_needs(action: str) -> None:
    Path("known").write_text("as before")
    assert result(action) == "done"


@pytest.mark.parametrize(
    "action",
    [
        "socket.socket()",
        "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)",
        "socket.socket(socket.AF_UNIX).connect('/run/any')",
    ],
)
def test_no_network(action: str) -> None:
    assert result(action, "network") == "PermissionError"


@pytest.mark.parametrize(
    "action",
    [
        "os.setsid()",
        "os.setpgid(0, 0)",
        "open(f'/proc/{os.getppid()}/mem', 'rb')",
        "os.kill(os.getppid(), 0)",
    ],
)
def test_other_processes(action: str) -> None:
    assert result(action, "processes") == "PermissionError"


def test_what_is_lacking_is_named() -> None:
    assert Enforced().lacking == ["files", "network", "processes"]
    assert Enforced(files=True, processes=True).lacking == ["network"]
    assert Enforced(files=True, network=True, processes=True).lacking == []
