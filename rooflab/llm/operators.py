"""The operators of a step of a language model, each as a problem of a workload if there is one.

Pure. With several GPUs they are those of one of them: heads, feed-forward layers, each expert and
the head are divided, the embedding and what is between them is on each (Shoeybi et al.,
"Megatron-LM", 2019).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from rooflab.errors import UsageError
from rooflab.llm import formulas
from rooflab.llm.config import Experts, Grouped, LanguageModel, Latent
from rooflab.llm.formulas import Formula
from rooflab.model.precision import PRECISIONS, Precision
from rooflab.model.problem import MAX_EXTENT, Problem
from rooflab.workloads.attention import Attention
from rooflab.workloads.collectives import AllGather, AllReduce
from rooflab.workloads.elementwise import Add, Copy
from rooflab.workloads.experts import GroupedGemm
from rooflab.workloads.gemm import Gemm
from rooflab.workloads.linear import Linear
from rooflab.workloads.routing import Combine, Route, SortExperts
from rooflab.workloads.rows import RmsNorm
from rooflab.workloads.transformer import Embedding, Rope, SwiGlu

Phase = Literal["prefill", "decode"]
PHASES: Final[tuple[Phase, ...]] = ("prefill", "decode")

KNOWN: Final = ("bf16", "fp16", "fp8", "fp32")
"""Precisions of a model."""

FRESH: Final = (RmsNorm, Rope, Add, Copy, SwiGlu, Route, SortExperts, Combine)
"""Work on what was written just before it: weights and the cache of keys have no part in it, or
hardly any."""

CACHED_BYTES: Final = 2**26
"""Of a table that is in the last-level cache of a GPU."""


@dataclass(frozen=True, slots=True)
class ModelStep:
    """What is computed at once: all tokens of a prompt, or the next one, of ``batch`` sequences.

    ``context`` are the tokens of a sequence after the step. ``precision`` is that of products with
    weights; what is between them has the type of their results, as have embedding, head, attention
    and its cache. With ``separate`` the products of queries, keys and values are launched each by
    itself, and so are gate and up; with ``fused`` gate, up and their activation are one kernel, if
    they have no bias.
    """

    phase: Phase
    batch: int
    context: int
    precision: Precision
    gpus: int = 1
    separate: bool = False
    fused: bool = False

    @property
    def queries(self) -> int:
        """Tokens of a sequence that are computed."""
        return self.context if self.phase == "prefill" else 1

    @property
    def tokens(self) -> int:
        """Tokens that are computed."""
        return self.batch * self.queries

    @property
    def between(self) -> Precision:
        """The precision of what is between products with weights."""
        return PRECISIONS[self.precision.output.name]

    def part(self, count: int, what: str) -> int:
        """One GPU's part; raises ``UsageError`` if it is no whole number."""
        if count % self.gpus:
            raise self._undivided(count, what)
        return count // self.gpus

    def kept(self, kv_heads: int) -> int:
        """Heads of keys that a GPU has: if there are more GPUs, some have the same one."""
        if kv_heads % self.gpus and self.gpus % kv_heads:
            raise self._undivided(kv_heads, "heads of keys")
        return max(1, kv_heads // self.gpus)

    def _undivided(self, count: int, what: str) -> UsageError:
        return UsageError(
            f"{count} {what} cannot be divided among {self.gpus} GPUs: give another "
            "--tensor-parallel"
        )


@dataclass(frozen=True, slots=True)
class Operator:
    """Work that is done ``times`` in a step, with ``weights`` numbers of its own each time."""

    name: str
    work: Problem | Formula
    times: int = 1
    weights: int = 0


def warm(work: Problem | Formula) -> bool:
    """Whether what it reads is still in the last-level cache, as far as it fits.

    So are few rows that are gathered more than once, such as those of tokens for their experts.
    """
    if isinstance(work, Embedding):
        table = work.words * work.columns * work.precision.output.bytes
        return work.tokens >= work.words and table <= CACHED_BYTES
    return isinstance(work, FRESH)


def operators(model: LanguageModel, step: ModelStep) -> tuple[Operator, ...]:
    """All operators of a step in their order; those that are the same problem are one."""
    found: dict[tuple[object, ...], Operator] = {}
    for one in _all(model, step):
        key = (one.name, one.work, one.weights)
        times = one.times + (found[key].times if key in found else 0)
        found[key] = replace(one, times=times)
    return tuple(found.values())


def _all(model: LanguageModel, step: ModelStep) -> Iterator[Operator]:
    plain = step.between
    rows = Embedding(
        tokens=step.tokens, words=model.vocabulary, columns=model.hidden, precision=plain
    )
    yield Operator("embedding", rows, 1, model.vocabulary * model.hidden)
    yield from (_times(one, model.layers) for one in _attention(model, step))
    if plain_layers := model.layers - model.sparse:
        yield from (_times(one, plain_layers) for one in _feed_forward(model, step))
    if model.experts and model.sparse:
        sparse = _experts(model, step, model.experts)
        yield from (_times(one, model.sparse) for one in sparse)
    yield _norm(model, step)
    words = -(-model.vocabulary // step.gpus)
    head = _gemm(step.batch, words, model.hidden, plain)
    yield Operator("head", head, 1, 0 if model.tied else words * model.hidden)
    if step.gpus > 1:
        logits = AllGather(elements=step.batch * words, gpus=step.gpus, precision=plain)
        yield Operator("all-gather", logits)
    yield Operator("argmax", formulas.largest(step.batch, model.vocabulary, plain))


def _times(one: Operator, count: int) -> Operator:
    return replace(one, times=one.times * count)


def _gemm(m: int, n: int, k: int, precision: Precision, batch: int = 1) -> Gemm:
    """With weights as PyTorch stores them."""
    return Gemm(m=m, n=n, k=k, batch=batch, layout="nt", precision=precision)


def _norm(model: LanguageModel, step: ModelStep) -> Operator:
    return _rows("norm", step, step.tokens, model.hidden)


def _rows(name: str, step: ModelStep, rows: int, columns: int) -> Operator:
    work = RmsNorm(rows=rows, columns=columns, precision=step.between)
    return Operator(name, work, 1, columns)


def _product(
    step: ModelStep, name: str, outputs: int, inputs: int, bias: bool = False, times: int = 1
) -> Operator:
    work: Problem = _gemm(step.tokens, outputs, inputs, step.precision)
    if bias:
        work = _linear(step, outputs, inputs, "bias")
    return Operator(name, work, times, outputs * (inputs + bias))


def _linear(step: ModelStep, outputs: int, inputs: int, epilogue: str) -> Linear:
    sizes: Any = {"m": step.tokens, "n": outputs, "k": inputs}
    return Linear(epilogue=epilogue, precision=step.precision, **sizes)


def _products(
    step: ModelStep, parts: dict[str, tuple[int, int]], inputs: int, bias: bool
) -> Iterator[Operator]:
    """Products of the same rows: by name the outputs, and how many there are of them."""
    if step.separate:
        for name, (outputs, count) in parts.items():
            yield _product(step, name, outputs, inputs, bias, count)
        return
    total = sum(outputs * count for outputs, count in parts.values())
    yield _product(step, ", ".join(parts), total, inputs, bias)


def _added(model: LanguageModel, step: ModelStep) -> Iterator[Operator]:
    """The sum over GPUs, and what is added to the input of the layer."""
    if step.gpus > 1:
        count = step.tokens * model.hidden
        parts = -(-count // MAX_EXTENT)
        work = AllReduce(elements=-(-count // parts), gpus=step.gpus, precision=step.between)
        yield Operator("all-reduce", work, parts)
    yield _sum(model, step)


def _sum(model: LanguageModel, step: ModelStep) -> Operator:
    work = Add(rows=step.tokens, columns=model.hidden, precision=step.between)
    return Operator("residual", work)


# Attention ---------------------------------------------------------------------------------------


def _attention(model: LanguageModel, step: ModelStep) -> Iterator[Operator]:
    yield _norm(model, step)
    if isinstance(model.attention, Grouped):
        yield from _grouped(model, model.attention, step)
    else:
        yield from _latent(model, model.attention, step)
    yield from _added(model, step)


def _grouped(model: LanguageModel, of: Grouped, step: ModelStep) -> Iterator[Operator]:
    heads, kv_heads = step.part(of.heads, "heads"), step.kept(of.kv_heads)
    size, tokens = of.head_size, step.tokens
    parts = {"query": (heads * size, 1), "key, value": (kv_heads * size, 2)}
    yield from _products(step, parts, model.hidden, of.bias)
    if of.norms:
        yield _rows("norm of queries", step, tokens * heads, size)
        yield _rows("norm of keys", step, tokens * kv_heads, size)
    yield from _turned(step, {"queries": heads, "keys": kv_heads}, size)
    yield _cached(step, 2 * kv_heads * size)
    yield Operator("attention", _looked(model, step, heads, kv_heads, size))
    yield _product(step, "output", model.hidden, heads * size, of.output_bias)


def _turned(step: ModelStep, heads: dict[str, int], size: int) -> Iterator[Operator]:
    for name, count in heads.items():
        work = Rope(
            tokens=step.queries,
            heads=count,
            head_size=size,
            batch=step.batch,
            precision=step.between,
        )
        yield Operator(f"rope of {name}", work)


def _cached(step: ModelStep, numbers: int) -> Operator:
    """What each token adds to the cache."""
    work = Copy(rows=step.tokens, columns=numbers, precision=step.between)
    return Operator("to the cache", work)


def _looked(
    model: LanguageModel, step: ModelStep, heads: int, kv_heads: int, size: int
) -> Attention | Formula:
    keys, window = step.context, model.window or step.context
    if keys > window and step.phase == "prefill":
        pairs = step.batch * heads * formulas.windowed_pairs(keys, window)
        elements = 2 * step.tokens * (heads + kv_heads) * size
        name = f"{keys}x{keys}, window {window}"
        return formulas.attention(pairs, name, (size, size), elements, step.between)
    return Attention(
        queries=step.queries,
        keys=min(keys, window),
        heads=heads,
        kv_heads=kv_heads,
        head_size=size,
        batch=step.batch,
        causal="on",
        precision=step.between,
    )


def _latent(model: LanguageModel, of: Latent, step: ModelStep) -> Iterator[Operator]:
    """Keys and values are made of the compressed ones in prefill.

    In decode queries are compressed instead: they look at the compressed ones, which heads share.
    """
    heads, tokens = step.part(of.heads, "heads"), step.tokens
    queries, both = heads * (of.plain + of.rope), of.rank + of.rope
    if of.query_rank:
        yield _product(step, "query, compressed", of.query_rank, model.hidden)
        yield _rows("norm of queries", step, tokens, of.query_rank)
    yield _product(step, "query", queries, of.query_rank or model.hidden)
    yield _product(step, "key, value, compressed", both, model.hidden)
    yield _rows("norm of keys", step, tokens, of.rank)
    yield from _turned(step, {"queries": heads, "keys": 1}, of.rope)
    yield _cached(step, both)
    pairs = formulas.latent_pairs(step.batch, heads, step.queries, step.context)
    size = f"{step.queries}x{step.context}x{heads}"
    if step.phase == "prefill":
        made = heads * (of.plain + of.value)
        yield _product(step, "key, value", made, of.rank)
        ends = tokens * (2 * queries + 2 * heads * of.value)
        of_pair = (of.plain + of.rope, of.value)
        work = formulas.attention(pairs, size, of_pair, ends, step.between)
        yield Operator("attention", work)
    else:
        into, out = (of.rank, of.plain), (of.value, of.rank)
        yield _per_head(step, "query, into latent", heads, *into)
        ends = tokens * heads * (both + of.rank) + step.batch * step.context * both
        work = formulas.attention(pairs, size, (both, of.rank), ends, step.between)
        yield Operator("attention", work)
        yield _per_head(step, "value, out of latent", heads, *out)
    yield _product(step, "output", model.hidden, heads * of.value)


def _per_head(step: ModelStep, name: str, heads: int, outputs: int, inputs: int) -> Operator:
    """A product with a matrix for each head."""
    work = _gemm(step.tokens, outputs, inputs, step.between, heads)
    return Operator(name, work, 1, heads * outputs * inputs)


# Feed-forward layers -----------------------------------------------------------------------------


def _feed_forward(model: LanguageModel, step: ModelStep) -> Iterator[Operator]:
    yield _norm(model, step)
    inner = step.part(model.inner, "numbers of the feed-forward layer")
    yield from _gated(model, step, inner, "", model.bias)
    yield from _added(model, step)


def _gated(
    model: LanguageModel, step: ModelStep, inner: int, of: str, bias: bool = False
) -> Iterator[Operator]:
    if step.fused and not bias:
        work = _linear(step, inner, model.hidden, "swiglu")
        yield Operator(f"{of}gate, up, swiglu", work, 1, 2 * inner * model.hidden)
    else:
        for one in _products(step, {"gate, up": (inner, 2)}, model.hidden, bias):
            yield replace(one, name=of + one.name)
        activation = SwiGlu(rows=step.tokens, columns=inner, precision=step.between)
        yield Operator(f"{of}swiglu", activation)
    yield _product(step, f"{of}down", model.hidden, inner, bias)


def _experts(model: LanguageModel, step: ModelStep, of: Experts) -> Iterator[Operator]:
    yield _norm(model, step)
    tokens, plain = step.tokens, step.between
    inner = step.part(of.size, "numbers of an expert")
    used, rows = formulas.experts_used(tokens, of.count, of.chosen), tokens * of.chosen
    router = _gemm(tokens, of.count, model.hidden, plain)
    yield Operator("router", router, 1, of.count * (model.hidden + of.bias))
    sizes: Any = {"tokens": tokens, "chosen": of.chosen, "precision": plain}
    yield Operator("choice", Route(experts=of.count, **sizes))
    yield Operator("order", SortExperts(experts=of.count, **sizes))
    gathered = Embedding(tokens=rows, words=tokens, columns=model.hidden, precision=plain)
    yield Operator("dispatch", gathered)
    for name, outputs, inputs in (
        ("experts: gate, up", 2 * inner, model.hidden),
        ("experts: down", model.hidden, inner),
    ):
        products = GroupedGemm(
            tokens=rows,
            n=outputs,
            k=inputs,
            experts=max(1, round(used)),
            precision=step.precision,
        )
        yield Operator(name, products, 1, of.count * outputs * inputs)
    yield Operator("experts: swiglu", SwiGlu(rows=rows, columns=inner, precision=plain))
    yield Operator("combine", Combine(columns=model.hidden, **sizes))
    if of.shared:
        shared = step.part(of.shared, "numbers of the shared expert")
        yield from _gated(model, step, shared, "shared: ")
        yield _sum(model, step)
    yield from _added(model, step)
