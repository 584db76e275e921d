"""The examples of docs/ci.md: their YAML is well formed, their commands run on the exact device."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from rooflab import config

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "ci.md").read_text(encoding="utf-8")


def example(language: str, start: str) -> str:
    """The block that starts with ``start``."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (found,) = [block for block in blocks if block.startswith(start)]
    return str(found)


def parsed(lines: list[str]) -> Any:
    """Block mappings, lists, ``|`` and scalars, which is all of YAML that the examples need."""
    if not lines:
        return None
    indents = {len(line) - len(line.lstrip()) for line in lines}
    items: Any = [] if lines[0].lstrip().startswith("- ") else {}
    for line, inner in _items(lines, min(indents)):
        if isinstance(items, list):
            assert line.startswith("- "), line
            entry = [" " * (min(indents) + 2) + line[2:], *inner]
            items.append(parsed(entry) if re.match(r"- [\w-]+:( |$)", line) else line[2:])
            continue
        key, colon, value = line.partition(":")
        assert colon and re.fullmatch(r"[\w-]+", key), line
        assert key not in items, f"{key} twice"
        assert not value or value.startswith(" "), line
        assert not (inner and value.strip() not in ("", "|")), line
        assert ": " not in value and " #" not in value, f"needs quotes: {line}"
        literal = value == " |"
        items[key] = "\n".join(one.strip() for one in inner) if literal else value.strip()
        if not literal and not value:
            items[key] = parsed(inner)
    return items


def _items(lines: list[str], indent: int) -> Iterator[tuple[str, list[str]]]:
    """The lines at ``indent``, each with the deeper ones below it."""
    starts = [i for i, line in enumerate(lines) if line[indent] != " "]
    assert starts[0] == 0
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield lines[start][indent:], lines[start + 1 : end]


def yaml(start: str) -> Any:
    lines = example("yaml", start).splitlines()
    assert not any("\t" in line or line != line.rstrip() for line in lines)
    return parsed([line for line in lines if line.strip() and line.strip()[0] != "#"])


@pytest.fixture
def shell(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a script as a runner does; ``rooflab sweep`` uses the exact device."""
    folder = elsewhere / "bin"
    folder.mkdir()
    command = folder / "rooflab"
    device = '[ "$1" = sweep ] && set -- "$@" --device fake:FakeDevice'
    command.write_text(f'#!/bin/sh\n{device}\nexec "{sys.executable}" -m rooflab "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(elsewhere / "summary.md"))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    Path("bench.toml").write_text(
        'precisions = "fp32"\nkernels = ["fast", "slow"]\nsizes = "8,16"\n'
    )

    def run(script: str) -> tuple[int, str]:
        ended = subprocess.run(
            ["bash", "-e", "-c", script], capture_output=True, text=True, encoding="utf-8"
        )
        return ended.returncode, ended.stderr

    return run


def slower(folder: Path) -> None:
    """Makes the first point of a run's table take ten times as long."""
    path = next(folder.glob("*/measurements.csv"))
    head, first, *rest = path.read_text().splitlines()
    cells = dict(zip(head.split(","), first.split(","), strict=True))
    cells |= {
        f"time{end}_us": str(10 * float(cells[f"time{end}_us"])) for end in ("", "_lo", "_hi")
    }
    path.write_text("\n".join([head, ",".join(cells.values()), *rest]) + "\n")


@pytest.mark.slow
def test_the_workflow_finds_a_regression(shell: Any) -> None:
    workflow = yaml("name: benchmark")
    assert set(workflow) == {"name", "on", "permissions", "concurrency", "jobs"}
    steps = workflow["jobs"]["benchmark"]["steps"]
    assert all(("run" in step) != ("uses" in step) for step in steps)
    scripts = {step["name"]: step["run"] for step in steps if "rooflab " in step.get("run", "")}
    assert list(scripts) == ["Sweep", "Write JUnit XML", "Compare"]
    uploaded = [step["with"]["path"] for step in steps if "upload" in step.get("uses", "")]
    assert uploaded == ["new", "rooflab.xml"]

    assert shell(scripts["Sweep"])[0] == 0
    shutil.copytree("new", "base")
    assert shell(scripts["Write JUnit XML"])[0] == 0
    assert shell(scripts["Compare"]) == (0, "")
    assert "points in common: 4 SAME." in Path("summary.md").read_text(encoding="utf-8")

    slower(Path("new"))
    assert shell(scripts["Write JUnit XML"])[0] == 0
    assert len(ElementTree.parse("rooflab.xml").findall(".//failure")) == 1
    code, err = shell(scripts["Compare"])
    assert code == 3
    assert err.startswith("::error title=SLOW::fast gemm fp32 8, layout nn: ")
    summary = Path("summary.md").read_text(encoding="utf-8")
    assert summary.count("### 4 points in common: ") == 2  # it is appended
    assert "| SLOW | fast |" in summary


@pytest.mark.slow
def test_gitlab_keeps_the_report_of_a_regression(shell: Any) -> None:
    job = yaml("benchmark:")["benchmark"]
    sweep, compare = job["script"]
    assert shell(sweep)[0] == 0
    shutil.copytree("new", "benchmarks/base")
    assert shell(compare)[0] == 0
    slower(Path("new"))
    assert shell(compare)[0] == 3
    assert Path(job["artifacts"]["reports"]["junit"]).is_file()


def test_the_configuration_is_one() -> None:
    Path("bench.toml").write_text(example("toml", "precisions"))
    loaded = config.load("./bench.toml", None, "cuda", {})
    assert loaded.workloads[0].kernels == ["./kernels/mine.cu", "cublas"]
