"""Proves that engine and trace agree on vision-language models, with images and without: every phase within 0.3 %."""

from typing import Any

import pytest
import transformers
from seeing import LARGE_TOWERS, MODELS, PLACED
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
SOUNDS: Job = MODELS["gemma4"] | {
    "text_config": MODELS["gemma4"]["text_config"]
    | {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2},
    "audio_config": MODELS["gemma4"]["audio_config"] | {"hidden_size": 512, "num_hidden_layers": 4},
}
JOBS += [
    job("gemma4", trainer="llamafactory", sharding="ddp", num_gpus=2) | {"model": {"model_type": "gemma4", **SOUNDS}},
    job("gemma4", images={"tokens": 280}, **LORA, **FULL),
    job("gemma4", **IMAGE, **FULL),
    job("gemma4", **IMAGE, precision="bf16-amp"),
    job("gemma4", images={"tokens": 100}, freeze=["vision_tower", "embed_vision"]),
    job("gemma4", **FULL),
    job("glm4v", **IMAGE),
    job("glm4v", images={"per_example": 2, "width": 200, "height": 130}, **LORA, **FULL),
    job("glm4v", **IMAGE, precision="bf16-amp"),
    job("glm4v", images={"per_example": 2, "width": 200, "height": 130}, attention="eager"),
    job("gemma4_unified"),
    job("gemma4_unified", **IMAGE),
    job("gemma4_unified", images={"tokens": 280}, **LORA, **FULL),
    job("gemma4_unified", **IMAGE, precision="bf16-amp"),
    job("gemma4_unified", images={"tokens": 100}, freeze=["vision_tower", "embed_vision"], **FULL),
    *(
        job("gemma4", images={"per_example": 2, "tokens": 100}, **keys)
        | {"model": {"model_type": "gemma4", **IN_BLOCKS}}
        for keys in ({"method": "dpo"}, {"attention": "eager"}, FULL)
    ),
]

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
TRL: Job = {"trainer": "trl", "num_gpus": 2}
JOBS += [
    job("mllama", **IMAGE, sharding="fsdp2", num_gpus=2, precision="bf16-amp", **FULL),
    job("mllama", **IMAGE, sharding="fsdp", num_gpus=2),
    job("mllama", **IMAGE, sharding="fsdp2", **TRL),
    job("mllama", **IMAGE, sharding="fsdp", **TRL, precision="bf16-amp"),
    job("llava", **IMAGE, sharding="fsdp2", **TRL),
    job("mllama", sharding="fsdp2", **TRL, precision="bf16-amp", gradient_accumulation_steps=4, sync_each_batch=False),
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
