"""``rooflab bench FILE.py``: marked functions, races, files, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rooflab.cli import main
from rooflab.functions import bench
from rooflab.runs.store import load

FILE = """
import numpy as np
import rooflab

def square():
    return np.random.default_rng(0).random((40, 40))

@rooflab.benchmark(race="product", a=square, b=square, flops=lambda a, b: 2 * 40**3)
def matmul(a, b):
    return a @ b

@rooflab.benchmark(race="product")
def dot(a, b):
    return np.dot(a, b)

@rooflab.benchmark(x=np.ones(1000), bytes=5000, cache="warm")
def sine(x):
    return np.sin(x)
"""

CALLABLE = """
import numpy as np
import rooflab

class Layer:
    def __call__(self, x=None):
        assert x is not None
        return 2 * x

@rooflab.benchmark(layer=Layer(), x=lambda: np.ones(9), w=np.ones(3))
def apply(layer, x, w):
    return layer(x), w
"""


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short rounds, and few of them."""
    found = bench._config
    timing = {"warmup_s": 0, "min_rounds": 3, "max_rounds": 3, "round_s": 0.001}
    monkeypatch.setattr(bench, "_config", lambda cache, given: found(cache, timing))


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["bench", *words])
    code = ended.value.code
    assert isinstance(code, int)
    return code


def test_marked_functions(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text(FILE)
    assert run("mine.py", "--device", "cpu", "--save", "base", "--json", "rows.json") == 0
    printed = capsys.readouterr()
    for name in ("matmul", "dot", "sine"):
        assert printed.out.count(f"{name} 40x40") + printed.out.count(f"{name} 1000") == 1
        assert f"{name} " not in printed.err
    rows = json.loads(Path("rows.json").read_text())
    assert [row["kernel"] for row in rows] == ["matmul", "dot", "sine"]
    assert [row["flops"] for row in rows] == [128000, 128000, None]
    assert (rows[2]["bytes"], rows[2]["cache"]) == (5000, "warm")
    assert rows[1]["rel_error"] is not None
    assert (Path("base") / "manifest.json").is_file()
    assert run("mine.py:dot", "--device", "cpu") == 0  # with the arguments of its race
    capsys.readouterr()
    assert run("mine.py:product", "--compare", "base", "--json", "-") in (0, 3)
    printed = capsys.readouterr()
    assert len(json.loads(printed.out)) == 2
    assert "2 points in common" in printed.err
    assert run("mine.py:dot", "--compare", "base", "--threshold", "1e6") == 0
    assert "1 point in common: 1 " in capsys.readouterr().out
    assert run("mine.py:dot", "--threshold", "1") == 2
    assert "are for --compare BASE" in capsys.readouterr().err


def test_a_wrong_function_ends_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    Path("wrong.py").write_text(FILE.replace("np.dot(a, b)", "a + b"))
    assert run("wrong.py:product", "--device", "cpu") == 3
    assert "incorrect: differs from matmul" in capsys.readouterr().out


def test_one_that_raises_leaves_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    raises = FILE.replace("return np.sin(x)", "raise ValueError('mine')")
    Path("raises.py").write_text(raises)
    assert run("raises.py", "--device", "cpu", "--save", "saved") == 3
    printed = capsys.readouterr()
    assert "sine: ValueError: mine" in printed.err
    assert "matmul" in printed.out
    assert (Path("saved") / "manifest.json").is_file()
    assert "rooflab.bench called sine for the first time" in printed.err
    assert run("raises.py:sine", "--device", "cpu") == 3
    assert run("raises.py", "--compare", "nowhere") in (1, 2)
    assert "matmul" not in capsys.readouterr().out


PRINTS = """
import os
import numpy as np
import rooflab

print("on import")

@rooflab.benchmark
def alone():
    print("in a call")
    os.write(1, b"below Python")

@rooflab.benchmark(a=np.ones(30))
def one(a):
    return a * 2

@rooflab.benchmark(a=np.ones(30), precision="fp12")
def typed(a):
    return a * 2
"""


def test_standard_output_has_json_alone(capfd: pytest.CaptureFixture[str]) -> None:
    Path("prints.py").write_text(PRINTS)
    assert run("prints.py", "--json", "-") == 2  # one option is wrong
    printed = capfd.readouterr()
    assert [row["kernel"] for row in json.loads(printed.out)] == ["alone", "one"]
    for text in ("on import", "in a call", "below Python", "typed: unknown precision 'fp12'"):
        assert text in printed.err
    assert run("prints.py:typed", "--json", "-") == 2
    assert json.loads(capfd.readouterr().out) == []


def test_functions_alone_are_not_compared(capsys: pytest.CaptureFixture[str]) -> None:
    alone = "import numpy as np\nimport rooflab\n"
    for name in ("first", "second"):
        alone += f"@rooflab.benchmark(a=np.ones(30))\ndef {name}(a): return a + 1\n"
    Path("alone.py").write_text(alone)
    assert run("alone.py", "--save", "saved") == 0
    assert "times as fast as" not in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["show", "saved"])
    shown = capsys.readouterr().out
    assert "times as fast as" not in shown
    assert shown.count(" reached ") == 2
    assert run("alone.py", "--save", "saved") == 2
    assert "saved is a run already: name another folder" in capsys.readouterr().err


def test_options_of_bench(capsys: pytest.CaptureFixture[str]) -> None:
    marked = FILE.replace("bytes=5000", "bytes=5000, modules=True, counters=True")
    Path("counted.py").write_text(marked)
    seen: list[dict[str, Any]] = []
    found = bench.bench

    def watched(*args: Any, **options: Any) -> bench.Result:
        seen.append(options)
        return found(*args, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("rooflab.functions.marked.bench", watched)
        assert run("counted.py:sine", "--device", "cpu") == 0
    assert (seen[0]["modules"], seen[0]["counters"]) == (True, True)
    assert "has no counters" in capsys.readouterr().err


def test_only_functions_are_called_for_values(capsys: pytest.CaptureFixture[str]) -> None:
    Path("values.py").write_text(CALLABLE)
    assert run("values.py", "--device", "cpu") == 0
    assert "apply 3,9 " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("mine.cu", "", "mine.cu is not a Python file: rooflab bench FILE.py"),
        ("absent.py", None, "file absent.py cannot be read: no such file"),
        ("empty.py", "", "marks no function: decorate one with @rooflab.benchmark"),
        ("broken.py", "x = 1 / 0", "broken.py:1: ZeroDivisionError"),
        (
            "positional.py",
            "import rooflab\n@rooflab.benchmark([1])\ndef f(x): return x",
            "name what is given, as in @rooflab.benchmark(x=",
        ),
        ("mine.py:other", FILE, "marks no function 'other': it marks matmul, dot, sine"),
    ],
)
def test_wrong_files(
    file: str, text: str | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        Path(file.partition(":")[0]).write_text(text)
    assert run(file) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    """Said before anything is measured."""
    Path("mine.py").write_text(FILE)
    assert run("mine.py", "--json", "nowhere/rows.json") == 2
    printed = capsys.readouterr()
    assert "cannot write nowhere/rows.json: No such file" in printed.err
    assert not printed.out
    assert run("mine.py:other", "--json", "rows.json") == 2
    assert not Path("rows.json").exists()


def test_what_was_measured_is_saved_before_a_disk_is_full(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("mine.py").write_text(FILE)
    assert run("mine.py:sine", "--json", "/dev/full", "--save", "saved") == 2
    assert "cannot write /dev/full: No space left on device" in capsys.readouterr().err
    assert len(load(Path("saved")).measurements) == 1
