"""What a plan is called."""

from collections.abc import Mapping
from typing import Any

from memplan.spec.job import Job
from memplan.spec.lora import ALL_LINEAR
from memplan.tables.trainer import Trainer

SHARDING = {
    "none": "one GPU",
    "ddp": "DDP",
    "zero0": "ZeRO-0",
    "zero1": "ZeRO-1",
    "zero2": "ZeRO-2",
    "zero3": "ZeRO-3",
    "fsdp": "FSDP1",
    "fsdp2": "FSDP2",
    "distributed-optimizer": "Megatron",
}
DEGREES = (
    ("tensor_parallel", "TP"),
    ("pipeline_parallel", "PP"),
    ("virtual_pipeline", "VP"),
    ("context_parallel", "CP"),
    ("expert_parallel", "EP"),
    ("expert_tensor_parallel", "ETP"),
)
CHECKPOINTING = {"none": "", "full": "checkpointing", "selective": "selective checkpointing"}


def layout_name(keys: Mapping[str, Any]) -> str:
    """'Megatron TP 8 PP 4', 'FSDP2 without resharding'."""
    name = SHARDING.get(str(keys.get("sharding")), str(keys.get("sharding") or "as given"))
    if keys.get("trainer", "megatron") != "megatron":
        name += f" ({keys['trainer']})"
    degrees = [f"{short} {keys[key]}" for key, short in DEGREES if (keys.get(key) or 1) > 1]
    kept, fsdp, settings = [], keys.get("fsdp") or {}, keys.get("megatron") or {}
    again = keys.get("reshard_after_forward")
    if again is False and (keys.get("pipeline_parallel") or 1) == 1:
        kept.append("without resharding")
    elif again not in (None, True, False):
        kept.append(f"resharding to {again}")
    if keys.get("sync_each_batch"):
        kept.append("reducing every micro-step")
    copies = fsdp.get("replicate") or settings.get("num_distributed_optimizer_instances")
    if copies:
        kept.append(f"with {copies} replicas")
    if fsdp.get("cpu_offload"):
        kept.append("offloaded")
    if settings.get("moe_token_dispatcher_type") == "flex":
        kept.append("by the flex dispatcher")
    return " ".join([name, *degrees, *kept])


def plan_name(keys: Mapping[str, Any]) -> str:
    """The layout, the batch, and every other choice that is not the plain one."""
    parts = [f"{layout_name(keys)}, batch {keys['batch_size']}"]
    if keys.get("gradient_accumulation_steps", 1) > 1:
        parts[0] += f" × {keys['gradient_accumulation_steps']}"
    how = keys.get("gradient_checkpointing", "none")
    modules = (keys.get("megatron") or {}).get("recompute_modules")
    parts.append(f"{' and '.join(modules)} again" if modules else CHECKPOINTING.get(how, f"checkpointing {how}"))
    if keys.get("loss_head", "auto") != "auto":
        parts.append(f"{keys['loss_head']} loss head")
    if keys.get("pair_pass", "concatenated") != "concatenated":
        parts.append(f"pairs {keys['pair_pass']}")
    if keys.get("reference", "auto") != "auto":
        parts.append(f"reference {keys['reference']}")
    if keys.get("attention", "sdpa") != "sdpa":
        parts.append(f"{keys['attention']} attention")
    if keys.get("kernels", "none") != "none":
        parts.append(f"{keys['kernels'].capitalize()}'s kernels")
    if keys.get("compile"):
        parts.append("compiled")
    if (keys.get("allocator") or {}).get("expandable_segments"):
        parts.append("expandable segments")
    if keys.get("offload"):
        parts.append("offload " + " and ".join(keys["offload"]))
    parts.append("layered_summon" if (keys.get("sync") or {}).get("gather") == "unit" else "")
    parts.append(engine_name(keys))
    return ", ".join(part for part in parts if part)


def engine_name(keys: Mapping[str, Any]) -> str:
    """'vLLM beside it TP 2 at 0.5, asleep while it trains, optimizer on the host meanwhile'; empty without a choice."""
    rollout = keys.get("rollout") or {}
    if not rollout:
        return ""
    cards, share = rollout.get("num_gpus"), rollout.get("gpu_memory_utilization") or rollout.get("mem_fraction_static")
    apart = f"on {f'{cards} GPU' if cards else 'GPU'}{'' if cards == 1 else 's'} of its own"
    where = f"engine {apart if rollout.get('placement') == 'separate' else 'beside it'}"
    where += f" TP {rollout['tensor_parallel']}" if rollout.get("tensor_parallel") else ""
    parts = [where + (f" at {share:g}" if share else "")]
    if rollout.get("sleep"):
        parts.append("awake throughout" if rollout["sleep"] == "none" else "asleep while it trains")
    if keys.get("trainer_offload"):
        parts.append(" and ".join(keys["trainer_offload"]) + " offloaded to CPU while it generates")
    ranks = [(each.get("rollout") or {}).get("tensor_parallel") for each in keys.get("extra_models") or ()]
    parts += [f"the reward model's engine TP {each}" for each in ranks if each]
    return ", ".join(parts)


def of_switches(job: Job, trainer: Trainer) -> list[str]:
    """What plans of a trainer with switches keep to, and what of the job none of these says."""
    if not trainer.switches:
        return []
    return [f"choices: what {trainer.title} has switches for; --fix key=value tries another", *untold(job, trainer)]


def untold(job: Job, trainer: Trainer) -> list[str]:
    """What of the job the trainer has no switch for."""
    given: dict[str, Any] = {"lora": f"r {job.lora.r}"} if job.lora is not None else {}
    given |= {"lora_targets": ALL_LINEAR} if job.lora is not None and job.lora.targets == ALL_LINEAR else {}
    given |= {key: getattr(job, key) for key in ("quantization", "optimizer") if key in job.model_fields_set}
    known = {key: ", ".join(trainer.switches.get(key, ())) for key in given}
    return [
        f"{key.replace('_', '.')}: {value} is kept, and {trainer.title} has no switch for it ({known[key]})"
        for key, value in given.items()
        if not trainer.can_be_told(key, value, job.num_gpus > 1)
    ]
