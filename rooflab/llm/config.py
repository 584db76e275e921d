"""Hugging Face's configurations of language models: what of them decides about work and memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from rooflab.errors import RunError, UsageError
from rooflab.files import configs_dir
from rooflab.runs.manifest import read_object
from rooflab.runs.text import clean
from rooflab.workloads import near

LARGEST: Final = 2**24
"""The largest number of a configuration; larger values are taken for mistakes."""

NAMED: Final = 12
"""Unknown keys that are named."""


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
        if type(found) is not int or not least <= found <= LARGEST:
            raise UsageError(
                f"{name} = {_shown(found)} is not a whole number from {least} to {LARGEST}"
            )
        return found

    def several(self, name: str, kind: type) -> list[Any]:
        """A list of values of one kind, empty by default."""
        found = self.value(name, [])
        if not isinstance(found, list) or not all(type(one) is kind for one in found):
            what = {int: "whole numbers", str: "names"}[kind]
            raise UsageError(f"{name} = {_shown(found)} is not a list of {what}")
        return found

    def flag(self, name: str, default: bool = False) -> bool:
        """Whether it is true."""
        found = self.value(name, default)
        if not isinstance(found, bool):
            raise UsageError(f"{name} = {_shown(found)} is neither true nor false")
        return found

    def has(self, name: str) -> bool:
        """Whether the key is there, be it null."""
        return name in self._content


def _shown(value: Any) -> str:
    """A value as it is in the file, of some length at most."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _grouped(
    keys: Keys,
    *,
    bias: bool | None = None,
    norms: bool = False,
    size: int | None = None,
    shared: bool = True,
) -> Grouped:
    """``bias`` None: a key says it; ``size`` is the default of a head's.

    Without ``shared`` each head of queries has its own of keys, unless a key says otherwise.
    """
    heads, hidden = keys.count("num_attention_heads"), keys.count("hidden_size")
    size = keys.count("head_dim", size or hidden // heads or 1)
    if keys.value("head_dim") is None and hidden % heads and not keys.missing:
        raise UsageError(
            f"hidden_size = {hidden} is not a multiple of num_attention_heads = {heads}: "
            "give head_dim"
        )
    both = keys.flag("attention_bias") if bias is None else False
    kv_heads = keys.count("num_key_value_heads", None if shared else heads)
    if heads % kv_heads and not keys.missing:
        raise UsageError(
            f"num_attention_heads = {heads} is not a multiple of num_key_value_heads = {kv_heads}"
        )
    if size % 2 and not keys.missing:
        raise UsageError(f"a head has {size} numbers, which have no halves: give an even head_dim")
    return Grouped(heads, kv_heads, size, bool(bias) or both, both, norms)


def _latent(keys: Keys) -> Latent:
    for name in ("num_key_value_heads", "head_dim", "qk_head_dim"):
        keys.value(name)  # they follow from the others
    if keys.flag("attention_bias"):
        raise UsageError("attention_bias = true is not known of latent attention")
    rope = keys.count("qk_rope_head_dim")
    if rope % 2 and not keys.missing:
        raise UsageError(f"qk_rope_head_dim = {rope} has no halves: give an even number")
    return Latent(
        keys.count("num_attention_heads"),
        keys.count("q_lora_rank", 0),
        keys.count("kv_lora_rank"),
        rope,
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
    step, dense = keys.count("decoder_sparse_step", 1), set(keys.several("mlp_only_layers", int))
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
    "llama": (partial(_grouped, shared=False), _dense),
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
    "use_mrope attention_dropout hidden_dropout max_window_layers pretraining_tp use_cache "
    "use_bfloat16 norm_topk_prob routed_scaling_factor scoring_func topk_method n_group topk_group "
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
    path = _path(given)
    name = path.parent.resolve().name if path.name == "config.json" else path.stem
    try:
        return parse(clean(name), read_object(path, "a configuration of a model"))
    except RunError as error:
        raise UsageError(f"{error}: give a model's config.json") from None
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _path(given: str) -> Path:
    """The file of a configuration: as it is given, in the folder, or the shipped one."""
    path = Path(given)
    try:
        found = next((one for one in (path / "config.json", path) if one.exists()), None)
    except (OSError, ValueError):  # no name of a file
        found = None
    if found and not found.is_dir():
        return found
    if given in shipped():
        return configs_dir() / "models" / f"{given}.json"
    shown = repr(given[:80])
    if given and found:
        raise UsageError(f"the folder {shown} has no config.json: {near(given, shipped())}")
    raise UsageError(f"no configuration {shown}: {near(given, shipped())} (or give a config.json)")


def parse(name: str, content: Mapping[str, Any]) -> LanguageModel:
    """The model of a configuration; raises ``UsageError``."""
    family = content.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        known = family is None or family == ""
        what = "model_type is missing" if known else f"model_type {_shown(family)} is not known"
        inner = content.get("text_config")
        if isinstance(inner, Mapping) and "model_type" in inner:
            raise UsageError(f"{what}: give its text_config as a file of its own")
        there = f"there are {', '.join(FAMILIES)}"
        raise UsageError(f"{what}: {there}; if it has the layers of one of them, write that one")
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
        bias=family == "llama" and keys.flag("mlp_bias"),
        experts=experts,
        sparse=sparse,
        window=_window(keys, family),
        longest=keys.count("max_position_embeddings", 0) or None,
        notes=tuple(_notes(keys, family)),
    )
    _refuse(keys, experts)
    if unknown := sorted(set(content) - keys.asked - IDLE):
        names = ", ".join(name[:40] for name in unknown[:NAMED])
        more = f" and {len(unknown) - NAMED} more" if len(unknown) > NAMED else ""
        told = f"unknown keys, taken to change nothing: {names}{more}"
        return replace(model, notes=(*model.notes, told))
    return model


def _window(keys: Keys, family: str) -> int | None:
    window = keys.count("sliding_window", 0) or None
    return window if family in WINDOWS else None


def _notes(keys: Keys, family: str) -> Iterable[str]:
    if quantised := keys.value("quantization_config"):
        method = quantised.get("quant_method") if isinstance(quantised, Mapping) else None
        how = f" ({method[:40]})" if isinstance(method, str) and method else ""
        yield f"its weights are quantised{how}: here they have the type of --precision"
    if family == "mistral" and not keys.has("sliding_window"):  # not null, which is none
        yield "sliding_window is missing: taken as none"
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
    if (activation := keys.value("hidden_act", "silu")) not in ("silu", "swish"):  # the same
        raise UsageError(f"hidden_act = {_shown(activation)} is not known: only silu")
    if keys.flag("use_sliding_window"):
        raise UsageError("use_sliding_window = true is not known")
    if other := set(keys.several("layer_types", str)) - {"full_attention"}:
        raise UsageError(f"layer_types: {', '.join(sorted(other))[:80]} is not known")
