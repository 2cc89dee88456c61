"""What FSDP's hooks go by: a recipe's settings in plain values, by which a play of them is remembered."""

from typing import NamedTuple

from memplan.engine.losses.heads import INSIDE
from memplan.engine.parallel.fsdp2.units import hides_norm, reads_head, waits_for_reduction
from memplan.spec.recipe import Recipe

NAMING_MIXERS = frozenset(["mamba", "falcon_mamba"])
"""Whose classes name block and mixer in ``_no_split_modules`` (transformers 5.24 modeling_falcon_mamba.py)."""


class Rules(NamedTuple):
    """Of one job."""

    flat: bool
    """FSDP1: a unit is one flat parameter."""
    ranks: int
    resharding: bool | int
    """FSDP2. True; False: kept from forward to backward; a number: shared among so many ranks meanwhile."""
    cpu_offload: bool
    root_reshards: bool
    replicates: bool
    head_alone: bool
    """The tail is the head: the final norm has run when it is gathered."""
    within: bool
    """The model's own forward computes the loss, so that the root has not returned before."""
    late: bool
    """Some backward of the step reduces nothing."""
    tells_ahead: bool
    """Beside experts that are spread, units are told what to gather ahead (set_modules_to_forward_prefetch)."""
    used: int
    """Element size that modules compute in."""
    reduced: int
    stored: int
    keeps: bool
    """FSDP1: SHARD_GRAD_OP, by which what is gathered stays to its backward."""
    backward_prefetch: str
    forward_prefetch: bool
    limit_all_gathers: bool
    wrapped_within: bool
    """FSDP1: checkpoints call the wrapped layer (transformers before 5: ``_gradient_checkpointing_func(
    decoder_layer.__call__, …)``)."""
    reentrant: bool
    apart: bool
    """FSDP1: PEFT's policy wraps each trained linear by itself (``fsdp_auto_wrap_policy``)."""
    adapter: int
    """Element size of stored adapters; 0 without any."""
    magnitude: int
    forgets: bool
    """FSDP1: what accumulated of the adapters' gradients is let go of when the base has run without them as the
    reference. PEFT has them need no gradient meanwhile, by which the original parameters name none
    (torch 2.13 distributed/fsdp/_flat_param.py: _use_sharded_grad_views, _reset_flat_param_grad_info_if_needed)."""
    mixers_apart: bool
    """A layer's mixer is a unit within it, so that of a layer its norm alone is gathered ahead."""
    steps: bool
    """FSDP2: a hook behind each reduction steps on the shards that it leaves, one after another."""
    copies: int
    """Of a shard, that such a step makes."""
    aligned: bool
    """FSDP1: original parameters are flattened to a multiple of the ranks (``_init_flat_param_and_metadata``)."""

    @property
    def keeps_adapters(self) -> bool:
        """Whether adapters that are units stay whole from forward to backward."""
        return self.apart and self.keeps

    @property
    def leaves_behind(self) -> bool:
        """Whether a frozen unit is whole until the unit before is: the hook that reshards it hangs on its input, behind
        the one that gathers the unit before (_register_post_backward_reshard_only_hook). A reentrant checkpoint around
        the unit detaches its input; with BACKWARD_POST that is not modelled."""
        return not (self.wrapped_within and self.reentrant) and self.backward_prefetch != "BACKWARD_POST"

    @property
    def waits_for_layer_before(self) -> bool:
        """Whether a layer's flat gradient is put together when the layer before it has run back: what forward gathers
        ahead has its views before that layer runs, and autograd runs the latest node first (torch 2.13
        distributed/fsdp/_runtime_utils.py: ``_pre_forward_unshard``; csrc/autograd/engine.cpp:
        ``CompareNodeTaskTime``)."""
        return self.forward_prefetch and not self.apart and not self.reentrant


def rules_of(recipe: Recipe) -> Rules:
    """Those of a recipe."""
    sharding, adapter = recipe.sharding, recipe.adapter
    fsdp = sharding.fsdp
    return Rules(
        sharding.name == "fsdp",
        sharding.ranks,
        sharding.reshard_after_forward,
        fsdp.cpu_offload,
        fsdp.root_reshards,
        fsdp.replicas > 1,
        hides_norm(recipe),
        loss_is_inside(recipe),
        waits_for_reduction(recipe),
        recipe.parallel.expert > 1,
        recipe.numerics.itemsize,
        recipe.storage.reduce_itemsize,
        recipe.storage.precision.weights,
        fsdp.keeps_gathered,
        fsdp.backward_prefetch,
        fsdp.forward_prefetch,
        fsdp.limit_all_gathers,
        fsdp.checkpoints_around and sharding.name == "fsdp",
        recipe.checkpointing.reentrant,
        sharding.name == "fsdp" and adapter is not None and fsdp.wraps_adapters,
        adapter.itemsize if adapter else 0,
        adapter.magnitude_itemsize if adapter else 0,
        fsdp.use_orig_params
        and adapter is not None
        and adapter.bias == "none"
        and recipe.others.reference == "adapter",
        recipe.model.family in NAMING_MIXERS,
        recipe.fused_backward is not None,
        recipe.fused_backward.half // 2 if recipe.fused_backward else 0,
        fsdp.use_orig_params,
    )


def loss_is_inside(recipe: Recipe) -> bool:
    """Whether the model's own forward computes the loss (labels=), so that the root has not returned yet."""
    inside = recipe.method.name == "sft" and recipe.loss.head in INSIDE
    return inside or reads_head(recipe)
