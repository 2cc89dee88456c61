"""FSDP1 around a traced model: flat parameters, as torch or accelerate wraps them."""

import functools
from typing import Any

import torch

from memplan.spec.recipe import Recipe
from memplan.trace import building

STRATEGIES = {False: "FULL_SHARD", True: "SHARD_GRAD_OP"}


def flat_sharded(model: Any, recipe: Recipe, device: str) -> Any:
    """FSDP1 with a unit for each decoder layer; accelerate with PEFT makes one of each trained linear too (peft 0.21
    utils/other.py: fsdp_auto_wrap_policy), and so does verl."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.utils._python_dispatch import _disable_current_modes

    settings, half = recipe.sharding.fsdp, building.NAMED[recipe.storage.precision.dtype]
    reduced = {2: torch.bfloat16 if half == torch.float32 else half, 4: torch.float32}[recipe.storage.reduce_itemsize]
    mixed = None
    if recipe.storage.precision.mixed or settings.casts or recipe.storage.reduce_itemsize != recipe.numerics.itemsize:
        cast = half if recipe.storage.precision.mixed or settings.casts else None
        mixed = MixedPrecision(
            param_dtype=cast,
            reduce_dtype=reduced,
            buffer_dtype=half if settings.casts else None,  # accelerate 1.15 utils/dataclasses.py: set_mixed_precision
            keep_low_precision_grads=settings.keep_low_precision_grads,
        )
    strategy = STRATEGIES[settings.keeps_gathered]
    mesh = None
    if settings.replicas > 1:
        strategy = "_HYBRID_SHARD_ZERO2" if settings.keeps_gathered else "HYBRID_SHARD"
        with _disable_current_modes():
            mesh = init_device_mesh(
                device, (settings.replicas, recipe.sharding.ranks), mesh_dim_names=("replicate", "shard")
            )
    prefetch = None if settings.backward_prefetch == "NO_PREFETCH" else BackwardPrefetch[settings.backward_prefetch]
    wrapped = FullyShardedDataParallel(
        model,
        auto_wrap_policy=_policy(model, recipe),
        mixed_precision=mixed,
        sharding_strategy=ShardingStrategy[strategy],
        backward_prefetch=prefetch,
        forward_prefetch=settings.forward_prefetch,
        limit_all_gathers=settings.limit_all_gathers,
        use_orig_params=settings.use_orig_params,
        device_mesh=mesh,
        device_id=torch.device(device, 0) if device == "cuda" else None,
    )
    if settings.casts:
        _upcast(wrapped)
    if settings.checkpoints_around:
        _checkpoint_around(wrapped)
    return wrapped


def _checkpoint_around(wrapped: Any) -> None:
    """Checkpoints of transformers before 5, which call what is wrapped (4.47 modeling_llama.py:
    ``self._gradient_checkpointing_func(decoder_layer.__call__, …)``)."""
    for unit in type(wrapped).fsdp_modules(wrapped):
        layer = unit.module
        if getattr(layer, "gradient_checkpointing", False):
            layer.gradient_checkpointing = False
            unit.forward = functools.partial(_run_again, layer._gradient_checkpointing_func, unit.forward)


def _run_again(checkpoint: Any, forward: Any, *args: Any, **keys: Any) -> Any:
    return checkpoint(functools.partial(forward, **keys), *args)


def _policy(model: Any, recipe: Recipe) -> Any:
    """What is a unit: decoder layers by their class, and PEFT's trained linears."""
    if not recipe.sharding.fsdp.wraps_layers:
        return None
    names = set(getattr(model, "_no_split_modules", None) or ())
    peft = recipe.adapter is not None and recipe.sharding.fsdp.wraps_adapters

    def wraps(module: Any) -> bool:
        if type(module).__name__ in names:
            return True
        leaf = peft and not list(module.named_children()) and getattr(module, "weight", None) is not None
        return leaf and module.weight.requires_grad

    from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy

    return functools.partial(lambda_auto_wrap_policy, lambda_fn=wraps)


def _upcast(wrapped: Any) -> None:
    """accelerate's: trained flat parameters in fp32 (accelerator.py: prepare_model)."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    for module in FullyShardedDataParallel.fsdp_modules(wrapped):
        flat = module._flat_param if module._has_params else None
        if flat is not None and flat.requires_grad and flat.dtype != torch.float32:
            flat.data = flat.data.to(torch.float32)
            module._handle._orig_param_dtype = torch.float32
