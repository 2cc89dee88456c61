"""TRL's files of a job: a script's arguments, accelerate's config, and the command that starts them."""

import json
from typing import Any

from memplan.errors import InvalidJob
from memplan.frameworks.accelerate.write import CONFIG, files_of, run_script
from memplan.frameworks.base import File, Writing
from memplan.frameworks.files.quoting import shell_word
from memplan.frameworks.hugging_face.write import arguments, attention, load_dtype
from memplan.frameworks.trl.keys import METHODS
from memplan.spec.allocator import conf_text
from memplan.spec.generation import Generator
from memplan.spec.job import Job
from memplan.tables.trainer import by_method
from memplan.tables.trainers import find_trainer

ARGUMENTS = "train.yaml"
COMMANDS = ("sft", "dpo", "kto", "grpo", "rloo", "reward")
"""``trl …``; the others are scripts of TRL's examples."""
SCRIPTS = {"cpo": "cpo.py", "orpo": "orpo.py", "online-dpo": "online_dpo.py", "distill": "gkd.py", "ppo": "ppo.py"}
TRAINERS = {"ipo": "dpo", "simpo": "cpo"}
HOLD_CONFIG = ("online-dpo", "distill")
"""Scripts that take ``--config``; the others take options alone."""
LOSSES: dict[str, Any] = {"dpo": ["sigmoid"], "ipo": ["ipo"], "simpo": "simpo", "cpo": "sigmoid", "kto": "kto"}


def write(job: Job, writing: Writing) -> list[File]:
    """train.yaml, accelerate.yaml (and deepspeed.json), run.sh."""
    trainer = TRAINERS.get(job.method, job.method)
    values = {"model_name_or_path": writing.model, **settings(job, _generator(job, writing))}
    own = {"dataset_name": "DATASET", "output_dir": "OUTPUT"}
    usage = f"trl {trainer} --config {ARGUMENTS} --accelerate_config {CONFIG}"
    if trainer not in COMMANDS:
        usage = _script(SCRIPTS.get(trainer, f"{trainer}.py"), trainer, {**own, **values})
    shown = usage.splitlines()[0].removesuffix(" \\")
    head = (f"TRL's {trainer}, as memplan planned it: {shown}", *writing.expects)
    files = [File(ARGUMENTS, values, comment=head, placeholders=own), *files_of(job, writing)]
    if (of := _generator(job, writing)) is not None and of.separate:
        usage = f"{_server(of, writing.model, job.num_gpus)}\n{_visible(0, job.num_gpus)} {usage}"
    return [*files, run_script(usage, job, ("FILL IN dataset_name and output_dir first.", *writing.expects))]


def _server(of: Generator, model: str, first: int) -> str:
    """The command that serves the policy, on the cards behind those that train."""
    options = {
        "model": model,
        "tensor_parallel_size": of.tensor_parallel,
        "data_parallel_size": of.gpus // (of.tensor_parallel * of.pipeline_parallel),
        "gpu_memory_utilization": of.share,
        "max_model_len": of.max_model_len,
    }
    words = " ".join(f"--{name} {shell_word(value)}" for name, value in options.items())
    return f"{_visible(first, of.gpus)} trl vllm-serve {words} &"


def _visible(first: int, count: int) -> str:
    return "CUDA_VISIBLE_DEVICES=" + ",".join(map(str, range(first, first + count)))


def _script(name: str, trainer: str, values: dict[str, Any]) -> str:
    """The command of one of TRL's example scripts."""
    start = f"accelerate launch --config_file {CONFIG} {name}"
    if trainer in HOLD_CONFIG:
        return f"{start} --config {ARGUMENTS}"
    values = {key: value for key, value in values.items() if key != "env"}
    return " \\\n  ".join([start, *(f"--{key} {_word(value)}" for key, value in values.items())])


def _word(value: Any) -> str:
    if isinstance(value, dict):
        return shell_word(json.dumps(value))
    if isinstance(value, list):
        return " ".join(shell_word(item) for item in value)
    return shell_word(value)


def settings(job: Job, of: Generator | None = None) -> dict[str, Any]:
    """Every argument that memory feels."""
    values = arguments(job) | {"dtype": load_dtype(job), "attn_implementation": attention(job)}
    if job.method in LOSSES:
        values["loss_type"] = LOSSES[job.method]
    if job.method in ("cpo", "simpo"):
        values["cpo_alpha"] = 1.0 if job.sft_term else 0.0
    elif job.sft_term and job.method == "dpo":
        values |= {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 1.0]}
    values |= _lengths(job) | _lora(job) | _quantisation(job) | _engine(of)
    values |= _router_loss(job)
    if job.reference == "precomputed":
        values["precompute_ref_log_probs"] = True
    if "activations" in job.offload:
        values["activation_offloading"] = True
    if conf := conf_text(job.allocator):
        values = {"env": {"PYTORCH_CUDA_ALLOC_CONF": conf}, **values}
    return values


def _generator(job: Job, writing: Writing) -> Generator | None:
    """What generates, where an argument of the trainer's says it."""
    return writing.recipe.generator if job.method in ("grpo", "rloo", "online-dpo") else None


def _engine(of: Generator | None) -> dict[str, Any]:
    """vLLM in the trainer's processes, or on a server, whose command has its settings. Raises InvalidJob for others."""
    if of is None:
        return {}
    if of.engine == "hf":
        return {"use_vllm": False}
    if of.engine != "vllm":
        raise InvalidJob(f"rollout.engine: {of.engine} cannot be said in TRL's arguments", "use rollout.engine vllm")
    if of.separate:
        return {"use_vllm": True, "vllm_mode": "server"}
    return {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": of.share,
        "vllm_tensor_parallel_size": of.tensor_parallel,
        "vllm_max_model_length": of.max_model_len,
        "vllm_enable_sleep_mode": of.sleep > 0,
    }


def _router_loss(job: Job) -> dict[str, Any]:
    """``router_aux_loss_coef``, where the trainer has it; else what its model is loaded with."""
    if job.router_aux_loss is None:
        return {}
    trainer = find_trainer("trl", job.trainer_version or "")
    if by_method(trainer.loss.router_term, job.method, "model") == "always":
        return {} if job.router_aux_loss else {"router_aux_loss_coef": 0.0}
    return {"model_init_kwargs": {"output_router_logits": True}} if job.router_aux_loss else {}


def _lengths(job: Job) -> dict[str, Any]:
    """max_length; for online methods the completion, the group and the KL term."""
    row = METHODS.get(job.method, {})
    values: dict[str, Any] = {}
    completion = job.completion_length or job.sequence_length
    if job.temperature is not None:
        values["temperature"] = job.temperature
    if "max_completion_length" in row:
        group = job.rollout.group_size if job.rollout else None
        values |= {"num_generations": group} if group else {}
        values |= {"max_completion_length": completion, "beta": 0.0 if job.reference == "none" else 0.04}
        values |= {"entropy_coef": 0.01} if job.entropy == "loss" and job.method == "grpo" else {}
    elif job.method == "online-dpo":
        values |= {"max_new_tokens": completion, "max_length": job.sequence_length}
    elif job.method == "ppo":
        values["response_length"] = completion
    else:
        values["max_length"] = job.sequence_length
    if job.context_parallel > 1:
        values["pad_to_multiple_of"] = 2 * job.context_parallel
    for extra in job.extra_models:
        key = {"teacher": "teacher_model_name_or_path", "reward": "reward_model_name_or_path"}.get(extra.role)
        if key and isinstance(extra.model, str):
            values[key] = extra.model
    return values


def _lora(job: Job) -> dict[str, Any]:
    if job.lora is None:
        return {"use_peft": False}
    lora = job.lora
    values: dict[str, Any] = {
        "use_peft": True,
        "lora_r": lora.r,
        **({"lora_alpha": int(lora.alpha)} if lora.alpha is not None else {}),
        "lora_dropout": lora.dropout,
        "lora_target_modules": lora.targets if isinstance(lora.targets, str) else list(lora.targets),
    }
    if lora.modules_to_save:
        values["lora_modules_to_save"] = list(lora.modules_to_save)
    return values | {key: True for key, on in (("use_dora", lora.dora), ("use_rslora", lora.rslora)) if on}


def _quantisation(job: Job) -> dict[str, Any]:
    if job.quantization in ("nf4", "nf4-double", "fp4"):
        kind = {"bnb_4bit_quant_type": job.quantization.partition("-")[0]}
        return {"load_in_4bit": True, **kind, "use_bnb_nested_quant": job.quantization == "nf4-double"}
    return {"load_in_8bit": True} if job.quantization == "int8" else {}
