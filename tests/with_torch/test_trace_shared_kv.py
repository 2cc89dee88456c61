"""Proves that the engine and a trace of the real model agree for layers that read keys and values of earlier ones, have
inputs of their own, or experts beside the feed-forward (Gemma 4).

Within 0.1 % in every phase; a small vocabulary, so that layers make the peaks.
"""

from typing import Any

import pytest
import transformers
from traced_jobs import agree_in_every_phase, job, name, traces

from memplan.tables.trainers import find_trainer

CLOSE = 0.001
SLIDING, FULL = "sliding_attention", "full_attention"
SHAPE: dict[str, Any] = {
    "model_type": "gemma4_text", "vocab_size": 2048, "hidden_size": 512, "intermediate_size": 1024,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "global_head_dim": 128,
    "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 2048, "sliding_window": 1024,
    "layer_types": [SLIDING, FULL], "final_logit_softcapping": 30.0,
}  # fmt: skip
SHARED: dict[str, Any] = {
    "hidden_size_per_layer_input": 64, "num_hidden_layers": 6, "num_kv_shared_layers": 3, "use_double_wide_mlp": True,
    "layer_types": [SLIDING, FULL] * 3,
}  # fmt: skip
EXPERTS = {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 256}
TIED = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
AMP: dict[str, Any] = {"precision": "bf16-amp", "autocast": True}
AGAIN: dict[str, Any] = {"gradient_checkpointing": "full"}
LORA: dict[str, Any] = {"lora": {"r": 8, "targets": "all-linear"}}


def of(changes: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return {"batch_size": 2, "sequence_length": 512, **job(SHAPE, changes, **keys)}


JOBS = [
    of(TIED),
    of(TIED, attention="eager", **AMP),
    of(EXPERTS, **LORA),
    of(EXPERTS, **AGAIN, **LORA),
    of(SHARED),
    of(SHARED, precision="fp32", padded=True),
    of(SHARED, **AGAIN),
    of(SHARED, **AGAIN, **LORA),
    of(SHARED, **AGAIN, lora={"r": 8, "targets": ["q_proj", "v_proj"]}),
    of(SHARED, **AMP, method="dpo"),
    of(SHARED, sequence_length=1536, batch_size=1),
]


@pytest.fixture(scope="module")
def traced() -> dict[str, Any]:
    return dict(zip(map(name, JOBS), traces(JOBS), strict=True))


@pytest.mark.parametrize("described", JOBS, ids=name)
def test_the_engine_agrees_with_the_real_model(described: dict[str, Any], traced: dict[str, Any]) -> None:
    newest = find_trainer("transformers", transformers.__version__).models.newest
    if not newest and described.get("gradient_checkpointing") and "num_kv_shared_layers" not in described["model"]:
        pytest.skip("before transformers 5.24 no layer hands keys on that none reads")
    agree_in_every_phase(described, traced[name(described)], CLOSE)
