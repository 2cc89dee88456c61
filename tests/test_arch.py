"""Proves that a config.json becomes exactly the model that transformers builds from it, or a clear error.

The files of tests/data/params hold the counts of transformers 5.23 models built on the meta device: of published
configs ("models", each with the source of its sizes), and of invented ones, a trap each ("variants").
"""

# A part that a layer does not have fails when the test runs.
# mypy: disable-error-code="union-attr"

import json
import subprocess
import sys
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from drawing import examples, over
from hypothesis import given
from hypothesis import strategies as st

from memplan.arch import FAMILIES, dense, moe, parse_config
from memplan.engine.tensors import count, layer_weights, model_weights
from memplan.errors import ModelError
from memplan.spec.model import ModelSpec
from memplan.spec.routing import Routing
from memplan.tables.quantizations import Stored

FILES = [json.loads(path.read_text()) for path in sorted((Path(__file__).parent / "data" / "params").glob("*.json"))]
MODELS: list[dict[str, Any]] = [row for file in FILES for row in file["models"]]
ROWS = MODELS + [row for file in FILES for row in file.get("variants", ())]
UNPUBLISHED = {"arcee", "cohere2_moe", "exaone_moe", "flex_olmo", "hunyuan_v1_dense", "llama4_text", "ministral3"}
"""Families whose rows are the defaults of the class or an invented shape: no published config stands behind one."""
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


def spec_of(row: dict[str, Any]) -> ModelSpec:
    """The model of a row."""
    return parse_config(row["config"], row["name"])


def windows(spec: ModelSpec) -> list[list[int | None]]:
    """Runs of layers with the same window: [layers, window]."""
    return [[len(list(group)), window] for window, group in groupby(layer.mixer.window for layer in spec.layers())]


@pytest.mark.slow
@over(ROWS, itemgetter("name"))
def test_equals_transformers(row: dict[str, Any]) -> None:
    spec = spec_of(row)
    assert spec.params.total == row["unique"]
    assert spec.params.active == row["active"]
    assert spec.params.by_category == row["by_category"]
    if "windows" in row:
        assert windows(spec) == row["windows"]


@pytest.mark.slow
@over(ROWS, itemgetter("name"))
def test_parts_sum_to_the_whole(row: dict[str, Any]) -> None:
    spec = spec_of(row)
    layers = list(spec.layers())
    assert len(layers) == spec.num_layers == sum(run.count for run in spec.runs)
    assert all(one.layer != other.layer for one, other in zip(spec.runs, spec.runs[1:], strict=False))
    assert sum(spec.params.by_category.values()) == spec.params.total >= spec.params.active
    assert count(model_weights(spec)) == spec.params.total
    for layer in {run.layer for run in spec.runs}:
        assert sum(weight.elements for weight in layer_weights(layer, 1, True, None)) == layer.parameters


def test_every_family_has_a_row_of_a_published_model_or_is_named_as_having_none() -> None:
    assert set(FAMILIES) - {row["config"]["model_type"] for row in MODELS} == UNPUBLISHED
    assert set(FAMILIES) - {row["config"]["model_type"] for row in ROWS} == set()


def test_every_published_row_names_the_source_of_its_sizes() -> None:
    assert [row["name"] for row in MODELS if "/" not in row["name"] or not row["source"]] == []


def test_every_row_reads_only_keys_that_have_a_default() -> None:
    """A family whose class lacks a key never asks for it: its smallest config is complete."""
    for family in (*dense.ROWS, *moe.ROWS):
        spec = parse_config({"model_type": family.model_type}, "defaults")
        assert spec.hidden_size == family.defaults["hidden_size"]
        assert "hidden_size" in spec.notes[0]


# A missing key is not a null key, and each class has defaults of its own.


def test_a_missing_window_is_the_class_default_and_null_is_none() -> None:
    assert windows(parse("mistral", num_key_value_heads=2)) == [[6, 4096]]
    assert windows(parse("mistral", num_key_value_heads=2, sliding_window=None)) == [[6, None]]
    assert "sliding_window 4096" in parse("mistral", num_key_value_heads=2).notes[0]


def test_missing_key_value_heads_are_the_class_default() -> None:
    assert parse("llama").runs[0].layer.mixer.num_kv_heads == 4
    assert parse("mistral", num_attention_heads=16).runs[0].layer.mixer.num_kv_heads == 8
    assert parse("qwen3", num_attention_heads=32).runs[0].layer.mixer.num_kv_heads == 32
    with pytest.raises(ModelError, match="num_key_value_heads of mistral must be an integer"):
        parse("mistral", num_key_value_heads=None)


def test_head_dim_default_differs_by_class() -> None:
    by_type = {"qwen3": 128, "gemma": 256, "llama": 16, "qwen2": 16, "qwen3_moe": 16, "phi3": 16}
    for model_type, width in by_type.items():
        assert parse(model_type, num_key_value_heads=2).runs[0].layer.mixer.head_dim == width
    with pytest.raises(ModelError, match="head_dim of qwen3 must be an integer"):
        parse("qwen3", num_key_value_heads=2, head_dim=None)


@pytest.mark.parametrize("model_type", [row.model_type for row in (*dense.ROWS, *moe.ROWS)])
def test_tie_default_differs_by_class(model_type: str) -> None:
    spec = parse(model_type, num_key_value_heads=2)
    assert spec.tied == spec.head_is_tied == model_type.startswith("gemma")


def test_only_gemma3_text_reads_its_own_vocabulary_default() -> None:
    assert parse_config({"model_type": "gemma3_text"}, "x").vocab_size == 262208
    assert parse_config({"model_type": "gemma2"}, "x").vocab_size == 256000


# What the classes build beside counts.


def test_biases_by_class() -> None:
    def biased(model_type: str, **keys: Any) -> str:
        linears = parse(model_type, num_key_value_heads=2, **keys).runs[0].layer.linears
        return " ".join(linear.name[0] for linear in linears if linear.bias)

    assert biased("qwen2") == "q k v"
    assert biased("qwen2", attention_bias=False) == "q k v"
    assert biased("llama", attention_bias=True) == "q k v o"
    assert biased("llama", mlp_bias=True) == "g u d"
    assert biased("qwen3") == biased("mistral") == biased("phi3") == ""


def test_phi3_fuses_its_projections() -> None:
    layer = parse("phi3", num_key_value_heads=2).runs[0].layer
    shapes = [(linear.name, linear.inputs, linear.outputs) for linear in layer.linears]
    assert shapes == [("qkv_proj", 64, 128), ("o_proj", 64, 64), ("gate_up_proj", 64, 192), ("down_proj", 96, 64)]
    assert layer.mixer.fused_qkv
    assert layer.mixer.rotary == "concatenated"


def test_gemmas_norms_scale_and_caps() -> None:
    gemma, gemma2, gemma3 = (parse(name, num_key_value_heads=2) for name in ("gemma", "gemma2", "gemma3_text"))
    for spec in (gemma, gemma2, gemma3):
        kinds = {norm.kind for layer in spec.layers() for norm in (*layer.norms, *layer.mixer.norms, spec.final_norm)}
        assert kinds == {"rms-plus-one"}
        assert spec.embedding_multiplier
    assert [len(spec.runs[0].layer.norms) for spec in (gemma, gemma2, gemma3)] == [2, 4, 4]
    assert [len(spec.runs[0].layer.mixer.norms) for spec in (gemma, gemma2, gemma3)] == [0, 0, 2]
    assert [spec.logits_softcap for spec in (gemma, gemma2, gemma3)] == [None, 30.0, None]
    assert [spec.runs[0].layer.mixer.softcap for spec in (gemma, gemma2, gemma3)] == [None, 50.0, None]
    uncapped = parse("gemma2", final_logit_softcapping=None, attn_logit_softcapping=None)
    assert uncapped.logits_softcap is uncapped.runs[0].layer.mixer.softcap is None


def test_gemma3_carries_a_score_cap_that_it_never_uses() -> None:
    assert parse("gemma3_text", attn_logit_softcapping=50.0).runs[0].layer.mixer.softcap is None
    assert parse("gemma3_text", final_logit_softcapping=20.0).logits_softcap == 20.0


def test_activation_names() -> None:
    assert parse("llama", hidden_act="swish").runs[0].layer.feed_forward.activation == "silu"
    assert parse("llama", hidden_act="gelu").runs[0].layer.feed_forward.activation == "gelu"
    assert parse("gemma", num_key_value_heads=2, hidden_act="gelu").runs[0].layer.feed_forward.activation == (
        "gelu_pytorch_tanh"
    )
    ignored = parse("gemma2", hidden_act="relu").runs[0].layer.feed_forward
    assert ignored.activation == "gelu_pytorch_tanh"


def test_equal_layers_share_a_run() -> None:
    assert [run.count for run in parse("llama").runs] == [6]
    assert [run.count for run in parse("gemma2").runs] == [1] * 6
    assert [run.count for run in parse("gemma3_text", num_hidden_layers=8).runs] == [5, 1, 2]
    mixed = parse("qwen3_moe", num_experts=4, num_experts_per_tok=2, mlp_only_layers=[0, 3])
    assert [(run.count, run.layer.feed_forward.experts is not None) for run in mixed.runs] == [
        (1, False),
        (2, True),
        (1, False),
        (2, True),
    ]


def test_experts_of_both_kinds() -> None:
    mixtral = parse("mixtral", num_key_value_heads=2).runs[0].layer.feed_forward
    assert mixtral.experts is not None
    assert (mixtral.experts.count, mixtral.experts.active, mixtral.experts.intermediate) == (8, 2, 96)
    assert mixtral.experts.routing == Routing(widened=True, normalize="in-place")
    qwen = parse("qwen3_moe", norm_topk_prob=False, moe_intermediate_size=40).runs[0].layer.feed_forward
    assert qwen.experts is not None
    assert (qwen.experts.count, qwen.experts.active, qwen.experts.intermediate) == (128, 8, 40)
    assert qwen.experts.routing == Routing(narrowed=True, behind=True)
    assert qwen.linears == mixtral.linears == ()


def test_dtype_under_both_names() -> None:
    assert parse("llama").dtype is None
    assert parse("llama", torch_dtype="bfloat16").dtype == "bf16"
    assert parse("llama", torch_dtype="torch.float16").dtype == "fp16"
    assert parse("llama", torch_dtype="bfloat16", dtype="float32").dtype == "fp32"
    assert parse("llama", torch_dtype="bfloat16", dtype=None).dtype == "bf16"
    stored = parse("llama", torch_dtype="float8_e4m3fn")
    assert stored.dtype is None
    assert "float8_e4m3fn" in stored.notes[-1]


def test_quantized_checkpoints_are_noted() -> None:
    plain = parse("llama")
    quantized = parse("llama", quantization_config={"quant_method": "gptq", "bits": 4})
    assert quantized.quantization == Stored("gptq")
    assert "gptq" in quantized.notes[-1]
    assert quantized.params == plain.params
    assert parse("llama", quantization_config={"load_in_4bit": True}).quantization == Stored("bitsandbytes")


@pytest.mark.parametrize(
    ("section", "method", "told"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq", "--quantization gptq-4bit --lora-r 16"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, "gptq", "at most adapters"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}, "awq", "--quantization awq-4bit"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "bitsandbytes", "--quantization nf4 --lora-r"),
        (
            {
                "quant_method": "bitsandbytes",
                "_load_in_4bit": True,
                "bnb_4bit_quant_type": "nf4",
                "bnb_4bit_use_double_quant": True,
            },
            "bitsandbytes nested",
            "--quantization nf4-double",
        ),
        ({"quant_method": "bitsandbytes", "_load_in_8bit": True}, "bitsandbytes", "--quantization int8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", "dequantize: true"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "compressed-tensors", "dequantize: true"),
        (
            {"quant_algo": "FP8", "config_groups": {}, "producer": {"name": "modelopt"}},
            "modelopt fp8",
            "unquantised model",
        ),
        ({"group_size": 64, "bits": 4, "mode": "affine"}, "mlx", "unquantised model"),
        ({"quant_method": "hqq"}, "hqq", "at most adapters"),
    ],
)
def test_a_quantised_checkpoint_says_what_can_be_trained_over_it(
    section: dict[str, Any], method: str, told: str
) -> None:
    spec = parse("llama", quantization_config=section)
    assert spec.quantization is not None
    assert spec.quantization.form == method
    assert told in spec.notes[-1]
    assert spec.params == parse("llama").params


@pytest.mark.parametrize(
    ("weights", "ignore", "scheme"),
    [
        ({"type": "float", "num_bits": 8, "strategy": "channel"}, ["lm_head"], Stored(" fp8")),
        ({"type": "int", "num_bits": 8, "strategy": "channel"}, ["re:.*lm_head"], Stored(" int8")),
        ({"type": "int", "num_bits": 4, "group_size": 128}, ["lm_head", "re:.*mlp.gate$"], Stored(" int4")),
        ({"type": "float", "num_bits": 4, "group_size": 16}, ["model.layers.0.mlp.gate", "lm_head"], Stored(" nvfp4")),
        ({"type": "int", "num_bits": 4, "group_size": 32}, ["lm_head"], Stored(" int4", 32)),
        ({"type": "int", "num_bits": 4, "group_size": 128, "symmetric": False}, ["lm_head"], Stored("")),
        (
            {"type": "float", "num_bits": 8},
            ["lm_head", "re:.*self_attn.*"],
            Stored(" fp8", 0, frozenset({"self_attn"})),
        ),
        ({"type": "float", "num_bits": 8}, ["lm_head", "re:.*nobody_knows.*"], Stored("")),
    ],
)
def test_schemes_of_compressed_tensors_are_told_apart(
    weights: dict[str, Any], ignore: list[str], scheme: Stored
) -> None:
    """Where a list is not understood, or the scheme is another, it is the method alone."""
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    section = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ignore}
    assert parse("llama", quantization_config=section).quantization == scheme._replace(
        form=f"compressed-tensors{scheme.form}"
    )


def test_sections_of_other_tools_are_read_and_one_that_names_no_method_is_an_error() -> None:
    assert parse("llama", quantization={"group_size": 64, "bits": 4}).quantization == Stored("mlx")
    assert parse("llama", compression_config={"config_groups": {}}).quantization == Stored("compressed-tensors")
    assert parse("llama", quantization="none").quantization is None
    with pytest.raises(ModelError, match=r"quantization_config\.quant_method of llama must be the name"):
        parse("llama", quantization_config={"weights": 4})


def test_a_key_that_asks_for_what_the_class_always_builds_is_no_other_model() -> None:
    normed = parse("qwen3_moe", num_experts=4, num_experts_per_tok=2, use_qk_norm=True)
    assert len(normed.runs[0].layer.mixer.norms) == 2
    with pytest.raises(ModelError, match="use_qk_norm"):
        parse("mixtral", num_key_value_heads=2, use_qk_norm=True)


def test_keys_that_the_class_never_reads_are_noted() -> None:
    spec = parse("llama", sliding_window=8, auto_map={"AutoModelForCausalLM": "modeling_x.X"})
    assert windows(spec) == [[6, None]]
    assert any("sliding_window" in note for note in spec.notes)
    assert any("code of its own" in note for note in spec.notes)


def test_a_complete_config_needs_no_notes() -> None:
    assert parse("llama", num_key_value_heads=2, torch_dtype="bfloat16").notes == ()


def test_name_family_and_source_are_kept() -> None:
    spec = parse_config({"model_type": "llama", **SMALL}, "mine", "/models/mine/config.json")
    assert (spec.name, spec.family, spec.source) == ("mine", "llama", "/models/mine/config.json")


SIZES = st.fixed_dictionaries(
    {
        "num_hidden_layers": st.integers(1, 40),
        "num_key_value_heads": st.integers(1, 8),
        "intermediate_size": st.integers(1, 500),
        "vocab_size": st.integers(1, 5000),
        "tie_word_embeddings": st.booleans(),
    }
)


@pytest.mark.slow
@examples(60)
@given(SIZES, st.integers(1, 8), st.integers(1, 64))
def test_llama_follows_its_closed_form(sizes: dict[str, Any], groups: int, half: int) -> None:
    kv, f, v = sizes["num_key_value_heads"], sizes["intermediate_size"], sizes["vocab_size"]
    n, d = kv * groups, 2 * half
    h = n * d
    spec = parse("llama", **sizes, num_attention_heads=n, hidden_size=h)
    layer = 2 * h * n * d + 2 * h * kv * d + 3 * h * f + 2 * h
    outside = (1 if sizes["tie_word_embeddings"] else 2) * v * h + h
    assert spec.params.total == sizes["num_hidden_layers"] * layer + outside


@pytest.mark.slow
def test_importing_the_families_stays_light() -> None:
    heavy = ["yaml", "rich", "typer", "huggingface_hub", "torch", "transformers", "numpy"]
    code = f"import sys, memplan.arch; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
