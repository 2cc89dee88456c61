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
