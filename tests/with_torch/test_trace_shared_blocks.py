"""Proves that the engine and a trace of the real model agree for Zamba 2, some of whose layers share a transformer
block: within 0.1 % in every phase.
"""

from typing import Any

import pytest
from traced_jobs import agree_in_every_phase, job, name

CLOSE = 0.001
MODEL: dict[str, Any] = {
    "model_type": "zamba2", "hidden_size": 512, "num_hidden_layers": 4, "pad_token_id": 0, "vocab_size": 1024,
    "layers_block_type": ["mamba", "hybrid", "hybrid", "mamba"], "n_mamba_heads": 16, "num_attention_heads": 8,
    "mamba_d_state": 64, "intermediate_size": 1024, "adapter_rank": 32, "chunk_size": 64,
}  # fmt: skip
AMP: dict[str, Any] = {"precision": "bf16-amp", "autocast": True}
FULL: dict[str, Any] = {"gradient_checkpointing": "full"}
BLOCKS: dict[str, Any] = {
    "num_mem_blocks": 2, "use_shared_attention_adapter": True, "use_mem_rope": True, "num_hidden_layers": 5,
    "layers_block_type": ["hybrid", "mamba", "hybrid", "hybrid", "mamba"],
}  # fmt: skip


def of(changes: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    return {"batch_size": 2, "sequence_length": 128, **job(MODEL, changes, **keys)}


JOBS = [
    of(),
    of(**AMP, gradient_accumulation_steps=2),
    of(BLOCKS, attention="eager"),
    of(BLOCKS, padded=True, precision="fp32"),
    of(BLOCKS, **FULL),
    of(**FULL, **AMP, gradient_checkpointing_reentrant=True),
    of(lora={"r": 8}, **FULL),
    of(BLOCKS, lora={"r": 8}, **AMP),
    of({"mamba_ngroups": 2, "num_key_value_heads": 2, "add_bias_linear": True}, method="reward"),
    of(method="dpo", sequence_length=100, **FULL),
]


@pytest.mark.parametrize("described", JOBS, ids=name)
def test_trace_and_engine_agree_in_every_phase(described: dict[str, Any], found: dict[str, dict[str, int]]) -> None:
    agree_in_every_phase(described, found[name(described)], CLOSE)
