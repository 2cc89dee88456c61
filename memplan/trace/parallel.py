"""A model as one of several ranks holds it, under DDP or FSDP2: for real ranks and for traced ones."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import _disable_current_modes

from memplan.spec.recipe import Recipe
from memplan.trace import building


def fully_sharded(model: Any, recipe: Recipe, device: str, ranks: int) -> Any:
    """FSDP2: a unit for each decoder layer, and the root around them, in the job's dtypes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    half = building.NAMED[recipe.precision.dtype]
    cast = half if recipe.precision.mixed else None
    reduced = {2: half, 4: torch.float32}[recipe.reduce_itemsize]
    same = recipe.reduce_itemsize == recipe.compute_itemsize
    policy = MixedPrecisionPolicy(param_dtype=cast, reduce_dtype=None if same else reduced)
    with _disable_current_modes():  # a mesh is numbers on the host, of which torch asks which are where
        settings: dict[str, Any] = {"mesh": init_device_mesh(device, (ranks,)), "mp_policy": policy}
    layers = set(getattr(model, "_no_split_modules", None) or ())
    for module in list(model.modules()):
        if type(module).__name__ in layers:
            fully_shard(module, reshard_after_forward=recipe.reshard_after_forward, **settings)
    # The root is not resharded after forward, as is torch's default.
    return fully_shard(model, **settings)


def replicated(model: Any, recipe: Recipe, **settings: Any) -> Any:
    """DDP around a model."""
    return DistributedDataParallel(model, gradient_as_bucket_view=recipe.gradient_as_bucket_view, **settings)


def set_sync(model: Any, recipe: Recipe, reduces: bool) -> None:
    """Whether the next backward reduces gradients."""
    if recipe.sharding == "fsdp2":
        model.set_requires_gradient_sync(reduces)
    elif recipe.sharding == "ddp":
        model.require_backward_grad_sync = reduces
