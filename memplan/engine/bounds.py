"""Bounds under what a recipe needs, which searches ask for before its whole price."""

from collections.abc import Callable
from math import inf

from memplan.engine.allocator.events import slack_of
from memplan.engine.allocator.reserved import Band, reserved_band
from memplan.engine.at_hand import at_hand_totals, lasting_at
from memplan.engine.critic_engine import has_critic_engine
from memplan.engine.kept import kept_by_layers, kept_gathered, kept_in_megatron, most_at_loss
from memplan.engine.ranks import few_classes, rank_class
from memplan.engine.step_and_evaluation import evaluation_of
from memplan.engine.tensors import count, model_weights
from memplan.engine.totals import remembered, states_alone, there, totalled, without_sharding
from memplan.spec.recipe import Recipe


def floor(recipe: Recipe, enough: float = inf) -> int:
    """Bytes that the fullest class of ranks holds of model states alone: less than any of its meters says. Of a
    pipeline the ends and the middle are asked, and no further one than the first with more than is ``enough``."""
    return fullest(recipe, states_alone, 0, enough)


def fullest(recipe: Recipe, held: Callable[[Recipe], int], most: int, enough: float) -> int:
    """The most of ``most`` and of what ranks hold by classes; none is asked behind the first with more than enough."""
    for of in few_classes(recipe):
        most = max(most, held(of.recipe))
        if most > enough:
            break
    return most


def stepping(recipe: Recipe, enough: float = inf) -> int:
    """Bytes of model states and of the gradients that the optimizer's step reads, each rank its share; states alone
    where they may be elsewhere, or counted among them. ``enough``: as for ``floor``."""
    row, sharding = recipe.optimizer.row, recipe.sharding
    asked = recipe.offloaded or sharding.fsdp.cpu_offload
    plain = row.name in ("adamw", "lion", "sgd", "sgd-momentum") and not (recipe.trainer.megatron or asked)
    if not plain or sharding.name not in ("fsdp2", "zero2", "zero3"):
        return floor(recipe, enough)
    weights = model_weights(recipe.model, recipe.adapter is None, recipe.adapter)
    trained = count([weight for weight in weights if weight.trained])
    shared = max(sharding.ranks, 1) * recipe.parallel.tensor * recipe.parallel.pipeline
    return floor(recipe, enough) + trained // shared * recipe.storage.gradient_itemsize


def held_at_least(recipe: Recipe) -> int:
    """Bytes that the high device figure is not below, without a pass being traced to its end: when the first backward
    begins, all is there that lasts until the step (``there``), and what layers keep for it: of every micro-batch in
    flight in Megatron's, of one in others, with weights that stay gathered. 0 where nothing is proven: beside an
    evaluation. Rows only add up; what lasts and is not asked for adds as much as it takes from what comes and goes, of
    which segments lose a share: but not where the fullest stage, in Megatron, or another pass may have less of it."""
    if evaluation_of(recipe) or has_critic_engine(recipe):
        return 0
    first = rank_class(recipe).recipe
    known = there(first)
    here = at_hand_totals(known, first)
    whole, beside = (here.totals(meter, bound="high_bytes")[1] for meter in ("allocated", "device"))
    if recipe.in_megatron:
        return whole + kept_in_megatron(first) + beside
    whole += _kept(first)
    return beside + (_in_segments(first, Band(0, 0, whole), known.lasting()) if here is known else whole)


_by_layers = remembered(lambda parts: kept_by_layers(parts.recipe))
_at_loss = remembered(lambda parts: most_at_loss(parts.recipe))
_gathered = remembered(lambda parts: kept_gathered(parts.recipe))


def _kept(recipe: Recipe) -> int:
    """Bytes of one micro-batch in flight: what layers keep, with the most at the loss, and weights that stay."""
    kept = _by_layers(recipe)
    return kept + _gathered(recipe) + (_at_loss(recipe) if kept else 0)


def at_least(recipe: Recipe, enough: float = inf) -> int:
    """Bytes that the high device figure is not below: every kind of row but what a sharding gathers and reduces. Rows
    only add up, and so do the shares that segments lose of what comes and goes; what segments of other streams keep is
    left out, and in Megatron's layers all that does not rest (``held_at_least``). Of a pipeline's stages no further one
    is asked than the first with more than is ``enough``."""
    most = held_at_least(recipe)
    if not most or recipe.in_megatron:
        return most
    return fullest(recipe, _partly, most, enough)


def first_stage(recipe: Recipe) -> int:
    """Bytes that are allocated on a rank of the first stage of Megatron's pipeline; 0 beside an evaluation."""
    if evaluation_of(recipe) or has_critic_engine(recipe):
        return 0
    first = rank_class(recipe).recipe
    ledger = at_hand_totals(totalled(first), first)
    return max(ledger.totals(bound="high_bytes")) + max(ledger.totals("device", bound="high_bytes"))


def _partly(recipe: Recipe) -> int:
    """The high device figure of some sections."""
    ledger = at_hand_totals(without_sharding(recipe), recipe)
    allocated = Band(*map(max, ledger.bounds()))
    lasting = lasting_at(ledger, ledger.totals().index(allocated.expected))
    return _in_segments(recipe, allocated, lasting) + max(ledger.totals("device", bound="high_bytes"))


def _in_segments(recipe: Recipe, allocated: Band, lasting: int) -> int:
    """High bytes of the segments that hold these, as a search counts them."""
    hardware, layers, slack = recipe.hardware, recipe.checkpointing.layers, slack_of(recipe, lasting)
    return reserved_band(allocated, lasting, hardware.expandable_segments, layers, slack).high
