"""ZenFlow: the columns whose gradients weigh most are stepped on by the card, every other on the host.

deepspeed 0.19 runtime/zenflow/zenflow_stage_1_and_2.py, zenflow_utils.py; ops/adam/zenflow_torch_adam.py. Each rank
steps on the selected columns of the whole model, in the weights' own dtype. Read and not measured: what comes and goes
has a low figure of nothing."""

from memplan.engine.allocator.settings import pinned
from memplan.engine.ledger import Ledger
from memplan.engine.parallel.zero.flat_groups import Group, groups_of
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe


def selected_elements(weights: list[Weight], ratio: float) -> int:
    """Elements that the card steps on: int(ratio × columns) of each matrix, vectors whole."""
    return sum(
        (int(ratio * weight.columns) * weight.rows * weight.stacked if weight.columns > 1 else weight.elements)
        * weight.copies
        for weight in weights
        if weight.trained
    )


def enter_selected_states(ledger: Ledger, recipe: Recipe, groups: list[Group], of: str) -> None:
    """Both moments of what is selected; and what the process that steps on the host has beside the usual."""
    how, e = recipe.sharding.deepspeed.selective, recipe.storage.precision.weights
    if how is None:
        return
    parts = [selected_elements(list(group.weights), how.ratio) for group in groups]
    whole, locked = sum(parts), recipe.sharding.deepspeed.optimizer.pinned and how.on_host
    ledger.add(
        f"states of what ZenFlow selects{of}",
        "optimizer_states",
        2 * (pinned(whole * e) if locked else whole * e),
        place="host" if how.on_host else "gpu",
    ).told(whole, e)
    apart = sum(group.partition for group in groups) if how.overlaps else 0
    ledger.add(f"second gradients and weights before the step{of}", "gradients", 8 * apart, place="host").told(apart)


def enter_selected(ledger: Ledger, recipe: Recipe, weights: list[Weight], born: str) -> None:
    """Gradients and copies of what is selected, from the reductions to the step, and the step's own."""
    how, e = recipe.sharding.deepspeed.selective, recipe.storage.precision.weights
    if how is None:
        return
    whole = selected_elements(weights, how.ratio)
    largest = max(selected_elements(list(group.weights), how.ratio) for group in groups_of(recipe, weights))
    step = "step.optimizer"
    kept = 1 if how.on_host else 2
    buffer = min(int(recipe.sharding.deepspeed.reduce_bucket_size * how.ratio), whole)
    copied, row = (1 + recipe.optimizer.row.foreach_copies) * largest, "optimizer_temporaries"
    ledger.add("gradients and weights of what ZenFlow selects", row, kept * whole * e, born, step, low=0).told(
        kept * whole, e
    )
    ledger.add("bucket of selected gradients", row, buffer * e, born, step, low=0).told(buffer, e)
    ledger.add("temporaries of ZenFlow's step", row, copied * e, step, step, low=0).told(copied, e)
