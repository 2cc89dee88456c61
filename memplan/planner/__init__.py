"""The fastest ways to run a job on the hardware at hand that fit, what was rejected and why.

``space`` lists the choices, ``candidates`` makes recipes of them and asks ``memplan.cost`` for their speed, ``pricing``
asks the engine for their memory, ``search`` goes through them exactly, ``changes`` holds what may change the training,
``questions`` the fewest GPUs and the largest batch (``listed``: on one card after another), ``result`` what comes out.
``moves``, ``around`` and ``remedies`` search one step away from a job as it is."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from memplan.lengths.longest import at_longest
from memplan.planner.changes import AS_IT_IS, NAMES, changed, checked, sets
from memplan.planner.planning import (
    WANTED,
    Question,
    Searched,
    Tell,
    check_legal,
    instead,
    nothing,
    pareto,
    point,
    question,
    search,
    shown,
)
from memplan.planner.questions import answers
from memplan.planner.rejected import absences, in_brief, missed, rejections
from memplan.planner.result import Answer, Plan, Plans, Point, Rejected
from memplan.planner.words import untold
from memplan.report import SCHEMA_VERSION
from memplan.spec.reading import JobInput

Words = tuple[str, ...]
Tried = dict[tuple[str, ...], tuple[Searched, Words]]
"""Searches by the names of the changes that they make, and these in words; the first by none."""


class With(NamedTuple):
    """A search with a set of changes."""

    asked: Question
    searched: Searched
    words: Words
    names: Words
    """What ``--allow`` has for them."""


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
    as_asked = With(asked, first, (), ())
    final = as_asked
    if not first.found.plans:
        final = next(_with_changes(asked, (*allowed, *AS_IT_IS), wanted, tell, tried), as_asked)
    answered, others = final, list[With]()
    if not final.searched.found.plans and suggest:
        final, *others = list(_with_changes(asked, NAMES, wanted, tell, tried)) or [as_asked]
    searched = final.searched
    without = [each for each in tried.values() if each[0] is not first and not each[0].found.plans]
    points = tuple(point(*each) for each in pareto(final.asked, searched.of, tell).plans) if front else ()
    plans = tuple(shown(final.asked, searched, final.words, price))
    recipe = plans[0].report.recipe if plans else None
    nearest = next((each.recipe for made, _ in tried.values() for each, _ in made.found.rejected), None)
    named = {each.recipe.trainer.name: each.recipe.trainer for each, _ in searched.found.plans}
    beside = (trainer for name, trainer in named.items() if name != asked.given.job.trainer)
    said = [text for trainer in beside for text in untold(final.asked.given.job, trainer)]
    return Plans(
        SCHEMA_VERSION,
        plans,
        points,
        (*rejections(first), *missed(without), *absences(asked.space)),
        sum(each.of.considered for each, _ in tried.values()),
        sum(each.found.priced for each, _ in tried.values()),
        answers(answered.searched, answered.asked, ask, tell),
        final.words if final is not answered else (),
        tuple(instead(each.searched, each.words, each.names) for each in others),
        (*final.asked.assumptions, *said, *(recipe.provenance.assumptions if recipe else ())),
        shown_of.provenance.warnings if (shown_of := recipe or nearest) else (),
    )


def _with_changes(asked: Question, names: Sequence[str], wanted: int, tell: Tell, tried: Tried) -> Iterator[With]:
    """The smallest sets of changes with which something fits; one plan of each after the first. Every search that is
    made is one more of ``tried``, and none is made twice."""
    least = len(NAMES)
    for chosen in sets(names, asked):
        own = tuple(each.name for each in chosen)
        for number, (made, words) in enumerate(changed(asked, chosen) if len(chosen) <= least else ()):
            name = (*own, str(number))
            if name in tried:
                continue
            searched = search(made, wanted, tell)
            searched = searched if searched.found.plans and least == len(NAMES) else in_brief(searched)
            tried[name] = searched, words
            if searched.found.plans:
                yield With(made, searched, words, own)
                least, wanted = len(chosen), 1
                break
