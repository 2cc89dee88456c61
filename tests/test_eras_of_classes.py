"""Proves what transformers 5.24 changes in model classes: who has flash attention, what fails, what outputs hold."""

from typing import Any

import pytest

from memplan.api import estimate
from memplan.errors import InvalidJob
from memplan.resolve import resolve
from memplan.spec.reading import read_job

GEMMA4 = {
    "model_type": "gemma4_text", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3,
    "vocab_size": 500,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "global_head_dim": 128, "sliding_window": 1024,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "hidden_size_per_layer_input": 0,
}  # fmt: skip
GPTJ = {"model_type": "gptj", "n_embd": 256, "n_layer": 3, "n_head": 4, "n_positions": 128, "rotary_dim": 32}
PALIGEMMA = {
    "model_type": "paligemma", "projection_dim": 256,
    "text_config": {
        "model_type": "gemma", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 500,
        "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64,
    },
    "vision_config": {
        "model_type": "siglip_vision_model", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 224, "patch_size": 14,
    },
}  # fmt: skip
AGAIN = {
    "method": "sft",
    "sequence_length": 512,
    "batch_size": 2,
    "precision": "bf16",
    "gradient_checkpointing": "full",
}


def job(model: Any, version: str = "", **keys: Any) -> dict[str, Any]:
    named = {"trainer": "transformers", "trainer_version": version} if version else {"trainer": "pytorch"}
    return {"model": model, "method": "sft", "precision": "bf16", **named, **keys}


@pytest.mark.parametrize("model", ["gemma-3-4b", "gemma-4-31b", PALIGEMMA])
def test_flash_that_is_taken_away_is_refused_where_the_version_is_named(model: Any) -> None:
    with pytest.raises(InvalidJob, match="class of transformers does not support flash attention"):
        resolve(read_job(job(model, "5.24", attention="flash")))
    assert not [
        text for text in resolve(read_job(job(model, "5.23", attention="flash"))).provenance.warnings if "flash" in text
    ]
    assert any(
        "5.24 refuses it" in text for text in resolve(read_job(job(model, attention="flash"))).provenance.warnings
    )


def test_llama4_fails_in_the_version_that_fails() -> None:
    with pytest.raises(InvalidJob, match="fails in its forward"):
        resolve(read_job(job("llama-4-scout", "5.24")))
    assert any("fails in its forward" in text for text in resolve(read_job(job("llama-4-scout"))).provenance.warnings)
    assert not resolve(read_job(job("llama-4-scout", "5.23"))).provenance.warnings


def test_gptj_before_had_eager_attention_alone_and_a_table_in_each_layer() -> None:
    newest, older = (resolve(read_job(job(GPTJ, version))).model for version in ("5.24", "5.23"))
    assert (newest.eager_only, older.eager_only) == (False, True)
    assert (newest.buffer_bytes, older.buffer_bytes) == (128 * 32 * 4, 3 * 128 * 32 * 4)


def test_gptj_keeps_its_attentions_dropout_from_then_on() -> None:
    for version, keeps in (("1.16", True), ("0.24", False)):
        keys = {"model": GPTJ | {"attn_pdrop": 0.1}, "method": "dpo", "trainer": "trl", "trainer_version": version}
        assert {mixer.dropout for mixer in resolve(read_job(keys)).model.mixers} == {keeps}


def rows(keys: dict[str, Any], name: str) -> list[tuple[int, str, str]]:
    ledger = estimate(keys).to_dict()["per_gpu"]["ledger"]
    return [(row["bytes"], row["born"], row["dies"]) for row in ledger if row["name"].startswith(name)]


def test_the_last_keys_and_values_of_each_kind_wait_with_the_checkpoints() -> None:
    """And with them what the graph that made them again has saved, until the first layer has run back."""
    of_both = 2 * (2 * 512) * 2 * (64 + 128) * 2  # keys and values, of two heads, of both kinds
    for again, least in (("full", of_both), ("none", 0)):
        keys = AGAIN | {"gradient_checkpointing": again}
        newest, older = (estimate(job(GEMMA4, version) | keys).per_gpu.phases for version in ("5.24", "5.23"))
        more = newest["backward"] - older["backward"]
        assert more > least if least else more == 0


def test_outputs_hold_the_states_of_the_tower() -> None:
    """PaliGemma: 256 patches of 128 and as many tokens of 256, in bf16, for each row; in 5.23 the tokens alone."""
    keys = AGAIN | {"images": {"width": 224, "height": 224}}
    tokens, states = 2 * 256 * 256 * 2, 2 * 256 * 128 * 2
    name = "image tokens, held by the model's outputs"
    assert [size for size, _, _ in rows(job(PALIGEMMA, lora={"r": 8}) | keys, name)] == [tokens + states]
    assert [size for size, _, _ in rows(job(PALIGEMMA, "5.23", lora={"r": 8}) | keys, name)] == [tokens]


def test_fsdp_does_not_join_routers_in_fp32_with_half_precision_weights() -> None:
    """Both versions refuse what trains; FSDP1 flattens frozen weights too, FSDP2 gathers them as they are."""
    model = "deepseek-v2-lite"
    for sharding in ("fsdp", "fsdp2"):
        many: dict[str, Any] = {"num_gpus": 8, "sharding": sharding}
        with pytest.raises(InvalidJob, match="keeps the routers of deepseek_v2 in fp32 among bf16 weights"):
            resolve(read_job(job(model, "5.24", **many)))
        assert any("routers" in text for text in resolve(read_job(job(model, **many))).provenance.warnings)
        for fine in (job(model, "5.23", **many), job(model, "5.24", **many | {"precision": "bf16-amp"})):
            assert not any("routers" in text for text in resolve(read_job(fine)).provenance.warnings)
    lora = {"num_gpus": 8, "lora": {"r": 8}}
    assert resolve(read_job(job(model, "5.24", sharding="fsdp2", **lora)))
    with pytest.raises(InvalidJob, match="FSDP1 joins weights of one dtype alone"):
        resolve(read_job(job(model, "5.24", sharding="fsdp", **lora)))


@pytest.mark.parametrize(
    ("version", "attention", "least", "most"),
    [
        ("4.47", "sdpa", 32 * 64, 32 * 90),  # fp32 probabilities of 16 heads, which each block keeps
        ("4.49", "sdpa", 2 * 64, 200),  # checkpoints: probabilities and scores, or their gradients, of one block
        ("4.51", "sdpa", 1, 4),  # the fused kernel, under a mask
        ("4.49", "flash", 0, 0),
    ],
)
def test_qwens_towers_attended_over_all_patches_at_once(version: str, attention: str, least: int, most: int) -> None:
    """Bytes of each pair of patches: 4.45 to 4.50 give SDPA queries without a row, which no fused kernel takes."""
    keys = {"sequence_length": 1100, "attention": attention, "gradient_checkpointing": "full", "optimizer": "sgd"}
    images = {"images": {"per_example": 1, "patches": 4096}}
    one, other = (
        next(
            each
            for each in estimate(job("qwen2-vl-2b", of, **keys, **images)).per_gpu.instants
            if "vision-b" in each.name
        )
        for of in (version, "4.54")
    )
    assert least <= (one.allocated_bytes - other.allocated_bytes) / 4096**2 <= most
