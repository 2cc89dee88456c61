"""Bounds under what a trainer and the engine on its card need together, before either is priced: rows only add up, and
what lasts is there whatever the passes do (tests/test_rollout_plans.py)."""

from typing import NamedTuple

from memplan.engine.allocator.reserved import SEGMENT_BYTES
from memplan.engine.critic_engine import has_critic_engine
from memplan.engine.held_states import Held, away_in_sync, held_states
from memplan.engine.overhead import context_bytes
from memplan.engine.ranks import rank_class
from memplan.engine.step_and_evaluation import evaluation_of
from memplan.engine.totals import there
from memplan.errors import InvalidJob
from memplan.rollout.instants import HOLES
from memplan.rollout.together import figures_of
from memplan.spec.generation import Away, Generator
from memplan.spec.gpu import Gpu
from memplan.spec.recipe import Recipe
from memplan.units import round_up


def is_of_whole(of: Generator) -> bool:
    """Whether an engine's share is of the whole card, whatever is free: one that surely holds a sequence does on any
    larger card, and with any larger share; of which more, or less, is left beside it."""
    from memplan.tables.engines import era_of  # of engines, which most jobs never load

    return era_of(of.engine, of.version).share == "total"


class Rests(NamedTuple):
    """Bytes of a rank between its passes, of the first stage."""

    states: Held
    outside: int
    """Beside its segments."""

    def held(self, policy: Away, critic: Away) -> int:
        """Segments of what is not on the host then."""
        kept = self.states.policy.whole - self.states.policy.gone(policy)
        kept = round_up(kept + self.states.critic.whole - self.states.critic.gone(critic), SEGMENT_BYTES)
        return kept + kept // HOLES


class Engine(NamedTuple):
    """High bytes of an engine, and of what comes with it, that no trainer makes fewer; 0 where they hang on it."""

    awake: int
    woken: int
    """With its weights alone."""
    asleep: int


def rests(recipe: Recipe) -> Rests:
    """Of a recipe whatever it generates with, at the least: without gradients that may go between steps."""
    first = rank_class(recipe).recipe
    held, parted = held_states(first), has_critic_engine(recipe)
    if not (recipe.in_megatron or parted):
        held = Held(*(each._replace(gradients=0) for each in held))
    unknown = parted or evaluation_of(recipe) is not None
    return Rests(held, 0 if unknown else there(first).totals("device", bound="high_bytes")[1])


def engine_beside(of: Generator, gpu: Gpu) -> Engine:
    """Of one on the trainer's card; nothing of another, or of a model that is not modelled."""
    if of.engine in ("none", "hf") or of.separate:
        return Engine(0, 0, 0)
    try:
        figures = figures_of(of, gpu, None)
    except InvalidJob:
        return Engine(0, 0, 0)
    more, whole = (of.trainers - 1) * context_bytes(gpu)[2], is_of_whole(of)
    awake, asleep = (each.high + more for each in (figures.awake, figures.asleep))
    woken = asleep + figures.weights if of.sleep and not of.shared_weights else 0
    return Engine(awake if whole else 0, woken, asleep if whole or of.sleep else 0)


def together(of: Generator, trainer: Rests, engine: Engine) -> int:
    """High bytes that the card holds at the least: while completions are made, or when their engine's weights are back
    on it to be sent anew."""
    if of.away.whole:
        return engine.awake + trainer.outside
    made = trainer.held(of.away, of.away) + engine.awake if engine.awake else 0
    sent = trainer.held(away_in_sync(of), of.away) + engine.woken if engine.woken else 0
    return max(made, sent) + trainer.outside
