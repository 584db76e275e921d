"""An option is declared once: the command line, Python and files have it from there."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rooflab
from rooflab import api
from rooflab.config import COMMON, SELECTION, SweepConfig
from rooflab.errors import UsageError
from rooflab.files import kernels_dir
from rooflab.options import OPTIONS, Options, chosen

FACES = ("sweep", "fleet_sweep")

ADDED = """
import rooflab
from rooflab import options
from rooflab.cli import main

options.OfSweep.__annotations__["colour"] = str  # as if it were written there
options.option("red", "Its colour.").__set_name__(options.OfSweep, "colour")

plan = ["sweep", "add", "--device", "fake:FakeDevice", "--dry-run", "--colour", "blue"]
wrong = [*plan, "--config", "wrong.toml"]
for words in (["sweep", "--help"], ["fleet", "sweep", "--help"], plan, wrong):
    try:
        main(words)
    except SystemExit as end:
        print("exit code", end.code)

from rooflab.config import load

one = {"kernels": "fast", "precisions": "fp32", "sizes": 64, "device": "fake:FakeDevice"}
run = rooflab.sweep("add", **one, colour="blue")
print(run.manifest.config["colour"], load("green.toml", "add", "cpu", {}).colour)
"""


def test_an_option_that_is_declared_is_everywhere(elsewhere: Path) -> None:
    (elsewhere / "green.toml").write_text('colour = "green"\nsizes = 8\n')
    (elsewhere / "wrong.toml").write_text('color = "green"\nsizes = 8\n')
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", ADDED]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert len(re.findall(r"--colour +<str> +Its colour\.", done.stdout)) == len(FACES), done
    assert re.findall(r"exit code (\d)", done.stdout) == ["0", "0", "0", "2"], done
    assert "did you mean colour" in done.stderr
    assert done.stdout.split()[-2:] == ["blue", "green"], done.stderr


@pytest.mark.parametrize("name", FACES)
def test_help_and_completion_show_every_option(name: str) -> None:
    shown = inspect.signature(getattr(rooflab, name)).parameters
    assert shown.keys() >= {*OPTIONS, "timing", "workload", "out"}
    assert all(shown[name].default == one.unset for name, one in OPTIONS.items())


def test_type_checkers_know_every_option() -> None:
    assert Options.__annotations__.keys() == {*OPTIONS, "timing"}


def test_keys_of_files_are_options() -> None:
    keys = {*COMMON, *SELECTION, "parameters"} - {"timing"}
    assert keys == {name for name, one in OPTIONS.items() if one.key}
    settings = SweepConfig()
    for name in COMMON:
        assert name == "timing" or getattr(settings, name) == OPTIONS[name].default


def test_a_default_is_nobodys_to_change() -> None:
    settings = SweepConfig()
    assert settings.variant is not OPTIONS["variant"].default


def test_options_that_stand_for_keys_set_them_in_python_too() -> None:
    given = {"rounds": 200, "precision_percent": 2.0, "timing": {"max_s": 3}, "batch": 2}
    made = chosen("gemm", given | {"parameters": {"layout": ["nn", "nt"]}, "config": "quick"})
    timing = {"min_rounds": 200, "max_rounds": 200, "slow_rounds": 100, "precision_percent": 2.0}
    expected = {"timing": timing | {"max_s": 3}, "batch": 2, "layout": ["nn", "nt"]}
    assert made == ("gemm", "quick", expected)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"rounds": "many"}, "timing.min_rounds: Input should be a valid integer"),
        ({"rounds": 2}, "timing.min_rounds: Input should be greater than or equal to 3"),
        ({"precision_percent": 99}, "timing.precision_percent: Input should be less than"),
        ({"parameters": 3}, "parameters = '3': give a dict of names and values"),
        ({"parameters": [1]}, "parameters = '[1]': give a dict of names and values"),
        ({"parameters": {1: 2}}, "gemm has no parameter '1'"),
        ({"timing": 3, "rounds": 8}, "timing = '3': give a dict of names and values"),
        ({"precisions": 32}, "unknown precision '32'"),
        ({"parameters": {"layuot": "nn"}}, "gemm has no parameter 'layuot': did you mean layout"),
    ],
)
def test_wrong_values_in_python_are_one_line(given: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        rooflab.sweep("gemm", kernels="blas", sizes=64, device="cpu", **given)


@pytest.mark.parametrize("workload", [3, ["gemm"], Path("mine.cu")])
def test_a_workload_that_is_no_name_is_one_line(workload: Any) -> None:
    with pytest.raises(UsageError, match="no workload"):
        rooflab.sweep(workload, sizes=64, device="cpu")


def test_numbers_of_numpy_tuples_and_paths_are_what_they_stand_for(tmp_path: Path) -> None:
    shutil.copy(kernels_dir() / "gemm" / "03_tiled.cu", tmp_path / "mine.cu")
    given: dict[str, Any] = {"sizes": 2 ** np.arange(5, 7), "alpha": (np.float32(0.5), 2)}
    plain = api._chosen("gemm", given | {"kernels": tmp_path / "mine.cu", "seed": np.int64(3)})
    expected = {"sizes": [32, 64], "alpha": [0.5, 2], "seed": 3}
    assert plain.options == expected | {"kernels": [str(tmp_path / "mine.cu")]}
    assert all(type(one) is int for one in plain.options["sizes"])


TYPED = """
import rooflab

rooflab.sweep("gemm", kernels=["tiled"], sizes=[64], threads="all", parameters={"layout": "nn"})
rooflab.fleet_sweep(kernels="tiled", precisions="fp32", rounds=8, max_time_s=3)
rooflab.sweep("gemm", kernel=["tiled"])
rooflab.fleet_sweep(seed="seven")
"""


@pytest.mark.slow
def test_a_type_checker_refuses_unknown_names_and_wrong_types(tmp_path: Path) -> None:
    mypy = pytest.importorskip("mypy.api")
    (tmp_path / "typed.py").write_text(TYPED)
    told, _, code = mypy.run(["--strict", str(tmp_path / "typed.py")])
    assert (code, re.findall(r"typed\.py:(\d): error", told)) == (1, ["6", "7"]), told
    assert 'Unexpected keyword argument "kernel"' in told
