"""Proves what a quantised checkpoint leaves in 16 bits, read from the lists of its config as engines match them."""

from collections.abc import Iterable
from typing import Any

import pytest

from memplan.arch.unquantised import Left, left
from memplan.engine.generation.weights import least_bytes, weights_bytes
from memplan.gpus import find_gpu
from memplan.models import load_model
from memplan.spec.generation import Generator
from memplan.spec.model import ModelSpec
from memplan.tables.quantizations import Stored
from memplan.units import GiB

HYBRID = {"num_hidden_layers": 8, "full_attention_interval": 4}
LINEAR = [0, 1, 2, 4, 5, 6]
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def read(*entries: object, key: str = "ignore", **keys: Any) -> Left | None:
    """Of one list of a config."""
    return left({key: list(entries)}, {"text_config": keys or HYBRID})


def each(*names: str) -> Left:
    """In every layer."""
    return Left(frozenset(names))


def of(layers: Iterable[int], *names: str) -> Left:
    """In these layers."""
    return Left(layers=tuple((number, frozenset(names)) for number in layers))


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        (("lm_head", "re:.*visual.*", "re:.*mlp.gate$", "re:.*shared_expert_gate$", "re:.*embed_tokens$"), each()),
        (("re:.*linear_attn.*", "re:.*mtp.*"), each("linear_attn", "mtp")),
        (("model.layers.*.linear_attn*", "*lm_head*", "model.visual*"), each("linear_attn")),
        (("linear_attn", "visual"), each("linear_attn")),
        (("*self_attn*", "*.mlp.shared_experts.*", "*mlp.shared_expert*"), each("self_attn", "mlp.shared_expert")),
        ((r"re:.*linear_attn\.in_proj_a$",), each("linear_attn.in_proj_a")),
        (tuple(f"model.language_model.layers.{i}.linear_attn" for i in LINEAR), of(LINEAR, "linear_attn")),
        (tuple(f"model.layers.{i}.self_attn.{leaf}" for i in (3, 7) for leaf in ATTENTION), of(
            (3, 7), *(f"self_attn.{leaf}" for leaf in ATTENTION)
        )),
        (tuple(f"model.layers.{i}.self_attn*" for i in (3, 7)), of((3, 7), "self_attn")),
        (("model.layers.8.eh_proj", "model.layers.8.mlp.gate_proj"), each("mtp")),
        (("model.layers.8.mlp.gate_proj", "model.layers.0.linear_attn.conv1d"), each("mtp")),
        (tuple(f"model.layers.{i}.mlp.experts.{i}.up_proj" for i in range(8)), of(range(8), "mlp.experts.up_proj")),
        (tuple(f"model.layers.{i}.mlp.shared_experts" for i in range(8)), of(range(8), "mlp.shared_expert")),
        (("model.layers.0.linear_attn", "model.layers.1.linear_attn"), of((0, 1), "linear_attn")),
        ((r"re:.*layers\.7\.self_attn.*",), of((7,), "self_attn")),
        (("backbone.layers.0.mixer.in_proj", "backbone.layers.1.mixer.conv1d"), of((0,), "mamba.in_proj")),
        (("backbone.layers.3.mixer",), of((3,), "mamba", "self_attn", "mlp")),
        (("backbone.layers.0.mixer.nobody",), None),
        (("re:.*nobody.*",), None),
        (("re:(",), None),
        ((3,), None),
    ],
)  # fmt: skip
def test_lists_are_read_where_each_entry_is_understood(entries: tuple[object, ...], found: Left | None) -> None:
    assert read(*entries) == found


def test_each_name_of_the_list_is_a_key_and_no_list_leaves_nothing() -> None:
    assert left({}, {}) == each()
    for key in ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers"):
        assert read("re:.*self_attn.*", key=key) == each("self_attn")
    assert read("model.layers.0.self_attn", num_hidden_layers=1) == of((0,), "self_attn")
    assert read("model.layers.1.mlp", layer_types=["full", "linear"]) == of((1,), "mlp")
    assert left({"ignore": "lm_head"}, {}) is None


def served(model: str, kind: str, *plain: str, **given: Any) -> Generator:
    """An engine of a checkpoint in a format, or of none, which leaves some modules in 16 bits."""
    stored = Stored(kind, plain=frozenset(plain)) if kind else None
    spec: ModelSpec = load_model(model).model_copy(update={"quantization": stored})
    sizes = {"max_model_len": 4096, "max_num_seqs": 256, "max_num_batched_tokens": 8192, "separate": True}
    return Generator("vllm", "0.20.0", spec, **(sizes | given))


@pytest.mark.parametrize(
    ("model", "left_in", "weights"),
    [
        ("qwen3.5-35b-a3b", ("linear_attn",), 21.86),  # a log's
        ("qwen3.5-35b-a3b", (), 20.5076),
        ("qwen3.5-27b", (), 18.6251),
        ("qwen3.5-27b", ("self_attn",), 20.8386),  # 16 × 20,480 × 5,120 weights of 2 bytes, rounded by blocks
    ],
)
def test_what_is_left_is_in_16_bits(model: str, left_in: tuple[str, ...], weights: float) -> None:
    found = served(model, "compressed-tensors nvfp4", *left_in)
    assert weights_bytes(found) / GiB == pytest.approx(weights, rel=1e-3)


def test_where_all_is_left_nothing_is_quantised() -> None:
    all_of = ("mlp.experts", "mlp.shared_expert", "linear_attn", "self_attn")
    plain = weights_bytes(served("qwen3.5-35b-a3b", ""))
    assert weights_bytes(served("qwen3.5-35b-a3b", "compressed-tensors nvfp4", *all_of)) == plain


def test_a_format_that_a_job_names_leaves_what_published_files_do_and_may_leave_nothing() -> None:
    usual, own = served("qwen3.5-27b", "", quantization="nvfp4"), served("qwen3.5-27b", "modelopt nvfp4")
    gpu = find_gpu("rtx-5090-32gb")
    assert least_bytes(usual, gpu) == weights_bytes(own, gpu) < weights_bytes(usual, gpu)
    assert least_bytes(own, gpu) == weights_bytes(own._replace(quantization="nvfp4"), gpu) == weights_bytes(own, gpu)


def test_layers_that_draft_are_left_apart() -> None:
    from memplan.spec.generation import Draft

    packed = served("qwen3.5-27b", "modelopt nvfp4", draft=Draft(layers=1))
    plain = served("qwen3.5-27b", "modelopt nvfp4", "mtp", draft=Draft(layers=1))
    assert weights_bytes(plain) - weights_bytes(packed) > 500e6


NEMOTRON = {
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "M-M-M-MM-M-M*-M-M*-M-M-M*-M-M-MM*-MMM-M-M-",
    "hidden_size": 3136,
    "intermediate_size": 12544,
    "vocab_size": 131072,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "mamba_num_heads": 96,
    "mamba_head_dim": 80,
    "n_groups": 8,
    "ssm_state_size": 128,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "mlp_bias": False,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "mlp_hidden_act": "relu2",
    "max_position_embeddings": 262144,
}
"""Of NVIDIA-Nemotron-3-Nano-4B, with layers in some order."""


def test_layers_of_a_kind_may_differ_in_what_is_left() -> None:
    """The FP8 file keeps attention and the mixers before it in 16 bits: 4.9054 GiB of a log that rounds nothing."""
    kinds = str(NEMOTRON["hybrid_override_pattern"])
    plain = [i for i, kind in enumerate(kinds) if kind == "*" or (kind == "M" and "*" in kinds[i + 1 : i + 2])]
    section = {"quant_method": "modelopt", "quant_algo": "FP8"}
    names = [f"backbone.layers.{i}.mixer" for i in plain] + ["lm_head"]
    spec = load_model({**NEMOTRON, "quantization_config": {**section, "exclude_modules": names}})
    found = Generator("vllm", "0.13.0", spec, max_num_seqs=256, max_num_batched_tokens=2048, separate=True)
    assert len(plain) == 8
    assert weights_bytes(found) / GiB == pytest.approx(4.9054, rel=4e-3)
