"""Every training with every way to generate beside it: candidates of online methods."""

from collections.abc import Callable, Hashable
from itertools import chain

from memplan.cost import examples_per_step, seconds
from memplan.cost.rates import Device
from memplan.planner.candidates import Builder, Candidate, Candidates, Floored, Refused, trainings, without_choices
from memplan.planner.degrees import Keys
from memplan.planner.generating import Generators, Way, useful, usual_trainers, ways
from memplan.planner.space import Space
from memplan.spec.reading import JobInput
from memplan.tables.methods import METHODS

Lists = Callable[[JobInput, Space, Device, bool], Candidates]
MOST = 8_000
"""Trainings with ways to generate beside them; of more, the fastest trainings and the leanest are looked at."""


def candidates(
    given: JobInput, space: Space, device: Device, leanest: bool = False, lists: Lists = trainings
) -> Candidates:
    """Every candidate of the space, the fastest first; of an online method with every way to generate beside it, by
    each of the trainers that are usual for it where none is named. ``leanest``: as of ``trainings``; ``lists``: which
    these are, or what stands for them."""
    parts = [_of_trainer(name, given, space, device, leanest, lists) for name in usual_trainers(given.job, space.gpus)]
    if not parts:
        return _of_job(given, space, device, leanest, lists)
    legal, refused, floored, outdone = zip(*parts, strict=True)
    ordered = sorted(chain(*legal), key=lambda each: each.order)
    return Candidates(ordered, [*chain(*refused)], [*chain(*floored)], sum(outdone))


def _of_trainer(name: str, given: JobInput, space: Space, device: Device, leanest: bool, lists: Lists) -> Candidates:
    """The candidates of a trainer, as keys that name it."""
    own: Keys = {"trainer": name}
    space = space._replace(job=space.job.model_copy(update=own))
    given = given._replace(job=given.job.model_copy(update=own), sources={**given.sources, "trainer": "option"})
    legal, refused, floored, outdone = _of_job(given, space, device, leanest, lists)
    for number, each in enumerate(legal):  # in place: tens of thousands of them are not held twice
        legal[number] = each._replace(
            keys={**each.keys, **own},
            layout=_number((name, each.layout)),
            group=(name, each.group),
            under=(name, each.under),
            training=(name, each.training),
        )
    return Candidates(
        legal,
        [each._replace(keys={**each.keys, **own}) for each in refused],
        [each._replace(keys={**each.keys, **own}, layout=_number((name, each.layout))) for each in floored],
        outdone,
    )


def _of_job(given: JobInput, space: Space, device: Device, leanest: bool, lists: Lists) -> Candidates:
    every = ways(given.job, space)
    if not every:
        return (trainings if METHODS[given.job.method].online else lists)(given, space, device, leanest)
    legal, refused, floored = list[Candidate](), list[Refused](), list[Floored]()
    for cards in dict.fromkeys(way.engine_gpus for way in every):
        of = [way for way in every if way.engine_gpus == cards]
        keys = {"num_gpus": space.gpus - cards} if cards else {}
        job = given.job.model_copy(update=keys)
        divided = space._replace(gpus=space.gpus - cards, job=space.job.model_copy(update=keys))
        found = lists(given._replace(job=job), divided, device, leanest)
        legal += _with_ways(given._replace(job=job), divided, device, found.legal, of, keys, leanest)
        refused += found.refused if not cards else []
        floored += [each._replace(keys={**each.keys, **of[0].keys}) for each in found.floored]
    return Candidates(sorted(legal, key=lambda each: each.order), refused, floored)


def _with_ways(
    given: JobInput, space: Space, device: Device, trained: list[Candidate], every: list[Way], keys: Keys, leanest: bool
) -> list[Candidate]:
    """Each training with each way to generate. ``keys``: what follows for the trainer from the engine's cards."""
    builder = Builder(without_choices(given), space, device)
    of = Generators(builder.recipe, device)
    first = trained[0] if trained else None
    pairs = [(way, of.recipe(first.keys, first.recipe, i, way)) for i, way in enumerate(every)] if first else []
    kept = useful([(way, recipe) for way, recipe in pairs if recipe is not None], device, leanest)
    numbers = [(every.index(way), way, way.keys, _number(way.split)) for way, _ in kept]
    found = []
    for base in _fewer(trained, MOST // max(1, len(numbers))):
        examples = examples_per_step(base.recipe)
        training = 0.0 if leanest else seconds(base.recipe._replace(generator=None), device, base.ready)
        for number, way, said, split in numbers:
            recipe = of.recipe(base.keys, base.recipe, number, way)
            if recipe is None:
                continue
            took = base.seconds if leanest else of.seconds(training, recipe) / examples
            name = (space.gpus, number)
            found.append(
                Candidate(
                    {**base.keys, **keys, **said},
                    recipe,
                    took,
                    split,
                    (base.group, name),
                    (base.under, name),
                    (took, base.order[1] + bool(way.offload), base.order[2]),
                    (space.gpus, base.group),
                )
            )
    return found


def _fewer(trained: list[Candidate], most: int) -> list[Candidate]:
    """The fastest, and of every group the smallest batch, which is the leanest."""
    if len(trained) <= most:
        return trained
    smallest: dict[Hashable, Candidate] = {}
    for each in trained:
        if each.group not in smallest or each.batch < smallest[each.group].batch:
            smallest[each.group] = each
    fastest = trained[:most]
    known = {id(each) for each in fastest}
    return [*fastest, *(each for each in smallest.values() if id(each) not in known)]


_NUMBERS: dict[Hashable, int] = {}


def _number(name: Hashable) -> int:
    """The number of a split, or of a trainer's, which stands in the place of a layout's."""
    return _NUMBERS.setdefault(name, len(_NUMBERS))
