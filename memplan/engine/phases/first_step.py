"""The first step: states of the optimizer come with it, so that what precedes it has the room of them.

torch 2.13 optim (``_init_group`` at ``step``), deepspeed 0.19 runtime/zero (``initialize_optimizer_states`` makes
none): an optimizer makes its states at its first step, all before the first update, while gradients are alive and
nothing else is. So no instant of it is above the same one later, but for optimizers that renew projections then. What
kernels' tuning takes for a moment is not counted."""

from collections.abc import Sequence
from itertools import accumulate

from memplan.engine.ledger import Ledger, Row
from memplan.spec.recipe import Recipe

FIRST = "first"
"""What stands before the names of its passes."""
LATE, TEMPORARIES = "optimizer_states", "optimizer_temporaries"


def first_step(step: Ledger, recipe: Recipe) -> Ledger:
    """The rows of the step as they are the first time, under its instants' names with ``first-`` before them."""
    steps = _steps(step.schedule)
    end = steps[-1]
    found = Ledger(f"{FIRST}-{instant}" for instant in step.schedule[: end + 1])
    for row in step.rows:
        if row.born <= end:
            found.rows.append(_the_first_time(row, steps, recipe))
    return found


def first_step_totals(step: Ledger, totals: Sequence[int], recipe: Recipe) -> list[int]:
    """What ``first_step`` allocates at each instant, without its ledger. ``totals``: those of the step."""
    steps, late, more = _steps(step.schedule), [0] * (len(totals) + 1), 0
    end = steps[-1]
    for row in step.rows:
        if row.meter == "allocated" and row.place == "gpu" and row.born <= end:
            if row.category == LATE:
                late[row.born] += row.bytes
                late[_made(row, steps)] -= row.bytes
            more += _the_first_time(row, steps, recipe).bytes - row.bytes if row.category == TEMPORARIES else 0
    before = [total - gone for total, gone in zip(totals[:end], accumulate(late), strict=False)]
    return [*before, totals[end] + more]


def _steps(schedule: tuple[str, ...]) -> list[int]:
    """The positions of the optimizers' steps; after the last one comes the evaluation."""
    return [i for i, instant in enumerate(schedule) if instant.endswith("optimizer")]


def _made(row: Row, steps: Sequence[int]) -> int:
    """Where states are made: at the last step that they are there for."""
    return max((at for at in steps if row.born <= at <= row.dies), default=row.dies)


def _the_first_time(row: Row, steps: Sequence[int], recipe: Recipe) -> Row:
    """States are born at the step; a step that renews projections needs the most at once."""
    row = row._replace(dies=min(row.dies, steps[-1]))
    if row.category == LATE and row.place == "gpu":
        return row._replace(born=_made(row, steps))
    if row.category == TEMPORARIES and row.high > row.bytes and recipe.optimizer.row.step in RENEWING:
        return row._replace(bytes=row.high)
    return row


RENEWING = ("galore", "apollo", "soap")
"""``step`` of the optimizers whose first step makes projections (``optimizer/temporaries``: REFRESHES)."""
