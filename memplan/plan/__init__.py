"""The fastest ways to run a job on the hardware at hand that fit, what was rejected and why.

``space`` lists the choices, ``candidates`` makes recipes of them and asks ``memplan.cost`` for their speed, ``pricing``
asks the engine for their memory, ``search`` goes through them exactly, ``changes`` holds what may change the training,
``questions`` the fewest GPUs and the largest batch, ``result`` what comes out.
"""

from __future__ import annotations

from collections.abc import Sequence

from memplan.plan.changes import NAMES, changed, checked, sets
from memplan.plan.planning import (
    WANTED,
    Question,
    Searched,
    Tell,
    absences,
    nothing,
    pareto,
    point,
    question,
    rejections,
    search,
)
from memplan.plan.planning import shown as as_plan
from memplan.plan.questions import answers
from memplan.plan.result import Answer, Plan, Plans, Point, Rejected
from memplan.report import SCHEMA_VERSION
from memplan.spec.reading import JobInput

__all__ = ["Answer", "Plan", "Plans", "Point", "Rejected", "plan"]


def plan(
    given: JobInput,
    allow: Sequence[str] = (),
    wanted: int = WANTED,
    front: bool = False,
    ask: Sequence[str] = (),
    suggest: bool = True,
    tell: Tell = nothing,
) -> Plans:
    """Search every legal way to run the job.

    ``allow``: changes to the training (``changes.NAMES``) that may be made where nothing fits without; ``front``: the
    Pareto front too; ``ask``: further questions (``questions.QUESTIONS``);
    ``suggest``: where nothing fits, what would have to change. Raises UsageError for a job without a card.
    """
    allowed, asked = checked(allow), question(given)
    searched = search(asked, wanted, tell)
    training: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    first, final = searched, asked
    if not searched.found.plans:
        final, searched, training = _with_changes(asked, allowed, wanted, tell) or (asked, searched, ())
    if not searched.found.plans and suggest:
        final, searched, needed = _with_changes(asked, NAMES, wanted, tell) or (asked, searched, ())
        training = needed
    points = tuple(point(*each) for each in pareto(final, searched.of, tell).plans) if front else ()
    shown = tuple(as_plan(final, candidate, priced, training) for candidate, priced in searched.found.plans)
    recipe = shown[0].report.recipe if shown else None
    return Plans(
        SCHEMA_VERSION,
        shown,
        points,
        (*rejections(first), *absences(asked.space)),
        first.of.considered + (searched.of.considered if searched is not first else 0),
        first.found.priced + (searched.found.priced if searched is not first else 0),
        answers(asked, ask, tell),
        needed,
        (*asked.assumptions, *(recipe.assumptions if recipe else ())),
        recipe.warnings if recipe else (),
    )


def _with_changes(
    asked: Question, names: Sequence[str], wanted: int, tell: Tell
) -> tuple[Question, Searched, tuple[str, ...]] | None:
    """The smallest set of changes with which something fits."""
    for chosen in sets(names, asked):
        for made, words in changed(asked, chosen):
            searched = search(made, wanted, tell)
            if searched.found.plans:
                return made, searched, words
    return None
