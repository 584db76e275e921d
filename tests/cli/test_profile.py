"""``rooflab profile`` without a GPU: what is refused, what is imported, how a script is run."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import Rooflab, joined, only_run

import rooflab as face
from rooflab.devices.cuda import ncu
from rooflab.errors import UnavailableError
from rooflab.figures.page import run_conditions
from rooflab.programs import imported, script
from rooflab.runs.store import MEASUREMENTS

DATA = Path(__file__).parents[1] / "data"
TRACE = DATA / "programs" / "torch.json"
TABLE = DATA / "programs" / "ncu_raw.csv"
KNOWN = DATA / "measured" / "counted"
OTHER = DATA.parents[1] / "results" / "20261122T155652Z-intel-r-xeon-r-processor"
GEMM = "nvjet_sm90_hsh_256x128_64x4_1x2_h_bz_coopA_NNT"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> None:
        raise UnavailableError("there is no GPU")

    monkeypatch.setattr(imported, "resolve", none)
    monkeypatch.setattr(ncu, "find", lambda: None)


# What is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "name a program: rooflab profile SCRIPT.py, or -m MODULE"),
        (["missing.py"], "there is no file missing.py"),
        (["missing"], "missing does not exist"),
        (["-m"], "name a module"),
        (["--steps", "3", TRACE], "are not for files"),
        (["--range", "none", TRACE], "nothing was launched inside of a range 'none': "),
        (["--range", "x", sys.executable], "--range is for scripts and files"),
        (["--roofs", OTHER, TRACE], "their roofs differ"),
        (["--out", "/proc/none/run", TRACE], "cannot write to /proc/none/run"),
        (["."], ". is no ordinary file"),
        (["--kernels", "(", "it.py"], "--kernels '(' is no regular expression: missing )"),
        ([TRACE, "--roofs", KNOWN], "options stand before"),
        ([sys.executable], "which is not installed: https://developer.nvidia.com/nsight-compute"),
    ],
)
def test_what_is_wrong_is_one_line(rooflab: Rooflab, words: list[object], text: str) -> None:
    Path("it.py").touch()
    code, out, err = rooflab("profile", *words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and text in joined(err)
    assert not Path("results").exists()


def test_roofs_that_are_no_run(rooflab: Rooflab) -> None:
    code, _, err = rooflab("profile", "--roofs", "nowhere", TRACE)
    assert code == 2 and joined(err).startswith("error: ") and "nowhere" in err
    assert not Path("results").exists()


def test_a_program_that_may_not_be_run(rooflab: Rooflab) -> None:
    Path("program").write_bytes(b"\x7fELF\0\xff")
    code, _, err = rooflab("profile", "./program")
    assert code == 1 and err.startswith("error: ") and err.count("error") == 1


@pytest.mark.parametrize(
    ("words", "text"), [([], "print('ran')"), (["-m"], "print('ran')"), ([], "syntax error")]
)
def test_a_script_without_a_gpu_does_not_run(words: list[str], text: str) -> None:
    Path("it.py").write_text(text)
    command = [sys.executable, "-m", "rooflab", "profile", *words, "it" if words else "it.py"]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(command, capture_output=True, text=True, env=hidden, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: there is no ") and ended.stderr.count("\n") == 1
    assert not Path("results").exists()


def test_a_script_is_started_with_its_own_arguments(
    rooflab: Rooflab, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []

    def execve(path: str, command: list[str], variables: dict[str, str]) -> None:
        started.extend([command[1:], json.loads(variables[script.OPTIONS])])
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", execve)
    Path("it").write_text("#!/usr/bin/env python3\n")
    rooflab("profile", "--steps", 4, "--no-counters", "--kernels", "a|b", "it", "--steps", 9, "-m")
    command, options = started
    assert command == ["-m", "rooflab.programs.script", "it", "--steps", "9", "-m"]
    expected = {"module": False, "out": "results", "counters": False}
    assert options == {**expected, "steps": 4, "skip": 0, "kernels": "a|b", "inside": ""}


# Imports -----------------------------------------------------------------------------------------


def test_a_trace_without_roofs(rooflab: Rooflab) -> None:
    code, out, err = rooflab("profile", TRACE)
    assert (code, out) == (0, "")
    assert "One step takes 27.3 ms. Its kernels take 1.51 ms." in err
    assert "The roofs of NVIDIA H200 are not known here" in joined(err)
    assert "cunn_SoftMaxBackward" in err
    run = only_run()
    assert run.manifest.program["name"] == "torch.json"
    assert run.manifest.command == ["rooflab", "profile", str(TRACE)]
    assert not any(row.roof_percent for row in run.measurements)


def test_a_table_of_ncu_with_roofs(rooflab: Rooflab) -> None:
    code, _, err = rooflab("profile", "--roofs", KNOWN, "--out", "run", TABLE)
    assert code == 0 and "are not known here" not in joined(err)
    row = next(row for row in face.load("run").measurements if row.kernel == GEMM)
    assert row.roof_percent and 0 < row.roof_percent < 100
    assert row.tensor_flops and row.launches == 1


def test_what_was_imported_has_no_facts_of_the_gpu_whose_roofs_it_has(rooflab: Rooflab) -> None:
    rooflab("profile", "--roofs", KNOWN, "--out", "run", TABLE)
    run = face.load("run")
    theirs, facts = face.load(KNOWN).manifest, run.manifest.device.facts
    assert {"driver_version", "power_limit", "uuid"} <= theirs.device.facts.keys() - facts.keys()
    assert facts["sm_clock_max"] == theirs.device.facts["sm_clock_max"]
    assert run.manifest.versions.keys() == {"rooflab"} and not run.manifest.host
    footer = run_conditions(run).replace("\u00a0", " ")
    assert f"roofs of {Path(KNOWN).name} ·" in footer
    assert "driver" not in footer and "MHz" not in footer and "power" not in footer


@pytest.mark.parametrize("more", [(), ("--roofs", KNOWN)])
@pytest.mark.parametrize("path", [TRACE, TABLE])
def test_what_was_imported_can_be_read(rooflab: Rooflab, path: Path, more: tuple[object]) -> None:
    rooflab("profile", *more, "--out", "run", path)
    code, out, _ = rooflab("show", "run")
    assert code == 0 and "Its kernels take" in out
    assert ("idle" in out) == (path == TRACE)  # of gaps between ncu's launches nothing is known
    code, out, _ = rooflab("explain", "run", "--all")
    assert code == 0
    code, out, _ = rooflab("export", "run", "-f", "csv")
    assert code == 0
    assert out.count("\n") == (Path("run") / MEASUREMENTS).read_text().count("\n") - 1
    code, out, _ = rooflab("compare", "run", "run", "--fail-on", "slow")
    assert code == 0 and "SAME." in out


def test_other_files_are_told_apart(rooflab: Rooflab) -> None:
    Path("other.txt").write_text("nothing\n")
    code, _, err = rooflab("profile", "other.txt")
    assert code == 1 and joined(err).startswith("error: other.txt")


# Other programs ----------------------------------------------------------------------------------

NCU = """\
#!{python}
import shutil, subprocess, sys
words = sys.argv[1:]
if words == ["--query-metrics"]:
    print("dram__bytes_read  bytes\\nsm__cycles_elapsed  cycles")
    sys.exit()
if {writes}:
    shutil.copy({table!r}, words[words.index("--log-file") + 1])
program = words[words.index("none") + 1:]
sys.exit(subprocess.run(program).returncode)
"""


def executable(name: str, text: str) -> Path:
    path = Path(name).absolute()
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def program() -> Path:
    return executable("program", '#!/bin/sh\necho "$@" > arguments\nexit 7\n')


def with_ncu(monkeypatch: pytest.MonkeyPatch, *, writes: bool) -> None:
    text = NCU.format(python=sys.executable, table=str(TABLE), writes=writes)
    path = executable("ncu", text)
    monkeypatch.setattr(ncu, "find", lambda: str(path))


def test_another_program_keeps_its_arguments_and_exit_code(
    rooflab: Rooflab, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_ncu(monkeypatch, writes=True)
    code, _, err = rooflab("profile", "--roofs", KNOWN, "--out", "run", "./program", "--out", "x y")
    assert code == 7, err
    assert Path("arguments").read_text() == "--out x y\n"
    run = face.load("run")
    assert run.manifest.program["name"] == "program"
    assert run.manifest.command == ["rooflab", "profile", "./program", "--out", "x y"]
    assert {GEMM} < {row.kernel for row in run.measurements}


def test_a_program_on_which_ncu_wrote_nothing(
    rooflab: Rooflab, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_ncu(monkeypatch, writes=False)
    code, _, err = rooflab("profile", "./program")
    assert code == 2 and "ncu wrote nothing on ./program" in joined(err)


# How a script is run -----------------------------------------------------------------------------


@pytest.fixture
def own_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["of rooflab", *sys.path])
    monkeypatch.setattr(sys, "argv", ["of rooflab"])


def run(text: str, *arguments: str, name: str = "folder/it.py") -> int:
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return script._run(name, list(arguments), module=False)


Caught = pytest.CaptureFixture[str]


@pytest.mark.usefixtures("own_python")
class TestScript:
    def test_it_sees_what_python_shows_it(self, capsys: Caught) -> None:
        text = "import sys, neighbour; print(__name__, __file__, sys.argv, sys.path[0], end='')"
        Path("folder").mkdir()
        Path("folder/neighbour.py").touch()
        assert run(text, "-x", "a b") == 0
        folder = Path("folder").resolve()
        expected = f"__main__ folder/it.py {['folder/it.py', '-x', 'a b']} {folder}"
        assert capsys.readouterr() == (expected, "")
        assert "of rooflab" not in sys.path

    def test_a_module(self, capsys: Caught) -> None:
        Path("package_of_a_test").mkdir()
        text = "import sys; print(__name__, __package__, sys.argv[1:], sys.path[0], end='')"
        Path("package_of_a_test/__main__.py").write_text(text)
        assert script._run("package_of_a_test", ["-x"], module=True) == 0
        here = Path.cwd()
        expected = f"__main__ package_of_a_test ['-x'] {here}"
        assert capsys.readouterr() == (expected, "")

    def test_a_module_that_is_not_there(self, capsys: Caught) -> None:
        assert script._run("no_such_module_at_all", [], module=True) == 1
        assert "No module named no_such_module_at_all" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("end", "code", "err"),
        [
            *(("", 0, ""), ("None", 0, ""), ("0", 0, ""), ("7", 7, ""), ("True", 1, "")),
            *(("'no data'", 1, "no data\n"), ("[1]", 1, "[1]\n")),
        ],
    )
    def test_its_exit_code(self, capsys: Caught, end: str, code: int, err: str) -> None:
        assert run(f"import sys; sys.exit({end})") == code
        assert capsys.readouterr() == ("", err)

    @pytest.mark.parametrize("name", ["it.py", "my_runpy_test.py"])
    def test_its_traceback_is_its_own(self, capsys: Caught, name: str) -> None:
        text = """\
        def f():
            raise ValueError("mine")
        f()
        """
        assert run(text, name=f"folder/{name}") == 1
        lines = capsys.readouterr().err.splitlines()
        assert lines[0] == "Traceback (most recent call last):"
        assert lines[1] == f'  File "folder/{name}", line 3, in <module>'
        assert lines[-1] == "ValueError: mine"
        assert len([line for line in lines if line.startswith("  File")]) == 2

    def test_causes_are_shown(self, capsys: Caught) -> None:
        text = """\
        try:
            {}["k"]
        except KeyError as error:
            raise ValueError("mine") from error
        """
        assert run(text) == 1
        err = capsys.readouterr().err
        assert "KeyError: 'k'" in err and "direct cause" in err and "runpy" not in err

    def test_its_own_hook_shows_its_errors(
        self, capsys: Caught, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # restored
        text = """\
        import sys
        sys.excepthook = lambda kind, error, trace: print("seen", error, trace.tb_lineno)
        raise ValueError("mine")
        """
        assert run(text) == 1
        assert capsys.readouterr() == ("seen mine 3\n", "")

    def test_a_syntax_error(self, capsys: Caught) -> None:
        assert run("def\n") == 1
        err = capsys.readouterr().err
        assert "SyntaxError" in err and 'it.py", line 1' in err and "runpy" not in err

    def test_it_is_interrupted(self, capsys: Caught) -> None:
        assert run("raise KeyboardInterrupt") == 130
        err = capsys.readouterr().err
        assert err.endswith("KeyboardInterrupt\n") and "script.py" not in err


# The process of a script, without CUPTI ----------------------------------------------------------

PROCESS = """\
import sys
from rooflab.errors import UsageError
from rooflab.programs import script, whole

class Nothing:
    def __init__(self, name, **options):
        self.name = name
        print("begin", name, options["steps"], flush=True)
    def start(self):
        {start}
    def finish(self):
        print("end", flush=True)
        raise UsageError("nothing was launched")

whole.Whole = Nothing
sys.exit(script.main())
"""


def process(text: str, *arguments: str, start: str = "pass") -> tuple[int, list[str], str]:
    Path("it.py").write_text(textwrap.dedent(text))
    Path("process.py").write_text(PROCESS.format(start=start))
    options = {"module": False, "out": "run", "counters": True}
    options |= {"steps": 3, "skip": 0, "kernels": "", "inside": ""}
    given = {**os.environ, script.OPTIONS: json.dumps(options)}
    command = [sys.executable, "process.py", "it.py", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, env=given, check=False)
    return ended.returncode, ended.stdout.splitlines(), ended.stderr


def test_a_script_in_its_process() -> None:
    text = f"""\
    import os, sys
    print(sys.argv[1:], os.environ.get("{script.OPTIONS}"))
    sys.exit(5)
    """
    code, out, err = process(text, "-x")
    assert code == 5
    assert out == ["begin it.py 3", "['-x'] None", "end"]
    assert err == "rooflab: nothing was launched\n"


def test_a_recording_that_does_not_start() -> None:
    code, out, err = process("print('ran')", start="raise UsageError('no GPU here')")
    assert (code, out, err) == (2, ["begin it.py 3"], "error: no GPU here\n")


def test_a_fork_tells_nothing() -> None:
    text = """\
    import os, sys
    child = os.fork()
    if not child:
        sys.exit(3)
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    """
    code, out, err = process(text)
    assert (code, out) == (0, ["begin it.py 3", "child 3", "end"])
    assert err == "rooflab: nothing was launched\n"


def test_threads_that_go_on_are_part_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []

    def thread(name: str, *, daemon: bool) -> Any:
        return SimpleNamespace(daemon=daemon, join=lambda: waited.append(name))

    threads = [threading.current_thread(), thread("a", daemon=False), thread("b", daemon=True)]
    monkeypatch.setattr(threading, "enumerate", lambda: threads)
    script._wait_for_threads()
    assert waited == ["a"]
