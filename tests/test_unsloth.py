"""Proves what Unsloth's functions keep, by formulas of their source, and that the rest is refused by name."""

from typing import Any

import pytest

from memplan.engine.build import build_ledger
from memplan.engine.losses.unsloth import chunk_count
from memplan.engine.micro_step import policy_plan
from memplan.engine.traces import trace_layer
from memplan.errors import InvalidJob
from memplan.reporting import build_report
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe

HIDDEN, WIDE, HEADS, GROUPS, VOCABULARY = 512, 1024, 8, 4, 4096
LLAMA = {"model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": 4, "num_attention_heads": HEADS}
LLAMA |= {"num_key_value_heads": GROUPS, "intermediate_size": WIDE, "vocab_size": VOCABULARY}
ROWS, LENGTH = 2, 640
TOKENS = ROWS * LENGTH


def recipe(**keys: Any) -> Recipe:
    job = {"model": LLAMA, "method": "sft", "precision": "bf16", "lora": {"r": 8}, "kernels": "unsloth"}
    return resolve(read_job({**job, "batch_size": ROWS, "sequence_length": LENGTH, **keys}))


def saved(**keys: Any) -> int:
    found = recipe(**keys)
    plan = policy_plan(found, "policy", found.rows)
    return trace_layer(
        plan.spec.runs[0].layer, plan.mode, plan.rows, plan.length, plan.style, plan.gradients
    ).saved.size


def test_a_layer_keeps_what_its_functions_save() -> None:
    kv = HIDDEN * GROUPS // HEADS
    norms = 2 * (2 * HIDDEN * 2 + 4)  # the stream, its normed copy (the next function's input), a statistic
    attention = (2 * HIDDEN + 2 * kv) * 2 + HEADS * 4  # q, k, v, the output, which the product keeps too, log-sum-exp
    assert saved() == TOKENS * (norms + attention + 2 * WIDE * 2)


@pytest.mark.parametrize("lora", [{"dropout": 0.1}, {"dora": True}, {"targets": ["q_proj", "v_proj"]}])
def test_adapters_that_it_does_not_patch_run_as_pefts(lora: dict[str, Any]) -> None:
    assert saved(lora={"r": 8, **lora}) > saved()


@pytest.mark.parametrize(
    ("tokens", "vocabulary", "chunks"), [(4096, 128256, 1), (16384, 128256, 4), (65536, 128256, 8)]
)
def test_chunks_hold_at_most_four_gib_of_fp32_logits(tokens: int, vocabulary: int, chunks: int) -> None:
    assert chunk_count(tokens, vocabulary) == chunks
    assert tokens * vocabulary * 4 / chunks <= 4 << 30


def test_checkpoints_wait_on_the_host_but_the_last() -> None:
    sent, kept = recipe(gradient_checkpointing="full"), recipe(gradient_checkpointing="full", sequence_length=256)
    assert (sent.checkpointing.offload, kept.checkpointing.offload) == ("unsloth", "")
    host = sum(row.bytes for row in build_ledger(sent).rows if row.place == "host")
    assert host == 4 * TOKENS * HIDDEN * 2
    assert not any(row.place == "host" for row in build_ledger(kept).rows)


POSITIONS = 65536
LONG = LLAMA | {"max_position_embeddings": POSITIONS}
PAIR = 2 * HIDDEN // HEADS * 2
"""Bytes of cos and sin in half precision, a position."""


@pytest.mark.parametrize(
    ("head", "expected", "high"),
    [
        ("auto", PAIR * POSITIONS, PAIR * POSITIONS),
        ("cut-cross-entropy", PAIR * POSITIONS, 4 * PAIR * 32768),
        ("cross-entropy", 4 * PAIR * 32768, 4 * PAIR * POSITIONS),
    ],
)
def test_its_rotary_embeddings_keep_tables_of_all_positions(head: str, expected: int, high: int) -> None:
    """Of the model; of each layer beside transformers before 4.48."""
    row = next(row for row in build_ledger(recipe(model=LONG, loss_head=head)).rows if row.name.startswith("tables"))
    assert (row.bytes, row.high) == (expected, high)


def test_its_first_loss_turns_all_logits_into_their_gradient() -> None:
    keys = {"loss_head": "cross-entropy", "trainer": "trl", "precision": "fp16"}
    rows = build_ledger(recipe(**keys)).rows
    logits = {(row.name, row.bytes) for row in rows if row.category == "logits" and "entropy" not in row.name}
    whole = TOKENS * VOCABULARY
    assert {size for _, size in logits} == {2 * whole, 4 * whole}  # and accelerate's copy of the outputs, which goes
    backward = [row for row in rows if row.category == "logits" and row.born > 2 and "backward" in row.name]
    assert {row.bytes for row in backward} == {2 * whole}


def test_short_batches_have_all_logits_beside_cut_cross_entropy() -> None:
    rows = {row.name: row for row in build_ledger(recipe(loss_head="cut-cross-entropy")).rows}
    row = rows["logits of a batch of few tokens"]
    assert (row.low, row.bytes) == (0, 1024 * VOCABULARY * 6)


@pytest.mark.parametrize("quantization", ["none", "nf4", "nf4-double"])
def test_the_range_reaches_to_the_same_layers_without_it(quantization: str) -> None:
    keys = {"quantization": quantization} | ({} if quantization == "none" else {"kbit_upcast": False})
    fused = build_report(recipe(**keys)).per_gpu
    more = 4 * (saved(**keys, kernels="none") - saved(**keys))
    assert fused.allocated_range.high - fused.allocated_bytes >= more > 0
    names = {row.name for row in fused.ledger}
    assert ("buffer of unpacked weights" in names) == (quantization != "none")


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"lora": None}, "full training"),
        ({"method": "dpo"}, "method dpo"),
        ({"num_gpus": 2, "sharding": "ddp"}, "several GPUs"),
        ({"zero_stage": 3}, "zero3"),
        ({"quantization": "int8"}, "int8"),
        ({"precision": "fp32"}, "fp32"),
        ({"model": LLAMA | {"model_type": "gemma"}}, "gemma"),
        ({"gradient_checkpointing": "every:2"}, "selective"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(keys: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidJob, match=f"kernels: unsloth is not modelled for .*{what}"):
        recipe(**keys)


@pytest.mark.parametrize("trainer", ["trl", "transformers"])
def test_nothing_but_the_kernels_need_be_said(trainer: str) -> None:
    """FastLanguageModel loads half precision and prepares its base itself; its engine takes max_seq_length."""
    said = {"trainer": trainer, "trainer_version": None if trainer == "trl" else "4.57", "precision": "auto"}
    found = recipe(**said, quantization="nf4")
    assert found.storage.precision.name == "bf16"
    if trainer == "trl":
        online = recipe(**said, method="grpo", gpu="24GB", rollout={"engine": "vllm", "shared_weights": True})
        assert online.generator is not None
        assert online.generator.max_model_len == LENGTH


def test_transformer_engine_is_megatrons() -> None:
    with pytest.raises(InvalidJob, match="fp8 alone"):
        recipe(kernels="te", trainer="trl")
    keys = {"kernels": "te", "trainer": "megatron", "lora": None, "precision": "auto", "num_gpus": 2}
    assert (
        build_report(recipe(**keys)).per_gpu.allocated_bytes
        == build_report(recipe(**keys | {"kernels": "none"})).per_gpu.allocated_bytes
    )
