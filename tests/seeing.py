"""Small vision-language models, as their configs describe them."""

from typing import Any

Job = dict[str, Any]

TEXT: Job = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 8000,
}
TOWER: Job = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "image_size": 224,
    "patch_size": 14,
}
PLACED: Job = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "position_embedding_size": 1024,
}
SIGLIP = TOWER | {"model_type": "siglip_vision_model", "vision_use_head": False}
PATCHES: Job = {"depth": 4, "hidden_size": 256, "intermediate_size": 512, "num_heads": 4, "out_hidden_size": 512}
ROPE = {"rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]}}
GLM_ROPE: Job = {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.5,
        "mrope_section": [4, 6, 6],
    }
}
MLA: Job = {
    "q_lora_rank": 128,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "num_key_value_heads": 8,
}
MODELS: dict[str, Job] = {
    "llava": {
        "text_config": {"model_type": "llama", **TEXT},
        "vision_config": TOWER | {"model_type": "clip_vision_model"},
    },
    "llava_next": {
        "text_config": {"model_type": "llama", **TEXT},
        "vision_config": TOWER | {"model_type": "clip_vision_model"},
        "image_grid_pinpoints": [[224, 448], [448, 224], [448, 448]],
    },
    "llava_onevision": {
        "text_config": {"model_type": "qwen2", **TEXT},
        "vision_config": SIGLIP,
        "image_grid_pinpoints": [[224 * a, 224 * b] for a in range(1, 7) for b in range(1, 7)],
    },
    "mistral3": {
        "text_config": {"model_type": "mistral", "head_dim": 64, **TEXT},
        "vision_config": TOWER | {"model_type": "pixtral", "image_size": 1024},
    },
    "idefics3": {"text_config": {"model_type": "llama", **TEXT}, "vision_config": TOWER, "image_token_id": 7},
    "smolvlm": {"text_config": {"model_type": "llama", **TEXT}, "vision_config": TOWER, "image_token_id": 7},
    "idefics2": {
        "text_config": {"model_type": "mistral", "head_dim": 64, **TEXT},
        "vision_config": TOWER | {"image_size": 980},
        "perceiver_config": {
            "hidden_size": 512,
            "resampler_n_heads": 8,
            "resampler_head_dim": 48,
            "num_key_value_heads": 2,
        },
        "image_token_id": 7,
    },
    "llama4": {
        "text_config": TEXT | {"head_dim": 64, "num_local_experts": 2, "intermediate_size_mlp": 1024, "moe_layers": []},
        "vision_config": TOWER
        | {
            "intermediate_size": 1024,
            "vision_output_dim": 512,
            "projector_input_dim": 512,
            "projector_output_dim": 512,
        },
    },
    "kimi_k25": {
        "text_config": TEXT | MLA | {"model_type": "deepseek_v3", "first_k_dense_replace": 3},
        "vision_config": {key: TOWER[key] for key in TOWER if key not in ("image_size", "patch_size")},
        "projection_hidden_size": 256,
    },
    "gemma3": {
        "text_config": TEXT | {"head_dim": 64, "sliding_window": 1024},
        "vision_config": SIGLIP,
        "mm_tokens_per_image": 64,
    },
    "gemma4": {
        "text_config": TEXT
        | {
            "head_dim": 64,
            "global_head_dim": 128,
            "sliding_window": 1024,
            "hidden_size_per_layer_input": 32,
            "vocab_size_per_layer_input": 8000,
            "pad_token_id": 0,
        },
        "vision_config": PLACED | {"use_clipped_linears": True},
        "image_token_id": 7,
        "audio_config": {
            "hidden_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "output_proj_dims": 64,
            "subsampling_conv_channels": [16, 8],
        },
    },
    "gemma4_unified": {
        "text_config": TEXT | {"head_dim": 64, "global_head_dim": 128, "sliding_window": 1024, "pad_token_id": 0},
        "vision_config": {"mm_embed_dim": 512, "output_proj_dims": 512, "mm_posemb_size": 64},
        "image_token_id": 7,
        "audio_config": {"audio_embed_dim": 64},
    },
    "paligemma": {
        "text_config": {"model_type": "gemma", "head_dim": 64, **TEXT},
        "vision_config": SIGLIP,
        "projection_dim": 512,
    },
    "internvl": {
        "text_config": {"model_type": "qwen2", **TEXT},
        "vision_config": TOWER | {"model_type": "internvl_vision", "attention_bias": True},
    },
    "qwen2_vl": TEXT | ROPE | {"vision_config": {"depth": 4, "embed_dim": 256, "num_heads": 4, "hidden_size": 512}},
    "qwen2_5_vl": TEXT | ROPE | {"vision_config": PATCHES | {"fullatt_block_indexes": [1, 3]}},
    "glm4v_moe": {
        "text_config": TEXT
        | {"moe_intermediate_size": 256, "n_routed_experts": 8, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
        | GLM_ROPE,
        "vision_config": PATCHES | {"image_size": 224, "intermediate_size": 1024},
        "image_token_id": 7,
    },
    "glm46v": {
        "text_config": TEXT | {"model_type": "glm4v_text"},
        "vision_config": PATCHES | {"model_type": "glm4v_vision", "image_size": 224, "intermediate_size": 1024},
        "image_token_id": 7,
    },
    "glm4v": {
        "text_config": TEXT | GLM_ROPE,
        "vision_config": PATCHES | {"image_size": 224, "intermediate_size": 1024},
        "image_token_id": 7,
    },
    "qwen3_vl": {
        "text_config": TEXT | {"head_dim": 64},
        "vision_config": PATCHES | {"num_position_embeddings": 256, "deepstack_visual_indexes": [0, 2]},
    },
    "mllama": {
        "text_config": TEXT
        | {"cross_attention_layers": [0, 2], "pad_token_id": 0, "rope_scaling": {"rope_type": "default"}},
        "vision_config": {
            "hidden_size": 256,
            "num_hidden_layers": 3,
            "num_global_layers": 1,
            "intermediate_size": 512,
            "attention_heads": 4,
            "image_size": 224,
            "intermediate_layers_indices": [0, 1],
            "vision_output_dim": 768,
        },
    },
}
SMALL_TEXT = TEXT | {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 1000}
LARGE = TOWER | {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 6, "num_attention_heads": 16}
LARGE_TOWERS: dict[str, Job] = {
    "llava": {
        "text_config": {"model_type": "llama", **SMALL_TEXT},
        "vision_config": LARGE | {"model_type": "clip_vision_model"},
    },
    "qwen2_5_vl": SMALL_TEXT
    | {"rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]}}
    | {"vision_config": PATCHES | {"hidden_size": 1024, "intermediate_size": 2816, "num_heads": 16, "depth": 6}},
}
LARGE_TOWERS["qwen2_5_vl"]["vision_config"]["out_hidden_size"] = 256
