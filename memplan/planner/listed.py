"""Trainings of one card, listed once, as other cards have them: a smallest card is asked of two dozen."""

from collections.abc import Hashable

from memplan.cost import card
from memplan.cost.rates import Device
from memplan.gpus import find_gpu, listed
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
    """Lists trainings for a card as the question's lists them, or the largest of its kind where that one is smaller:
    enough to say whether any fits, but in the order of its speeds. What states are too large for there is left out."""

    def __init__(self, asked: Question, of: Candidates) -> None:
        """``of``: the list of the question's own card, where nothing generates beside it."""
        self.asked = asked
        self.known: dict[Hashable, Candidates] = {}
        if all(each.training is None for each in of.legal):
            self.known[asked.given.job.trainer, asked.space.gpus, asked.gpu.name] = of

    def __call__(self, given: JobInput, space: Space, device: Device, leanest: bool) -> Candidates:
        """As ``trainings``."""
        own, there, name = self.asked.gpu, find_gpu(given.job.gpu or ""), self.asked.given.job.gpu
        if there.usable_bytes > own.usable_bytes or not runs_as(own, there, given.job):
            own = [gpu for gpu in listed() if runs_as(gpu, there, given.job)][-1]
            name = own.name
        key = given.job.trainer, space.gpus, own.name
        if key not in self.known:
            other = given._replace(job=given.job.model_copy(update={"gpu": name}))
            self.known[key] = trainings(other, space, card(own), leanest)
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
