"""Problems as one line of text, and as arguments of the command line."""

from __future__ import annotations

import pytest
from commands import Rooflab, rooflab  # noqa: F401  a fixture

from rooflab.errors import UsageError
from rooflab.runs.notation import options, read, written
from rooflab.workloads import build, catalogue

GEMM = build("gemm", "bf16", {"m": 64, "n": 32, "k": 16, "layout": "nt"})


def test_what_has_its_default_is_left_out() -> None:
    assert written(GEMM) == "gemm bf16 m=64 n=32 k=16 layout=nt"
    assert written(build("gemm", "fp32", {"m": 8, "n": 8, "k": 8})) == "gemm fp32 m=8 n=8 k=8"


@pytest.mark.parametrize("name", catalogue())
def test_a_problem_of_each_workload_is_read_back(name: str) -> None:
    kind = catalogue()[name]
    wanted = {one.name: 24 for one in kind.declared("extent") if one.name != "gpus"}
    problem = build(name, "fp32", wanted)
    assert read(written(problem)).key == problem.key


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gemm",
        "gemm bf16",
        "nothing bf16 m=1",
        "gemm bf17 m=1 n=1 k=1",
        "gemm bf16 m=1 n=1 k",
        "gemm bf16 m=1 n=1 k=x",
        "gemm bf16 m=1 n=1 k=0",
        "gemm bf16 m=1 n=1 k=1 rm=1",
    ],
)
def test_other_text_is_no_problem(text: str) -> None:
    with pytest.raises(UsageError):
        read(text)


@pytest.mark.parametrize(
    ("workload", "parameters", "expected"),
    [
        ("gemm", {"m": 64, "n": 32, "k": 16, "layout": "nt"}, "--shape 64x32x16 --layout nt"),
        ("gemm", {"m": 64, "n": 64, "k": 64}, "--sizes 64"),
        ("gemm", {"m": 64, "n": 64, "k": 64, "batch": 3}, "--shape 64x64x64x3"),
        ("softmax", {"rows": 64, "columns": 32}, "--shape 64x32"),
        ("add", {"columns": 4096}, "--sizes 4096"),
        ("sum", {"elements": 4096}, "--sizes 4096"),
    ],
)
def test_the_command_line_understands_the_options(
    rooflab: Rooflab,  # noqa: F811
    workload: str,
    parameters: dict[str, int | str],
    expected: str,
) -> None:
    text = options(build(workload, "fp32", parameters))
    assert text == f"{workload} -p fp32 {expected}"
    code, _, err = rooflab("sweep", *text.split(), "--dry-run", "--device", "cpu")
    assert code == 0, err
