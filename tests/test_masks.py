"""Proves for how many rows of a batch the masks of windows are made, by whether the loop passes a mask."""

from typing import Any

import pytest

from memplan.api import estimate

ROWS, LENGTH = 3, 512
MISTRAL = {
    "model_type": "mistral", "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4,
    "num_hidden_layers": 2, "intermediate_size": 512, "vocab_size": 512, "sliding_window": 256,
}  # fmt: skip


def masks(trainer: str, **keys: Any) -> list[int]:
    """Bytes of each pass's row of masks."""
    job = {"model": MISTRAL, "batch_size": ROWS, "sequence_length": LENGTH, "trainer": trainer, "precision": "bf16"}
    found = estimate({**job, "method": "sft", **keys}).per_gpu
    return [row.bytes for row in found.ledger if row.name == "attention masks"]


@pytest.mark.parametrize(
    ("trainer", "rows"),
    [("pytorch", 1), ("transformers", ROWS), ("trl", ROWS), ("llamafactory", ROWS), ("openrlhf", ROWS), ("verl", 1)],
)
def test_a_window_that_is_filled_has_a_mask_for_each_row_where_the_batch_has_one(trainer: str, rows: int) -> None:
    keys = {"sharding": "none"}
    assert masks(trainer, **keys) == [rows * LENGTH * LENGTH]
    assert masks("pytorch", padded=True, **keys) == [ROWS * LENGTH * LENGTH]


def test_a_resident_reference_has_its_own() -> None:
    assert masks("trl", method="dpo") == [2 * ROWS * LENGTH * LENGTH] * 2


def test_a_window_that_is_not_filled_needs_none() -> None:
    assert sum(masks("trl", sequence_length=255)) == 0


def test_mamba_multiplies_by_the_mask_that_it_is_given() -> None:
    mamba = {"model_type": "mamba", "hidden_size": 256, "num_hidden_layers": 2, "vocab_size": 512}
    job = {
        "model": mamba,
        "sequence_length": 64,
        "method": "sft",
        "gradient_checkpointing": "none",
        "precision": "bf16",
    }
    given, bare = (
        estimate({**job, "trainer": trainer, "autocast": False, "optimizer_impl": "foreach"}).per_gpu.phases["backward"]
        for trainer in ("transformers", "pytorch")
    )
    padded = estimate({**job, "trainer": "pytorch", "padded": True}).per_gpu.phases["backward"]
    assert given > bare
    assert padded > bare


def test_the_residual_streams_gradient_is_gone_when_the_tied_heads_is_added() -> None:
    """At the sum there are three gradients of the vocabulary's size, and nothing of the tokens."""
    config = {**MISTRAL, "tie_word_embeddings": True, "vocab_size": 64000, "sliding_window": None}
    job = {"model": config, "trainer": "pytorch", "method": "sft", "optimizer": "sgd", "precision": "bf16"}
    small, large = (
        estimate({**job, "sequence_length": length, "batch_size": 1, "freeze": []}).per_gpu for length in (32, 64)
    )
    assert small.peak_instant == large.peak_instant == "policy.embedding-backward"
    tokens = 32 * 256 * 2
    assert large.allocated_bytes - small.allocated_bytes < tokens
    one_gpu = estimate({**job, "sequence_length": 64, "batch_size": 1, "gpu": "h200"}).per_gpu
    row = next(row for row in one_gpu.ledger if row.name == "gradient of the residual stream, embedding")
    assert row.bytes == 2 * tokens, "a card adds in place, while the embedding's own backward runs"


@pytest.mark.parametrize(
    ("version", "kernel"),
    [("4.45", "repeated"), ("4.48", "repeated"), ("4.53", "repeated"), ("4.54", "grouped"), ("5.0", "grouped")],
)
def test_transformers_before_4_54_repeats_keys_before_sdpa(version: str, kernel: str) -> None:
    config = {**MISTRAL, "num_key_value_heads": 1, "sliding_window": None}
    job = {"model": config, "trainer": "transformers", "trainer_version": version, "method": "sft"}
    rows = estimate({**job, "precision": "fp32", "sequence_length": LENGTH}).per_gpu.ledger
    labels = {row.name.partition(",")[0] for row in rows}
    assert ("attention scores" in labels or "attention probabilities" in labels) is (kernel == "grouped")


@pytest.mark.parametrize(
    ("keys", "scores"),
    [
        ({"gpu": "t4-16gb"}, True),
        ({"gpu": "t4-16gb", "padded": True}, False),
        ({"gpu": "t4-16gb", "trainer_version": "4.53"}, False),
        ({"gpu": "rtx-4090-24gb"}, False),
        ({}, False),
    ],
)
def test_a_card_without_flash_makes_the_scores_of_grouped_heads(keys: dict[str, Any], scores: bool) -> None:
    """transformers issue 48633: on a T4 only the math kernel takes them."""
    config = {**MISTRAL, "num_key_value_heads": 1, "sliding_window": None}
    job = {"model": config, "trainer": "transformers", "method": "sft", "precision": "fp16", "sequence_length": LENGTH}
    found = estimate({**job, **keys})
    labels = {row.name.partition(",")[0] for row in found.per_gpu.ledger}
    assert ("attention scores" in labels or "attention probabilities" in labels) is scores
    assert any("takes grouped heads" in each for each in found.warnings) is scores
