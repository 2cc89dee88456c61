"""What torch itself stops at: combinations that can be said, and counted, and do not run."""

from collections.abc import Iterator

from memplan.resolve.notes import Notes
from memplan.spec.recipe import Recipe


def warned_of_stops(recipe: Recipe, notes: Notes) -> Recipe:
    """The same: a job that torch stops at still has figures, which nobody will see."""
    for said, hint in stops(recipe):
        key, _, words = said.partition(": ")
        notes.remark(f"{key}: torch stops at this job ({words}); {hint}")
    return recipe


def stops(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """The key and torch's own words, and what to do, as traces of the real models have met them."""
    if recipe.sharding.name not in ("ddp", "fsdp2") and recipe.checkpointing.recompute.policy != "products":
        return
    adapter, sharding, fsdp = recipe.adapter, recipe.sharding, recipe.sharding.fsdp
    kinds, two = [run.layer for run in recipe.model.runs], sharding.name == "fsdp2"
    routings = [layer.experts.routing for layer in kinds if layer.experts]
    in_place = any(each.normalize == "in-place" and not each.corrected for each in routings)
    biases = [linear.name + ".bias" for layer in kinds for linear in layer.linears if linear.bias]
    apart = adapter is not None and adapter.itemsize != recipe.storage.precision.weights and not fsdp.casts
    unread = recipe.model.tower is not None and recipe.batch.images is None
    alone = adapter is None and not recipe.model.frozen
    waits = recipe.batch.accumulation > 1 and not sharding.sync_each_batch
    for stopped, said, hint in (
        (
            in_place and recipe.checkpointing.recompute.policy == "products",
            "gradient_checkpointing: Tensor cached during selective activation checkpoint has been mutated",
            "use gradient_checkpointing full",
        ),
        (
            unread and alone and sharding.name == "ddp" and recipe.loss.pair_pass in ("split", "gradcache"),
            "images: Expected to mark a variable ready only once",
            "use images, or pair_pass concatenated",
        ),
        (
            two and apart and adapter is not None and any(map(adapter.trains_bias, biases)),
            "lora.bias: FSDP expects uniform original parameter dtype",
            "use lora.dtype bf16",
        ),
        (
            two and fsdp.own_ends and adapter is not None and adapter.saved and recipe.model.head_is_tied,
            "lora.modules_to_save: Parameter is shared with a parameter already managed by another FSDP group",
            "use sharding fsdp",
        ),
        (
            two and unread and waits and recipe.storage.reduce_itemsize != recipe.numerics.itemsize,
            "images: 'FSDPParam' object has no attribute '_unsharded_param'",
            "use sync_each_batch true, or images",
        ),
    ):
        if stopped:
            yield said, hint
