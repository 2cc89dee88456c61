"""Every allocation and free of whole training steps, in order: what the caching allocator is simulated with."""

from memplan.engine.allocator.replay import StepEvents
from memplan.engine.play.step import played
from memplan.spec.recipe import Recipe

PLAYED = ("elementwise", "factored")
"""Rules of optimizers that are one optimizer, and step on tensors in the model's order."""


SHARING = ("shared-block", "layer-inputs", "streams", "hyper")
"""Forms of layers that read more than the residual stream."""


def step_events(recipe: Recipe, steps: int = 2) -> StepEvents | None:
    """The events of so many steps; None for what is not played yet."""
    if not is_covered(recipe):
        return None
    tape, start = played(recipe, steps)
    streams = getattr(tape, "streams", {})
    return StepEvents(tuple(tape.events), start, streams, marks=tuple(tape.marks), tags=tape.tags)


def is_covered(recipe: Recipe) -> bool:
    """One GPU without DeepSpeed, one trained model, optimizer states of whole elements; accumulation not with two
    forwards."""
    return (
        not recipe.several
        and recipe.zero_stage < 0
        and not recipe.storage.precision.master
        and recipe.optimizer.row.rule in PLAYED
        and recipe.optimizer.row.blocks is None
        and not recipe.fused_backward
        and recipe.batch.images is None
        and recipe.model.encoder is None
        and not any(run.layer.form in SHARING for run in recipe.model.runs)
        and not recipe.checkpointing.offload
        and not recipe.loss.router.policy
        and recipe.others.critic is None
        and recipe.teacher is None
        and (recipe.batch.accumulation == 1 or recipe.loss.pair_pass != "two-forward")
    )
