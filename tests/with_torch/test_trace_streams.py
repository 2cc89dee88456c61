"""Proves that the engine and a trace of the real model agree for layers of several residual streams (Gemma 3n).

Within 0.2 % in every phase, reentrant checkpointing within 0.4 %; a small vocabulary, so that layers make the peaks.
"""

from typing import Any

import pytest
from traced_jobs import agree_in_every_phase, job, name, traces

SLIDING, FULL = "sliding_attention", "full_attention"
SHAPE: dict[str, Any] = {
    "model_type": "gemma3n_text", "vocab_size": 1024, "hidden_size": 512, "intermediate_size": 1024,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
    "hidden_size_per_layer_input": 64, "vocab_size_per_layer_input": 1024, "num_kv_shared_layers": 0,
    "layer_types": [SLIDING, FULL] * 2, "sliding_window": 1024, "laurel_rank": 64, "pad_token_id": 0,
    "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0],
}  # fmt: skip
SHARED: dict[str, Any] = {
    "num_hidden_layers": 6, "num_kv_shared_layers": 2, "layer_types": [SLIDING, FULL] * 3,
    "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0, 0.0, 0.0],
}  # fmt: skip
AMP: dict[str, Any] = {"precision": "bf16-amp", "autocast": True}
AGAIN: dict[str, Any] = {"gradient_checkpointing": "full"}
LORA: dict[str, Any] = {"lora": {"r": 8, "targets": "all-linear"}}


def of(changes: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    return {"batch_size": 2, "sequence_length": 512, **job(SHAPE, changes, **keys)}


JOBS = [
    of(),
    of(precision="fp32", padded=True),
    of(attention="eager", **AMP),
    of({"altup_num_inputs": 2}),
    of(SHARED, **AGAIN),
    of(SHARED, **AGAIN, **AMP),
    of(SHARED, **LORA),
    of(SHARED, **AGAIN, lora={"r": 8, "targets": ["q_proj", "v_proj"]}),
    of(SHARED, **AMP, method="dpo"),
    of(SHARED, sequence_length=1536, batch_size=1),
    of(SHARED, **AGAIN, gradient_checkpointing_reentrant=True),
]


@pytest.fixture(scope="module")
def traced() -> dict[str, Any]:
    return dict(zip(map(name, JOBS), traces(JOBS), strict=True))


@pytest.mark.parametrize("described", JOBS, ids=name)
def test_the_engine_agrees_with_the_real_model(described: dict[str, Any], traced: dict[str, Any]) -> None:
    close = 0.004 if "gradient_checkpointing_reentrant" in described else 0.002
    agree_in_every_phase(described, traced[name(described)], close)
