"""Proves that engine and trace agree on vision-language models, with images and without: every phase within 0.3 %."""

from typing import Any

import pytest
import transformers
from traced_jobs import Job, traces

from memplan.api import estimate
from memplan.errors import InvalidJob, MemplanError
from memplan.tables.families import FAILING
from memplan.tables.trainers import find_trainer
from memplan.trace.result import Trace

pytestmark = pytest.mark.skipif(
    not find_trainer("transformers", transformers.__version__).models.newest,
    reason="from transformers 5.24 on the model's outputs hold those of its tower",
)
CLOSE = 0.003
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
IMAGE = {"images": {"width": 336, "height": 336}}
QUARTERS = {"images": {"width": 600, "height": 500}}
WIDE = {"images": {"width": 1400, "height": 1100}}
LENGTHS = {"internvl": 1024, "idefics3": 1536, "smolvlm": 1536, "llava_next": 1536, "llava_onevision": 3072}
LORA = {"lora": {"r": 8}}
FULL = {"gradient_checkpointing": "full"}


def job(model: str, **keys: Any) -> Job:
    """A job over one of the models."""
    length = LENGTHS.get(model, 512)
    named = {"model_type": model, **MODELS[model]}
    return {"model": named, "method": "sft", "precision": "bf16", "batch_size": 2, "sequence_length": length, **keys}


JOBS = [
    *(
        job(model, **IMAGE)
        for model in MODELS
        if model not in ("mistral3", "idefics3", "kimi_k25", "llama4", "llava_next")
    ),
    *(job(model, optimizer_impl="fused", **FULL) for model in ("gemma3", "qwen2_5_vl", "mllama")),
    *(job(model, **IMAGE, **FULL) for model in ("gemma3", "qwen3_vl")),
    *(job(model, **IMAGE, **LORA, **FULL) for model in ("llava", "qwen2_5_vl")),
    *(
        job(model, **IMAGE, lora={"r": 8, **parts}, **keys)
        for model in ("llava", "qwen2_5_vl")
        for parts, keys in (
            ({"exclude_modules": ["vision_tower", "multi_modal_projector"]}, FULL),
            ({"modules_to_train": ["vision_tower", "multi_modal_projector"]}, FULL),
            ({"modules_to_train": ["vision_tower", "multi_modal_projector"]}, {"precision": "bf16-amp"}),
        )
    ),
    job("llava", **IMAGE, lora={"exclude_modules": ["vision_tower"], "modules_to_train": ["multi_modal_projector"]}),
    *(job(model, **IMAGE, method="dpo", attention="eager") for model in ("llava", "qwen2_5_vl")),
    *(job(model, **IMAGE, precision="bf16-amp") for model in ("internvl", "qwen3_vl")),
    job("internvl", **IMAGE, **LORA),
    job("llava_next", **IMAGE, **LORA, precision="bf16-amp"),
    job("llava_next", **IMAGE, precision="fp32"),
    job("llava_onevision", **WIDE, **FULL),
    *(job(model, **IMAGE, **LORA, **FULL) for model in ("mistral3", "idefics3", "kimi_k25")),
    job("mistral3", **IMAGE, precision="bf16-amp"),
    job("mistral3", images={"per_example": 2, "width": 200, "height": 130}, attention="eager"),
    job("smolvlm", **IMAGE, **FULL),
    job("idefics2", **QUARTERS, **FULL),
    job("idefics2", **QUARTERS, attention="eager", precision="bf16-amp"),
    job("idefics2", **IMAGE, **LORA, **FULL),
    job("idefics2", images={"per_example": 2, "patches": 700}, precision="fp32"),
    job("idefics2", images={"patches": 700}, freeze=["vision_model"]),
    job("llama4", **IMAGE, **FULL),
    job("llama4", **IMAGE, precision="bf16-amp"),
    job("qwen2_vl", **IMAGE, precision="fp32"),
    job("qwen2_vl", **IMAGE, **FULL, lora={"r": 8, "targets": ["q_proj", "lm_head", "embed_tokens"]}),
    job("qwen2_vl", **IMAGE, **FULL, lora={"r": 8, "targets": ["q_proj"], "modules_to_save": ["embed_tokens"]}),
    job("mllama", **IMAGE, **FULL),
    job("mllama", **IMAGE, **LORA, **FULL),
    job("mllama", **IMAGE, precision="bf16-amp"),
    job("mllama", **IMAGE, method="dpo", lora={"r": 8, "target_modules": ["q_proj", "v_proj"]}),
    job("mllama", images={"per_example": 2, "width": 200, "height": 130}, attention="eager"),
]


IN_BLOCKS: Job = MODELS["gemma4"] | {
    "text_config": MODELS["gemma4"]["text_config"]
    | {"use_bidirectional_attention": "vision", "hidden_size_per_layer_input": 0},
    "vision_config": PLACED | {"standardize": True},
    "audio_config": None,
}
JOBS += [
    job("gemma4", images={"tokens": 280}, **LORA, **FULL),
    job("gemma4", **IMAGE, **FULL),
    job("gemma4", **IMAGE, precision="bf16-amp"),
    job("gemma4", images={"tokens": 100}, freeze=["vision_tower", "embed_vision"]),
    job("gemma4", **FULL),
    *(
        job("gemma4", images={"per_example": 2, "tokens": 100}, **keys)
        | {"model": {"model_type": "gemma4", **IN_BLOCKS}}
        for keys in ({"method": "dpo"}, {"attention": "eager"}, FULL)
    ),
]

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
JOBS += [
    job(model, **IMAGE, **keys, sharding="fsdp2", num_gpus=4) | {"model": {"model_type": model, **LARGE_TOWERS[model]}}
    for model, keys in (
        ("llava", {}),
        ("llava", LORA | FULL),
        ("llava", {"reshard_after_forward": False}),
        ("llava", {"gradient_accumulation_steps": 2, "precision": "bf16-amp"}),
        ("qwen2_5_vl", FULL),
    )
]


@pytest.fixture(scope="module")
def traced() -> dict[int, Trace | MemplanError]:
    return dict(enumerate(traces(JOBS)))


def name(described: Job) -> str:
    said = [
        f"{key}={value}" for key, value in described.items() if key not in ("model", "batch_size", "sequence_length")
    ]
    return " ".join([described["model"]["model_type"], *said])


@pytest.mark.parametrize("number", range(len(JOBS)), ids=[name(each) for each in JOBS])
def test_estimate_agrees_with_the_trace(number: int, traced: dict[int, Trace | MemplanError]) -> None:
    found = traced[number]
    if JOBS[number]["model"]["model_type"] in FAILING and isinstance(found, InvalidJob):
        pytest.skip(found.message)
    assert isinstance(found, Trace), found
    estimated = estimate(JOBS[number]).to_dict()["per_gpu"]["phases"]
    for phase in found.phases:
        assert estimated[phase.name] == pytest.approx(phase.allocated_bytes, rel=CLOSE), phase.name
