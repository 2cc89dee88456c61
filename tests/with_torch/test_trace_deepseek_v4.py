"""Proves that the engine and a trace of the real model agree for DeepSeek-V4: residual streams mixed by
hyper-connections, windows beside compressed and chosen entries, sinks, output projections in groups, experts chosen by
the token's id, and what is kept in fp32 beside bf16.

Within 0.2 % in every phase; a small vocabulary, so that layers and the collapse of the streams make the peaks.
"""

from typing import Any

import pytest
from traced_jobs import agree_in_every_phase, job, name, traces

from memplan.trace.result import Trace

CLOSE = 0.002
WINDOW, HEAVY, SPARSE = "sliding_attention", "heavily_compressed_attention", "compressed_sparse_attention"
SHAPE: dict[str, Any] = {
    "model_type": "deepseek_v4", "vocab_size": 512, "hidden_size": 512, "moe_intermediate_size": 256,
    "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 64, "q_lora_rank": 128, "n_routed_experts": 8,
    "num_experts_per_tok": 2, "sliding_window": 128, "o_groups": 2, "o_lora_rank": 128, "index_n_heads": 4,
    "index_head_dim": 32, "index_topk": 32, "qk_rope_head_dim": 16, "num_hidden_layers": 3,
    "layer_types": [WINDOW, HEAVY, SPARSE], "mlp_layer_types": ["hash_moe", "moe", "moe"],
}  # fmt: skip
AMP: dict[str, Any] = {"precision": "bf16-amp", "autocast": True}
AGAIN: dict[str, Any] = {"gradient_checkpointing": "full"}
LORA: dict[str, Any] = {"lora": {"r": 8, "targets": ["q_a_proj", "q_b_proj", "kv_proj", "gate_proj", "o_b_proj"]}}


def of(layers: list[str] | None = None, **keys: Any) -> dict[str, Any]:
    changes = {"layer_types": layers, "num_hidden_layers": 2, "mlp_layer_types": ["hash_moe", "moe"]} if layers else {}
    return {"batch_size": 2, "sequence_length": 512, "attention": "eager", **job(SHAPE, changes, **keys)}


JOBS = [
    of(),
    of(precision="fp32"),
    of(**AMP),
    of(**AGAIN),
    of(**AGAIN, **AMP),
    of(**LORA),
    of(**LORA, **AGAIN),
    of(method="dpo"),
    of([SPARSE, SPARSE], batch_size=1, sequence_length=701),
    of([HEAVY, HEAVY], padded=True),
]


@pytest.fixture(scope="module")
def traced() -> dict[str, Any]:
    return dict(zip(map(name, JOBS), traces(JOBS), strict=True))


@pytest.mark.parametrize("described", JOBS, ids=name)
def test_the_engine_agrees_with_the_real_model(described: dict[str, Any], traced: dict[str, Any]) -> None:
    found = traced[name(described)]
    assert isinstance(found, Trace), found
    agree_in_every_phase(described, found, CLOSE)
