"""A step and the evaluation after it, read as one ledger: each has its own instants, and what lasts is in both."""

from collections import Counter

from memplan.engine.ledger import Ledger, Row
from memplan.engine.sums import Totalled
from memplan.spec.recipe import Recipe

EVALUATION = "evaluation"
"""What stands before the names of its passes."""
EVALUATE = "evaluate"
"""The phase."""


def evaluation_of(recipe: Recipe) -> Recipe | None:
    """The recipe of the evaluation's passes; None where the job evaluates nothing."""
    if not recipe.batch.eval_size:
        return None
    batch = recipe.batch._replace(size=recipe.batch.eval_size, accumulation=1, step=recipe.batch)
    if batch.longest:
        batch = batch._replace(
            sequence_length=batch.longest, completion_length=min(batch.completion_length, batch.longest)
        )
    return recipe._replace(batch=batch, evaluating=True)


def _schedule(step: tuple[str, ...], evaluation: tuple[str, ...]) -> tuple[str, ...]:
    """The step's instants, then the evaluation's, which has no step of the optimizer."""
    return (*step, *(f"{EVALUATION}-{instant}" for instant in evaluation[:-1]))


class JoinedTotals(Totalled):
    """The totals of both, one after the other."""

    def __init__(self, step: Totalled, evaluation: Totalled) -> None:
        super().__init__(step.sections, _schedule(step.schedule, evaluation.schedule))
        self.step, self.evaluation = step, evaluation

    def totals(self, meter: str = "allocated", place: str = "gpu", bound: str = "bytes") -> list[int]:
        """Bytes alive at each instant of the step, then of the evaluation."""
        return self.step.totals(meter, place, bound) + self.evaluation.totals(meter, place, bound)[:-1]

    def meters(self, place: str) -> set[str]:
        """What sees bytes at a place."""
        return self.step.meters(place) | self.evaluation.meters(place)


class Joined(Ledger):
    """The rows of both. What lasts through the step and is in the evaluation alike is one row."""

    def __init__(self, step: Ledger, evaluation: Ledger) -> None:
        super().__init__(_schedule(step.schedule, evaluation.schedule))
        self.step, first, end = step, len(step.schedule), len(evaluation.schedule) - 1
        whole = Counter(_anywhen(row) for row in evaluation.rows if not row.born and row.dies == end)
        shared: Counter[Row] = Counter()
        for row in step.rows:
            both = not row.born and row.dies == first - 1 and shared[_anywhen(row)] < whole[_anywhen(row)]
            shared[_anywhen(row)] += both
            self.rows.append(row._replace(dies=len(self.schedule) - 1) if both else row)
        for row in evaluation.rows:
            if not row.born and row.dies == end and shared[_anywhen(row)]:
                shared[_anywhen(row)] -= 1
            elif row.born < end:
                self.rows.append(row._replace(born=row.born + first, dies=min(row.dies, end - 1) + first))

    def lasting(self, meter: str = "allocated", place: str = "gpu") -> int:
        """Bytes that are there at every instant of the step."""
        return self.step.lasting(meter, place)


def _anywhen(row: Row) -> Row:
    """A row without its lifetime."""
    return row._replace(born=0, dies=0)
