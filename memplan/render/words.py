"""The words of a report: what an instant is, what a category is called, how a job reads aloud."""

import json
from collections.abc import Mapping
from typing import Any

from memplan.report import Remedy, Report
from memplan.units import format_bytes, format_count

WITHIN_A_STEP = "nothing that the other layers saved is free yet, and gradients in flight come on top"
STEPS = {
    "qkv": "the last layer's q, k, v product",
    "head-norms": "the last layer's norms of q and k",
    "input-norm": "the last layer's first norm",
    "down-projections": "the last layer's latents",
    "up-projections": "the last layer's up-projections",
    "projection": "the last layer's output product",
    "fc1": "the last layer's first product",
    "activation": "the last layer's activation",
    "fc2": "the last layer's second product",
    "router-norm": "the last layer's second norm",
    "router": "the last layer's router",
    "dispatch": "what was sent to the last layer's experts",
    "shared-fc1": "the shared experts' first product",
    "shared-activation": "the shared experts' activation",
    "shared-fc2": "the shared experts' second product",
    "experts-fc1": "the experts' first product",
    "experts-activation": "the experts' activation",
    "experts-fc2": "the experts' second product",
    "combine": "what the last layer's experts sent back",
}
"""Steps of Megatron's layers."""
POINTS = {
    "layer-forward": (
        "the forward of a layer",
        "what one layer needs for a moment stands on top of all that is saved for backward",
    ),
    "forward": (
        "the end of the forward pass",
        "all that is saved for backward is alive, and the head's output with it",
    ),
    "loss": ("the loss", "the logits, and what the loss makes of them, stand beside all that is saved for backward"),
    "loss-backward": ("the backward of the loss", "the gradient of the logits is made while nothing saved is free yet"),
    "head-backward": (
        "the backward of the head",
        "the gradient of the logits and of the head's weight stand beside all that is saved for the layers",
    ),
    "final-norm-backward": ("the backward of the final norm", "all that the layers saved is still alive"),
    "last-layer-backward": (
        "the backward of the last layer",
        "nothing that the other layers saved is free yet, and this layer's gradients in flight come on top",
    ),
    "attention-backward": (
        "the backward of the last layer's attention",
        "nothing that the other layers saved is free yet, and attention's gradients in flight come on top",
    ),
    "first-layer-backward": (
        "the backward of the first layer",
        "nearly all gradients are there, and one layer's activations still are",
    ),
    "inputs-backward": ("the backward of the layers' own inputs", "the dense gradient of their table is made"),
    "embedding-backward": ("the backward of the embedding", "every gradient is there"),
    **{f"{name}-backward": (f"the backward of {what}", WITHIN_A_STEP) for name, what in STEPS.items()},
    **{
        f"recomputed-{name}-backward": (f"the backward of {what}, made again", WITHIN_A_STEP)
        for name, what in (STEPS | {"attention": "the last layer's attention"}).items()
    },
    "gather": ("the gathering of the first weights", "whole copies of sharded weights are made before anything runs"),
    "tail-reduce": (
        "the reduction of norm and head",
        "their whole gradients stand beside what they are copied into, and all that the layers saved",
    ),
    "last-layer-reduce": (
        "the reduction of the last layer's gradients",
        "they stand beside what they are copied into, and nothing that the other layers saved is free yet",
    ),
    "first-layer-reduce": (
        "the reduction of the first layer's gradients",
        "they stand beside what they are copied into, and the root is gathered still",
    ),
    "reduce": ("the reduction of the gradients", "communication buffers stand beside every gradient"),
    "optimizer": (
        "the optimizer's step",
        "activations are gone; gradients, states and what the step needs for a moment are there",
    ),
}
"""What a point of a pass is, and why memory may peak there."""
WITHIN_A_LAYER = "what this layer needs for a moment stands beside all that the layers before it saved"
"""Of ``layer-N-backward``."""

PASSES = {
    "chosen": "the chosen half",
    "rejected": "the rejected half",
    "scoring-chosen": "the chosen half, scored without a graph",
    "scoring-rejected": "the rejected half, scored without a graph",
    "reference": "the reference model",
    "kl": "the KL estimate",
    "old": "the policy scoring its rollout",
    "critic": "the critic",
    "teacher": "the teacher",
    "evaluation-policy": "in evaluation",
    "evaluation-reference": "the reference model in evaluation",
    "evaluation-kl": "the KL estimate in evaluation",
}
"""Passes other than the policy's own over the whole batch."""
EVALUATION = "evaluation-"

SHARDING = {
    "none": "nothing divided",
    "ddp": "DDP: every GPU holds the whole model",
    "zero0": "DeepSpeed stage 0: nothing divided",
    "zero1": "ZeRO-1: optimizer states divided",
    "zero2": "ZeRO-2: optimizer states and gradients divided",
    "zero3": "ZeRO-3: optimizer states, gradients and parameters divided",
    "fsdp": "FSDP1: optimizer states, gradients and parameters divided",
    "fsdp2": "FSDP2: optimizer states, gradients and parameters divided",
    "distributed-optimizer": "Megatron's distributed optimizer: main weights and moments divided",
}

METERS = {
    "allocated": "torch.cuda.max_memory_allocated",
    "reserved": "torch.cuda.max_memory_reserved",
    "device": "nvidia-smi",
}
"""Where a user reads each meter."""

COSTS = {
    "nothing": "nothing",
    "setup": "effort, once",
    "speed": "",
    "numerics": "optimizer's numerics",
    "training": "another training",
}
"""What a remedy costs beside time, in words."""


def remedy_cost(remedy: Remedy) -> str:
    """'34 % slower', 'another training, 1.8 × as fast', with what it needs of the host."""
    speed, words = remedy.relative_speed, [COSTS.get(remedy.cost, remedy.cost)]
    if speed >= 1.05 and remedy.alters_training:
        words.append(f"{speed:.1f} × as fast")
    elif speed < 0.5:
        words.append(f"{1 / speed:.1f} × the time")
    elif speed < 0.995:
        words.append(f"{100 * (1 - speed):.0f} % slower")
    if remedy.host_bytes_per_node >= 1 << 30:
        words.append(f"{format_bytes(remedy.host_bytes_per_node)} of a node's memory")
    return ", ".join(word for word in words if word) or COSTS["nothing"]


def category_title(category: str) -> str:
    """'optimizer_states' -> 'optimizer states'."""
    return category.replace("_", " ")


def instant_words(instant: str) -> tuple[str, str]:
    """What an instant is, and why memory may peak there."""
    name, _, point = instant.partition(".")
    if point not in POINTS and point.endswith("-reduce"):
        layer = point.removesuffix("-reduce").replace("-", " ")
        what, why = f"the reduction of {layer}'s gradients", POINTS["last-layer-reduce"][1]
    else:
        what, why = POINTS.get(point, (point.replace("-", " "), WITHIN_A_LAYER))
    if name.startswith(EVALUATION):
        why = "nothing is saved for backward, but its batch is one of eval_batch_size, logits and all"
    where = PASSES.get(name, "")
    return (f"{what}, {where}" if where else what), why


def instant_title(instant: str) -> str:
    """The instant with its name in the JSON."""
    return f"{instant_words(instant)[0]} ({instant})"


def model_words(report: Report) -> str:
    """'llama-3.1-8b (llama), 8.03 B parameters, all trained'."""
    params = report.model.params
    words = f"{report.model.name} ({report.model.family}), {format_count(params.total)} parameters"
    if params.active < params.total:
        words += f", {format_count(params.active)} active for a token"
    if params.trainable == params.total:
        return f"{words}, all trained"
    return f"{words}, {format_count(params.trainable)} trained{lora_words(report.job)}"


def lora_words(job: Mapping[str, Any]) -> str:
    """' by LoRA r 16 on q_proj, v_proj'; empty without LoRA."""
    lora = job.get("lora")
    if not lora:
        return ""
    targets = lora.get("targets", "all-linear")
    names = targets if isinstance(targets, str) else ", ".join(targets)
    return f" by LoRA r {lora.get('r')} on {names}"


def is_pairwise(job: Mapping[str, Any]) -> bool:
    """Whether an example is a pair of sequences."""
    from memplan.tables.methods import METHODS

    return METHODS[job["method"]].pairs


def method_words(job: Mapping[str, Any]) -> str:
    """What is trained for, and what one example is."""
    from memplan.tables.methods import METHODS

    method = METHODS[job["method"]]
    words = f"{method.name}, {method.title}"
    if method.pairs:
        words += f"; both sequences of a pair {PAIR_PASSES.get(job['pair_pass'], job['pair_pass'])}"
    if job["reference"] != "none":
        words += f"; reference {job['reference']}"
    if method.critic:
        words += "; a critic is trained beside the policy"
    group = (job.get("rollout") or {}).get("group_size")
    return words + (f"; groups of {group} completions" if group else "")


PAIR_PASSES = {
    "concatenated": "in one forward",
    "two-forward": "in two forwards and one backward",
    "split": "one after the other, one graph at a time",
    "gradcache": "one after the other, after a pass without a graph",
}


def gpu_words(job: Mapping[str, Any]) -> str:
    """How many GPUs share what."""
    count, sharding = job["num_gpus"], job["sharding"]
    if count == 1:
        return "1" + (f" × {job['gpu']}" if job.get("gpu") else "")
    nodes = -(-count // job["gpus_per_node"])
    card = f" × {job['gpu']}" if job.get("gpu") else ""
    where = "on one node" if nodes == 1 else f"on {nodes} nodes"
    return f"{count}{card} {where}; {SHARDING.get(sharding, sharding)}"


def storage_words(job: Mapping[str, Any]) -> str:
    """In which dtypes things are kept, and who steps on them."""
    from memplan.tables.optimizers import OPTIMIZERS
    from memplan.tables.precisions import PRECISIONS
    from memplan.tables.quantizations import QUANTIZATIONS

    title = PRECISIONS[job["precision"]].title
    if not str(job["sharding"]).startswith("zero"):
        title = title.replace("DeepSpeed", "Megatron")
    if PRECISIONS[job["precision"]].master and job["grad_dtype"] == "fp32":
        title = title.replace("weights and gradients, fp32", "weights, fp32 gradients,", 1)
    optimizer = OPTIMIZERS[job["optimizer"]].title
    scheme = QUANTIZATIONS.get(job.get("quantization", "none"))
    base = f"; frozen linears in {scheme.title}" if scheme else ""
    return f"{job['precision']}, {title}{base}; {optimizer}, {job['optimizer_impl']}"


def batch_words(job: Mapping[str, Any]) -> str:
    """What goes through a GPU in a micro-step."""
    pairs, size, length = is_pairwise(job), job["batch_size"], job["sequence_length"]
    unit = ("pair" if pairs else "sequence") + ("" if size == 1 else "s")
    sequences = size * (2 if pairs else 1)
    words = f"{size} {unit} per GPU and micro-step: {sequences} × {length:,} tokens = {sequences * length:,}"
    steps = job["gradient_accumulation_steps"]
    return f"{words}; {steps} micro-step{'' if steps == 1 else 's'} per optimizer step"


def program_words(job: Mapping[str, Any]) -> str:
    """Who trains, and how the model's pass is run."""
    version = f" {job['trainer_version']}" if job.get("trainer_version") else ""
    how = job["gradient_checkpointing"]
    checkpointing = {"full": "activation checkpointing", "none": "no checkpointing"}.get(how, f"{how} checkpointing")
    head = "score head" if job["method"] == "reward" else f"loss head {job['loss_head']}"
    words = f"{job['trainer']}{version}; {job['attention']} attention, {checkpointing}, {head}"
    return words + (", autocast" if job.get("autocast") else "")


def signed(size: int) -> str:
    """'+ 3.20 GiB' or '− 0.50 GiB'."""
    return f"{'−' if size < 0 else '+'} {format_bytes(abs(size))}"


def option_words(changes: Mapping[str, Any]) -> str:
    """What to type for a change of job keys."""
    return " ".join(_option(key, value) for key, value in changes.items())


def _option(key: str, value: Any) -> str:
    if key == "gradient_checkpointing":
        flags = {"full": "--gradient-checkpointing", "none": "--no-gradient-checkpointing"}
        return flags.get(value, f"--recompute {value}")
    if isinstance(value, dict):
        pairs = [(inner, _scalar(item)) for inner, item in value.items()]
        return " ".join(f"--lora-{i} {v}" if key == "lora" else f"--set {key}.{i}={v}" for i, v in pairs)
    if isinstance(value, (list, tuple)):
        if not value or not all(isinstance(item, str) for item in value):
            return f"--set '{key}={json.dumps(value)}'"
        value = ",".join(value)
    name = key.replace("_", "-")
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name} {_scalar(value)}"


def _scalar(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
