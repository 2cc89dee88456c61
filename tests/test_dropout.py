"""Proves which families drop out what, and what the masks cost a layer, to the byte."""

from typing import Any

import pytest

from memplan.api import estimate
from memplan.arch import parse_config
from memplan.engine.layers.modules import Mode
from memplan.engine.traces import trace_layer
from memplan.errors import ModelError
from memplan.resolve import resolve
from memplan.spec.groups import Numerics, Operators
from memplan.spec.model import ModelSpec
from memplan.spec.reading import read_job

ROWS, LENGTH, HIDDEN, HEADS = 2, 512, 512, 8
TOKENS = ROWS * LENGTH
SCORES = TOKENS * LENGTH * HEADS
SDPA = Mode(Numerics(2), Operators("sdpa"))
EAGER = SDPA._replace(operators=Operators("eager"))
FP32 = SDPA._replace(numerics=Numerics(4))
AUTOCAST = Mode(Numerics(4, autocast=2), Operators("eager"))


def model(family: str, **keys: Any) -> ModelSpec:
    sizes = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": 4, "intermediate_size": 1024}
    return parse_config({"model_type": family, "num_hidden_layers": 2, "vocab_size": 512, **sizes, **keys}, "cut")


def saved(family: str, mode: Mode, **keys: Any) -> int:
    return trace_layer(model(family, **keys).runs[0].layer, mode, ROWS, LENGTH, "plain").saved.size


@pytest.mark.parametrize(
    ("mode", "more"),
    [
        pytest.param(SDPA, 0, id="flash keeps a seed"),
        pytest.param(SDPA._replace(padded=True), 0, id="so does the memory-efficient kernel"),
        pytest.param(SDPA._replace(operators=Operators("flash")), 0, id="and flash-attn"),
        pytest.param(EAGER, SCORES, id="eager: a mask, and the product saves the dropped copy in place of the first"),
        pytest.param(AUTOCAST, SCORES, id="eager under autocast: the same"),
        pytest.param(FP32, 5 * SCORES, id="math: a mask, and a copy beside the probabilities"),
    ],
)
@pytest.mark.parametrize("family", ["llama", "qwen2", "granite", "gemma", "olmo"])
def test_masks_of_probabilities_cost_what_the_kernel_keeps(family: str, mode: Mode, more: int) -> None:
    keys = {"head_dim": 64} if family == "gemma" else {}
    assert saved(family, mode, attention_dropout=0.1, **keys) - saved(family, mode, **keys) == more


@pytest.mark.parametrize("family", ["phi3", "seed_oss"])
def test_dropped_branches_keep_a_byte_for_each_element(family: str) -> None:
    key = "resid_pdrop" if family == "phi3" else "residual_dropout"
    keys = {"attention_dropout": 0.0} | ({} if family == "phi3" else {"head_dim": 64})
    assert saved(family, SDPA, **keys, **{key: 0.1}) - saved(family, SDPA, **keys, **{key: 0.0}) == 2 * TOKENS * HIDDEN


READ = """llama mistral ministral3 qwen2 qwen3 phi3 gemma gemma2 gemma3_text granite smollm3 glm glm4 olmo olmo2 olmo3
          exaone4 cohere cohere2 helium hunyuan_v1_dense
          cwm hunyuan_v1_moe arcee apertus internlm3 mixtral qwen3_moe qwen2_moe olmoe
          flex_olmo granitemoe phimoe minimax_m2 gpt_oss dots1 exaone_moe glm4_moe deepseek_v2 deepseek_v3 deepseek_v32
          glm4_moe_lite minicpm3 jamba bamba granitemoehybrid nemotron_h qwen3_next minimax falcon_h1 llama4_text"""


ROUTED = {"n_group": 1, "topk_group": 1}
MORE: dict[str, dict[str, Any]] = {
    "helium": {"head_dim": 64}, "hunyuan_v1_dense": {"head_dim": 64}, "hunyuan_v1_moe": {"head_dim": 64},
    "dots1": ROUTED | {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "deepseek_v2": {"num_experts_per_tok": 2}, "deepseek_v3": ROUTED, "deepseek_v32": ROUTED,
}  # fmt: skip
"""Keys without which a class refuses these sizes."""


@pytest.mark.parametrize("family", READ.split())
def test_attention_drops_probabilities_out_where_the_class_does(family: str) -> None:
    keys = MORE.get(family, {})
    mixers = model(family, attention_dropout=0.1, **keys).mixers
    attends = [getattr(each, "attention", each) for each in mixers if each.kind in ("attention", "latent", "both")]
    assert all(each.dropout for each in attends)
    assert not any(each.dropout for each in model(family, attention_dropout=0.0, **keys).mixers)


@pytest.mark.parametrize("family", ["falcon", "ernie4_5", "lfm2"])
def test_classes_whose_kernels_do_not_read_the_key_drop_nothing(family: str) -> None:
    assert not any(mixer.dropout for mixer in model(family, attention_dropout=0.1).mixers)


def test_llama_vision_drops_the_probabilities_of_both_kinds_of_attention() -> None:
    text: dict[str, Any] = {
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 4,
        "num_hidden_layers": 2,
    }
    text |= {"intermediate_size": 1024, "vocab_size": 512, "dropout": 0.1, "cross_attention_layers": [1]}
    found = parse_config({"model_type": "mllama", "text_config": text, "vision_config": {}}, "cut")
    assert {mixer.kind: mixer.dropout for mixer in found.mixers} == {"attention": True, "image-cross": True}


@pytest.mark.parametrize("value", [1.0, -0.1, "0.1", True])
def test_dropout_is_a_probability(value: object) -> None:
    with pytest.raises(ModelError, match="attention_dropout"):
        model("llama", attention_dropout=value)


DROPS = dict.fromkeys(
    ("resid_pdrop", "embd_pdrop", "attn_pdrop", "hidden_dropout", "attention_dropout", "residual_dropout"), 0.1
)


def places(spec: ModelSpec) -> set[str]:
    """Where a model drops anything out."""
    layers = [run.layer for run in spec.runs]
    found = {"probabilities" for layer in layers if layer.mixer and layer.mixer.dropout}
    found |= {"branches" for layer in layers if layer.dropout}
    return found | ({"front"} if "dropout" in spec.front else set())


@pytest.mark.parametrize(
    ("trainer", "method"), [("trl", "dpo"), ("trl", "reward"), ("llamafactory", "kto"), ("simpo-repo", "simpo")]
)
@pytest.mark.parametrize(
    ("family", "drops", "stays"),
    [
        pytest.param("gpt2", "probabilities branches front", "", id="every dropout of GPT-2 is a module"),
        pytest.param("gpt_neox", "probabilities branches front", "probabilities", id="not GPT-NeoX's probabilities"),
        pytest.param("phi3", "probabilities branches", "probabilities", id="nor Phi-3's"),
        pytest.param("bloom", "probabilities branches", "branches", id="Bloom adds its branches by dropout_add"),
        pytest.param("seed_oss", "probabilities branches", "probabilities branches", id="Seed-OSS calls a function"),
    ],
)
def test_trainers_of_preferences_turn_off_dropout_that_is_a_module(
    family: str, drops: str, stays: str, trainer: str, method: str
) -> None:
    config = {"model_type": family, **DROPS, "hidden_size": 512, "num_attention_heads": 8, "head_dim": 64}
    keys = {"model": config, "trainer": trainer, "method": method}
    assert places(resolve(read_job(keys)).model) == set(stays.split())
    assert places(resolve(read_job({**keys, "trainer": "pytorch", "method": "sft"})).model) == set(drops.split())


def test_what_is_turned_off_is_said() -> None:
    job = {"model": {"model_type": "gpt2"}, "trainer": "trl", "method": "dpo"}
    assert any("sets every nn.Dropout to 0 in dpo" in said for said in estimate(job).assumptions)
    assert not any("nn.Dropout" in said for said in estimate({**job, "method": "sft"}).assumptions)


def test_nothing_is_said_to_be_turned_off_twice_over_of_a_model_that_drops_nothing() -> None:
    """Two descriptions of one config are equal, and no more than equal."""
    llama = {"model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2}
    for _ in range(2):
        said = estimate({"model": dict(llama), "trainer": "trl", "method": "dpo"}).assumptions
        assert not any("nn.Dropout" in text for text in said)
