"""show, export and plot, from files alone."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from commands import Rooflab, joined, started

from rooflab import api
from rooflab.runs import store, table


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return api.sweep(
        kernels=["fast", "slow", "nan"],
        precisions="fp32",
        shapes="32x16x8",
        device="fake:FakeDevice",
        out=tmp_path_factory.mktemp("measured"),
    ).path


@pytest.fixture
def folder(measured: Path) -> Path:
    """A copy of a run with two rows that are right and one that is not."""
    return Path(shutil.copytree(measured, Path("results") / measured.name))


def test_show_prints_what_the_sweep_printed(rooflab: Rooflab) -> None:
    _, swept, _ = rooflab("sweep", "-k", "fast", "-k", "slow", "--sizes", "40,48", "-p", "fp32")
    code, out, err = rooflab("show")
    assert (code, out) == (0, swept)
    assert err.startswith("Exact 1000, 20")


def test_show_names_what_went_wrong(rooflab: Rooflab, folder: Path) -> None:
    code, _, err = rooflab("show", folder)
    assert code == 0
    assert "incorrect: nan gemm fp32 32x16x8, layout nn: 1 of 512 elements of C are NaN" in err


def test_export_csv_is_complete(rooflab: Rooflab, folder: Path) -> None:
    code, out, _ = rooflab("export", folder)
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert list(rows[0]) == table.header(store.load(folder).manifest.workloads)
    assert [row["kernel"] for row in rows] == ["fast", "slow", "nan"]
    assert float(rows[0]["time_us"]) == pytest.approx(store.load(folder).measurements[0].time_us)
    assert rows[2]["time_us"] == ""


def test_export_json(rooflab: Rooflab, folder: Path) -> None:
    _, out, _ = rooflab("export", folder, "--format", "json")
    rows = json.loads(out)
    assert [row["status"] for row in rows] == ["ok", "ok", "incorrect"]
    assert rows[0]["m"] == 32
    assert rows[2]["rel_error"] is None


def test_export_markdown(rooflab: Rooflab, folder: Path) -> None:
    _, out, _ = rooflab("export", folder, "-f", "markdown")
    heading, ruler, fast, _, nan = (
        [cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines()
    )
    assert heading[:6] == ["workload", "kernel", "precision", "settings", "size", "time µs"]
    assert set(ruler) == {":--", "--:"}
    assert fast[:8] == [
        "gemm",
        "fast",
        "fp32",
        "layout nn",
        "32x16x8",
        "44.800",
        "0.0",
        "0.0001829",
    ]
    assert nan[:6] == ["gemm", "nan", "fp32", "layout nn", "32x16x8", ""]
    assert nan[-1] == "incorrect"


def test_export_latex(rooflab: Rooflab, folder: Path) -> None:
    _, out, _ = rooflab("export", folder, "-f", "latex")
    assert out.startswith("\\begin{tabular}{llllrrrr")
    assert "\\toprule\nworkload & kernel & " in out
    assert r"\% of roof" in out
    assert "gemm & fast & fp32 & layout nn & 32x16x8 & 44.800 & 0.0 & " in out
    assert out.endswith("\\bottomrule\n\\end{tabular}")


def test_export_to_a_file_goes_by_its_suffix(rooflab: Rooflab, folder: Path) -> None:
    for name in ("t.csv", "t.md", "t.tex", "t.json"):
        code, out, _ = rooflab("export", folder, "-o", name)
        assert (code, out) == (0, "")
        assert Path(name).read_text()
    code, _, err = rooflab("export", folder, "-o", "t.xlsx")
    assert code == 2
    assert "t.xlsx: unknown suffix: use .csv, .md, .tex, .json or add --format" in err


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_plot_formats(rooflab: Rooflab, folder: Path, suffix: str) -> None:
    code, _, err = rooflab("plot", folder, "-o", f"figure.{suffix}")
    assert (code, err) == (0, f"figure.{suffix}")
    assert Path(f"figure.{suffix}").stat().st_size > 5000


def test_plot_per_kernel_and_energy(rooflab: Rooflab, folder: Path) -> None:
    code, _, err = rooflab("plot", folder, "--per-kernel", "tyled", "-o", "x.png")
    assert code == 2 and "no row of kernel 'tyled': choose from " in err
    code, _, err = rooflab("plot", folder, "--energy", "--style", "dark", "-o", "x.png")
    assert code == 2 and "has no energy in its rows" in err
    code, _, err = rooflab("plot", folder, "--energy", "--levels")
    assert code == 2 and "different figures" in err


@pytest.mark.pictures
def test_plot_redraws_in_place_and_overlays(rooflab: Rooflab, folder: Path) -> None:
    for path in folder.glob("*.png"):
        path.unlink()
    assert rooflab("plot", folder)[0] == 0
    assert [path.name for path in folder.glob("*.png")] == ["roofline.png"]  # of one size
    assert rooflab("plot", folder, folder, "--by-size", "-o", "both.png")[0] == 0
    assert Path("both.png").exists()


def test_a_run_without_figures_is_not_drawn_in_silence(rooflab: Rooflab) -> None:
    rooflab("sweep", "-k", "nan", "--shape", "32x16x8", "-p", "fp32")
    code, _, err = rooflab("plot")
    assert code == 2 and "no row with status ok, so there is nothing to draw" in err


def test_a_run_without_a_command_has_no_line_for_it(rooflab: Rooflab, folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"command": []}))
    _, _, err = rooflab("show", folder)
    assert not err.splitlines()[1].isspace() and err.splitlines()[1].startswith("warning: ")
    assert rooflab("report", folder)[0] == 0
    assert "Reproduce" not in Path("report.html").read_text()


def test_unknown_figures_are_refused(rooflab: Rooflab, folder: Path) -> None:
    code, _, err = rooflab("plot", folder, "-o", "figure.bmp")
    assert code == 2
    assert "png" in err.lower()
    code, _, err = rooflab("plot", folder, "-p", "fp64", "-o", "x.png")
    assert code == 2
    assert rooflab("plot", folder, "-p", "FP32", "-o", "x.png") == (0, "", "x.png")


@pytest.mark.parametrize("command", ["show", "export", "plot"])
def test_a_missing_run_is_one_line(rooflab: Rooflab, command: str) -> None:
    code, out, err = rooflab(command)
    assert (code, out) == (2, "")
    assert err == ("error: no run in results/: name a run folder, or make one with: rooflab sweep")
    code, _, err = rooflab(command, "nowhere")
    assert code == 2
    assert err.startswith("error: nowhere is not a run folder")


@pytest.mark.parametrize(
    "words", [("explain", "RUN", "LONG"), ("report", "RUN", "-o", "LONG"), ("plot", "LONG")]
)
def test_a_name_that_is_too_long_is_wrong_usage(folder: Path, words: tuple[str, ...]) -> None:
    named = {"RUN": str(folder), "LONG": "x" * 5000}
    with started(*(named.get(word, word) for word in words)) as process:
        _, err = process.communicate()
    assert process.returncode == 2
    assert err.startswith("error: ")
    assert err.count("x" * 100) <= 2
    assert any(reason in err for reason in ("File name too long", "is not a run folder"))


@pytest.mark.parametrize("command", ["show", "export", "plot"])
def test_a_torn_or_foreign_table(rooflab: Rooflab, folder: Path, command: str) -> None:
    table = folder / store.MEASUREMENTS
    whole = table.read_bytes()
    table.write_bytes(whole[:-10])
    code, _, err = rooflab(command, folder)
    assert code == 0
    assert "line 4: incomplete after a crash, dropped" in joined(err)
    table.write_text("a,b\n1,2\n")
    code, _, err = rooflab(command, folder)
    assert code == 1
    assert f"error: {table} line 1: not a rooflab table" in err


# What another rooflab, or nobody, has written ----------------------------------------------------


def edit(folder: Path, **cells: str) -> None:
    """Give the first row other cells."""
    path = folder / store.MEASUREMENTS
    header, row, *others = path.read_text().splitlines(keepends=True)
    names, values = header.strip().split(","), row.rstrip("\n").split(",")
    known = dict(zip(names, values, strict=True)) | cells
    path.write_text("".join([header, ",".join(known.values()) + "\n", *others]))


def test_json_has_no_infinity(rooflab: Rooflab, folder: Path) -> None:
    """JSON knows none; a program that reads it would stop there."""
    edit(folder, rel_error="inf", intensity="nan", gbps="-inf")
    _, out, _ = rooflab("export", folder, "-f", "json")
    row = json.loads(out, parse_constant=lambda name: pytest.fail(name))[0]
    assert row["rel_error"] is row["intensity"] is row["gbps"] is None
    shutil.copytree(folder, "other")
    _, out, _ = rooflab("compare", folder, "other", "-f", "json")
    json.loads(out, parse_constant=lambda name: pytest.fail(name))


def test_a_precision_of_another_rooflab_is_shown_as_it_is(rooflab: Rooflab, folder: Path) -> None:
    edit(folder, precision="fp5")
    code, out, _ = rooflab("show", folder)
    assert code == 0
    assert "gemm fp5, layout nn" in out
    for arguments in (
        ("export", folder),
        ("plot", folder, "-o", "x.png"),
        ("compare", folder, folder),
    ):
        code, _, err = rooflab(*arguments)
        assert (code, "unexpected" in err) == (0, False)


def test_reading_needs_neither_cupy_nor_a_gpu(rooflab: Rooflab, folder: Path) -> None:
    script = (
        "import sys; sys.modules['cupy'] = sys.modules['pynvml'] = sys.modules['numba'] = None\n"
        "from rooflab.cli import main\n"
        "for command in ('show', 'export', 'plot'):\n"
        "    try:\n"
        "        main([command, *sys.argv[1:]])\n"
        "    except SystemExit as end:\n"
        "        assert end.code == 0\n"
    )
    with started(folder, command=[sys.executable, "-c", script]) as process:
        _, err = process.communicate()
    assert process.returncode == 0, err


def test_figures_open_no_window(rooflab: Rooflab, folder: Path) -> None:
    """As in a notebook: ``!rooflab plot``, without the notebook's packages here."""
    backend = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    with started("plot", folder, env=backend) as process:
        out, err = process.communicate()
    assert (process.returncode, out) == (0, "")
    assert "roofline.png" in err


@pytest.mark.parametrize("arguments", [["show", "RUN"], ["show", "nowhere"], ["--version"]])
def test_two_full_disks_are_a_failure_of_one_kind(folder: Path, arguments: list[str]) -> None:
    words = [folder if word == "RUN" else word for word in arguments]
    with Path("/dev/full").open("w") as full, started(*words, stdout=full, stderr=full) as process:
        process.wait()
    assert process.returncode == (2 if "nowhere" in arguments else 1)


def test_messages_whose_reader_has_ended_are_a_failure() -> None:
    end, output = os.pipe()
    os.close(end)
    with started("show", "nowhere", stdout=output, stderr=output) as process:
        os.close(output)
        process.wait()
    assert process.returncode == 1


def test_show_draws_the_roofline_in_characters(rooflab: Rooflab) -> None:
    assert rooflab("sweep", "-k", "fast", "-p", "fp32", "--sizes", "48,64")[0] == 0
    code, out, _ = rooflab("show", "--plot")
    assert code == 0
    assert "FP32, GFLOP/s over FLOP/byte: 1 GFLOP/s measured, 0.1 GB/s measured" in out
    assert "  A fast" in out
    assert rooflab("sweep", "copy", "-k", "fast", "-p", "fp32", "--sizes", "4096")[0] == 0
    code, _, err = rooflab("show", "--plot")
    assert code == 0
    assert "nothing to draw: no row has FLOPs" in err
