"""Every allocation and free of whole training steps, in order: what the caching allocator is simulated with."""

from typing import TYPE_CHECKING

from memplan.spec.recipe import Recipe

if TYPE_CHECKING:
    from memplan.engine.allocator.replay import StepEvents

SHARING = ("shared-block", "layer-inputs", "streams", "hyper")
"""Forms of layers that read more than the residual stream."""
SHARDINGS = ("fsdp", "fsdp2", "ddp")
"""Those whose hooks are played."""


def step_events(recipe: Recipe, steps: int = 2) -> "StepEvents | None":
    """The events of so many steps; None for what is not played yet."""
    if not is_covered(recipe):
        return None
    from memplan.engine.allocator.replay import StepEvents  # which a search never loads, nor the play
    from memplan.engine.play.step import played

    tape, start = played(recipe, steps)
    return StepEvents(tuple(tape.events), start, tape.streams, marks=tuple(tape.marks), tags=tape.tags)


def is_covered(recipe: Recipe) -> bool:
    """Decoders without images, one trained model, on one GPU or under DDP and FSDP."""
    return (
        (not recipe.several or _has_played_hooks(recipe))
        and recipe.zero_stage < 0
        and not recipe.in_megatron
        and not recipe.storage.precision.master
        and recipe.batch.images is None
        and recipe.model.encoder is None
        and not any(run.layer.form in SHARING for run in recipe.model.runs)
        and not recipe.checkpointing.offload
        and recipe.others.critic is None
        and recipe.teacher is None
        and not recipe.evaluating
    )


def _has_played_hooks(recipe: Recipe) -> bool:
    adapters = recipe.sharding.name == "fsdp" and recipe.adapter is not None
    return recipe.sharding.name in SHARDINGS and recipe.divided.world == 1 and not adapters
