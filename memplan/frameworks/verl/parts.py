"""What verl's trainers have in common: model, adapters, engine, optimizer."""

import re

from memplan.frameworks.base import Keys
from memplan.frameworks.common.optimizer_classes import put_class
from memplan.frameworks.files.documents import is_template
from memplan.frameworks.own_words.names import lora_targets
from memplan.frameworks.verl.asking import known
from memplan.frameworks.verl.fsdp import read_fsdp, ulysses
from memplan.frameworks.verl.keys import ACTOR, OPTIMIZERS
from memplan.frameworks.verl.megatron import degrees, read_megatron
from memplan.frameworks.verl.source import RL, Given

NO_STATES = ("betas", "eps", "lr", "weight_decay", "nesterov", "maximize", "bf16_stochastic_round")
"""Arguments of optimizers that memory does not feel. ``amsgrad`` keeps a state more."""
ENGINES = {"dp": "fsdp", "fsdp": "fsdp", "fsdp2": "fsdp2", "megatron": "megatron"}
"""Words of ``model_engine`` and ``engine``; the others (veomni, torchtitan, automodel) are engines of their own."""


def strategy_of(keys: Keys, found: Given) -> tuple[str, str]:
    """fsdp, fsdp2, megatron or another engine's name; the key that says it."""
    keys.skip("model_engine", "engine")
    outer = f"{ACTOR}strategy" if found.kind == RL else "engine.strategy"
    for key in (outer, "model_engine", "engine"):
        word = str(keys.settings.values.get(key) or "").lower()
        if word in ENGINES and ENGINES[word] != "fsdp":
            keys.skip(outer)
            return ENGINES[word], key
    if "megatron" in found.config:
        keys.skip(outer)
        keys.defaults = {**keys.defaults, outer: "megatron"}  # as that config has it
        return "megatron", outer
    inner = str(keys.get(f"{ACTOR}fsdp_config.strategy" if found.kind == RL else outer) or "")
    said = next((key for key in (outer, "model_engine", "engine") if keys.has(key)), outer)
    word = str(keys.get(said) or "fsdp").lower()
    return (inner or "fsdp") if ENGINES.get(word) == "fsdp" and inner != "fsdp" else ENGINES.get(word, word), said


def copies_shared(keys: Keys, at: str) -> int:
    """GPUs that hold one copy of the model under Megatron."""
    found = degrees(keys, at)
    model = 1
    for name in ("tensor_parallel", "pipeline_parallel", "context_parallel"):
        model *= found.get(name, 1)
    return model


def read_engine(keys: Keys, strategy: str, said: str, at: str, outer: str, world: int) -> None:
    """The trainer's engine."""
    if strategy == "megatron":
        read_megatron(keys, at, said, f"{outer}optim." if outer == ACTOR else "optim.")
        return
    if strategy not in ("fsdp", "fsdp2"):
        keys.draft.warn(
            said, keys.settings.where(said), f"the {strategy[:20]} engine is counted as FSDP2", "parallelism"
        )
        strategy = "fsdp2"
    shared = ulysses(keys, outer, at)
    if shared > 1:
        keys.put("context_parallel", shared, *(f"{each}ulysses_sequence_parallel_size" for each in (outer, at)))
    read_fsdp(keys, strategy, said, at, world)


def read_model(keys: Keys, at: str, megatron: bool) -> int:
    """Model, checkpointing, adapters, kernels, attention; the rank of the adapters."""
    path = f"{at}path" if keys.has(f"{at}path") else f"{at}partial_pretrain"
    if is_template(keys.get(path)) and "model" not in keys.draft.given:
        keys.draft.ask("model", keys.settings.where(path), f"{path} is {str(keys.get(path))[:60]}")
    else:
        keys.copy("model", path)
    world = int(keys.draft.said.get("num_gpus") or 1)
    if keys.flag(f"{at}enable_activation_offload") and world > 1:  # not modelled over several GPUs
        keys.bound(f"{at}enable_activation_offload", "activations are counted on the card", "checkpointing")
    elif keys.flag(f"{at}enable_activation_offload"):
        keys.put("offload", ["activations"], f"{at}enable_activation_offload")
    keys.put_on(f"{at}use_fused_kernels", "loss_head", "fused")
    if megatron:
        keys.skip(f"{at}enable_gradient_checkpointing", f"{at}use_remove_padding", f"{at}use_liger")
    else:
        on = keys.flag(f"{at}enable_gradient_checkpointing")
        keys.put("gradient_checkpointing", "full" if on else "none", f"{at}enable_gradient_checkpointing")
        keys.put_on(f"{at}use_liger", "kernels", "liger")
        attention = str(keys.get(f"{at}override_config.attn_implementation") or "flash_attention_2")
        word = {"sdpa": "sdpa", "eager": "eager"}.get(attention, "flash")
        keys.put("attention", word, f"{at}override_config.attn_implementation")
    return _adapters(keys, at)


def _adapters(keys: Keys, at: str) -> int:
    """LoRA of PEFT (lora_rank), or of Megatron's bridge (lora.rank)."""
    name = f"{at}lora_rank" if known(keys, f"{at}lora_rank", "lora", 0) else f"{at}lora.rank"
    rank = known(keys, name, "lora", 0)
    inner = name.endswith(".rank")
    alpha, modules = (f"{at}lora.{each}" if inner else f"{at}{each}" for each in
                      ("alpha" if inner else "lora_alpha", "target_modules"))  # fmt: skip
    keys.skip(f"{at}lora_alpha", f"{at}target_modules", f"{at}lora.alpha", f"{at}lora.target_modules")
    if rank and keys.get(f"{at}exclude_modules"):
        keys.bound(f"{at}exclude_modules", "adapters are counted on what it leaves out, too", "adapters")
    keys.skip(f"{at}exclude_modules")
    if rank and keys.has(f"{at}lora_adapter_path"):
        where = keys.settings.where(f"{at}lora_adapter_path")
        keys.draft.remarks.append(f"{where}: an adapter that is loaded is counted as lora_rank says")
        keys.skip(f"{at}lora_adapter_path")
    if rank:
        value = keys.get(modules)
        names = value if isinstance(value, list) else re.sub(r"[][,'\"]", " ", str(value or "all-linear")).split()
        targets = "all-linear" if inner else lora_targets(tuple(str(each) for each in names))
        keys.put("lora", {"r": rank, "alpha": keys.number(alpha), "dropout": 0.0, "targets": targets}, name)
    return rank


def read_optimizer(keys: Keys, at: str) -> None:
    """The optimizer, by its class and the module that it is of; FSDP's takes arguments too (build_optimizer)."""
    module, name = keys.text(f"{at}optimizer_impl") or "torch.optim", str(keys.get(f"{at}optimizer"))
    arguments: dict[str, object] = {}
    if keys.draft.values.get("sharding") in ("fsdp", "fsdp2"):
        over = f"{at}override_optimizer_config."
        arguments = {each: keys.flag(over + each) for each in ("fused", "foreach")}
        arguments["momentum"] = keys.number(f"{over}momentum")
        keys.skip(*(over + each for each in NO_STATES))
        for each in (each for each in keys.settings.values if each.startswith(over) and not keys.took(each)):
            keys.warn(each, decides="optimizer")
    key = f"{at}optimizer_impl" if keys.has(f"{at}optimizer_impl") else f"{at}optimizer"
    put_class(keys, key, OPTIMIZERS.get(name.lower(), name), arguments, module)
