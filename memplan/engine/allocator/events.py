"""Every allocation and free of whole training steps, in order: what the caching allocator is simulated with."""

from typing import NamedTuple

from memplan.engine.allocator.blocks import Block
from memplan.engine.allocator.caching import CachingAllocator
from memplan.engine.play.step import played
from memplan.spec.recipe import Recipe

PLAYED = ("elementwise", "factored")
"""Rules of optimizers that are one optimizer, and step on tensors in the model's order."""


SHARING = ("shared-block", "layer-inputs", "streams", "hyper")
"""Forms of layers that read more than the residual stream."""


class StepEvents(NamedTuple):
    """``events``: (number of a storage, its bytes, negative where it is freed). The last step starts at ``start``."""

    events: tuple[tuple[int, int], ...]
    start: int

    @property
    def peak(self) -> int:
        """The most bytes alive at once in the last step, as the ledger counts them: without what blocks leave over."""
        live, peak = 0, 0
        for position, (_, size) in enumerate(self.events):
            live += size
            if position >= self.start:
                peak = max(peak, live)
        return peak


def step_events(recipe: Recipe, steps: int = 2) -> StepEvents | None:
    """The events of so many steps; None for what is not played yet."""
    if not is_covered(recipe):
        return None
    tape, start = played(recipe, steps)
    return StepEvents(tuple(tape.events), start)


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


def play(recorded: StepEvents, allocator: CachingAllocator) -> None:
    """Hand the events to an allocator; its peaks are those of the last step."""
    blocks: dict[int, Block] = {}
    for position, (number, size) in enumerate(recorded.events):
        if position == recorded.start:
            allocator.reset_peaks()
        if size > 0:
            blocks[number] = allocator.malloc(size)
        else:
            allocator.free(blocks.pop(number))
