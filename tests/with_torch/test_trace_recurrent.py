"""Proves that the engine and a trace of the real model agree for RecurrentGemma, whose recurrence takes one position
after the other: within 0.2 % in every phase, what its checkpoints leave behind included.
"""

from typing import Any

import pytest
from traced_jobs import agree_in_every_phase, job, name

CLOSE = 0.002
MODEL: dict[str, Any] = {
    "model_type": "recurrent_gemma", "hidden_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 1, "intermediate_size": 2048, "vocab_size": 1024, "pad_token_id": 0,
}  # fmt: skip
AMP: dict[str, Any] = {"precision": "bf16-amp", "autocast": True}
FULL: dict[str, Any] = {"gradient_checkpointing": "full"}


def of(changes: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    return {"batch_size": 2, "sequence_length": 40, **job(MODEL, changes, **keys)}


ATTENTION = {"block_types": ["attention"], "num_hidden_layers": 2, "attention_window_size": 128}
JOBS = [
    of(),
    of(precision="fp32"),
    of(**AMP, batch_size=1),
    of({"lru_width": 1024}, padded=True),
    of({"num_hidden_layers": 6}, **FULL),
    of(**FULL, **AMP),
    of(**FULL, gradient_checkpointing_reentrant=True),
    of(**FULL, lora={"r": 8}),
    of(method="dpo", trainer="trl", lora={"r": 8}),
    of(lora={"r": 8, "targets": ["q_proj", "linear_x"]}, **AMP),
    of(ATTENTION, sequence_length=256),
    of(ATTENTION, sequence_length=256, attention="eager", **AMP),
    of(ATTENTION | {"num_key_value_heads": 8}, sequence_length=256, **FULL),
]


@pytest.mark.parametrize("described", JOBS, ids=name)
def test_trace_and_engine_agree_in_every_phase(described: dict[str, Any], found: dict[str, dict[str, int]]) -> None:
    agree_in_every_phase(described, found[name(described)], CLOSE)
