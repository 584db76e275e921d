"""benchmarks/judged.py: every shipped file is judged, on a problem that it supports."""

from __future__ import annotations

import judged
import pytest

from rooflab.judging.trial import Arena


def test_every_file_is_judged_in_every_precision() -> None:
    kernels = judged.shipped()
    jobs = list(judged.jobs(kernels, every=True))
    assert {job.file for job in jobs} == set((judged.ROOT / "kernels").rglob("*.cu"))
    assert len(jobs) == sum(len(kernel.precisions) for kernel in kernels)
    assert len(list(judged.jobs(kernels, every=False))) == len(kernels)


def test_kernels_get_what_they_support() -> None:
    jobs = {
        (job.file.stem, job.precision): job for job in judged.jobs(judged.shipped(), every=True)
    }
    assert jobs["50_few_rows", "bf16"].shape == "8x1024x1024"
    assert jobs["01_naive", "fp16"].words == {}
    assert jobs["45_cutlass_hopper", "tf32"].words == {"layout": "nt"}
    assert jobs["45_cutlass_hopper", "fp16"].words == {"layout": "nn"}


def test_what_is_refused_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Arena, "disturbed", Arena.disturbed)  # which the job sets
    row = judged.Job(judged.ROOT / "kernels" / "none.cu", "add", "fp32", "1x64", {}).judge()
    assert (row["file"], row["problem"]) == ("kernels/none.cu", "1x64")
    assert str(row["verdict"]).startswith("REFUSED: U")  # there is no file, or no GPU
