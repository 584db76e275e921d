"""Times at the roofs and of measured rows; the ridge, and what has room."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rooflab.errors import UsageError
from rooflab.llm.config import read
from rooflab.llm.estimate import (
    BEST,
    estimate,
    fastest,
    largest_batch,
    problems,
    ridge_batch,
    seconds,
)
from rooflab.llm.machine import Machine, of_files
from rooflab.llm.operators import ModelStep, Phase, operators, warm
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import Problem
from rooflab.workloads.gemm import Gemm
from rooflab.workloads.transformer import Embedding

DATA = Path(__file__).resolve().parents[2] / "data"
LLAMA = read("llama-3.1-8b")


@pytest.fixture(scope="module")
def h200() -> Machine:
    return of_files(DATA / "runs" / "two_gpus")


def step(
    phase: Phase = "decode", batch: int = 1, context: int = 2048, **changes: object
) -> ModelStep:
    made = ModelStep(phase, batch, context, PRECISIONS["bf16"])
    return replace(made, **changes)  # type: ignore[arg-type]


def row(problem: Problem, us: float, kernel: str = "mine", **changes: object) -> Measurement:
    made = Measurement(problem=problem.record, kernel=kernel, backend="cuda", time_us=us)
    return replace(made, **changes)  # type: ignore[arg-type]


def test_a_manifest_alone_is_as_good_as_its_run(h200: Machine) -> None:
    assert of_files(DATA / "runs" / "two_gpus" / "manifest.json") == h200
    assert (h200.name, h200.memory) == ("NVIDIA H200", 150109880320)


def test_decode_of_one_sequence_reads_weights_and_cache(h200: Machine) -> None:
    one = estimate(LLAMA, step(), h200)
    bandwidth = h200.roofline.bandwidth()
    assert bandwidth
    read_once = one.weights - 2 * 128256 * 4096 + one.cache  # one row of the embedding
    assert one.roof_us == pytest.approx(1e6 * read_once / bandwidth.value, rel=2e-3)
    assert one.bound[0] == "dram"
    assert one.tokens_per_s(one.roof_us) == pytest.approx(1e6 / one.roof_us)


def test_prefill_computes(h200: Machine) -> None:
    one = estimate(LLAMA, step("prefill", batch=4), h200)
    assert one.bound[0] == "compute" and one.bound[1] > 0.9
    assert one.tokens_per_s(1e6) == 4 * 2048


def test_a_step_takes_no_less_than_its_flops_and_its_bytes(h200: Machine) -> None:
    for batch in (1, 300, 3000):
        one = estimate(LLAMA, step(batch=batch), h200)
        limits = seconds(operators(LLAMA, one.step), h200.roofline)
        assert one.roof_us * 1e-6 >= max(limits) * (1 - 1e-9)


def test_memory(h200: Machine) -> None:
    most = largest_batch(LLAMA, step(), h200.memory)
    assert most and most > 400
    assert estimate(LLAMA, step(batch=most), h200).fits
    assert not estimate(LLAMA, step(batch=most + 1), h200).fits
    assert largest_batch(read("deepseek-v3"), step(), h200.memory) == 0
    assert largest_batch(LLAMA, step(), None) is None
    assert estimate(LLAMA, step(batch=10**5), replace(h200, memory=None)).fits


def test_the_ridge_is_where_products_take_as_long_to_compute_as_to_read(h200: Machine) -> None:
    ridge = ridge_batch(LLAMA, step(), h200.roofline)
    assert ridge

    def limits(batch: int) -> tuple[float, float]:
        found = operators(LLAMA, step(batch=batch))
        return seconds([one for one in found if one.weights and one.work.flops], h200.roofline)

    before, after = limits(ridge - 1), limits(ridge)
    assert before[0] < before[1] and after[0] >= after[1]
    per_byte = h200.roofline.ridge("bf16")
    assert per_byte and per_byte <= ridge <= 1.2 * per_byte  # a FLOP a byte for each sequence
    many = ridge_batch(read("mixtral-8x7b"), step(), h200.roofline)
    assert many and many > 3 * ridge


def test_links_limit_what_is_added_up(h200: Machine) -> None:
    slow, fast = (
        estimate(LLAMA, step(batch=64, gpus=4), h200.linked(rate)) for rate in (1e9, 1e12)
    )
    of = {one.operator.name: one for one in slow.operators}
    assert of["all-reduce"].roof.bound == "peer"
    assert slow.roof_us > 1.5 * fast.roof_us


def test_a_missing_roof_says_what_to_give(h200: Machine) -> None:
    with pytest.raises(UsageError, match="give --link GB/s"):
        estimate(LLAMA, step(gpus=2), of_files(DATA / "measured" / "champion"))
    with pytest.raises(UsageError, match="has no roof for BF16: give another --precision"):
        estimate(LLAMA, step(), of_files(DATA / "runs" / "cpu"))


# What was measured -------------------------------------------------------------------------------


def test_only_the_fastest_right_row_of_the_same_problem_counts(h200: Machine) -> None:
    (gemm, *_) = (one for one in problems(LLAMA, [step()]) if isinstance(one, Gemm))
    other = replace(gemm, layout="nn")
    rows = [
        row(gemm, 20.0),
        row(gemm, 15.0, "cublas"),
        row(gemm, 1.0, "wrong", status="incorrect"),
        row(gemm, 1.0, "unknown", time_us=None),
        row(other, 2.0),
    ]
    best = fastest(rows)
    key = (False, gemm.key)
    assert best[key].kernel == "cublas"
    assert set(best) == {key, (False, other.key)}
    assert fastest(rows, ["mi"])[key].kernel == "mine"
    assert fastest(rows, ["cud"])[key].kernel == "cublas"  # a backend
    assert fastest(rows, ["torch"]) == {}


def test_measured_times_add_up_and_what_lacks_stays_at_its_roof(h200: Machine) -> None:
    plain = estimate(LLAMA, step(), h200)
    rows = [row(one, 1000.0) for one in problems(LLAMA, [step()])]
    one = estimate(LLAMA, step(), h200, {BEST: fastest(rows), "none": {}})
    assert [each.operator.name for each in one.unmeasured(BEST)] == ["argmax"]
    counts = sum(each.operator.times for each in one.operators) - 1
    rest = sum(each.roof_us for each in one.unmeasured(BEST))
    assert one.us(BEST) == pytest.approx(1000 * counts + rest)
    assert one.us("none") == pytest.approx(plain.roof_us)
    assert one.roof_us == plain.roof_us


def test_only_what_was_just_written_is_taken_from_a_warm_cache(h200: Machine) -> None:
    cold = [row(one, 1000.0) for one in problems(LLAMA, [step()])]
    warm = [replace(one, cache="warm", time_us=100.0) for one in cold]
    one = estimate(LLAMA, step(), h200, {BEST: fastest([*cold, *warm]), "warm": fastest(warm)})
    fresh = {each.operator.name for each in one.operators if each.us("warm")}
    assert fresh == {
        *("norm", "rope of queries", "rope of keys"),
        *("to the cache", "residual", "swiglu"),
    }
    for each in one.operators:
        measured = each.rows[BEST]
        assert measured is None or (measured.time_us == 100.0) == (each.operator.name in fresh)


@pytest.mark.parametrize(
    ("tokens", "words", "expected"), [(8, 1, True), (8, 9, False), (2**20, 2**20, False)]
)
def test_rows_that_are_gathered_more_than_once_are_warm(
    tokens: int, words: int, expected: bool
) -> None:
    assert warm(Embedding(tokens=tokens, words=words, columns=64)) is expected


def test_each_problem_is_swept_once() -> None:
    steps = [step(), step(batch=8), step(batch=8, context=4096)]
    keys = [one.key for one in problems(LLAMA, steps)]
    assert len(keys) == len(set(keys))
    attention = [one for one in problems(LLAMA, steps) if one.workload == "attention"]
    assert len(attention) == 3
