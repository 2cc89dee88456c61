"""Proves that a config that memplan cannot describe, or that cannot be, is one clear error at once, never a guess."""

from typing import Any

import pytest
from drawing import examples, over
from hypothesis import given
from hypothesis import strategies as st

from memplan.arch import FAMILIES, dense, moe, parse_config
from memplan.errors import EXIT_MODEL, MemplanError, ModelError, UnknownArchitecture
from memplan.spec.model import ModelSpec

SMALL: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
}


def parse(model_type: str, **keys: Any) -> ModelSpec:
    """A small model of this type."""
    return parse_config({"model_type": model_type, **SMALL, **keys}, "small")


@pytest.mark.parametrize(
    ("config", "message", "hint"),
    [
        ({"model_type": "gemma5", "vision_config": {}}, "'gemma5'", "gemma4"),
        ({"model_type": "qwen9_next"}, "'qwen9_next'", "qwen3_next"),
        ({"model_type": "Llama"}, "'Llama'", "llama"),
        ({"model_type": "zzz", "architectures": ["ZzzForCausalLM"]}, "ZzzForCausalLM", "llama, mistral"),
        ({"model_type": "x" * 10_000}, "...", "memplan show models"),
        ({}, "names no model_type", "llama"),
        ({"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM", "llama"),
        ({"model_type": None}, "names no model_type", "llama"),
        ({"model_type": ["llama"]}, "names no model_type", "llama"),
    ],
)
def test_unknown_architectures(config: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(UnknownArchitecture) as caught:
        parse_config(config, "x")
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.exit_code == EXIT_MODEL
    assert len(caught.value.message) < 300
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "keys",
    [
        {"vision_config": {"hidden_size": 8}},
        {"num_experts": 8},
        {"num_local_experts": 8},
        {"kv_lora_rank": 512},
        {"layers_block_type": ["mamba"] * 6},
        {"per_layer_config": {"0": {"intermediate_size": 8}}},
        {"use_qk_norm": True},
        {"lm_head_bias": True},
        {"final_logit_softcapping": 30.0},
    ],
    ids=str,
)
def test_keys_of_another_kind_of_model_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(UnknownArchitecture, match=next(iter(keys))):
        parse("llama", **keys)
    off: dict[str, Any] = dict.fromkeys(keys)
    assert parse("llama", **off).params == parse("llama").params


def test_biases_that_a_class_does_not_build_are_refused() -> None:
    assert parse("mistral", num_key_value_heads=2, attention_bias=False, mlp_bias=False)
    with pytest.raises(UnknownArchitecture, match="attention_bias"):
        parse("mistral", num_key_value_heads=2, attention_bias=True)


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        ("gemma3_text", "use_bidirectional_attention", True),
        ("mixtral", "router_jitter_noise", 0.01),
        ("exaone_moe", "output_router_logits", True),
        ("cohere2_moe", "output_router_logits", True),
    ],
)
def test_keys_that_add_memory_uncounted_are_refused(model_type: str, key: str, value: object) -> None:
    assert parse(model_type, num_key_value_heads=2, **{key: 0 if isinstance(value, float) else False})
    with pytest.raises(ModelError, match=key) as caught:
        parse(model_type, num_key_value_heads=2, **{key: value})
    assert "set it to" in caught.value.hint


BAD_INTEGERS = [0, -1, 1.5, 64.0, True, "64", None, float("nan"), float("inf"), [64], {}, 10**9 + 1, 10**5000]


@pytest.mark.parametrize("value", BAD_INTEGERS, ids=lambda value: str(type(value).__name__))
@pytest.mark.parametrize("key", SMALL)
def test_sizes_are_integers_in_range(key: str, value: object) -> None:
    with pytest.raises(ModelError, match=key) as caught:
        parse("llama", **{key: value})
    assert len(caught.value.message) < 200
    assert "correct" in caught.value.hint


@pytest.mark.parametrize(
    ("model_type", "keys", "named"),
    [
        ("llama", {"num_key_value_heads": 3}, "num_key_value_heads"),
        ("llama", {"num_key_value_heads": 8}, "num_key_value_heads"),
        ("llama", {"num_attention_heads": 5}, "num_attention_heads"),
        ("llama", {"hidden_size": 66, "head_dim": 16}, "hidden_size"),
        ("qwen2", {"num_attention_heads": 5, "num_key_value_heads": 5}, "hidden_size"),
        ("llama", {"head_dim": 15}, "head_dim"),
        ("llama", {"head_dim": "16"}, "head_dim"),
        ("llama", {"tie_word_embeddings": None}, "tie_word_embeddings"),
        ("llama", {"tie_word_embeddings": "false"}, "tie_word_embeddings"),
        ("llama", {"attention_bias": 1}, "attention_bias"),
        ("llama", {"hidden_act": "xielu"}, "hidden_act"),
        ("llama", {"hidden_act": ["silu"]}, "hidden_act"),
        ("gemma2", {"hidden_activation": None}, "hidden_activation"),
        ("llama", {"torch_dtype": "bf17"}, "torch_dtype"),
        ("llama", {"dtype": {"": "float32"}}, "dtype"),
        ("llama", {"quantization_config": "gptq"}, "quantization_config"),
        ("llama", {"quantization_config": {"bits": 4}}, "quant_method"),
        ("mistral", {"num_key_value_heads": 2, "sliding_window": 0}, "sliding_window"),
        ("gemma2", {"sliding_window": None}, "sliding_window"),
        ("gemma2", {"attn_logit_softcapping": -1}, "attn_logit_softcapping"),
        ("gemma2", {"final_logit_softcapping": float("nan")}, "final_logit_softcapping"),
        ("gemma3_text", {"sliding_window_pattern": 0}, "sliding_window_pattern"),
        ("gemma3_text", {"layer_types": ["full_attention"]}, "layer_types"),
        ("gemma3_text", {"layer_types": ["full_attention"] * 5 + ["chunked_attention"]}, "layer_types"),
        ("gemma3_text", {"layer_types": 6}, "layer_types"),
        ("qwen2", {"num_key_value_heads": 2, "layer_types": ["sliding_attention"] * 6}, "sliding_window"),
        ("llama", {"layer_types": ["full_attention"] * 5 + ["sliding_attention"]}, "layer_types"),
        ("mistral", {"num_key_value_heads": 2, "layer_types": ["full_attention"] * 6}, "layer_types"),
        ("qwen2", {"num_key_value_heads": 2, "use_sliding_window": None}, "use_sliding_window"),
        ("qwen2", {"num_key_value_heads": 2, "use_sliding_window": True, "max_window_layers": -1}, "max_window_layers"),
        ("mixtral", {"num_key_value_heads": 2, "num_experts_per_tok": 9}, "num_experts_per_tok"),
        ("mixtral", {"num_key_value_heads": 2, "num_local_experts": 8, "num_experts": 4}, "num_experts"),
        ("mixtral", {"num_key_value_heads": 2, "num_local_experts": 0}, "num_local_experts"),
        ("qwen3_moe", {"num_experts": 4}, "num_experts_per_tok"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ("qwen3_moe", {"mlp_only_layers": 3}, "mlp_only_layers"),
        ("qwen3_moe", {"mlp_only_layers": ["3"]}, "mlp_only_layers"),
        ("qwen3_moe", {"norm_topk_prob": "yes"}, "norm_topk_prob"),
    ],
    ids=str,
)
def test_impossible_values(model_type: str, keys: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named) as caught:
        parse(model_type, **keys)
    assert caught.value.hint


def test_a_config_must_be_an_object() -> None:
    with pytest.raises(ModelError, match="must be an object"):
        parse_config([], "x")  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{"num_hidden_layers": 10**9}, {"layer_types": ["full_attention"] * 10**6}], ids=list)
@over(list(FAMILIES))
def test_hostile_sizes_are_refused_or_not_read(model_type: str, keys: dict[str, Any]) -> None:
    """A class with other names for its layers, or none of its own, does not read these."""
    usual = parse_or_none(model_type)
    found = parse_or_none(model_type, **keys)
    assert found is None or usual is None or found.num_layers == usual.num_layers
    if model_type in USUAL:
        assert found is None


USUAL = {row.model_type for row in (*dense.ROWS, *moe.ROWS)}


def parse_or_none(model_type: str, **keys: Any) -> ModelSpec | None:
    """A small model, or nothing where it is refused."""
    try:
        return parse(model_type, num_key_value_heads=2, **keys)
    except ModelError:
        return None


KEYS = sorted({key for row in (*dense.ROWS, *moe.ROWS) for key in row.defaults} | {"layer_types", "torch_dtype"})
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([1, 2, 8, 64, 1000]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)


def outcome(model_type: str, keys: dict[str, Any]) -> ModelSpec | MemplanError:
    """The model, or the error; anything else that is raised fails the test."""
    try:
        return parse(model_type, **keys)
    except MemplanError as error:
        return error


@examples(300)
@given(st.sampled_from(sorted(FAMILIES)), st.dictionaries(st.sampled_from(KEYS), JUNK, max_size=3))
def test_a_mangled_config_is_a_model_or_a_clear_error(model_type: str, mangled: dict[str, Any]) -> None:
    found = outcome(model_type, mangled)
    if isinstance(found, ModelSpec):
        assert sum(found.params.by_category.values()) == found.params.total > 0
    else:
        assert found.exit_code == EXIT_MODEL
        assert found.hint
        assert "\n" not in found.message
        assert len(found.message) < 400
