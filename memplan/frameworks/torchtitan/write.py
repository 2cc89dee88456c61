"""torchtitan's TOML of a job, and the command."""

from collections.abc import Mapping
from typing import Any

from memplan.errors import InvalidJob
from memplan.frameworks.accelerate.write import run_script, torchrun
from memplan.frameworks.base import File, Writing
from memplan.frameworks.files.quoting import comment, toml_value
from memplan.spec.job import Job
from memplan.spec.recompute import EVERY, is_by_layer
from memplan.tables.precisions import FLOAT8 as FLOATS
from memplan.units import pairs_of

CONFIG = "torchtitan.toml"
FLAVORS = {
    tuple(of.split(":")): name
    for of, name in pairs_of(
        """llama3:8B=meta-llama/Llama-3.1-8B llama3:70B=meta-llama/Llama-3.1-70B llama3:405B=meta-llama/Llama-3.1-405B
        qwen3:0.6B=Qwen/Qwen3-0.6B qwen3:1.7B=Qwen/Qwen3-1.7B qwen3:4B=Qwen/Qwen3-4B qwen3:8B=Qwen/Qwen3-8B
        qwen3:14B=Qwen/Qwen3-14B qwen3:32B=Qwen/Qwen3-32B qwen3:30B-A3B=Qwen/Qwen3-30B-A3B
        qwen3:235B-A22B=Qwen/Qwen3-235B-A22B deepseek_v3:16B=deepseek-ai/DeepSeek-V2-Lite
        deepseek_v3:236B=deepseek-ai/DeepSeek-V2 deepseek_v3:671B=deepseek-ai/DeepSeek-V3
        llama4:17bx16e=meta-llama/Llama-4-Scout-17B-16E llama4:17bx128e=meta-llama/Llama-4-Maverick-17B-128E
        gpt_oss:20b=openai/gpt-oss-20b gpt_oss:120b=openai/gpt-oss-120b"""
    ).items()
}
"""Model and flavor -> the Hub's model of that shape."""
FLOAT8 = "quantize.linear.float8"
"""Its converter of torchao's float8, and the section of its settings."""
MX = "quantize.linear.mx"
COMPILED_LOSS = "compiled-cross-entropy"
"""Where the loss alone is compiled."""
RESHARDS = {"False": "never", "True": "always"}


def own_of(job: Job) -> Mapping[str, Any]:
    """What torchtitan does whatever the job is: fp32 logits, reductions in fp32, weights in fp32 under FSDP2."""
    if job.method != "sft":
        return {"trainer": "pytorch"}
    own: dict[str, Any] = {"trainer": "pytorch", "logits_dtype": "fp32", "loss_head": "cross-entropy"}
    if job.loss_head == COMPILED_LOSS:
        own["loss_head"] = COMPILED_LOSS
    own["hold_outputs"] = False
    if job.num_gpus > 1:
        own |= {"sharding": "fsdp2"}
    if job.num_gpus > 1 and job.sharding in (None, "fsdp2"):
        own |= {"reduce_dtype": "fp32", "fsdp": {"own_ends": True}}
    return own


def write(job: Job, writing: Writing) -> list[File]:
    """torchtitan.toml, run.sh."""
    named = {hub: key for key, hub in FLAVORS.items()}
    if writing.model not in named:
        raise InvalidJob(f"model: {writing.model} is no flavor of torchtitan's", f"it has {', '.join(sorted(named))}")
    if job.method != "sft" or job.lora:
        what = f"method: {job.method} is" if job.method != "sft" else "lora: adapters are"
        raise InvalidJob(f"{what} not what torchtitan trains", "use sft without lora")
    name, flavor = named[writing.model]
    low = {"converters": [_converter(job)]} if job.float8 != "none" else {}
    sections = {"model": {"name": name, "flavor": flavor, "hf_assets_path": "ASSETS", **low}, **_settings(job)}
    fill = "FILL IN model.hf_assets_path and training.dataset."
    lines = comment(("torchtitan 0.2, as memplan planned it.", *writing.expects, fill))
    for section, values in sections.items():
        lines += ["", f"[{section}]", *(f"{key} = {toml_value(value)}" for key, value in values.items())]
    command = f"{torchrun(job)} -m torchtitan.train --job.config_file {CONFIG}"
    return [File(CONFIG, text="\n".join([*lines, ""])), run_script(command, job, writing.expects)]


def _converter(job: Job) -> str:
    """Of the job's products in float8. Raises InvalidJob for those that it has none of."""
    if FLOATS[job.float8].layouts:
        raise InvalidJob(f"float8: {job.float8} is not torchtitan's", "use float8 tensorwise, rowwise or mxfp8")
    return MX if job.float8 == "mxfp8" else FLOAT8


def _settings(job: Job) -> dict[str, dict[str, Any]]:
    inner = job.tensor_parallel * job.pipeline_parallel * job.context_parallel
    ranks = max(1, job.num_gpus // inner)
    sharded = job.sharding == "fsdp2"
    training: dict[str, Any] = {
        "dataset": "DATASET",
        "local_batch_size": job.batch_size,
        "global_batch_size": job.batch_size * job.gradient_accumulation_steps * ranks,
        "seq_len": job.sequence_length,
        "dtype": "bfloat16" if job.precision == "bf16" else "float32",
        "mixed_precision_param": "float32" if job.precision == "fp32" else "bfloat16",
        "enable_cpu_offload": bool(job.fsdp.model_dump(exclude_unset=True).get("cpu_offload")),
    }
    parallelism: dict[str, Any] = {
        "data_parallel_shard_degree": ranks if sharded else 1,
        "data_parallel_replicate_degree": ranks if job.sharding == "ddp" else 1,
        "fsdp_reshard_after_forward": RESHARDS.get(str(job.reshard_after_forward), "default"),
        "tensor_parallel_degree": job.tensor_parallel,
        "pipeline_parallel_degree": job.pipeline_parallel,
        "context_parallel_degree": job.context_parallel,
        "expert_parallel_degree": job.expert_parallel,
        "expert_tensor_parallel_degree": job.expert_tensor_parallel,
    }
    if job.pipeline_parallel > 1:  # a rank's batch is cut into the micro-batches of one step
        training["local_batch_size"] = job.batch_size * job.gradient_accumulation_steps
        parallelism["pipeline_parallel_microbatch_size"] = job.batch_size
        parallelism["pipeline_parallel_schedule"] = "1F1B"
    kind = job.gradient_checkpointing
    if is_by_layer(kind) and not kind.startswith(EVERY):
        hint = f"use {EVERY}2, selective or full, or plan --budget with this file, which keeps to these"
        raise InvalidJob(f"gradient_checkpointing: {kind}: torchtitan has no number of layers", hint)
    checkpointing = {"mode": "selective" if kind.startswith(EVERY) else kind}
    if kind == "selective":
        checkpointing["selective_ac_option"] = "op"
    elif kind.startswith(EVERY):
        checkpointing["selective_ac_option"] = kind.removeprefix(EVERY)
    how = {"loop": "for-loop", "auto": "foreach"}.get(job.optimizer_impl, job.optimizer_impl)
    alone = job.loss_head == COMPILED_LOSS and not job.compile
    low: dict[str, dict[str, Any]] = {}
    if job.float8 != "none":
        gathers = job.fsdp.float8_all_gather
        how_low = {"enable_fsdp_float8_all_gather": True} if gathers else {"recipe_name": job.float8.replace("-", "_")}
        how_low = {"recipe_name": "mxfp8_cublas"} if job.float8 == "mxfp8" else how_low
        low = {_converter(job): {**how_low, "filter_fqns": ["output"]}}
    return {
        **low,
        "training": training,
        "parallelism": parallelism,
        "activation_checkpoint": checkpointing,
        "optimizer": {"name": {"adamw": "AdamW"}.get(job.optimizer, job.optimizer), "implementation": how},
        "compile": {"enable": True, "components": ["loss"]} if alone else {"enable": job.compile},
    }
