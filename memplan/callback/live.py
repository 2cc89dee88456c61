"""From a live model and its TrainingArguments to a job: what the callback estimates before the first step.

Everything is read from objects by attribute, so that this module imports no framework and serves every version."""

import json
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

from memplan.callback.adapters import DTYPES, read_lora
from memplan.errors import InvalidJob
from memplan.frameworks.hugging_face.arguments import ATTENTIONS, job_optimizer
from memplan.spec.allocator import VARIABLES, read_conf
from memplan.units import pairs_of

METHODS_BY_CONFIG = pairs_of(
    """SFTConfig=sft RewardConfig=reward DPOConfig=dpo KTOConfig=kto ORPOConfig=orpo CPOConfig=cpo PPOConfig=ppo
    GRPOConfig=grpo RLOOConfig=rloo OnlineDPOConfig=online-dpo"""
)
"""Class of TRL's arguments -> method."""


def job_of(model: Any, args: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Job keys of this training run; ``given`` goes before whatever is read here.

    Raises InvalidJob where a value that memory hangs on cannot be read, and names the key to give."""
    split, method = _sharding(args), _method(args)
    job: dict[str, Any] = {
        "model": json.loads(model.config.to_json_string(use_diff=False)),
        "batch_size": args.per_device_train_batch_size,
        "gradient_accumulation_steps": args.gradient_accumulation_steps,
        "attention": _attention(model),
        **method,
        **_online(model, args),
        **_checkpointing(model, args),
        **_optimizer(args, method["trainer"]),
        **split,
        **_precision(model, args, split),
        **read_lora(model),
        **_extras(model, args),
        **given,
    }
    if "sequence_length" not in job:
        job["sequence_length"] = _sequence_length(args)
    return job


def _sequence_length(args: Any) -> int:
    for name in ("max_length", "max_seq_length"):
        value = getattr(args, name, None)
        if value:
            return int(value)
    raise InvalidJob("sequence_length: the training arguments name none", "MemoryCallback(sequence_length=2048)")


def _method(args: Any) -> dict[str, Any]:
    """Method, trainer and what its settings switch on, by the class of the arguments."""
    names = {kind.__name__ for kind in type(args).__mro__}
    found = [method for config, method in METHODS_BY_CONFIG.items() if config in names]
    trainer = "trl" if found else "transformers"
    job: dict[str, Any] = {"method": found[0] if found else "sft", "trainer": trainer}
    version = package_version(trainer)
    if version:
        job["trainer_version"] = version
    kinds = getattr(args, "loss_type", None)
    kinds = [kinds] if isinstance(kinds, str) else list(kinds or [])
    if job["method"] == "cpo" and "simpo" in kinds:
        job["method"] = "simpo"
    if job["method"] == "dpo" and kinds == ["ipo"]:
        job["method"] = "ipo"
    if hasattr(args, "cpo_alpha"):
        job["sft_term"] = args.cpo_alpha != 0
    if getattr(args, "precompute_ref_log_probs", False):
        job["reference"] = "precomputed"
    return job


def _online(model: Any, args: Any) -> dict[str, Any]:
    """What GRPO's and RLOO's arguments say of the update: KL term, entropy bonus, lengths."""
    if not {kind.__name__ for kind in type(args).__mro__} & {"GRPOConfig", "RLOOConfig"}:
        return {}
    kept = "adapter" if getattr(model, "peft_config", None) else "resident"
    job: dict[str, Any] = {"reference": kept if args.beta else "none"}
    if getattr(args, "entropy_coef", 0.0) or getattr(args, "use_adaptive_entropy", False):
        job["entropy"] = "loss"
    prompt, completion = (getattr(args, f"max_{part}_length", None) for part in ("prompt", "completion"))
    if completion:
        job["completion_length"] = int(completion)
    if prompt and completion:
        job["sequence_length"] = int(prompt) + int(completion)
    return job


def package_version(package: str) -> str | None:
    """The installed version of a package, or None."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _checkpointing(model: Any, args: Any) -> dict[str, Any]:
    """transformers 5 calls it activation_checkpointing, and keeps the old name as an alias."""
    asked = getattr(args, "activation_checkpointing", None) or getattr(args, "gradient_checkpointing", False)
    settings = getattr(args, "activation_checkpointing_kwargs", None)
    settings = settings or getattr(args, "gradient_checkpointing_kwargs", None) or {}
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    name = "activation" if hasattr(base, "is_activation_checkpointing") else "gradient"
    if not (asked or getattr(base, f"is_{name}_checkpointing", False)):
        return {"gradient_checkpointing": "none"}
    every = int(settings.get("every_n_layers", 1))
    return {
        "gradient_checkpointing": "full" if every == 1 else f"every:{every}",
        "gradient_checkpointing_reentrant": bool(settings.get("use_reentrant", False)),
    }


def _optimizer(args: Any, trainer: str) -> dict[str, Any]:
    name = str(getattr(args.optim, "value", args.optim))
    if name == "sgd" and "momentum" in (args.optim_args or ""):
        return {"optimizer": "sgd-momentum"}
    return job_optimizer(name, trainer) or {"optimizer": name}  # which the job refuses


def _sharding(args: Any) -> dict[str, Any]:
    """How the states are split, as accelerate has it: that covers the arguments and ``accelerate launch``."""
    ranks = int(args.world_size)
    if getattr(args, "n_gpu", 0) > 1:
        raise InvalidJob(
            f"num_gpus: {args.n_gpu} cards in one process (torch.nn.DataParallel) are not modelled",
            "start one process per card with torchrun or accelerate launch",
        )
    state = _accelerate_state()
    kind = str(getattr(getattr(state, "distributed_type", None), "value", ""))
    if kind == "DEEPSPEED":
        stage = int(state.deepspeed_plugin.zero_stage)
        offload = state.deepspeed_plugin.deepspeed_config.get("zero_optimization", {})
        devices = {what: (offload.get(key) or {}).get("device", "none") for key, what in DEEPSPEED_OFFLOAD.items()}
        moved = [what for what, device in devices.items() if device != "none"]
        return {"num_gpus": ranks, "zero_stage": stage, **({"offload": moved} if moved else {})}
    if kind == "FSDP":
        two = getattr(state.fsdp_plugin, "fsdp_version", 1) == 2
        return {"num_gpus": ranks, "sharding": "fsdp2" if two else "fsdp"}
    return {"num_gpus": ranks, "sharding": "ddp" if ranks > 1 else "none"}


DEEPSPEED_OFFLOAD = {"offload_optimizer": "optimizer", "offload_param": "parameters"}


def _accelerate_state() -> Any:
    """accelerate's own record of how this process runs, where there is one."""
    try:
        from accelerate.state import AcceleratorState
    except ImportError:
        return None
    return AcceleratorState() if AcceleratorState._shared_state else None


def _precision(model: Any, args: Any, split: Mapping[str, Any]) -> dict[str, Any]:
    """How the weights are stored, by the weights themselves; sharded runs store them as the framework does."""
    half = "bf16" if args.bf16 else "fp16" if args.fp16 else ""
    sizes: Counter[str] = Counter()
    for name, weight in model.named_parameters():
        if "lora_" not in name:
            sizes[DTYPES.get(str(weight.dtype), str(weight.dtype))] += weight.numel()
    stored = next((dtype for dtype, _ in sizes.most_common() if dtype in DTYPES.values()), "fp32")
    if "zero_stage" in split or str(split["sharding"]).startswith("fsdp"):
        return {"dtype": half or stored}
    if stored == "fp32":
        return {"precision": f"{half}-amp" if half else "fp32"}
    return {"precision": stored, "autocast": bool(half)}


def _attention(model: Any) -> str:
    name = str(getattr(model.config, "_attn_implementation", None) or "eager")
    return ATTENTIONS.get(name, name)


def _extras(model: Any, args: Any) -> dict[str, Any]:
    """Switches that change memory and are off for most; the job refuses those that it does not model."""
    job: dict[str, Any] = {}
    if getattr(args, "use_liger_kernel", False):
        job["kernels"] = "liger"
    if getattr(args, "torch_compile", False):
        job["compile"] = True
    if getattr(model, "is_loaded_in_8bit", False):
        job["quantization"] = "int8"
    if getattr(model, "is_loaded_in_4bit", False):
        settings = getattr(model.config, "quantization_config", None)
        double = "-double" if getattr(settings, "bnb_4bit_use_double_quant", False) else ""
        job["quantization"] = f"{getattr(settings, 'bnb_4bit_quant_type', 'nf4')}{double}"
    said, _ = read_conf(next((text for name in VARIABLES if (text := os.environ.get(name))), ""))
    if said:
        job["allocator"] = said
    return job
