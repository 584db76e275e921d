"""Kernels that users bring: .cu and .py files, and packages."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from commands import Rooflab, joined, only_run, started, statuses

from rooflab import planning
from rooflab.config import Selection, SweepConfig
from rooflab.devices.cuda import compiler
from rooflab.devices.cuda.absent import AbsentGpu
from rooflab.files import kernels_dir

ONE = ("-p", "fp32", "--sizes", "64")

HEADER = """\
/*
entry = "mine"
precisions = ["fp32"]
block = [32, 32]
tile = [32, 32]
*/
"""
ARGUMENTS = (
    "(int M, int N, int K, float alpha, const float* A, const float* B, float beta, float* C)"
)

# .cu files, on a device that is no GPU -----------------------------------------------------------


def refusal(rooflab: Rooflab, name: str, *more: object) -> str:
    """The one line about a kernel that a sweep refuses."""
    code, out, err = rooflab("sweep", "-k", name, *ONE, *more)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert not Path("results").exists()
    return err


@pytest.mark.parametrize("device", ["fake:FakeDevice", "cpu"])
def test_a_good_cu_file_needs_a_gpu(rooflab: Rooflab, device: str) -> None:
    Path("mine.cu").write_text(f'{HEADER}extern "C" __global__ void mine{ARGUMENTS} {{}}')
    assert refusal(rooflab, "mine.cu", "--device", device) == (
        "error: mine.cu needs an NVIDIA GPU (see: rooflab doctor)"
    )


def test_a_shipped_cu_kernel_is_known_by_name(rooflab: Rooflab) -> None:
    assert refusal(rooflab, "coalesced").startswith(
        "error: kernel 'coalesced' needs an NVIDIA GPU (see: rooflab doctor); on exact there are "
    )


def test_a_cu_file_that_is_not_there(rooflab: Rooflab) -> None:
    assert refusal(rooflab, "absent.cu") == (
        "error: kernel file absent.cu cannot be read: No such file or directory"
    )


def test_a_cu_file_without_a_header(rooflab: Rooflab) -> None:
    Path("mine.cu").write_text("// entry = 5\n__global__ void mine() {}")
    assert refusal(rooflab, "mine.cu").startswith(
        "error: mine.cu has no header: begin it with a block comment that holds a TOML table"
    )


def test_a_cu_file_whose_header_is_wrong(rooflab: Rooflab) -> None:
    Path("mine.cu").write_text(HEADER.replace("block", "blok"))
    assert refusal(rooflab, "mine.cu").startswith("error: mine.cu: header: ")
    assert "'blok' is not a key, did you mean 'block'?" in refusal(rooflab, "mine.cu")


def test_a_cu_file_that_does_not_compile(rooflab: Rooflab) -> None:
    if compiler.unavailable():
        pytest.skip("there is no compiler")
    Path("mine.cu").write_text(
        f'{HEADER}extern "C" __global__ void mine{ARGUMENTS} {{\n    undefined();\n}}'
    )
    err = refusal(rooflab, "mine.cu")
    assert err.startswith('error: mine.cu(8): error: identifier "undefined" is undefined')


def test_a_python_file_for_a_gpu(rooflab: Rooflab) -> None:
    Path("mine.py").write_text(
        "import rooflab\n@rooflab.kernel()\ndef mine(operands, stream):\n    return print\n"
    )
    assert refusal(rooflab, "mine.py") == (
        "error: mine.py needs an NVIDIA GPU (see: rooflab doctor)"
    )


def test_a_file_for_another_workload_says_what_to_type(rooflab: Rooflab) -> None:
    file = kernels_dir() / "add" / "01_naive.cu"
    assert refusal(rooflab, str(file)) == (
        f"error: {file} is for add, not gemm: rooflab sweep add --kernel {file}"
    )


# .py files ---------------------------------------------------------------------------------------

GOOD = """\
import numpy
import rooflab


@rooflab.kernel(device="exact", precisions=["fp32", "fp64"])
def product(operands, stream):
    \"\"\"One product after the other

    and more about it
    \"\"\"
    problem = operands.problem

    def launch():
        operands.c[...] = problem.alpha * (operands.a @ operands.b)

    return launch


@rooflab.kernel(device="exact", choices={"layout": ["nt"]}, name="transposed")
def other(operands, stream):
    return lambda: numpy.matmul(operands.a, operands.b.swapaxes(1, 2), out=operands.c)
"""


@pytest.fixture
def good() -> Path:
    path = Path("mine.py")
    path.write_text(GOOD)
    return path


def test_every_kernel_of_a_file(rooflab: Rooflab, good: Path) -> None:
    code, _, err = rooflab("sweep", "-k", good, "-k", "fast", *ONE, "--layout", "nn,nt")
    rows = {(row.kernel, row.problem.settings["layout"]): row for row in only_run().measurements}
    assert {key: row.status for key, row in rows.items()} == {
        ("product", "nn"): "ok",
        ("transposed", "nn"): "skipped",
        ("fast", "nn"): "ok",
        ("product", "nt"): "incorrect",  # it takes B as it is stored
        ("transposed", "nt"): "ok",
        ("fast", "nt"): "ok",
    }
    assert code == 3
    assert rows["transposed", "nn"].reason == "transposed supports layout nt only"
    assert rows["product", "nn"].backend == "python"
    assert only_run().manifest.kernels["gemm/product"].title == "One product after the other"
    assert "warning: incorrect: product gemm fp32 64, layout nt" in joined(err)


def test_one_kernel_of_a_file(rooflab: Rooflab, good: Path) -> None:
    assert rooflab("sweep", "-k", f"{good}:product", *ONE)[0] == 0
    assert statuses(only_run()) == [("product", "ok")]


def test_a_name_that_a_file_does_not_have(rooflab: Rooflab, good: Path) -> None:
    assert refusal(rooflab, f"{good}:produkt") == (
        "error: mine.py has no kernel 'produkt': it has product, transposed"
    )


def test_a_name_that_is_taken(rooflab: Rooflab, good: Path) -> None:
    good.write_text(GOOD.replace('"transposed"', '"fast"'))
    assert refusal(rooflab, "mine.py").startswith(
        "error: two exact kernels for gemm are called 'fast': exact and "
    )


def test_a_run_with_a_file_is_continued_only_with_the_file(rooflab: Rooflab, good: Path) -> None:
    rooflab("sweep", "-k", good, *ONE)
    folder = only_run().path
    code, _, err = rooflab("sweep", "--resume", folder)
    assert (code, err) == (
        2,
        "error: this run has kernel files; if you trust them, add: --kernel mine.py",
    )
    assert rooflab("sweep", "--resume", folder, "-k", good)[0] == 0
    good.write_text(GOOD.replace("and more", "and less"))
    code, _, err = rooflab("sweep", "--resume", folder, "-k", good)
    assert code == 2
    assert "the file of gemm/product has changed" in err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("x = = 3", "mine.py:1: SyntaxError: "),
        (
            "import rooflab\n\ndef f():\n    raise ValueError('oh')\n\nf()\n",
            "mine.py:4: ValueError: oh",
        ),
        (
            "import no_such_module",
            "mine.py:1: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("raise SystemExit(0)", "mine.py:1: SystemExit: 0"),
        (
            "class Over(BaseException): pass\nraise Over('and out')",
            "mine.py:2: Over: and out",
        ),
        ("import rooflab", "mine.py registers no kernel: decorate a function with @rooflab.kernel"),
        (
            "import rooflab\n@rooflab.kernel(device='exact', precisions=['fp99'])\n"
            "def mine(operands, stream): pass\n",
            "mine.py: kernel 'mine'",
        ),
        (
            "import rooflab\n@rooflab.kernel(device='exact', workload='gem')\n"
            "def mine(operands, stream): pass\n",
            "mine.py: no workload 'gem': did you mean gem",
        ),
        (
            "import rooflab\n@rooflab.kernel\ndef mine(operands, stream): pass\n",
            'mine.py: name what is given, as in @rooflab.kernel(workload="add")',
        ),
        (
            "import rooflab\n@rooflab.kernel(device='exact')\ndef mine(operands): pass\n",
            "mine.py: mine must take (operands, stream): too many positional arguments",
        ),
    ],
)
def test_a_file_that_cannot_be_imported_is_one_line_with_its_place(
    rooflab: Rooflab, content: str, says: str
) -> None:
    Path("mine.py").write_text(content)
    assert refusal(rooflab, "mine.py").startswith(f"error: {says}")


def test_names_of_files_are_no_globs_and_no_lists(rooflab: Rooflab) -> None:
    names = ("a,b", "*", "[bold]", "a b")
    for i, name in enumerate(names):
        content = GOOD.replace("def product", f"def product{i}").replace("transposed", f"nt{i}")
        Path(f"{name}.py").write_text(content)
    code, _, err = rooflab("sweep", *(f"--kernel={name}.py" for name in names), *ONE)
    assert code == 0, err
    kernels = [row.kernel for row in only_run().measurements if row.status == "ok"]
    assert set(kernels) == {f"product{i}" for i in range(len(names))}


def test_a_cu_file_whose_name_is_a_glob_is_only_itself() -> None:
    Path("*.cu").write_text(f'{HEADER}extern "C" __global__ void mine{ARGUMENTS} {{}}')
    selection = Selection(kernels=["*.cu"], sizes=[64], precisions=["fp32"])
    plan = planning.plan(SweepConfig(workloads=[selection]), AbsentGpu())
    assert [kernel.name for kernel in plan.kernels] == ["*"]


def test_a_file_named_in_other_letters_than_utf_8(rooflab: Rooflab) -> None:
    name = os.fsdecode(b"\xff.py")
    Path(name).write_text(GOOD)
    assert refusal(rooflab, name) == "error: kernel file ?.py: give it a name in UTF-8"


def test_a_file_in_the_place_of_the_workload(rooflab: Rooflab) -> None:
    """As the shell makes it of ``-k *.py``."""
    Path("b.py").write_text(GOOD)
    code, _, err = rooflab("sweep", "-k", "a.py", "b.py", *ONE)
    assert (code, err) == (2, "error: b.py is a kernel file: write --kernel b.py")


def test_a_file_that_is_named_twice(rooflab: Rooflab) -> None:
    Path("mine.py").write_text(GOOD)
    err = refusal(rooflab, "mine.py", "-k", "mine.py:product")
    assert joined(err).endswith("mine.py has both, or is named twice")


def test_a_file_with_all_the_shared_memory_of_a_block_is_planned(rooflab: Rooflab) -> None:
    if compiler.unavailable():
        pytest.skip("there is no compiler")
    header = HEADER.replace("*/", "shared_bytes = 232448\n*/")
    Path("mine.cu").write_text(f'{header}extern "C" __global__ void mine{ARGUMENTS} {{}}')
    for tool in ("nvrtc", "auto"):
        words = ("--compiler", tool, "--device", "auto", "--dry-run")
        code, _, err = rooflab("sweep", "-k", "mine.cu", *ONE, *words)
        assert code == 0, err


@pytest.mark.slow
def test_a_plan_is_made_by_the_compiler_that_is_named(
    rooflab: Rooflab, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shutil.which("nvcc"):
        pytest.skip("there is no nvcc")
    monkeypatch.setattr(compiler, "_run_nvrtc", lambda job: pytest.fail("NVRTC was used"))
    Path("mine.cu").write_text(f'{HEADER}extern "C" __global__ void mine{ARGUMENTS} {{}}')
    Path("host.cu").write_text(
        f'/*\nlauncher = "run"\nprecisions = ["fp32"]\n*/\nvoid run{ARGUMENTS[:-1]}, void*) {{}}'
    )
    words = ("--compiler", "nvcc", "--device", "auto", "--dry-run")
    code, out, err = rooflab("sweep", "-k", "mine.cu", "-k", "host.cu", *ONE, *words)
    assert code == 0, err
    assert "host, mine" in joined(out) or "mine, host" in joined(out)


def test_a_file_may_change_the_working_folder(rooflab: Rooflab) -> None:
    Path("moves.py").write_text("import os\nos.chdir('/')\n" + GOOD)
    code, _, err = rooflab("sweep", "-k", "moves.py:product", "-k", "fast", *ONE)
    assert code == 0, err
    assert statuses(only_run()) == [("product", "ok"), ("fast", "ok")]


def test_a_folder_or_an_unreadable_file_is_one_line(rooflab: Rooflab) -> None:
    Path("folder.py").mkdir()
    assert refusal(rooflab, "folder.py").startswith("error: kernel file folder.py cannot be read")
    Path("bytes.py").write_bytes(b"\xff\x00")
    assert refusal(rooflab, "bytes.py").startswith("error: bytes.py")


def test_whatever_a_kernel_raises_is_its_rows_reason(rooflab: Rooflab) -> None:
    Path("mine.py").write_text(
        "import rooflab\n"
        "@rooflab.kernel(device='exact')\n"
        "def prepares(operands, stream):\n"
        "    raise KeyError('of prepare')\n"
        "@rooflab.kernel(device='exact')\n"
        "def launches(operands, stream):\n"
        "    def launch():\n"
        "        raise RuntimeError('of launch\\nsecond line')\n"
        "    return launch\n"
        "@rooflab.kernel(device='exact')\n"
        "def returns(operands, stream):\n"
        "    return 5\n"
        "@rooflab.kernel(device='exact')\n"
        "def leaves(operands, stream):\n"
        "    raise SystemExit(3)\n"
    )
    code, _, err = rooflab("sweep", "-k", "mine.py", "-k", "fast", *ONE)
    assert code == 1
    reasons = {row.kernel: row.reason for row in only_run().measurements}
    assert reasons == {
        "prepares": "KeyError: 'of prepare'",
        "launches": "RuntimeError: of launch",
        "returns": "returns returned int, not a function that launches: what is timed must wait "
        "for its call, as in return lambda: …",
        "leaves": "SystemExit: 3",
        "fast": "",
    }
    assert "RuntimeError: of launch\nsecond line" in err
    assert "Traceback" not in err


# Packages ----------------------------------------------------------------------------------------


def package(name: str, content: str) -> None:
    """An installed package whose module registers kernels."""
    folder = Path("site") / f"{name}-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[rooflab.kernels]\nk = {name}_kernels\n")
    (Path("site") / f"{name}_kernels.py").write_text(content)


@pytest.mark.parametrize("error", ["SystemExit(0)", "BaseException('out')"])
def test_a_package_that_ends_python_takes_nobody_along(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    package("goodkernels", GOOD)
    package("badkernels", f"import os; os.chdir('/'); raise {error}")
    monkeypatch.syspath_prepend(elsewhere / "site")
    with started("kernels", "prod*") as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert "product" in out
    assert "the kernels of badkernels cannot be loaded" in err


def test_packages_bring_kernels_and_a_broken_one_is_left_out(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package("goodkernels", GOOD)
    package("badkernels", "raise ValueError('on import\\nsecond line')")
    monkeypatch.syspath_prepend(elsewhere / "site")
    with started("sweep", "-k", "product,fast", *ONE) as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert statuses(only_run()) == [("product", "ok"), ("fast", "ok")]
    assert joined(err).count("the kernels of badkernels cannot be loaded") == 1
    assert "(ValueError: on import second line): fix or pip uninstall badkernels" in joined(err)
    assert " product " in out
