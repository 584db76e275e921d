"""The command ``report``, and the same from Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from commands import Rooflab, joined, only_run
from measured import COUNTED
from pages import hostile_run, parse

from rooflab import api
from rooflab.errors import UsageError
from rooflab.runs import store


@pytest.fixture
def run(rooflab: Rooflab) -> Path:
    assert rooflab("sweep", "-k", "fast", "-k", "wrong", "-p", "fp32", "--sizes", "48,64")[0] == 3
    return only_run().path


def test_the_newest_run_is_reported(rooflab: Rooflab, run: Path) -> None:
    code, out, err = rooflab("report")
    assert (code, out, err) == (0, "", "report.html")
    page = parse(Path("report.html").read_text(encoding="utf-8"))
    assert not page.errors
    assert any("of 4 rows, 2 incorrect" in item.text for item in page.all("li"))
    assert len(page.all("a", "pt")) == 3 * 2  # rooflines, throughput, time


def test_several_runs_and_another_file(rooflab: Rooflab, run: Path) -> None:
    assert rooflab("report", run, run, "-o", "both.html")[0] == 0
    page = parse(Path("both.html").read_text(encoding="utf-8"))
    assert any(one.attributes["id"] == "comparison" for one in page.all("section"))


def test_from_python(run: Path) -> None:
    mine = api.load(run)
    assert mine.report("mine.html", api.load(COUNTED)) == Path("mine.html")
    assert mine.report("same.html", COUNTED) == Path("same.html")
    assert Path("same.html").read_bytes() == Path("mine.html").read_bytes()
    assert "</html>" in Path("mine.html").read_text(encoding="utf-8")


def test_a_run_from_a_stranger_is_written_as_text(rooflab: Rooflab, tmp_path: Path) -> None:
    code, _, err = rooflab("report", hostile_run(tmp_path / "run"))
    assert code == 0
    assert "Traceback" not in err
    page = parse(Path("report.html").read_text(encoding="utf-8"))
    assert not page.errors
    assert len(page.all("script")) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nowhere",), "nowhere is not a run folder"),
        ((".",), ". is not a run folder"),
        (("RUN", "-o", "no/such/report.html"), "cannot write no/such/report.html: No such file"),
        (("RUN", "-o", "."), "cannot write .: it is a folder; name a file in it"),
        (("RUN", "-o", "page.pdf"), "a report is an HTML file: --out page.html"),
        (("RUN", "nowhere"), "nowhere is not a run folder"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    rooflab: Rooflab, run: Path, words: tuple[str, ...], says: str
) -> None:
    code, out, err = rooflab("report", *(run if word == "RUN" else word for word in words))
    assert (code, out) == (2, "")
    assert joined(err).startswith("error: ")
    assert says in joined(err)


def test_without_a_run_or_a_row(rooflab: Rooflab, run: Path) -> None:
    table = run / store.MEASUREMENTS
    table.write_text(table.read_text().splitlines(keepends=True)[0])
    code, _, err = rooflab("report", run)
    assert code == 2
    assert joined(err).endswith("has no row: there is nothing to report")
    with pytest.raises(UsageError, match="has no row"):
        api.load(run).report()
    assert not Path("report.html").exists()


def test_it_needs_no_matplotlib(run: Path) -> None:
    script = (
        "import sys; sys.modules['matplotlib'] = sys.modules['cupy'] = None\n"
        "from rooflab.cli import main; main(['report'])"
    )
    paths = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=paths)
    assert done.returncode == 0, done.stderr
    assert Path("report.html").is_file()
