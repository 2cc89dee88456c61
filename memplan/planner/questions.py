"""Questions beside the best plan, answered exactly: fewest GPUs, smallest card, largest batch, longest sequence."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from memplan.cost import card
from memplan.cost.optimizer import is_offloaded, trained_elements
from memplan.errors import MemplanError, UsageError, did_you_mean
from memplan.gpus import listed
from memplan.models import load_model
from memplan.planner.candidates import Builder, Candidate, Candidates, trainings, without_choices
from memplan.planner.degrees import Keys
from memplan.planner.generating import engines_of
from memplan.planner.listed import Listed
from memplan.planner.planning import Question, Searched, Tell, nothing, pricing_of, reported, search
from memplan.planner.pricing import Pricing
from memplan.planner.result import Answer
from memplan.planner.search import best, largest
from memplan.planner.splits import Lists, candidates
from memplan.planner.steps import depends_on_batch
from memplan.planner.words import plan_name
from memplan.presets import model_names
from memplan.rollout.bounds import is_of_whole
from memplan.spec.gpu import Gpu
from memplan.spec.reading import JobInput
from memplan.spec.recipe import Recipe
from memplan.tables.engine_defaults import Card, defaults_of
from memplan.tables.methods import METHODS

WHOLE_STATES = ("adamw", "lion", "sgd-momentum")
"""Optimizers whose states are whole numbers of every trained element."""
ABOUT = 1.25
"""Cards with up to so many times the memory are about a size."""
MOST_BATCH, MOST_LENGTH = 1 << 16, 1 << 20


class Tried(NamedTuple):
    """A question with all its candidates: a list, or whether there is one, comes of the same."""

    asked: Question
    of: Candidates
    pricing: Pricing
    leanest: bool = False
    """Of each group the smallest batch alone: enough to say whether any plan may fit."""
    searched: Searched | None = None
    """What a search came to, where one was made."""

    @property
    def may_fit(self) -> bool:
        """Whether any plan fits by its ledger: mostly the least first, all checkpointed, of small batches, slow."""
        ordered = sorted(
            self.of.legal,
            key=lambda each: (each.keys.get("gradient_checkpointing") != "full", each.batch, -each.seconds, each.order),
        )
        online, least = METHODS[self.asked.given.job.method].online, self.pricing.misses_by
        return bool(best(ordered, self.pricing.lean, lambda priced: priced.fits, 1, least=least, surely=online).plans)

    @property
    def least(self) -> int:
        """``least_of_all`` of any plan: as much on any number of GPUs, of any card."""
        return min((least_of_all(each.recipe) for each in self.of.legal), default=0)

    @property
    def fastest(self) -> str:
        """The name of the best plan, as the list has it first; nothing where none is in it."""
        if self.searched is None and not self.may_fit:
            return ""
        return first_of(self.searched or search(self.asked, of=None if self.leanest else self.of, alone=True))


def first_of(searched: Searched) -> str:
    """The name of the best plan of a search; nothing where none is in it."""
    plans = searched.found.plans
    return plan_name({**plans[0][0].keys, **plans[0][1].keys}) if plans else ""


def tried(asked: Question, lists: Lists = trainings) -> Tried:
    """The question, ready to answer, with the leanest alone beside engines: ways multiply batches."""
    leanest = METHODS[asked.given.job.method].online
    return Tried(asked, candidates(asked.given, asked.space, asked.device, leanest, lists), pricing_of(asked), leanest)


def gpu_counts(asked: Question) -> Iterator[int]:
    """1 to a whole node, then whole nodes up to the GPUs at hand, and these."""
    per_node, most = asked.space.per_node, asked.space.gpus
    yield from range(1, min(per_node, most) + 1)
    yield from range(2 * per_node, most + 1, per_node)
    if most > per_node and most % per_node:
        yield most


def least_of_all(recipe: Recipe) -> int:
    """Bytes of the weights that are stepped and their states, once over all GPUs together: however they are divided,
    one GPU has its share of them at least. 0 where some of it may wait on the host."""
    if any(is_offloaded(recipe, what) for what in ("optimizer", "parameters")):
        return 0
    row, precision = recipe.optimizer.row, recipe.storage.precision
    states = (row.per_element or 0) * (row.state_itemsize or precision.states) if row.name in WHOLE_STATES else 0
    return trained_elements(recipe) * ((precision.master or precision.weights) + states)


def _room(asked: Question, gpu: Gpu) -> float:
    """Bytes of a card that a job may take."""
    return gpu.usable_bytes * (1 - asked.given.job.margin)


def min_gpus(first: Tried, tell: Tell) -> Answer:
    """The fewest GPUs, up to those at hand, on which the job runs with its global batch."""
    asked, least = first.asked, first.least
    for count in gpu_counts(asked):
        if least > _room(asked, asked.gpu) * count:
            continue
        tell(f"trying {count} GPUs", 0, 0)
        fewer = asked._replace(given=_with(asked, num_gpus=count), space=asked.space._replace(gpus=count))
        if name := (tried(fewer) if count < asked.space.gpus else first).fastest:
            return Answer("min_gpus", count, f"{count} × {asked.gpu.name}: {name}")
    return Answer("min_gpus", None, f"not on {asked.space.gpus} GPUs or fewer")


def smallest_card(first: Tried, tell: Tell) -> Answer:
    """The card of the catalogue with the least memory on which the job runs, on as many GPUs. Of cards alike but for
    memory the largest of about a size is asked first: too large for it is for all."""
    asked, least, too_small = first.asked, first.least, dict[Hashable, int]()
    cards = [gpu for gpu in listed() if _computes(asked, gpu) and least <= _room(asked, gpu) * asked.space.gpus]
    kinds, listed_before = _kinds(first, cards), Listed(asked, first.of)

    @cache
    def on(name: str) -> Question | None:  # whose candidates, tens of thousands beside engines, are not kept
        tell(f"trying {name}", 0, 0)
        gpu = next(each for each in cards if each.name == name)
        own = asked._replace(given=_with(asked, gpu=name), gpu=gpu, device=card(gpu))
        own = own._replace(space=asked.space._replace(vendor=gpu.vendor))
        return own if tried(own, lists=listed_before).may_fit else None

    for gpu in cards:
        kind, most = kinds[gpu.name], ABOUT * gpu.usable_bytes
        near = [each for each in cards if kinds[each.name] == kind and each.usable_bytes <= most]
        for each in (near[-1], gpu):
            if gpu.usable_bytes > too_small.get(kind, 0) and on(each.name) is None:
                too_small[kind] = each.usable_bytes
        if gpu.usable_bytes > too_small.get(kind, 0) and (there := on(gpu.name)):
            if plan := first_of(search(there, alone=True)):
                return Answer("smallest_card", gpu.name, f"{gpu.name}: {plan}")
            too_small[kind] = gpu.usable_bytes
    return Answer("smallest_card", None, "none of the catalogue")


def _kinds(first: Tried, cards: Sequence[Gpu]) -> dict[str, Hashable]:
    """Cards of one kind differ in their memory and their speed: what a step holds is the same on each, and beside an
    engine whose share is of the whole card more is left on a larger one. Beside another each card is its own."""
    engines = {(of.engine, of.version): of for each in first.of.legal for of in engines_of(each.recipe)}
    online = METHODS[first.asked.given.job.method].online
    whole = not online or (bool(first.of.legal) and all(map(is_of_whole, engines.values())))

    def own(gpu: Gpu) -> Hashable:
        card = Card(gpu.usable_bytes, gpu.memory_bytes, gpu.architecture)
        return tuple(defaults_of(*of, card, 1) for of in engines) if whole else gpu.name

    return {gpu.name: (gpu.vendor, gpu.architecture, gpu.link.startswith("NVLink"), own(gpu)) for gpu in cards}


def _computes(asked: Question, gpu: Gpu) -> bool:
    """Whether a card's matmuls take the job's dtype."""
    return gpu.has_bf16 or "bf16" not in (asked.given.job.dtype or asked.given.job.precision.replace("auto", "bf16"))


def _with(asked: Question, **keys: object) -> JobInput:
    return asked.given._replace(job=asked.given.job.model_copy(update=keys))


def largest_batch(first: Tried, tell: Tell) -> Answer:
    """The largest micro-batch, to the unit, with the accumulation that is given, or none."""
    asked = first.asked
    steps = int(asked.fixed.get("gradient_accumulation_steps", 1))
    fixed = {**asked.fixed, "batch_size": 1, "gradient_accumulation_steps": steps}
    fixed.pop("global_batch_size", None)

    def at(builder: Builder, each: Candidate, size: int) -> Recipe:
        if depends_on_batch(each.recipe):
            return builder.recipe({**each.keys, "batch_size": size})
        return each.recipe._replace(batch=each.recipe.batch._replace(size=size))

    space = asked.space._replace(fixed=fixed, global_batch=0)
    return _largest(asked._replace(space=space, fixed=fixed), "batch_size", MOST_BATCH, at, tell)


def longest_sequence(first: Tried, tell: Tell) -> Answer:
    """The longest sequence, to the unit, at the smallest micro-batch; no longer than the model has positions."""
    asked = first.asked
    fixed = {"batch_size": 1, **asked.fixed}
    most = min(MOST_LENGTH, asked.space.spec.max_positions or MOST_LENGTH)

    def at(builder: Builder, each: Candidate, size: int) -> Recipe:
        try:
            return builder.recipe(_sized(each.keys, "sequence_length", size))
        except MemplanError:
            parts = 2 * each.recipe.parallel.context * each.recipe.parallel.tensor
            return builder.recipe(_sized(each.keys, "sequence_length", max(size - size % parts, parts)))

    both = "gradient_accumulation_steps" in fixed
    space = asked.space._replace(fixed=fixed, global_batch=0 if both else asked.space.global_batch)
    return _largest(asked._replace(space=space, fixed=fixed), "sequence_length", most, at, tell)


At = Callable[[Builder, Candidate, int], Recipe]


def _largest(asked: Question, key: str, most: int, at: At, tell: Tell) -> Answer:
    """The largest value of a key with which any structure fits: memory grows with it, so each structure is first asked
    whether it does better than those before it, unless one that holds no more (``under``) does not. A length that a
    layout does not divide is brought down to one that it does; one that cannot be at all is too long."""
    of, pricing = candidates(asked.given, asked.space, asked.device), pricing_of(asked)
    builder = Builder(without_choices(asked.given), asked.space, asked.device)
    value, words, done = 0, "nothing fits as asked", set[object]()
    step = asked.space.job.sequence_length if key == "sequence_length" else 1
    ordered = sorted(of.legal, key=lambda each: (each.group != each.under, -each.seconds, each.order))
    for number, each in enumerate(ordered):
        tell(f"largest {key}", number, len(of.legal))
        if each.under in done:
            continue

        def room_at(size: int, each: Candidate = each) -> int:
            try:
                return pricing.room(at(builder, each, size))
            except MemplanError:
                return 0

        @cache
        def plan_at(size: int, each: Candidate = each, above: int = value) -> tuple[int, str]:
            while size > above and not _is_legal(builder, each, key, size):
                size -= 1
            if size <= above:
                return 0, ""
            own = each._replace(keys=_sized(each.keys, key, size), recipe=at(builder, each, size))
            fits = reported(asked, own, priced := pricing(own))[1] is not None
            return (size, plan_name({**own.keys, **priced.keys})) if fits else (0, "")

        room = largest(room_at, value + 1, most, step)
        found = room if room <= value or plan_at(room)[0] else largest(lambda at: plan_at(at)[0], value + 1, room - 1)
        if found > value and (plan := plan_at(found))[0]:
            value, words = plan[0], f"{plan[0]}: {plan[1]}"
        if room <= value:
            done.add(each.group)
    words += " (the model's positions, or the most that is tried)" * (value == most)
    return Answer(f"largest_{key}", value or None, words)


def _sized(keys: Keys, key: str, value: int) -> Keys:
    """The keys with another batch or length, and so the longest that an engine takes where the plan chose it."""
    rollout = keys.get("rollout", {})
    longer = {"rollout": {**rollout, "max_model_len": value}} if "max_model_len" in rollout else {}
    return {**keys, key: value, **(longer if key == "sequence_length" else {})}


def _is_legal(builder: Builder, each: Candidate, key: str, value: int) -> bool:
    try:
        builder.recipe(_sized(each.keys, key, value))
    except MemplanError:
        return False
    return True


def largest_model(first: Tried, tell: Tell) -> Answer:
    """The preset of the model's family with the most parameters that runs as asked."""
    asked, family = first.asked, first.asked.space.spec.family
    specs = [(name, spec) for name in model_names() if (spec := load_model(name)).family == family]
    for name, spec in sorted(specs, key=lambda pair: (-pair[1].params.total, pair[0])):
        tell(f"trying {name}", 0, 0)
        given = _with(asked, model=name)._replace(spec=None)
        if plan := tried(asked._replace(given=given, space=asked.space._replace(spec=spec))).fastest:
            return Answer("largest_model", name, f"{name}: {plan}")
    return Answer("largest_model", None, f"no preset of {family}")


QUESTIONS: dict[str, Callable[[Tried, Tell], Answer]] = {
    "min_gpus": min_gpus,
    "smallest_card": smallest_card,
    "batch_size": largest_batch,
    "sequence_length": longest_sequence,
    "model": largest_model,
}
"""By the name that is asked; the last three are what ``--maximize`` takes."""
MAXIMIZED = ("batch_size", "sequence_length", "model")


def answers(searched: Searched, asked: Question, names: Sequence[str], tell: Tell = nothing) -> tuple[Answer, ...]:
    """An answer to each question of what was searched. Raises UsageError for one that is unknown."""
    for name in names:
        if name not in QUESTIONS:
            raise UsageError(f"no such question: {name[:40]!r}", did_you_mean(name, tuple(QUESTIONS)))
    packed = next((name for name in names if name in ("batch_size", "sequence_length")), None)
    if packed and asked.space.job.token_budget is not None:
        raise UsageError(f"--maximize {packed}: micro-batches are packed to token_budget", "leave token_budget out")
    first = Tried(asked, searched.of, searched.pricing, searched=searched)
    rollout = asked.space.job.rollout
    if "sequence_length" in names and rollout and rollout.prompt_length and rollout.completion_length:
        why = "the rollout's lengths are given"
        raise UsageError(f"--maximize sequence_length: {why}", "leave prompt_length and completion_length out")
    return tuple(QUESTIONS[name](first, tell) for name in names)
