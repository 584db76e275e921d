"""The wheel carries kernels and configurations, and works from a folder that is no checkout."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from rooflab import config
from rooflab.files import configs_dir, kernels_dir

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files: it is built once, by the first of pytest-xdist's workers that needs it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "wheel"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "site").exists():
            build_into(folder)
    return folder / "site"


def build_into(folder: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*build, str(folder), str(CHECKOUT)], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked")
    (folder / "unpacked").rename(folder / "site")


@pytest.mark.slow
def test_the_wheel_carries_every_kernel_and_configuration(unpacked: Path) -> None:
    data = unpacked / "rooflab" / "data"
    for source, copy in ((kernels_dir(), data / "kernels"), (configs_dir(), data / "configs")):
        expected = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
        assert {path.relative_to(copy) for path in copy.rglob("*") if path.is_file()} == expected
    assert {path.name for path in unpacked.iterdir() if "dist-info" not in path.name} == {"rooflab"}


@pytest.mark.slow
def test_the_wheel_carries_style_and_script_of_the_report(unpacked: Path) -> None:
    for name in ("report/html/report.css", "report/html/report.js", "fleet/page/fleet.css"):
        assert (unpacked / "rooflab" / name).is_file()


def test_every_extra_with_parts_of_the_toolkit_states_its_version() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    for requirements in project["optional-dependencies"].values():
        for requirement in map(Requirement, requirements):
            assert requirement.specifier or requirement.name != "cuda-toolkit"


@pytest.mark.slow
def test_the_wheel_runs_from_another_directory(unpacked: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(unpacked), "COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-m", "rooflab", "kernels"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "tiled" in done.stdout
    script = "from rooflab import config, files; print(*config.shipped(), files.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(unpacked) in done.stdout
    for name in config.shipped():
        assert name in done.stdout.split()


def test_a_checkout_is_used_live() -> None:
    assert kernels_dir() == CHECKOUT / "kernels"
