"""Reading Hugging Face's configurations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rooflab.errors import UsageError
from rooflab.files import configs_dir
from rooflab.llm.config import FAMILIES, Experts, Grouped, Latent, parse, read, shipped


def content(name: str, **changes: Any) -> dict[str, Any]:
    """A shipped configuration with other keys; None takes one away."""
    found = json.loads((configs_dir() / "models" / f"{name}.json").read_text()) | changes
    return {key: value for key, value in found.items() if value is not None}


def refused(given: dict[str, Any]) -> str:
    with pytest.raises(UsageError) as error:
        parse("mine", given)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_model_is_read_without_remarks(name: str) -> None:
    model = read(name)
    assert model.name == name and model.family in FAMILIES
    assert model.notes == ()


def test_what_decides_about_work() -> None:
    assert read("llama-3.1-8b").attention == Grouped(32, 8, 128)
    assert read("qwen2.5-7b").attention == Grouped(28, 4, 128, bias=True)
    assert read("qwen3-30b-a3b").attention == Grouped(32, 4, 128, norms=True)
    assert read("deepseek-v3").attention == Latent(128, 1536, 512, 64, 128, 128)
    assert read("deepseek-v3").experts == Experts(256, 8, 2048, 2048, bias=True)
    assert (read("deepseek-v3").sparse, read("mixtral-8x7b").sparse) == (58, 32)


def test_a_path_and_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(content("llama-3.1-8b")))
    assert read(str(folder)) == read(str(folder / "config.json"))
    assert read(str(folder)).name == "mine"


def test_an_unknown_family() -> None:
    unknown = refused({"model_type": "a"})
    assert unknown.startswith('model_type "a" is not known: there are ')
    assert unknown.endswith("; if it has the layers of one of them, write that one")
    assert "model_type is missing" in refused({})
    assert 'model_type ["llama"] is not known' in refused({"model_type": ["llama"]})


def test_the_part_of_a_model_that_is_not_its_language() -> None:
    given = {"model_type": "llava", "text_config": content("llama-3.1-8b")}
    said = 'model_type "llava" is not known: give its text_config as a file of its own'
    assert refused(given) == said


def test_missing_keys_are_named() -> None:
    given = content("llama-3.1-8b", vocab_size=None, num_attention_heads=None)
    assert refused(given) == "missing: num_attention_heads, vocab_size"
    assert "kv_lora_rank" in refused(content("deepseek-v3", kv_lora_rank=None))
    assert "num_local_experts" in refused(content("mixtral-8x7b", num_local_experts=None))
    assert "num_key_value_heads" in refused(content("mistral-7b", num_key_value_heads=None))
    alone = parse("mine", content("llama-3.1-8b", num_key_value_heads=None)).attention
    assert alone == Grouped(32, 32, 128)  # as in the first Llama


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_act": "gelu"}, 'hidden_act = "gelu" is not known'),
        ({"hidden_size": "many"}, 'hidden_size = "many" is not a whole number from 1 to 16777216'),
        ({"hidden_size": True}, "hidden_size = true is not"),
        ({"hidden_size": 10**30}, "hidden_size = 1000000000000000000000000000000 is not"),
        (
            {"hidden_size": list(range(99))},
            "hidden_size = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, … is",
        ),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0 is not"),
        ({"num_key_value_heads": 3}, "heads = 32 is not a multiple of num_key_value_heads = 3"),
        ({"head_dim": 127}, "a head has 127 numbers, which have no halves: give an even head_dim"),
        ({"num_attention_heads": 30}, "not a multiple of num_attention_heads = 30: give head_dim"),
        ({"tie_word_embeddings": "no"}, 'tie_word_embeddings = "no" is neither true nor false'),
        ({"use_sliding_window": True}, "use_sliding_window = true is not known"),
        ({"layer_types": ["full_attention", "chunked"]}, "layer_types: chunked is not known"),
        ({"layer_types": 3}, "layer_types = 3 is not a list of names"),
    ],
)
def test_work_that_is_not_known(changes: dict[str, Any], said: str) -> None:
    assert said in refused(content("llama-3.1-8b", **changes))


def test_unknown_keys_and_what_is_left_out_are_named() -> None:
    changes = {"colour": 1, "num_nextn_predict_layers": 1, "torch_dtype": "bfloat16"}
    quantised = {"quantization_config": {"quant_method": "fp8"}}
    notes = parse("mine", content("deepseek-v3", **changes, **quantised)).notes
    assert len(notes) == 3
    assert "quantised (fp8)" in notes[0] and "further tokens" in notes[1]
    assert notes[2] == "unknown keys, taken to change nothing: colour"
    many = parse("mine", content("llama-3.1-8b") | {f"key {i}": i for i in range(99)}).notes
    assert many[0].endswith(" and 87 more") and len(many[0]) < 200


@pytest.mark.parametrize(
    "given", [True, {}, {"quant_method": {"a": 1}}, {"quant_method": "x" * 99}]
)
def test_weights_that_are_quantised(given: Any) -> None:
    notes = parse("mine", content("llama-3.1-8b", quantization_config=given)).notes
    assert all(one.startswith("its weights are quantised") and len(one) < 120 for one in notes)
    assert len(notes) == (given != {})


def test_a_window_counts_where_it_is_used() -> None:
    assert parse("mine", content("mistral-7b", sliding_window=4096)).window == 4096
    assert parse("mine", content("qwen2.5-7b", sliding_window=4096)).window is None
    missing = parse("mine", content("mistral-7b"))  # without the null
    assert missing.window is None
    assert missing.notes == ("sliding_window is missing: taken as none",)


def test_vectors_of_feed_forward_layers_count_where_they_are_used() -> None:
    assert parse("mine", content("llama-3.1-8b", mlp_bias=True)).bias
    other = parse("mine", content("qwen2.5-7b", mlp_bias=True))
    assert not other.bias and "mlp_bias" in other.notes[0]


def test_layers_with_experts() -> None:
    given = content("qwen3-30b-a3b", mlp_only_layers=[0, 1], decoder_sparse_step=2)
    assert parse("mine", given).sparse == 23  # the odd ones, without 1
    assert "not a list of whole numbers" in refused(given | {"mlp_only_layers": ["0"]})
    none = parse("mine", content("deepseek-v3", n_routed_experts=None))
    assert (none.experts, none.sparse) == (None, 0)


def test_more_experts_for_a_token_than_there_are() -> None:
    said = refused(content("mixtral-8x7b", num_experts_per_tok=9))
    assert said == "num_experts_per_tok = 9 are more than all 8"


def test_a_name_that_is_not_shipped() -> None:
    with pytest.raises(UsageError, match=r"did you mean llama-3\.1-8b\? \(or give a config\.json"):
        read("llama-3-8b")


@pytest.mark.parametrize("given", ["", "none.json", "x" * 5000, "a\0b"])
def test_what_is_no_file(given: str) -> None:
    with pytest.raises(UsageError, match=r"no configuration .*: there are deepseek") as error:
        read(given)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("written", [b"", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"a": NaN}'])
def test_what_is_no_configuration(tmp_path: Path, written: bytes) -> None:
    (tmp_path / "mine.json").write_bytes(written)
    with pytest.raises(UsageError, match=r"mine.json: not a configuration .* give a model's"):
        read(str(tmp_path / "mine.json"))


def test_a_device_that_never_ends_is_not_read_to_its_end() -> None:
    with pytest.raises(UsageError, match="it is too large"):
        read("/dev/zero")


def test_a_folder_without_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    with pytest.raises(UsageError, match=r"the folder 'mine' has no config\.json: there are"):
        read("mine")
    Path("qwen3-8b").mkdir()
    assert read("qwen3-8b").layers == 36  # the shipped one
