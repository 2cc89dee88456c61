"""What libraries decide by model type: which mixtures of experts PEFT adapts as stacked parameters."""

EXPERT_FAMILIES = frozenset(
    [
        "mixtral", "minimax", "minimax_m2", "afmoe", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1",
        "ernie4_5_moe", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "glm4v_moe", "longcat_flash", "solar_open",
        "mellum", "qwen3_moe", "beam", "qwen3_omni_moe", "qwen3_omni_moe_thinker", "qwen3_omni_moe_text", "qwen3_next",
        "hunyuan_v1_moe", "flex_olmo", "olmoe", "exaone_moe", "cohere2_moe",
    ]
)  # fmt: skip
"""Types for which PEFT rewrites targets to the stacked experts and the router: the keys of transformers 5.23's
``conversion_mapping._MODEL_TO_CONVERSION_PATTERN`` that map to mixtral or qwen2_moe, and mixtral
(peft 0.21 utils/transformers_weight_conversion.py). qwen2_moe itself is not among them."""
EXPERT_PROJECTIONS = frozenset(["gate_proj", "up_proj", "down_proj"])
"""Targets that PEFT rewrites to stacked experts."""
