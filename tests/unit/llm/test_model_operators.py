"""Parameters, FLOPs and memory of known models, and the problems of their operators."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rooflab.errors import UsageError
from rooflab.llm import formulas
from rooflab.llm.config import read
from rooflab.llm.estimate import cache_bytes, parameters, token_bytes, weight_bytes
from rooflab.llm.formulas import Formula
from rooflab.llm.operators import PHASES, ModelStep, Operator, Phase, operators
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import Problem
from rooflab.workloads.gemm import Gemm
from rooflab.workloads.linear import Linear


def step(
    phase: Phase = "decode", batch: int = 1, context: int = 2048, **changes: object
) -> ModelStep:
    made = ModelStep(phase, batch, context, PRECISIONS["bf16"])
    return replace(made, **changes)  # type: ignore[arg-type]


def by_name(name: str, wanted: ModelStep) -> dict[str, Operator]:
    return {one.name: one for one in operators(read(name), wanted)}


# What the publishers count, of DeepSeek without the layers that predict further tokens.
PARAMETERS = {
    "llama-3.1-8b": 8_030_261_248,
    "mistral-7b": 7_248_023_552,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "deepseek-v3": 671_026_419_200,
}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_add_up(name: str, phase: Phase) -> None:
    assert parameters(read(name), step(phase)) == PARAMETERS[name]
    assert parameters(read(name), step(phase, separate=True)) == PARAMETERS[name]
    assert parameters(read(name), step(phase, fused=True)) == PARAMETERS[name]


ACTIVE = {
    "llama-3.1-8b": 7.50e9,
    "mixtral-8x7b": 12.7e9,
    "qwen3-30b-a3b": 3.04e9,
    "deepseek-v3": 36.6e9,
}
"""Parameters that a token meets, without the embedding."""


@pytest.mark.parametrize("name", ACTIVE)
def test_a_decoded_token_costs_two_flops_for_each_active_parameter(name: str) -> None:
    found = operators(read(name), step())
    flops = sum(one.times * one.work.flops for one in found if one.name != "attention")
    assert flops == pytest.approx(2 * ACTIVE[name], rel=5e-3)


def test_attention_costs_what_its_workload_says() -> None:
    attention = by_name("llama-3.1-8b", step(context=4096))["attention"]
    assert attention.work.flops * attention.times == 4 * 32 * 4096 * 128 * 32


def test_a_prompt_costs_as_much_as_its_tokens_but_for_attention_and_head() -> None:
    one, many = by_name("llama-3.1-8b", step()), by_name("llama-3.1-8b", step("prefill"))
    for name in ("query, key, value", "output", "gate, up", "down", "swiglu", "norm"):
        assert many[name].work.flops == 2048 * one[name].work.flops
    assert many["head"] == one["head"]


@pytest.mark.parametrize(
    ("name", "each"),
    [
        ("llama-3.1-8b", 131072),
        ("qwen2.5-7b", 57344),
        ("deepseek-v3", 61 * 576 * 2),
    ],
)
def test_the_cache_of_a_token(name: str, each: int) -> None:
    assert token_bytes(read(name), step()) == each
    assert cache_bytes(read(name), step(context=1000)) == 1000 * each


def test_fp8_halves_what_products_with_weights_read() -> None:
    model, eight = read("llama-3.1-8b"), step(precision=PRECISIONS["fp8"])
    tables = 2 * 128256 * 4096
    rest = 65 * 4096
    assert weight_bytes(operators(model, eight)) == PARAMETERS[model.name] + tables + rest
    assert by_name(model.name, eight)["attention"].work.precision.name == "bf16"


def test_tied_weights_count_once() -> None:
    model = read("llama-3.1-8b")
    tied = replace(model, tied=True)
    assert parameters(model, step()) - parameters(tied, step()) == 128256 * 4096


def test_products_that_are_launched_each_by_itself() -> None:
    found = by_name("llama-3.1-8b", step(separate=True))
    sizes = {name: (one.work.size, one.times) for name, one in found.items()}
    assert sizes["query"] == ("1x4096x4096", 32)
    assert sizes["key, value"] == ("1x1024x4096", 64)
    assert sizes["gate, up"] == ("1x14336x4096", 64)


@pytest.mark.parametrize("phase", PHASES)
def test_gate_up_and_activation_as_one_kernel(phase: Phase) -> None:
    """The same products; what is between them is neither written nor read."""
    apart, fused = (by_name("llama-3.1-8b", step(phase, fused=one)) for one in (False, True))
    one = fused["gate, up, swiglu"]
    assert apart.keys() - fused.keys() == {"gate, up", "swiglu"}
    assert one.weights == apart["gate, up"].weights
    assert one.work.flops == apart["gate, up"].work.flops + apart["swiglu"].work.flops
    between = 2 * 14336 * step(phase).tokens * 2
    before = apart["gate, up"].work.bytes + apart["swiglu"].work.bytes
    assert one.work.bytes == before - 2 * between


def test_a_product_with_a_bias_is_a_linear_layer() -> None:
    found = by_name("qwen2.5-7b", step())
    work = found["query, key, value"].work
    assert isinstance(work, Linear)
    assert work.epilogue == "bias"
    assert isinstance(found["gate, up"].work, Gemm)


def test_every_operator_is_a_problem_or_says_that_it_is_none() -> None:
    for name in PARAMETERS:
        for phase in PHASES:
            for one in operators(read(name), step(phase, batch=3)):
                assert isinstance(one.work, Problem | Formula)
                assert one.times > 0 and one.work.flops_each >= 0
                assert all(count > 0 for count in one.work.traffic.values())


def test_weights_are_stored_as_in_pytorch() -> None:
    work = by_name("llama-3.1-8b", step(batch=8))["down"].work
    assert work == Gemm(m=8, n=4096, k=14336, layout="nt", precision=PRECISIONS["bf16"])


def test_a_window_limits_keys_and_cache() -> None:
    model = replace(read("mistral-7b"), window=1024)
    decode = {one.name: one.work for one in operators(model, step())}["attention"]
    assert isinstance(decode, Problem) and decode.extents["keys"] == 1024
    assert cache_bytes(model, step()) == 1024 * token_bytes(model, step())
    prefill = {one.name: one.work for one in operators(model, step("prefill"))}["attention"]
    pairs = 32 * sum(min(i + 1, 1024) for i in range(2048))
    assert prefill.flops == 4 * pairs * 128


def test_latent_attention_reads_its_cache_once_for_all_heads() -> None:
    work = by_name("deepseek-v3", step(batch=4))["attention"].work
    cache = 4 * 2048 * 576
    queries = 4 * 128 * (576 + 512)
    assert sum(work.traffic.values()) == 2 * (cache + queries)
    assert work.flops == 2 * 4 * 128 * 2048 * (576 + 512)


# Experts -----------------------------------------------------------------------------------------


def test_a_token_uses_the_experts_that_it_chooses_and_many_use_all() -> None:
    assert formulas.experts_used(1, 8, 2) == pytest.approx(2)
    assert formulas.experts_used(2, 8, 2) == pytest.approx(3.5)
    assert formulas.experts_used(1000, 8, 2) == pytest.approx(8)


def test_experts_multiply_their_rows_and_read_their_weights() -> None:
    work = by_name("mixtral-8x7b", step())["experts: down"].work
    assert work.flops == 2 * 2 * 4096 * 14336
    ends = 4 * 2
    assert sum(work.traffic.values()) == 2 * (2 * 4096 * 14336 + 2 * 14336 + 2 * 4096) + ends


def test_tokens_are_sent_to_experts_and_back_by_problems_of_workloads() -> None:
    found = by_name("mixtral-8x7b", step(batch=8))
    sizes = {}
    for name in ("choice", "order", "dispatch", "combine"):
        work = found[name].work
        assert isinstance(work, Problem)
        sizes[name] = (work.workload, work.size)
    assert sizes == {
        "choice": ("route", "8"),
        "order": ("sort_experts", "8"),
        "dispatch": ("embedding", "16x8x4096"),
        "combine": ("combine", "8x4096"),
    }


# Several GPUs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b", "deepseek-v3"])
def test_gpus_share_the_work_of_products_and_add_up_over_the_link(name: str) -> None:
    alone, shared = by_name(name, step(batch=8)), by_name(name, step(batch=8, gpus=4))
    for one in ("output", "attention"):
        assert shared[one].work.flops_each * 4 == alone[one].work.flops_each
    layers = read(name).layers
    assert shared["all-reduce"].times == 2 * layers
    assert shared["all-reduce"].work.traffic["peer"] == 8 * read(name).hidden * 2
    assert shared["norm"].work == alone["norm"].work


def test_more_gpus_than_heads_of_keys_keep_one_each() -> None:
    found = by_name("qwen2.5-7b", step(gpus=28 // 7))
    assert found["query, key, value"].work.size == f"1x{7 * 128 + 2 * 128}x3584"
    assert token_bytes(read("llama-3.1-8b"), step(gpus=16)) == 131072 / 8


@pytest.mark.parametrize(
    ("name", "gpus", "said"),
    [
        ("llama-3.1-8b", 3, "32 heads cannot be divided among 3 GPUs"),
        ("qwen2.5-7b", 14, "4 heads of keys cannot be divided among 14 GPUs"),
    ],
)
def test_what_cannot_be_divided(name: str, gpus: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        operators(read(name), step(gpus=gpus))


def test_a_size_that_no_layer_has_need_not_divide() -> None:
    odd = replace(read("qwen3-30b-a3b"), inner=6145)
    names = {one.name for one in operators(odd, step(gpus=2))}
    assert "experts: down" in names and "down" not in names


def test_a_sum_that_is_too_large_for_one_problem_is_several() -> None:
    found = by_name("llama-3.1-8b", step("prefill", batch=64, context=65536, gpus=2))["all-reduce"]
    assert found.times == 8 * 64
    assert found.work.size == str(2**31)
