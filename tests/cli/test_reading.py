"""show, export and plot, from files alone."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rooflab.model.measurement import COLUMNS

from rooflab import run

Rooflab = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(rooflab: Rooflab) -> Path:
    rooflab("sweep", "-k", "fast", "-k", "slow", "-k", "nan", "-p", "fp32", "--shape", "32x16x8")
    (path,) = Path("results").iterdir()
    return path


def test_show_prints_what_the_sweep_printed(rooflab: Rooflab) -> None:
    _, swept, _ = rooflab("sweep", "-k", "fast", "-k", "slow", "--sizes", "8,16", "-p", "fp32")
    code, out, err = rooflab("show")
    assert (code, out) == (0, swept)
    assert err.startswith("Exact 1000, 20")


def test_show_names_what_went_wrong(rooflab: Rooflab, folder: Path) -> None:
    code, _, err = rooflab("show", folder)
    assert code == 0
    assert "incorrect: nan fp32 nn 32x16x8: 1 of 512 elements are NaN" in err


def test_export_csv_is_complete(rooflab: Rooflab, folder: Path) -> None:
    code, out, _ = rooflab("export", folder)
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert list(rows[0]) == list(COLUMNS)
    assert [row["kernel"] for row in rows] == ["fast", "slow", "nan"]
    assert float(rows[0]["time_us"]) == pytest.approx(run.load(folder).measurements[0].time_us)
    assert rows[2]["time_us"] == ""


def test_export_json(rooflab: Rooflab, folder: Path) -> None:
    _, out, _ = rooflab("export", folder, "--format", "json")
    rows = json.loads(out)
    assert [row["status"] for row in rows] == ["ok", "ok", "incorrect"]
    assert rows[0]["m"] == 32
    assert rows[2]["rel_error"] is None


def test_export_markdown(rooflab: Rooflab, folder: Path) -> None:
    _, out, _ = rooflab("export", folder, "-f", "markdown")
    assert out.splitlines() == [
        "| kernel | precision | layout | size | time µs | ± % | TFLOP/s | GB/s | FLOP/B "
        "| % of roof | status |",
        "| :-- | :-- | :-- | --: | --: | --: | --: | --: | --: | --: | --: |",
        "| fast | fp32 | nn | 32x16x8 | 44.800 | 0.0 | 0.0001829 | 0.08000 | 2.286 | 80.0 | ok |",
        "| slow | fp32 | nn | 32x16x8 | 179.20 | 0.0 | 0.00004571 | 0.02000 | 2.286 | 20.0 | ok |",
        "| nan | fp32 | nn | 32x16x8 |  |  |  |  | 2.286 |  | incorrect |",
    ]


def test_export_latex(rooflab: Rooflab, folder: Path) -> None:
    _, out, _ = rooflab("export", folder, "-f", "latex")
    assert out.startswith("\\begin{tabular}{lllrrrrrrrr}\n\\toprule\nkernel & ")
    assert r"\% of roof" in out
    assert "fast & fp32 & nn & 32x16x8 & 44.800 & 0.0 & " in out
    assert out.endswith("\\bottomrule\n\\end{tabular}")


def test_export_to_a_file_goes_by_its_suffix(rooflab: Rooflab, folder: Path) -> None:
    for name in ("t.csv", "t.md", "t.tex", "t.json"):
        code, out, _ = rooflab("export", folder, "-o", name)
        assert (code, out) == (0, "")
        assert Path(name).read_text()
    code, _, err = rooflab("export", folder, "-o", "t.xlsx")
    assert code == 2
    assert "t.xlsx: which format? name it .csv, .md, .tex, .json or add --format" in err


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_plot_formats(rooflab: Rooflab, folder: Path, suffix: str) -> None:
    code, _, err = rooflab("plot", folder, "-o", f"figure.{suffix}")
    assert (code, err) == (0, f"figure.{suffix}")
    assert Path(f"figure.{suffix}").stat().st_size > 5000


@pytest.mark.pictures
def test_plot_redraws_in_place_and_overlays(rooflab: Rooflab, folder: Path) -> None:
    for path in folder.glob("*.png"):
        path.unlink()
    assert rooflab("plot", folder)[0] == 0
    assert sorted(path.name for path in folder.glob("*.png")) == ["roofline.png", "size.png"]
    assert rooflab("plot", folder, folder, "--by-size", "-o", "both.png")[0] == 0
    assert Path("both.png").exists()


def test_unknown_figures_are_refused(rooflab: Rooflab, folder: Path) -> None:
    code, _, err = rooflab("plot", folder, "-o", "figure.bmp")
    assert code == 2
    assert "png" in err.lower()
    code, _, err = rooflab("plot", folder, "-p", "fp64", "-o", "x.png")
    assert code == 2


@pytest.mark.parametrize("command", ["show", "export", "plot"])
def test_a_missing_run_is_one_line(rooflab: Rooflab, command: str) -> None:
    code, out, err = rooflab(command)
    assert (code, out) == (2, "")
    assert err == ("error: no run in results/: name a run folder, or make one with: rooflab sweep")
    code, _, err = rooflab(command, "nowhere")
    assert code == 2
    assert err.startswith("error: nowhere is not a run folder")


@pytest.mark.parametrize("command", ["show", "export", "plot"])
def test_a_torn_or_foreign_table(rooflab: Rooflab, folder: Path, command: str) -> None:
    table = folder / run.MEASUREMENTS
    whole = table.read_bytes()
    table.write_bytes(whole[:-10])
    code, _, err = rooflab(command, folder)
    assert code == 0
    assert "line 4: torn by a crash, dropped" in " ".join(err.split())
    table.write_text("a,b\n1,2\n")
    code, _, err = rooflab(command, folder)
    assert code == 1
    assert f"error: {table} line 1: not a rooflab table" in err


def test_reading_needs_neither_cupy_nor_a_gpu(rooflab: Rooflab, folder: Path) -> None:
    script = (
        "import sys; sys.modules['cupy'] = sys.modules['pynvml'] = sys.modules['numba'] = None\n"
        "from rooflab.cli import main\n"
        "main(sys.argv[1:])"
    )
    for arguments in (["show"], ["export"], ["plot"]):
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments, str(folder)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
