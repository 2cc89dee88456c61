"""What waits on a stage of torch's own pipeline: saved activations of micro-batches that have not run back yet.

1F1B (torch 2.13 distributed/pipelining/schedules.py: ``Schedule1F1B``): stage i of p runs p − i forwards before its
first backward, and each holds what it saved, its input and its output (stage.py: ``fwd_cache``) until then. The pass
that is traced is one of them."""

from memplan.engine.ledger import Ledger
from memplan.engine.passes import TracedPass
from memplan.spec.parallel import Parallel
from memplan.spec.recipe import Recipe


def in_flight(degrees: Parallel, micro_batches: int) -> int:
    """Micro-batches whose activations a stage holds at once under 1F1B."""
    return min(micro_batches, degrees.pipeline - degrees.stage)


def enter_pipeline(ledger: Ledger, recipe: Recipe, passes: list[TracedPass]) -> None:
    """The activations of the others in flight; nothing without a pipeline."""
    degrees = recipe.parallel
    others = in_flight(degrees, recipe.batch.accumulation) - 1
    if degrees.pipeline == 1 or not others:
        return
    for traced in passes:
        saved = traced.saved_before[-1] + traced.tail.saved.size + traced.layers[0].boundary
        ledger.add(
            "activations of other micro-batches",
            "activations",
            others * saved,
            "",
            f"{traced.plan.name}.embedding-backward",
        ).told(others, saved)
