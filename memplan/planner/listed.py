"""Trainings of one card, listed once, as other cards have them: a smallest card is asked of two dozen."""

from collections.abc import Hashable

from memplan.cost import card
from memplan.cost.rates import Device
from memplan.gpus import find_gpu
from memplan.planner.candidates import Builder, Candidates, allowed_of, trainings, without_choices
from memplan.planner.planning import Question
from memplan.planner.space import Space
from memplan.spec.gpu import Gpu, Hardware
from memplan.spec.job import Job
from memplan.spec.reading import JobInput


def runs_as(one: Gpu, other: Gpu, job: Job) -> bool:
    """Whether a job is resolved to the same on both but for the card itself, and for what generates beside it: its
    vendor and bf16 decide, and the compute capability what runs in narrower formats (tests/test_plan_answers.py)."""
    narrow = job.float8 != "none" or bool(job.megatron.narrow)
    if narrow and one.capability != other.capability:
        return False
    return one.vendor == other.vendor != "custom" and one.has_bf16 == other.has_bf16 and not (one.here or other.here)


class Listed:
    """Lists trainings for cards that are no larger than the question's as it lists them: enough to say whether any
    fits, but in the order of its speeds. What states are too large for there is left out; for others all is new."""

    def __init__(self, asked: Question, of: Candidates) -> None:
        """``of``: the list of the question's own card, where nothing generates beside it."""
        self.asked = asked
        self.known: dict[Hashable, Candidates] = {}
        if all(each.training is None for each in of.legal):
            self.known[asked.given.job.trainer, asked.space.gpus] = of

    def __call__(self, given: JobInput, space: Space, device: Device, leanest: bool) -> Candidates:
        """As ``trainings``."""
        here, there = self.asked.gpu, find_gpu(given.job.gpu or "")
        if there.usable_bytes > here.usable_bytes or not runs_as(here, there, given.job):
            return trainings(given, space, device, leanest)
        key = given.job.trainer, space.gpus
        if key not in self.known:
            own = given._replace(job=given.job.model_copy(update={"gpu": self.asked.given.job.gpu}))
            self.known[key] = trainings(own, space, card(here), leanest)
        found = self.known[key]
        if not found.legal:
            return found
        one = Builder(without_choices(given), space, device).recipe(found.legal[0].keys)
        allowed, changed = allowed_of(one), dict[int, tuple[Hardware, Hardware]]()
        legal = []
        for each in found.legal:
            if each.floor > allowed:
                continue
            was = each.recipe.hardware
            if id(was) not in changed:
                changed[id(was)] = was, was._replace(gpu=one.hardware.gpu, cluster=one.hardware.cluster)
            legal.append(each._replace(recipe=each.recipe._replace(hardware=changed[id(was)][1])))
        return found._replace(legal=legal)
