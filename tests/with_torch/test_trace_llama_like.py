"""Proves that the engine and a trace of the real model agree for the families near Llama, and for those whose norms
stand elsewhere.

Within 0.1 % in every phase; a small vocabulary, so that layers make the peaks.
"""

from typing import Any

import pytest
from traced_jobs import SMALL, agree_in_every_phase, job, name

CLOSE = 0.001
SHAPE = SMALL | {
    "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8, "intermediate_size": 1536, "vocab_size": 512,
}  # fmt: skip
COMMON = {"batch_size": 2, "sequence_length": 512}
WINDOW = {"sliding_window": 256}
DROPS = {"attention_dropout": 0.1}
AMP: dict[str, Any] = {"precision": "bf16-amp", "autocast": True}
FULL: dict[str, Any] = {"gradient_checkpointing": "full"}
LORA: dict[str, Any] = {"lora": {"r": 16}}


def of(family: str, changes: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    return {**COMMON, **job(SHAPE, {"model_type": family, **(changes or {})}, **keys)}


PATTERNED = {"num_hidden_layers": 4, **WINDOW}
JOBS = [
    of("granite"),
    of("granite", **AMP),
    of("granite", **LORA, **FULL),
    of("smollm3", {"num_hidden_layers": 4, "use_sliding_window": True, **WINDOW}),
    of("smollm3", method="reward"),
    of("glm"),
    of("glm", attention="eager"),
    of("glm4", **AMP),
    of("glm4", **LORA),
    of("phi3", {"partial_rotary_factor": 0.75}),
    of("olmo", {"clip_qkv": 8.0}),
    of("olmo", precision="fp32"),
    of("olmo2"),
    of("olmo2", **FULL),
    of("olmo2", method="dpo"),
    of("olmo3", PATTERNED),
    of("olmo3", PATTERNED, padded=True),
    of("exaone4", PATTERNED, **AMP),
    of("cohere", {"use_qk_norm": True}),
    of("cohere", **AMP, attention="eager"),
    of("cohere2", PATTERNED, **LORA),
    of("cohere2", PATTERNED, method="simpo"),
    of("seed_oss"),
    of("ernie4_5", attention="eager"),
    of("helium", **AMP),
    of("hunyuan_v1_dense"),
    of("ministral", {**WINDOW}, attention="eager"),
    of("ministral3"),
    of("cwm", PATTERNED, **FULL),
    of("arcee"),
    of("arcee", method="simpo", trainer="llamafactory", pair_pass="split", padded=True, attention="eager", **AMP),
    of("apertus"),
    of("apertus", **AMP),
    of("internlm3", {"bias": True, "qkv_bias": True}),
    of("llama", precision="fp32", **FULL),
    of("qwen2", {"num_key_value_heads": 2}, precision="fp32", batch_size=1, sequence_length=1024, **FULL),
    of("phi", {"head_dim": 128, "hidden_size": 1024}, precision="fp32", batch_size=4, sequence_length=128, **FULL),
    of("llama", {"head_dim": 512}, **FULL),
    of("llama", {"num_key_value_heads": 1}, attention="eager"),
    of("llama", {"num_key_value_heads": 1}, attention="eager", batch_size=1, **FULL),
    of("llama", DROPS),
    of("llama", DROPS, precision="fp32"),
    of("llama", DROPS, attention="flash"),
    of("llama", DROPS, attention="eager", **AMP),
    of("llama", DROPS, attention="eager", **LORA),
    of("mistral", DROPS | WINDOW, padded=True),
    of("qwen3", DROPS, attention="eager", gradient_checkpointing_reentrant=True, **FULL),
    of("phi3", DROPS | {"resid_pdrop": 0.1}, attention="eager"),
    of("phi3", {"resid_pdrop": 0.1}, **AMP),
    of("gemma2", DROPS | {"head_dim": 64}),
    of("granite", DROPS, attention="eager", padded=True),
    of("olmo2", DROPS, attention="eager", **FULL),
    of("cohere", DROPS, attention="eager"),
    of("glm", DROPS, attention="eager", padded=True, **AMP),
]


@pytest.mark.parametrize("described", JOBS, ids=name)
def test_trace_and_engine_agree_in_every_phase(described: dict[str, Any], found: dict[str, dict[str, int]]) -> None:
    agree_in_every_phase(described, found[name(described)], CLOSE)
