"""Hugging Face's configurations of language models: what of them decides about work and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from rooflab.errors import UsageError
from rooflab.files import configs_dir
from rooflab.model.problem import MAX_EXTENT
from rooflab.runs.manifest import read_object
from rooflab.workloads import near


@dataclass(frozen=True, slots=True)
class Grouped:
    """Attention whose heads of queries share heads of keys and values."""

    heads: int
    kv_heads: int
    head_size: int
    bias: bool = False
    """Whether the products of queries, keys and values add a vector."""
    output_bias: bool = False
    norms: bool = False
    """Whether each head of queries and of keys is normalised."""


@dataclass(frozen=True, slots=True)
class Latent:
    """Attention over one compressed vector for each token: DeepSeek-AI, "DeepSeek-V2", 2024."""

    heads: int
    query_rank: int
    """Of compressed queries; 0 if they are not compressed."""
    rank: int
    """Numbers of a token's keys and values, compressed."""
    rope: int
    """Numbers of a head that are turned; those of a key are the same for all heads."""
    plain: int
    """Numbers of a query's or key's head that are not turned."""
    value: int
    """Numbers of a value's head."""


@dataclass(frozen=True, slots=True)
class Experts:
    """A feed-forward layer of which each token passes some experts, and the shared ones."""

    count: int
    chosen: int
    size: int
    shared: int = 0
    """The size of the part that all tokens pass."""
    bias: bool = False
    """Whether a vector is added before experts are chosen."""


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """A language model. ``sparse`` of its ``layers`` have ``experts``, the others ``inner``."""

    name: str
    family: str
    layers: int
    hidden: int
    inner: int
    vocabulary: int
    attention: Grouped | Latent
    tied: bool = False
    """Whether embedding and head are the same matrix."""
    bias: bool = False
    """Whether the feed-forward products add vectors."""
    experts: Experts | None = None
    sparse: int = 0
    window: int | None = None
    """Tokens that a token sees at most, itself included."""
    longest: int | None = None
    """Tokens of the longest context."""
    notes: tuple[str, ...] = ()


class Keys:
    """The keys of a configuration: those that are asked for, and those that are missing."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = content
        self.asked = {"model_type"}
        self.missing: list[str] = []

    def value(self, name: str, default: Any = None) -> Any:
        """The value; null is as if the key was not there."""
        self.asked.add(name)
        found = self._content.get(name)
        return default if found is None else found

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number, 1 or more; missing without a ``default``, which may be 0."""
        found = self.value(name, default)
        if found is None:
            self.missing.append(name)
            return 1
        least = 1 if default is None else min(1, default)
        if type(found) is not int or not least <= found <= MAX_EXTENT:
            raise UsageError(
                f"{name} = {str(found)[:40]!r} is not a whole number of {least} or more"
            )
        return found

    def several(self, name: str) -> list[Any]:
        """A list, empty by default."""
        found = self.value(name, [])
        if not isinstance(found, list):
            raise UsageError(f"{name} = {str(found)[:40]!r} is not a list")
        return found

    def flag(self, name: str, default: bool = False) -> bool:
        """Whether it is true."""
        found = self.value(name, default)
        if not isinstance(found, bool):
            raise UsageError(f"{name} = {str(found)[:40]!r} is neither true nor false")
        return found


def _grouped(
    keys: Keys, *, bias: bool | None = None, norms: bool = False, size: int | None = None
) -> Grouped:
    """``bias`` None: a key says it; ``size`` is the default of a head's."""
    heads, hidden = keys.count("num_attention_heads"), keys.count("hidden_size")
    size = keys.count("head_dim", size or hidden // heads or 1)
    if keys.value("head_dim") is None and hidden % heads and not keys.missing:
        raise UsageError(
            f"hidden_size = {hidden} is not a multiple of num_attention_heads = {heads}: "
            "give head_dim"
        )
    both = keys.flag("attention_bias") if bias is None else False
    kv_heads = keys.count("num_key_value_heads", heads)
    return Grouped(heads, kv_heads, size, bool(bias) or both, both, norms)


def _latent(keys: Keys) -> Latent:
    for name in ("num_key_value_heads", "head_dim", "qk_head_dim"):
        keys.value(name)  # they follow from the others
    if keys.flag("attention_bias"):
        raise UsageError("attention_bias = true is not known of latent attention")
    return Latent(
        keys.count("num_attention_heads"),
        keys.count("q_lora_rank", 0),
        keys.count("kv_lora_rank"),
        keys.count("qk_rope_head_dim"),
        keys.count("qk_nope_head_dim"),
        keys.count("v_head_dim"),
    )


Sparse = tuple[Experts | None, int]
"""Experts, and the number of layers that have them."""


def _mixtral(keys: Keys) -> Sparse:
    count, chosen = keys.count("num_local_experts"), keys.count("num_experts_per_tok")
    experts = Experts(count, chosen, keys.count("intermediate_size"))
    return experts, keys.count("num_hidden_layers")


def _qwen3_moe(keys: Keys) -> Sparse:
    count, chosen = keys.count("num_experts"), keys.count("num_experts_per_tok")
    step, dense = keys.count("decoder_sparse_step", 1), keys.several("mlp_only_layers")
    layers = range(keys.count("num_hidden_layers"))
    experts = Experts(count, chosen, keys.count("moe_intermediate_size"))
    return experts, sum(i not in dense and (i + 1) % step == 0 for i in layers)


def _deepseek(keys: Keys, *, bias: bool) -> Sparse:
    if not keys.count("n_routed_experts", 0):
        return None, 0
    size, chosen = keys.count("moe_intermediate_size"), keys.count("num_experts_per_tok")
    shared = keys.count("n_shared_experts", 0) * size
    first, step = keys.count("first_k_dense_replace", 0), keys.count("moe_layer_freq", 1)
    layers = range(keys.count("num_hidden_layers"))
    experts = Experts(keys.count("n_routed_experts"), chosen, size, shared, bias)
    return experts, sum(i >= first and i % step == 0 for i in layers)


def _dense(_keys: Keys) -> Sparse:
    return None, 0


FAMILIES: Final[dict[str, tuple[Callable[[Keys], Grouped | Latent], Callable[[Keys], Sparse]]]] = {
    "llama": (_grouped, _dense),
    "mistral": (partial(_grouped, bias=False), _dense),
    "mixtral": (partial(_grouped, bias=False), _mixtral),
    "qwen2": (partial(_grouped, bias=True), _dense),
    "qwen3": (partial(_grouped, norms=True, size=128), _dense),
    "qwen3_moe": (partial(_grouped, norms=True), _qwen3_moe),
    "deepseek_v2": (_latent, partial(_deepseek, bias=False)),
    "deepseek_v3": (_latent, partial(_deepseek, bias=True)),
}
"""By ``model_type`` what reads the attention, and what reads the experts."""

WINDOWS: Final = ("mistral", "mixtral")
"""Families in which ``sliding_window`` alone limits what a token sees."""

_IDLE: Final = (
    # Names, files and tokens.
    "architectures auto_map _name_or_path transformers_version torch_dtype dtype tokenizer_class "
    "bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id "
    # Numbers that change results, not work.
    "initializer_range rms_norm_eps rope_theta rope_scaling rope_parameters rope_interleave "
    "attention_dropout hidden_dropout max_window_layers pretraining_tp use_cache use_bfloat16 "
    "norm_topk_prob routed_scaling_factor scoring_func topk_method n_group topk_group "
    "aux_loss_alpha seq_aux router_aux_loss_coef router_jitter_noise ep_size "
    # What every configuration may have.
    "output_router_logits output_attentions output_hidden_states return_dict torchscript "
    "tf_legacy_loss pruned_heads chunk_size_feed_forward is_encoder_decoder is_decoder "
    "cross_attention_hidden_size add_cross_attention tie_encoder_decoder finetuning_task id2label "
    "label2id prefix task_specific_params problem_type max_length min_length do_sample "
    "early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p typical_p "
    "repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size "
    "bad_words_ids num_return_sequences return_dict_in_generate output_scores forced_bos_token_id "
    "forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens "
    "begin_suppress_tokens"
)
IDLE: Final = frozenset(_IDLE.split())
"""Keys that do not change the work of a step."""


def shipped() -> list[str]:
    """The names of the configurations that come with rooflab."""
    return sorted(path.stem for path in (configs_dir() / "models").glob("*.json"))


def read(given: str) -> LanguageModel:
    """A model by the path of its configuration, or of its folder, or by the name of a shipped one.

    Raises ``UsageError`` or ``RunError``, one line each.
    """
    path = Path(given)
    if path.is_dir():
        path /= "config.json"
    if not path.exists() and path.suffix != ".json":
        if given not in shipped():
            raise UsageError(f"no configuration {given[:80]!r}: {near(given, shipped())}")
        path = configs_dir() / "models" / f"{given}.json"
    name = path.parent.resolve().name if path.name == "config.json" else path.stem
    try:
        return parse(name, read_object(path, "a configuration of a model"))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def parse(name: str, content: Mapping[str, Any]) -> LanguageModel:
    """The model of a configuration; raises ``UsageError``."""
    family = content.get("model_type")
    if family not in FAMILIES:
        what = (
            f"model_type {str(family)[:40]!r} is not known" if family else "model_type is missing"
        )
        raise UsageError(f"{what}: there are {', '.join(FAMILIES)}")
    keys = Keys(content)
    read_attention, read_experts = FAMILIES[family]
    attention, (experts, sparse) = read_attention(keys), read_experts(keys)
    model = LanguageModel(
        name=name,
        family=family,
        layers=keys.count("num_hidden_layers"),
        hidden=keys.count("hidden_size"),
        inner=keys.count("intermediate_size"),
        vocabulary=keys.count("vocab_size"),
        attention=attention,
        tied=keys.flag("tie_word_embeddings"),
        bias=keys.flag("mlp_bias"),
        experts=experts,
        sparse=sparse,
        window=_window(keys, family),
        longest=keys.count("max_position_embeddings", 0) or None,
        notes=tuple(_notes(keys)),
    )
    _refuse(keys, experts)
    if unknown := sorted(set(content) - keys.asked - IDLE):
        told = f"unknown keys, taken to change nothing: {', '.join(unknown)}"
        return replace(model, notes=(*model.notes, told))
    return model


def _window(keys: Keys, family: str) -> int | None:
    window = keys.count("sliding_window", 0) or None
    return window if family in WINDOWS else None


def _notes(keys: Keys) -> Iterable[str]:
    if quantised := keys.value("quantization_config"):
        method = quantised.get("quant_method", "") if isinstance(quantised, Mapping) else ""
        yield f"its weights are quantised ({method}): here they have the type of --precision"
    if keys.count("num_nextn_predict_layers", 0):
        yield "layers that predict further tokens are left out"


def _refuse(keys: Keys, experts: Experts | None) -> None:
    """Raise ``UsageError`` for keys that are missing, and for work that is not known."""
    if keys.missing:
        raise UsageError(f"missing: {', '.join(dict.fromkeys(keys.missing))}")
    if experts and experts.chosen > experts.count:
        raise UsageError(
            f"num_experts_per_tok = {experts.chosen} are more than all {experts.count}"
        )
    if (activation := keys.value("hidden_act", "silu")) != "silu":
        raise UsageError(f"hidden_act = {str(activation)[:40]!r} is not known: only silu")
    if keys.flag("use_sliding_window"):
        raise UsageError("use_sliding_window = true is not known")
    kinds = {str(kind) for kind in keys.several("layer_types")}
    if other := kinds - {"full_attention"}:
        raise UsageError(f"layer_types: {', '.join(sorted(other))[:80]} is not known")
