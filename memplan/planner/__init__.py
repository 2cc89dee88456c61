"""The fastest ways to run a job on the hardware at hand that fit, what was rejected and why.

``space`` lists the choices, ``candidates`` makes recipes of them and asks ``memplan.cost`` for their speed, ``pricing``
asks the engine for their memory, ``search`` goes through them exactly, ``changes`` holds what may change the training,
``questions`` the fewest GPUs and the largest batch, ``result`` what comes out. ``moves``, ``around`` and ``remedies``
search one step away from a job as it is."""

from collections.abc import Sequence

from memplan.lengths.longest import at_longest
from memplan.planner.changes import AS_IT_IS, NAMES, changed, checked, sets
from memplan.planner.planning import (
    WANTED,
    Question,
    Searched,
    Tell,
    check_legal,
    nothing,
    pareto,
    point,
    question,
    search,
    shown,
)
from memplan.planner.questions import answers
from memplan.planner.rejected import absences, missed, rejections
from memplan.planner.result import Answer, Plan, Plans, Point, Rejected
from memplan.planner.words import untold
from memplan.report import SCHEMA_VERSION
from memplan.spec.reading import JobInput

Words = tuple[str, ...]
Tried = dict[tuple[str, ...], tuple[Searched, Words]]
"""Searches by the names of the changes that they make, and these in words; the first by none."""

__all__ = ["Answer", "Plan", "Plans", "Point", "Rejected", "plan"]


def plan(
    given: JobInput,
    allow: Sequence[str] = (),
    wanted: int = WANTED,
    front: bool = False,
    ask: Sequence[str] = (),
    suggest: bool = True,
    tell: Tell = nothing,
    price: float | None = None,
) -> Plans:
    """Search every legal way to run the job.

    ``allow``: changes to the training (``changes.NAMES``) that may be made where nothing fits without; ``front``: the
    Pareto front too; ``ask``: further questions (``questions.QUESTIONS``);
    ``suggest``: where nothing fits, what would have to change; ``price``: of a GPU hour.
    Raises UsageError for a job without a card."""
    allowed, asked = checked(allow), question(at_longest(given))
    first = search(asked, wanted, tell)
    check_legal(first)
    tried: Tried = {(): (first, ())}
    final, searched, training, needed = asked, first, Words(), Words()
    if not searched.found.plans:
        final, searched, training = _with_changes(asked, (*allowed, *AS_IT_IS), wanted, tell, tried)
    answered = searched, final
    if not searched.found.plans and suggest:
        final, searched, needed = _with_changes(asked, NAMES, wanted, tell, tried)
        training = needed
    without = [each for each in tried.values() if each[0] not in (first, searched)]
    points = tuple(point(*each) for each in pareto(final, searched.of, tell).plans) if front else ()
    plans = tuple(shown(final, searched, training, price))
    recipe = plans[0].report.recipe if plans else None
    named = {each.recipe.trainer.name: each.recipe.trainer for each, _ in searched.found.plans}
    others = (trainer for name, trainer in named.items() if name != asked.given.job.trainer)
    said = [text for trainer in others for text in untold(final.given.job, trainer)]
    return Plans(
        SCHEMA_VERSION,
        plans,
        points,
        (*rejections(first), *missed(without), *absences(asked.space)),
        sum(each.of.considered for each, _ in tried.values()),
        sum(each.found.priced for each, _ in tried.values()),
        answers(*answered, ask, tell),
        needed,
        (*final.assumptions, *said, *(recipe.provenance.assumptions if recipe else ())),
        recipe.provenance.warnings if recipe else (),
    )


def _with_changes(
    asked: Question, names: Sequence[str], wanted: int, tell: Tell, tried: Tried
) -> tuple[Question, Searched, Words]:
    """The smallest set of changes with which something fits; the first search where none does. Every search that is
    made is one more of ``tried``, and none is made twice."""
    for chosen in sets(names, asked):
        for number, (made, words) in enumerate(changed(asked, chosen)):
            name = (*(each.name for each in chosen), str(number))
            if name in tried:
                continue
            searched = search(made, wanted, tell)
            tried[name] = searched, words
            if searched.found.plans:
                return made, searched, words
    return asked, tried[()][0], Words()
