"""Kernels of ours that do the same as a group of a program: measured, or how to measure them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import program_runs
import pytest
import synthetic
from commands import Rooflab, rooflab  # noqa: F401  a fixture

from rooflab.model.facts import Fact
from rooflab.model.measurement import Measurement
from rooflab.report.explain import explanations, paragraphs
from rooflab.report.own_kernels import of_program
from rooflab.report.program import lines
from rooflab.runs import store
from rooflab.runs.own_kernels import OwnTimes, kernels_for
from rooflab.runs.program import Program
from rooflab.workloads import build

SAME = "gemm bf16 m=8192 n=2048 k=8192 layout=nt"
PROBLEM = build("gemm", "bf16", {"m": 8192, "n": 2048, "k": 8192, "layout": "nt"})


def group(same_as: str = SAME, us: float = 375.0, spread: float = 5.0, **other: Any) -> Measurement:
    """Four launches of a product in a step of 10 ms."""
    problem = program_runs.problem("bf16")
    return Measurement(
        **{
            "problem": replace(problem, settings={**problem.settings, "same_as": same_as}),
            "kernel": "nvjet_NTN",
            "samples": 20,
            "time_us": us,
            "time_p05_us": us - spread,
            "time_p95_us": us + spread,
            "launches": 4.0,
            "total_us": 4 * us,
            "flops": PROBLEM.flops,
            "bytes": PROBLEM.bytes,
            **other,
        }
    )


def row(kernel: str = "champion", us: float = 331.0, **other: Any) -> Measurement:
    """A row of a sweep."""
    given: dict[str, Any] = {"backend": "cuda", "cache": "cold", "time_us": us}
    given |= {"time_lo_us": us - 1, "time_hi_us": us + 1, **other}
    return Measurement(problem=PROBLEM.record, kernel=kernel, **given)


def sweep(
    *rows: Measurement, folder: Path = Path("results"), name: str = "sweep", **other: Any
) -> None:
    """Write a run of these rows in ``folder``."""
    device, facts = other.pop("device", "NVIDIA H200"), synthetic.H200_FACTS
    made = synthetic.run(device, program_runs.H200, [], facts, day=27, points=len(rows))
    store.save(folder / name, made.manifest, rows)


def said(*groups: Measurement, path: Path = Path("results/program")) -> list[str]:
    run = program_runs.run(groups, path=path)
    return list(of_program(Program.of(run), OwnTimes(run)))


def test_a_faster_kernel_of_ours_is_one_sentence() -> None:
    sweep(row(burst_us=290.0))
    assert said(group()) == [
        "champion does the same matrix product (8192x2048x8192, BF16, layout nt) in 331 µs when "
        "settled (290 µs in a burst), measured on 2026-11-27 (NVIDIA H200): 12 % less than "
        "nvjet_NTN, 176 µs of a step."
    ]


def test_runs_beside_the_program_are_at_hand_too(tmp_path: Path) -> None:
    sweep(row(), folder=tmp_path)
    assert not said(group(us=10.0))
    assert "331 µs" in said(group(), path=tmp_path / "program")[0]


def test_the_fastest_of_several_counts() -> None:
    sweep(row(us=340.0), row("large", 325.0))
    sweep(row("early", 329.0), name="later")
    assert said(group())[0].startswith("large does")


@pytest.mark.parametrize(
    "one",
    [
        row("cublas", backend="cublas"),
        row("cutlass_hopper", backend="cutlass"),
        row(cache="warm"),
        row(status="incorrect"),
        row(flags="batch_timed;contended"),
        row(flags="throttled"),
    ],
)
def test_what_is_not_ours_or_says_little_does_not_count(one: Measurement) -> None:
    sweep(one)
    assert not any("does the same" in line for line in said(group()))


def test_another_device_does_not_count() -> None:
    sweep(row(), device="NVIDIA H100 80GB HBM3")
    assert "rooflab sweep" in said(group())[0]


@pytest.mark.parametrize(
    ("us", "spread", "own"),
    [(331.5, 5.0, {}), (340.0, 200.0, {}), (340.0, 5.0, {"time_hi_us": 341.0}), (300.0, 5.0, {})],
)
def test_a_difference_within_the_intervals_is_none(
    us: float, spread: float, own: dict[str, Any]
) -> None:
    sweep(row(**own))
    assert said(group(us=us, spread=spread)) == []


def test_the_burst_alone_is_not_compared() -> None:
    sweep(row(us=380.0, burst_us=300.0))
    assert said(group()) == []
    run = program_runs.run([group()])
    (one,) = explanations(run)
    assert list(paragraphs(one))[-1].startswith("Not faster: champion does the same")


def test_what_runs_at_once_is_not_alone() -> None:
    sweep(row())
    run = program_runs.run([group()], busy_us=1000.0)
    (sentence,) = of_program(Program.of(run), OwnTimes(run))
    assert "12 % less than nvjet_NTN, though kernels that run at once slow that, 176" in sentence


def test_several_groups_are_summed() -> None:
    sweep(row())
    found = said(group(), group(us=361.0))
    assert len(found) == 2
    assert found[1] == "Kernels of ours are measured faster for 2 groups: 296 µs of a step in all."


@pytest.mark.parametrize(
    "one",
    [
        group(""),
        group("nothing"),
        group("gemm bf16 m=0 n=1 k=1"),
        group("gemm fp32 m=8192 n=2048 k=8192"),  # the tensor cores' precision was another
        group(flops=None),  # its work was doubtful
        group(kernel="sm80_xmma_gemm_f32f32_tf32f32_nn"),
    ],
)
def test_what_is_no_problem_gets_no_word(one: Measurement) -> None:
    sweep(row())
    assert said(one) == []
    (explained,) = explanations(program_runs.run([one]))
    assert not explained.own


def test_what_is_not_measured_has_its_command(rooflab: Rooflab) -> None:  # noqa: F811
    (sentence,) = said(group())
    _, _, command = sentence.partition("not known here: rooflab ")
    assert command.startswith("sweep gemm -p bf16 --shape 8192x2048x8192 --layout nt --kernel ")
    assert {"champion", "cublas"} <= set(command.rpartition(" ")[2].split(","))
    code, out, err = rooflab(*command.split(), "--device", "cuda:0", "--dry-run")
    assert code == 0, err
    assert "8192x2048x8192" in out


def test_only_the_largest_of_those_has_it() -> None:
    other = "gemm bf16 m=512 n=512 k=512"
    (sentence,) = said(group(other, us=400.0), group())
    assert "--sizes 512" in sentence
    assert said(group(us=30.0)) == []  # too little of a step


def test_each_group_has_its_own_when_explained() -> None:
    for one in explanations(program_runs.run([group(), group("gemm bf16 m=9 n=8 k=8")])):
        assert list(paragraphs(one))[-1].startswith("Kernels of ours do the same; to measure them:")


def test_older_gpus_are_not_asked_for_newer_kernels() -> None:
    assert "champion" in kernels_for(PROBLEM, "9.0")
    older = kernels_for(PROBLEM, "8.0")
    assert "champion" not in older and "mma" in older and older[-1] == "cublas"
    facts = synthetic.H200_FACTS | {"compute_capability": Fact("8.0")}
    run = synthetic.with_device(program_runs.run([group()]), facts=facts)
    assert "champion" not in OwnTimes(run).command(group())


def test_a_damaged_run_at_hand_is_passed_over() -> None:
    sweep(row())
    sweep(row(us=300.0), name="damaged")
    Path("results/damaged/measurements.csv").write_text("no table\n")
    assert "331 µs" in said(group())[0]


def test_the_problem_is_saved_with_the_run(tmp_path: Path) -> None:
    run = program_runs.run([group()])
    settings = {**program_runs.PROGRAM.settings, "same_as": "str"}
    workloads = {"program": program_runs.PROGRAM.model_copy(update={"settings": settings})}
    manifest = run.manifest.model_copy(update={"workloads": workloads})
    loaded = store.load(store.save(tmp_path / "saved", manifest, run.measurements))
    assert loaded.measurements[0].problem.settings["same_as"] == SAME


def test_show_says_it() -> None:
    sweep(row())
    assert any("champion does the same" in line for line in lines(program_runs.run([group()])))
