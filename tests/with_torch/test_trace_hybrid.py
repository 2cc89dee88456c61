"""Proves that the engine and a trace of the real model agree for state spaces, gated delta rules, short convolutions,
and the hybrids of these with attention.

Within 0.1 % in every phase, on transformers' own PyTorch code; a small vocabulary, so that layers make the peaks.
"""

from typing import Any

import pytest
from traced_jobs import agree_in_every_phase, job, name

CLOSE = 0.001
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2}
SHAPE = {"vocab_size": 512, "hidden_size": 512, "num_hidden_layers": 2, "pad_token_id": 0}
DUAL = {"mamba_n_heads": 16, "mamba_n_groups": 1, "mamba_d_state": 64}
DELTA = {
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "linear_num_key_heads": 4,
    "linear_num_value_heads": 8, "linear_key_head_dim": 64, "linear_value_head_dim": 64, "intermediate_size": 1024,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
SHARED = {**EXPERTS, "shared_expert_intermediate_size": 256}
NEMOTRON = {
    **HEADS, "head_dim": 64, "intermediate_size": 1536, "mamba_num_heads": 16, "mamba_head_dim": 64, "n_groups": 2,
    "ssm_state_size": 64, "moe_intermediate_size": 256, "moe_shared_expert_intermediate_size": 512,
    "n_routed_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "mamba": {"hidden_size": 256},
    "falcon_mamba": {"hidden_size": 256},
    "mamba2": {"num_heads": 16, "head_dim": 64, "n_groups": 2, "state_size": 64, "chunk_size": 128},
    "jamba": {
        **HEADS, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "attn_layer_period": 3,
        "attn_layer_offset": 2, "num_experts": 4,
    },
    "bamba": {**HEADS, **DUAL, "intermediate_size": 1024, "attn_layer_indices": [1]},
    "falcon_h1": {
        **HEADS, **DUAL, "head_dim": 64, "intermediate_size": 1024, "mamba_d_ssm": 768, "mamba_n_heads": 12,
        "mamba_chunk_size": 128,
    },
    "granitemoehybrid": {
        **HEADS, **DUAL, "intermediate_size": 512, "layer_types": ["mamba", "attention"], "num_local_experts": 8,
        "shared_intermediate_size": 512,
    },
    "nemotron_h": {**NEMOTRON, "hybrid_override_pattern": "M-M*"},
    "lfm2": {**HEADS, "num_hidden_layers": 3, "full_attn_idxs": [2], "intermediate_size": 2048},
    "lfm2_moe": {
        **HEADS, **EXPERTS, "intermediate_size": 1024, "layer_types": ["conv", "full_attention"], "num_dense_layers": 1,
    },
    "minimax": {
        **HEADS, "head_dim": 64, "intermediate_size": 256, "num_local_experts": 4, "num_experts_per_tok": 2,
        "block_size": 64, "layer_types": ["full_attention", "linear_attention"],
    },
    "rwkv": {"hidden_size": 256, "attention_hidden_size": 320},
    "qwen3_next": {**DELTA, **SHARED},
    "qwen3_5_text": DELTA,
    "qwen3_5_moe_text": {**DELTA, **SHARED},
}  # fmt: skip
SLOW = ("mamba", "falcon_mamba", "jamba", "rwkv")
"""Their PyTorch code takes one position after the other."""
AMP: dict[str, Any] = {"precision": "bf16-amp", "autocast": True}
FULL: dict[str, Any] = {"gradient_checkpointing": "full"}
LORA: dict[str, Any] = {"lora": {"r": 16, "targets": ["in_proj"]}}


def of(family: str, changes: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    length = (12 if family == "rwkv" else 24) if family in SLOW else 256
    model = {**SHAPE, "model_type": family, **MODELS[family], **(changes or {})}
    return {"batch_size": 2, "sequence_length": length, "mixer_kernels": "torch", **job(model, None, **keys)}


JOBS = [
    *(of(family) for family in MODELS),
    of("mamba", **FULL),
    of("mamba2", **AMP),
    of("mamba2", padded=True),
    of("mamba2", sequence_length=300, batch_size=1),
    of("mamba2", **LORA, **FULL),
    of("jamba", batch_size=1),
    of("jamba", lora={"r": 16}),
    of("falcon_h1", {"mamba_rms_norm": True, "mamba_norm_before_gate": False}, **FULL),
    of("nemotron_h", {"hybrid_override_pattern": "ME"}),
    of("nemotron_h", {"hybrid_override_pattern": "M*E", "moe_latent_size": 128}, **FULL),
    of("lfm2", **AMP),
    of("lfm2_moe", autocast=True, lora={"r": 8}, sequence_length=1024),
    of("rwkv", **AMP, sequence_length=12),
    of("rwkv", **FULL, sequence_length=12),
    of("minimax", sequence_length=500),
    of("minimax", **AMP, padded=True),
    of("minimax", **FULL, sequence_length=1000, batch_size=1),
    of("minimax", lora={"r": 16, "targets": ["qkv_proj", "q_proj", "out_proj"]}),
    of("qwen3_next", **FULL),
    of("qwen3_5_text", **FULL, sequence_length=1500, batch_size=1),
    of("qwen3_5_text", **AMP),
    of("qwen3_5_text", lora={"r": 16}),
]


@pytest.mark.parametrize("described", JOBS, ids=name)
def test_trace_and_engine_agree_in_every_phase(described: dict[str, Any], found: dict[str, dict[str, int]]) -> None:
    agree_in_every_phase(described, found[name(described)], CLOSE)
