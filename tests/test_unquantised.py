"""Proves what a quantised checkpoint leaves in 16 bits, read from the lists of its config as engines match them."""

from typing import Any

import pytest

from memplan.arch.unquantised import left
from memplan.engine.generation.weights import least_bytes, weights_bytes
from memplan.gpus import find_gpu
from memplan.models import load_model
from memplan.spec.generation import Generator
from memplan.spec.model import ModelSpec
from memplan.units import GiB

HYBRID = {"num_hidden_layers": 8, "full_attention_interval": 4}
LINEAR = [0, 1, 2, 4, 5, 6]
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def read(*entries: object, key: str = "ignore", **keys: Any) -> tuple[str, ...] | None:
    """Of one list of a config."""
    return left({key: list(entries)}, {"text_config": keys or HYBRID})


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        (("lm_head", "re:.*visual.*", "re:.*mlp.gate$", "re:.*shared_expert_gate$", "re:.*embed_tokens$"), ()),
        (("re:.*linear_attn.*", "re:.*mtp.*"), ("linear_attn", "mtp")),
        (("model.layers.*.linear_attn*", "*lm_head*", "model.visual*"), ("linear_attn",)),
        (("linear_attn", "visual"), ("linear_attn",)),
        ((r"re:.*linear_attn\.in_proj_a$",), ("linear_attn.in_proj_a",)),
        (tuple(f"model.language_model.layers.{i}.linear_attn" for i in LINEAR), ("linear_attn",)),
        (tuple(f"model.layers.{i}.self_attn.{leaf}" for i in (3, 7) for leaf in ATTENTION), (
            *(f"self_attn.{leaf}" for leaf in sorted(ATTENTION)),
        )),
        (tuple(f"model.layers.{i}.self_attn*" for i in (3, 7)), ("self_attn",)),
        (("model.layers.8.eh_proj", "model.layers.8.mlp.gate_proj"), ("mtp",)),
        (("model.layers.8.mlp.gate_proj", "model.layers.0.linear_attn.conv1d"), ("mtp",)),
        (tuple(f"model.layers.{i}.mlp.experts.{i}.up_proj" for i in range(8)), ("mlp.experts.up_proj",)),
        (tuple(f"model.layers.{i}.mlp.shared_experts" for i in range(8)), ("mlp.shared_expert",)),
        (("model.layers.0.linear_attn", "model.layers.1.linear_attn"), None),
        ((r"re:.*layers\.0\..*",), None),
        (("backbone.layers.0.mixer.in_proj",), None),
        (("re:.*nobody.*",), None),
        (("re:(",), None),
        ((3,), None),
    ],
)  # fmt: skip
def test_lists_are_read_where_each_entry_is_understood_and_layers_are_alike(
    entries: tuple[object, ...], found: tuple[str, ...] | None
) -> None:
    assert read(*entries) == found


def test_each_name_of_the_list_is_a_key_and_no_list_leaves_nothing() -> None:
    assert left({}, {}) == ()
    for key in ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers"):
        assert read("re:.*self_attn.*", key=key) == ("self_attn",)
    assert read("model.layers.0.self_attn", num_hidden_layers=1) == ("self_attn",)
    assert read("model.layers.1.mlp", layer_types=["full", "linear"]) == ("mlp",)
    assert left({"ignore": "lm_head"}, {}) is None


def served(model: str, kind: str | None, **given: Any) -> Generator:
    """An engine of a checkpoint in a format."""
    spec: ModelSpec = load_model(model).model_copy(update={"quantization": kind})
    sizes = {"max_model_len": 4096, "max_num_seqs": 256, "max_num_batched_tokens": 8192, "separate": True}
    return Generator("vllm", "0.20.0", spec, **(sizes | given))


@pytest.mark.parametrize(
    ("model", "left_in", "weights"),
    [
        ("qwen3.5-35b-a3b", " except linear_attn", 21.86),  # a log's
        ("qwen3.5-35b-a3b", "", 20.5076),
        ("qwen3.5-27b", "", 18.7099),  # 18.77 of a log
        ("qwen3.5-27b", " except self_attn", 18.7099 + 16 * 20480 * 5120 * (2 - 4.5 / 8) / GiB + 0.01),
    ],
)
def test_what_is_left_is_in_16_bits(model: str, left_in: str, weights: float) -> None:
    of = served(model, "compressed-tensors nvfp4" + left_in)
    assert weights_bytes(of) / GiB == pytest.approx(weights, rel=1e-3)


def test_where_all_is_left_nothing_is_quantised() -> None:
    all_of = " except mlp.experts, mlp.shared_expert, linear_attn, self_attn"
    plain = weights_bytes(served("qwen3.5-35b-a3b", None))
    assert weights_bytes(served("qwen3.5-35b-a3b", "compressed-tensors nvfp4" + all_of)) == plain


def test_a_format_that_a_job_names_leaves_what_published_files_do_and_may_leave_nothing() -> None:
    usual, own = served("qwen3.5-27b", None, quantization="nvfp4"), served("qwen3.5-27b", "modelopt nvfp4")
    gpu = find_gpu("rtx-5090-32gb")
    assert least_bytes(usual, gpu) == weights_bytes(own, gpu) < weights_bytes(usual, gpu)
    assert least_bytes(own, gpu) == weights_bytes(own._replace(quantization="nvfp4"), gpu) == weights_bytes(own, gpu)


def test_layers_that_draft_are_left_apart() -> None:
    from memplan.spec.generation import Draft

    of = served("qwen3.5-27b", "modelopt nvfp4", draft=Draft(layers=1))
    plain = served("qwen3.5-27b", "modelopt nvfp4 except mtp", draft=Draft(layers=1))
    assert weights_bytes(plain) - weights_bytes(of) > 500e6
