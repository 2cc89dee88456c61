"""LitGPT's YAML of a job, and the command."""

from collections.abc import Mapping
from typing import Any

from memplan.errors import InvalidJob
from memplan.frameworks.accelerate.write import machines_of, run_script
from memplan.frameworks.base import File, Writing
from memplan.frameworks.files.quoting import shell_word
from memplan.spec.job import Job
from memplan.units import pairs_of

CONFIG = "litgpt.yaml"
SWITCHES = pairs_of("q_proj=lora_query k_proj=lora_key v_proj=lora_value o_proj=lora_projection lm_head=lora_head")
FEED_FORWARD = {"gate_proj", "up_proj", "down_proj"}
PRECISIONS = pairs_of("bf16=bf16-true fp16=16-true fp32=32-true bf16-amp=bf16-mixed fp16-amp=16-mixed")
QUANTISED = {"nf4": "bnb.nf4", "nf4-double": "bnb.nf4-dq", "fp4": "bnb.fp4", "int8": "bnb.int8-training"}
OPTIMIZERS = pairs_of(
    """adamw=torch.optim.AdamW sgd=torch.optim.SGD adamw-8bit=bitsandbytes.optim.AdamW8bit
    paged-adamw-8bit=bitsandbytes.optim.PagedAdamW8bit paged-adamw=bitsandbytes.optim.PagedAdamW"""
)


def own_of(job: Job) -> Mapping[str, Any]:
    """Over several GPUs LitGPT runs FSDP with checkpointing, where the job leaves it open."""
    own: dict[str, Any] = {"trainer": "litgpt"}
    if job.precision in ("bf16", "fp16"):
        own["autocast"] = False
    return own | ({"sharding": "fsdp", "gradient_checkpointing": "full"} if job.num_gpus > 1 else {})


def write(job: Job, writing: Writing) -> list[File]:
    """litgpt.yaml, run.sh."""
    if job.precision not in PRECISIONS:
        raise InvalidJob(f"precision: {job.precision} cannot be said to LitGPT", f"use {', '.join(PRECISIONS)}")
    if job.optimizer not in OPTIMIZERS:
        raise InvalidJob(f"optimizer: {job.optimizer} cannot be said to LitGPT", f"use {', '.join(OPTIMIZERS)}")
    nodes, each = machines_of(job)
    values: dict[str, Any] = {
        "checkpoint_dir": f"checkpoints/{writing.model}",
        "precision": PRECISIONS[job.precision],
        "devices": each,
        "num_nodes": nodes,
        **_adapter(job),
        "train": {
            "global_batch_size": job.batch_size * job.gradient_accumulation_steps * job.num_gpus,
            "micro_batch_size": job.batch_size,
            "max_seq_length": job.sequence_length,
        },
        "optimizer": {
            "class_path": OPTIMIZERS[job.optimizer],
            "init_args": {"fused": True} if job.optimizer_impl == "fused" else {},
        },
    }
    command = f"litgpt finetune_{'lora' if job.lora else 'full'} --config {CONFIG} --data JSON --data.json_path DATASET"
    head = (f"LitGPT, as memplan planned it: {command}", *writing.expects)
    download = f"litgpt download {shell_word(writing.model)}"
    return [
        File(CONFIG, values, comment=head, placeholders={"out_dir": "OUTPUT"}),
        run_script(f"{download}\n{command}", job, ("FILL IN out_dir and DATASET first.", *writing.expects)),
    ]


def _adapter(job: Job) -> dict[str, Any]:
    if job.lora is None:
        return {}
    if isinstance(job.lora.targets, str):
        raise InvalidJob(
            "lora.targets: all-linear cannot be said to LitGPT, which names parts of a block",
            "name them: q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj",
        )
    targets = set(job.lora.targets)
    unknown = targets - set(SWITCHES) - FEED_FORWARD
    if unknown or (targets & FEED_FORWARD and not targets >= FEED_FORWARD):
        raise InvalidJob(
            f"lora.targets: {', '.join(sorted(unknown or targets & FEED_FORWARD))} cannot be said to LitGPT",
            "use q_proj, k_proj, v_proj, o_proj, lm_head, and all of gate_proj, up_proj, down_proj",
        )
    values: dict[str, Any] = {
        "lora_r": job.lora.r,
        "lora_alpha": int(job.lora.alpha or 16),
        "lora_dropout": job.lora.dropout,
    }
    values |= {key: name in targets for name, key in SWITCHES.items()} | {"lora_mlp": bool(targets & FEED_FORWARD)}
    return values | ({"quantize": QUANTISED[job.quantization]} if job.quantization in QUANTISED else {})
