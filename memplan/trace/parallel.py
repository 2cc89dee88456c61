"""A model as one of several ranks holds it, under DDP or FSDP2: for real ranks and for traced ones."""

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import _disable_current_modes

from memplan.spec.recipe import Recipe
from memplan.trace import building


def fully_sharded(model: Any, recipe: Recipe, device: str, ranks: int, whole: bool = False) -> Any:
    """FSDP2: a unit for each decoder layer, and the root around them, in the job's dtypes.

    Where accelerate wraps (1.15 utils/fsdp_utils.py: fsdp2_prepare_model), input embedding and tail are units too.
    ``whole``: one unit, as TRL's prepare_fsdp wraps a reference."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    half = building.NAMED[recipe.storage.precision.dtype]
    cast = half if recipe.storage.precision.mixed or recipe.sharding.fsdp.casts else None
    reduced = {2: torch.bfloat16 if half == torch.float32 else half, 4: torch.float32}[recipe.storage.reduce_itemsize]
    same = recipe.storage.reduce_itemsize == recipe.numerics.itemsize
    # accelerate 1.15 utils/dataclasses.py: set_mixed_precision
    given = half if recipe.sharding.fsdp.casts else None
    policy = MixedPrecisionPolicy(param_dtype=cast, reduce_dtype=None if same else reduced, output_dtype=given)
    hybrid = recipe.sharding.fsdp.replicas > 1
    shape = (recipe.sharding.fsdp.replicas, ranks // recipe.sharding.fsdp.replicas) if hybrid else (ranks,)
    names = ("replicate", "shard") if hybrid else ("shard",)
    with _disable_current_modes():  # a mesh is numbers on the host, of which torch asks which are where
        mesh = init_device_mesh(device, shape, mesh_dim_names=names) if recipe.parallel.tensor == 1 else None
        settings: dict[str, Any] = {
            "mesh": mesh or model._device_mesh["shard"],
            "mp_policy": policy,
            "offload_policy": CPUOffloadPolicy(pin_memory=False)
            if recipe.sharding.fsdp.cpu_offload
            else OffloadPolicy(),
        }
        layers = set(getattr(model, "_no_split_modules", None) or ())
        resharding = recipe.sharding.reshard_after_forward
    if whole:
        return fully_shard(model, **settings)
    if recipe.sharding.fsdp.casts:
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.dtype != torch.float32:
                parameter.data = parameter.data.to(torch.float32)
    found = [module for module in model.modules() if type(module).__name__ in layers]
    if not found:  # nothing that accelerate would wrap: a plain loop wraps its longest list of layers
        lists: list[Any] = [each for each in model.modules() if isinstance(each, torch.nn.ModuleList)]
        found = list(max(lists, key=lambda each: sum(1 for _ in each)))
    for module in reversed(found):  # what stands within another comes first
        fully_shard(module, reshard_after_forward=resharding, **settings)
    if recipe.sharding.fsdp.own_ends:
        _wrap_ends(model, settings, resharding)
    if recipe.sharding.fsdp.root_reshards:  # verl's, which wraps its input embedding alone and says so of the root too
        if not recipe.model.head_is_tied:
            fully_shard(model.get_input_embeddings(), reshard_after_forward=resharding, **settings)
        return fully_shard(model, reshard_after_forward=resharding, **settings)
    # The root is not resharded after forward, as is torch's default.
    return fully_shard(model, **settings)


def by_plan(model: Any, recipe: Recipe, device: str) -> Any:
    """transformers' own tensor parallelism, of what ``from_pretrained`` would have loaded so: a tied head is the
    embedding's rank's part, and the embedding whole before 5.21."""
    from torch.distributed.device_mesh import init_device_mesh
    from transformers.distributed import DistributedConfig
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    ranks, own = recipe.parallel.tensor, {name for name, _ in model.named_parameters()}
    with _disable_current_modes():
        both = init_device_mesh(device, (recipe.parallel.world // ranks, ranks), mesh_dim_names=("shard", "tp"))
        mesh = both["tp"]
    model.config.distributed_config = DistributedConfig(tp_size=ranks)
    model._device_mesh, model._tp_size = both, ranks
    plan, *_ = model._resolve_parallel_plans(model.config.distributed_config)
    whole = ("embedding_rowwise",) if recipe.parallel.whole_embedding else ()
    tied = {name for name, _ in model.named_parameters(remove_duplicate=False)} - own
    apply_tensor_parallelism(
        model, mesh, {name: style for name, style in plan.items() if style not in whole and name not in tied}
    )
    model.tie_weights()
    return model


def _wrap_ends(model: Any, settings: dict[str, Any], resharding: bool | int) -> None:
    """accelerate's: the input embedding, unless it is tied; final norm and head together, which stay gathered."""
    from torch.distributed.fsdp import fully_shard

    prefix = getattr(model, "base_model_prefix", "")
    base = getattr(model, prefix, None) if prefix else model  # PEFT's is the whole model, which has no norm of its own
    first, last = model.get_input_embeddings(), model.get_output_embeddings()
    norm = None
    for _, module in base.named_children() if isinstance(base, torch.nn.Module) else ():
        norm = module if "Norm" in type(module).__name__ else norm
    tied = last is not None and first.weight is last.weight
    if not tied:
        fully_shard(first, reshard_after_forward=resharding, **settings)
    tail = [module for module in ((norm, first, last) if tied else (norm, last)) if module is not None]
    if tail:
        fully_shard(tail, reshard_after_forward=False, **settings)


def replicated(model: Any, recipe: Recipe, **settings: Any) -> Any:
    """DDP around a model."""
    cap = {} if recipe.sharding.ddp.bucket_cap_mb is None else {"bucket_cap_mb": recipe.sharding.ddp.bucket_cap_mb}
    return DistributedDataParallel(
        model,
        gradient_as_bucket_view=recipe.sharding.gradient_as_bucket_view,
        broadcast_buffers=recipe.sharding.ddp.broadcast_buffers,
        **cap,
        **settings,
    )


def set_sync(model: Any, recipe: Recipe, reduces: bool) -> None:
    """Whether the next backward reduces gradients."""
    if recipe.sharding.name == "fsdp2":
        model.set_requires_gradient_sync(reduces)
    elif recipe.sharding.name == "fsdp":
        for module in type(model).fsdp_modules(model):
            module._sync_gradients = reduces
    elif recipe.sharding.name == "ddp":
        model.require_backward_grad_sync = reduces
