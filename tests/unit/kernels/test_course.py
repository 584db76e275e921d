"""kernels/ is a course: its files are in reading order, and each has a short lesson."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rooflab.files import kernel_name, kernels_dir
from rooflab.kernels.cuda_file.header import read_header
from rooflab.kernels.cuda_file.kernel import read_file

FILES = sorted(kernels_dir().rglob("*.cu"))
IDS = [str(path.relative_to(kernels_dir())) for path in FILES]
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
MOST_LINES = 40


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_a_file_begins_with_the_number_of_its_rung(path: Path) -> None:
    number = path.name.partition("_")[0]
    assert re.fullmatch(r"\d\d", number)
    assert int(number) == read_header(path).rung


def test_no_two_rungs_of_a_workload_have_one_place() -> None:
    places = [(header.workload, header.rung) for header in map(read_header, FILES)]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_a_lesson_is_short(path: Path) -> None:
    """What is longer, such as races and failures, is in docs/lab."""
    _, lesson, *_ = COMMENT.findall(path.read_text(encoding="utf-8"))
    assert len(lesson.splitlines()) <= MOST_LINES


def test_the_number_is_not_part_of_the_name(tmp_path: Path) -> None:
    ours = kernels_dir() / "gemm" / "03_tiled.cu"
    assert kernel_name(ours) == read_file(ours).name == read_file(ours).as_kernel().name == "tiled"
    # A user's file keeps its digits.
    copy = tmp_path / "03_tiled.cu"
    copy.write_bytes(ours.read_bytes())
    assert kernel_name(copy) == read_file(copy).name == "03_tiled"
