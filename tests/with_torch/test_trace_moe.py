"""Proves that trace and engine, made apart, say the same of models with experts and with low-rank attention.

Within 0.2 % in every phase, on models of a few small layers: a dense one first where the class has any.
"""

from typing import Any

import pytest
from traced_jobs import Job, agree_in_every_phase, traces

from memplan.errors import MemplanError
from memplan.trace.result import Trace

CLOSE = 0.002
BASE: Job = {
    "vocab_size": 320, "hidden_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 64, "tie_word_embeddings": False, "pad_token_id": 0, "intermediate_size": 256,
}  # fmt: skip
LATENT: Job = {
    "num_key_value_heads": 8, "q_lora_rank": 192, "kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
    "v_head_dim": 64, "n_routed_experts": 16, "num_experts_per_tok": 4, "first_k_dense_replace": 1,
}  # fmt: skip
GROUPED: Job = {"n_group": 4, "topk_group": 2}
INDEXED: Job = {"index_n_heads": 4, "index_head_dim": 64, "index_topk": 128}
LOCAL: Job = {"num_local_experts": 16, "num_experts_per_tok": 4}
NAMED: Job = {"num_experts": 16, "num_experts_per_tok": 4}
MODELS: dict[str, Job] = {
    "mixtral": LOCAL,
    "qwen3_moe": NAMED,
    "qwen2_moe": NAMED | {"shared_expert_intermediate_size": 512},
    "olmoe": NAMED,
    "granitemoe": LOCAL | {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 6.0},
    "phimoe": LOCAL
    | {"num_experts_per_tok": 2, "attention_bias": True, "lm_head_bias": True, "input_jitter_noise": 0.01},
    "minimax_m2": LOCAL | {"rotary_dim": 32},
    "gpt_oss": LOCAL,
    "llama4_text": {"num_local_experts": 8, "intermediate_size_mlp": 512, "num_hidden_layers": 4},
    "ernie4_5_moe": {"moe_num_experts": 16, "moe_k": 4},
    "dots1": {"n_routed_experts": 16, "n_shared_experts": 2, "num_experts_per_tok": 4, "first_k_dense_replace": 1},
    "hunyuan_v1_moe": {"num_experts": 16, "moe_topk": 4},
    "exaone_moe": NAMED,
    "cohere2_moe": NAMED,
    "glm4_moe": {"n_routed_experts": 16, "num_experts_per_tok": 4, "use_qk_norm": True, "attention_bias": True},
    "deepseek_v2": LATENT | GROUPED | {"topk_method": "group_limited_greedy"},
    "deepseek_v3": LATENT | GROUPED,
    "deepseek_v32": LATENT | GROUPED | INDEXED,
    "glm_moe_dsa": LATENT | INDEXED | {"v_head_dim": 96},
    "glm4_moe_lite": LATENT | {"v_head_dim": 96},
    "minicpm3": {key: value for key, value in LATENT.items() if key.startswith(("num_key", "q_", "qk_", "kv_", "v_"))},
}
OWN_WIDTH: tuple[str, ...] = (
    "qwen3_moe",
    "qwen2_moe",
    "ernie4_5_moe",
    "dots1",
    "exaone_moe",
    "glm4_moe",
    "deepseek_v2",
    "deepseek_v3",
)
OWN_WIDTH += ("deepseek_v32", "glm_moe_dsa", "glm4_moe_lite")
"""Families whose experts have a width of their own, which the others' classes do not read."""
AMP: dict[str, Any] = {"precision": "bf16-amp", "autocast": True}
FULL: dict[str, Any] = {"gradient_checkpointing": "full"}
LORA: dict[str, Any] = {"lora": {"r": 16, "targets": ["o_proj"]}}
MODES: dict[str, tuple[Job, tuple[str, ...]]] = {
    "bf16": ({}, tuple(MODELS)),
    "checkpointed": (
        FULL,
        ("mixtral", "gpt_oss", "llama4_text", "deepseek_v2", "deepseek_v32", "glm_moe_dsa", "phimoe"),
    ),
    "fp32": ({"precision": "fp32"}, ("qwen3_moe", "deepseek_v3")),
    "autocast": (AMP, ("mixtral", "deepseek_v2", "minicpm3", "phimoe")),
    "autocast, checkpointed": (AMP | FULL, ("deepseek_v3", "deepseek_v32")),
    "eager": ({"attention": "eager"}, ("qwen2_moe", "deepseek_v3", "deepseek_v32")),
    "padded": ({"padded": True}, ("gpt_oss", "deepseek_v3")),
    "reentrant": (FULL | {"gradient_checkpointing_reentrant": True}, ("deepseek_v3",)),
    "adapters": (LORA, ("gpt_oss", "deepseek_v3")),
    "adapters, checkpointed": (LORA | FULL, ("qwen3_moe", "deepseek_v3", "glm_moe_dsa")),
    "pairs": ({"method": "dpo"}, ("qwen3_moe", "deepseek_v3")),
    "scores": ({"method": "reward"}, ("deepseek_v3", "gpt_oss")),
    "dropout": ({"attention": "eager"}, ("mixtral", "gpt_oss", "deepseek_v3", "phimoe")),
    "dropout, autocast, checkpointed": ({"attention": "eager"} | AMP | FULL, ("gpt_oss", "deepseek_v3")),
}


def job(family: str, keys: Job, mode: str = "") -> Job:
    """A job over a small model of this family."""
    model = {"model_type": family, **BASE, **MODELS[family]}
    if family in OWN_WIDTH:
        model["moe_intermediate_size"] = 256
    if "kv_lora_rank" in model:
        del model["head_dim"]
    if mode.startswith("dropout"):
        model["attention_dropout"] = 0.1
    common = {"trainer": "pytorch", "method": "sft", "precision": "bf16", "optimizer": "sgd"}
    return {**common, "batch_size": 2, "sequence_length": 512, "model": model, **keys}


CASES = {
    f"{family}, {mode}": job(family, keys, mode) for mode, (keys, families) in MODES.items() for family in families
}


@pytest.fixture(scope="module")
def traced() -> dict[str, Trace | MemplanError]:
    return dict(zip(CASES, traces(list(CASES.values())), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_trace_and_engine_agree_in_every_phase(case: str, traced: dict[str, Trace | MemplanError]) -> None:
    agree_in_every_phase(CASES[case], traced[case], CLOSE)
