"""A new workload is one file: it is swept, verified, drawn, exported, continued and compared."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from pathlib import Path

import pytest
from commands import Rooflab, joined, only_run, started, statuses

from rooflab.devices.cuda import compiler
from rooflab.kernels.cuda_file import arguments
from rooflab.kernels.cuda_file import kernel as cuda_file
from rooflab.kernels.sources import load_file
from rooflab.model.precision import PRECISIONS
from rooflab.runs import store
from rooflab.runs.store import MANIFEST
from rooflab.workloads import build

OWN = Path(__file__).parent.parent / "data" / "own"

SWEEP = ("sweep", "axpby", "-k", "axpby.py:whole", "-p", "fp32,fp64", "--sizes", "2^12,2^13")


@pytest.fixture(autouse=True)
def files(elsewhere: Path) -> None:
    for path in OWN.iterdir():
        if path.is_file():
            shutil.copy(path, elsewhere)


@pytest.mark.pictures
def test_the_whole_job(rooflab: Rooflab) -> None:
    code, out, _ = rooflab(*SWEEP, "--set", "beta=0.25", "--alpha", "3")
    assert code == 0
    assert "axpby FP64, alpha 3, beta 0.25" in out
    run = only_run()
    assert [row.problem.size for row in run.measurements] == ["4096", "8192"] * 2
    row = run.measurements[0]
    assert (row.status, row.bound) == ("ok", "dram")
    assert row.flops == 3 * 4096
    assert row.bytes == 3 * 4096 * 4  # x is read, y is read and written
    assert (run.path / "roofline.png").exists()
    assert (run.path / "size.png").exists()
    assert run.manifest.workloads["axpby"].formula == "y = alpha·x + beta·y"

    code, out, _ = rooflab("export", run.path)
    cells = next(csv.DictReader(io.StringIO(out)))
    assert (cells["workload"], cells["elements"]) == ("axpby", "4096")
    assert (cells["alpha"], cells["beta"]) == ("3.0", "0.25")

    table = run.path / store.MEASUREMENTS
    whole = table.read_text()
    table.write_text("".join(whole.splitlines(keepends=True)[:-2]))
    code, _, err = rooflab("sweep", "--resume", run.path, "-k", "axpby.py:whole")
    assert code == 0, err
    assert len(only_run().measurements) == 4

    shutil.copytree(run.path, "other")
    code, out, _ = rooflab("compare", run.path, "other", "--fail-on", "ambiguous")
    assert code == 0
    assert out.endswith("4 points in common: 4 SAME.")


def test_a_wrong_kernel_is_found_out(rooflab: Rooflab) -> None:
    code, _, err = rooflab("sweep", "axpby", "-k", "axpby.py", "--sizes", "256", "-p", "fp32")
    assert code == 3
    assert statuses(only_run()) == [("whole", "ok"), ("forgets_beta", "incorrect")]
    assert "incorrect: forgets_beta axpby fp32 256: relative error" in joined(err)


def test_its_runs_are_read_without_the_file(rooflab: Rooflab) -> None:
    """Somebody else has the folder, and not the workload."""
    rooflab(*SWEEP)
    folder = only_run().path
    shutil.copytree(folder, "other")
    Path("axpby.py").unlink()
    script = (
        "import sys\n"
        "from rooflab.cli import main\n"
        "run = sys.argv[1]\n"
        "plot = ['plot', run, '-o', 'x.png']\n"
        "for words in (['show', run], ['export', run], ['compare', run, 'other'], plot):\n"
        "    try:\n"
        "        main(words)\n"
        "    except SystemExit as end:\n"
        "        assert end.code == 0\n"
    )
    with started(folder, command=[sys.executable, "-c", script]) as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    for has in ("axpby FP32 at 8192: whole reached", "axpby,whole,python,,fp32,4096", "4 SAME"):
        assert has in out
    assert json.loads((folder / MANIFEST).read_text())["workloads"]["axpby"]["work"]


def test_unknown_parameters_of_it_are_named(rooflab: Rooflab) -> None:
    code, _, err = rooflab(*SWEEP, "--set", "gamma=1")
    assert (code, err) == (
        2,
        "error: axpby has no parameter 'gamma': there are elements, alpha, beta",
    )
    code, _, err = rooflab("sweep", "axpby", "-k", "fast", "-k", "axpby.py", "--sizes", "8")
    assert code == 2
    assert "kernel 'fast' computes" in err


def test_a_cuda_kernel_for_it_compiles(rooflab: Rooflab) -> None:
    """Without a GPU: the refusal comes after the compiler has seen the file."""
    if compiler.unavailable():
        pytest.skip("there is no compiler")
    words = ("sweep", "axpby", "-k", "axpby.py,axpby_cuda.cu", "--sizes", "1024")
    assert rooflab(*words) == (
        2,
        "",
        "error: axpby_cuda.cu needs an NVIDIA GPU (see: rooflab doctor)",
    )
    file = cuda_file.read_file(Path("axpby_cuda.cu"))
    for precision in ("fp32", "fp64"):
        problem = build("axpby", precision, {"elements": 1000})
        (variant,) = file.header.all_variants
        compiled = file.compile(problem, variant, compiler.arch_for("9.0"))
        assert compiled.cubin.stat().st_size > 0
        assert file.geometry(problem, variant, 132).grid == (4, 1, 1)
    Path("axpby_cuda.cu").write_text(Path("axpby_cuda.cu").read_text().replace("alpha *", "alfa *"))
    code, _, err = rooflab(*words)
    assert code == 2
    assert 'identifier "alfa" is undefined' in err


def test_its_cuda_kernel_gets_its_arguments_in_order() -> None:
    import numpy as np

    from rooflab.kernels.base import Operands

    load_file("axpby.py")
    problem = build("axpby", "fp64", {"elements": 5, "alpha": 3, "beta": 4})
    arrays = {name: np.zeros(5) for name in "xy"}
    bound = arguments.bind(Operands(problem, arrays, {}))
    assert [type(value) for value in bound[:3]] == [np.int64, np.float64, np.float64]
    assert list(map(float, bound[:3])) == [5, 3, 4]
    assert bound[3] is arrays["x"]
    assert bound[4] is arrays["y"]
    assert problem.precision is PRECISIONS["fp64"]


def test_a_file_with_the_workload_may_have_kernels_for_other_devices(rooflab: Rooflab) -> None:
    Path("other.py").write_text(
        "import rooflab\n"
        "@rooflab.kernel(workload='axpby', device='exact')\n"
        "def other(operands, stream):\n"
        "    raise ValueError('oh')\n"
    )
    definition = Path("axpby.py").read_text().replace('device="exact"', 'device="cpu"')
    Path("axpby.py").write_text(definition)
    words = ("sweep", "axpby", "--sizes", "8", "-p", "fp32")
    assert rooflab(*words, "-k", "axpby.py,other.py")[0] == 1
    assert statuses(only_run()) == [("other", "failed")]
    assert rooflab(*words, "-k", "axpby.py") == (
        2,
        "",
        "error: axpby.py needs --device cpu",
    )


@pytest.mark.parametrize(
    "content",
    [
        'kernels = ["./axpby.py:whole"]\nsizes = "2^12"\nprecisions = "fp32"\n',
        '[workloads.axpby]\nkernels = "./axpby.py:whole"\nsizes = "2^12"\nprecisions = "fp32"\n',
        'sizes = "2^12"\nprecisions = "fp32"\n[exact]\nkernels = ["axpby.py:whole"]\n'
        '[cuda]\nkernels = ["not_here.py"]\n',
    ],
)
def test_a_configuration_names_the_file_that_defines_the_workload(
    rooflab: Rooflab, content: str
) -> None:
    Path("bench.toml").write_text(content)
    code, _, err = rooflab("sweep", "axpby", "--config", "bench.toml")
    assert code == 0, err
    run = only_run()
    assert statuses(run) == [("whole", "ok")]
    code, _, err = rooflab("sweep", "--resume", run.path, "--kernel", "./axpby.py:whole")
    assert "no workload" not in err
