"""Which weights FSDP puts together outside the layers: of the policy, and of a reference that is sharded too."""

from __future__ import annotations

from typing import NamedTuple

from memplan.engine.parallel.fsdp2.frame import Unit
from memplan.engine.parallel.fsdp2.units import hides_norm, padded, wraps_copies
from memplan.engine.pass_plan import PassPlan
from memplan.engine.tensors import Weight, model_weights
from memplan.spec.model import ModelSpec
from memplan.spec.recipe import Recipe

ADAPTERS = (".lora_A", ".lora_B", ".lora_B.bias", ".magnitude", ".tokens")
"""What adapters add to a module's name."""


class Parts(NamedTuple):
    """The weights outside the layers, by the unit that holds them."""

    root: list[Weight]
    first: list[Weight]
    tail: list[Weight]
    opens: bool = False
    """The tail has a tied embedding: gathered when that runs, reduced at the end, for token ids have no gradient."""


def parts_of(recipe: Recipe, weights: list[Weight]) -> Parts:
    """Which weights outside the layers are the root's, and which are units of their own."""
    spec, outside = recipe.model, [weight for weight in weights if weight.unit != "layer" and not weight.apart]
    if not recipe.sharding.fsdp.own_ends:
        return Parts(*_root_and_first(recipe, spec, outside), [])
    ends = _tail_names(recipe, hides_norm(recipe))
    if spec.head_is_tied:
        tail = [weight for weight in outside if weight.name in ends or _of_embedding(weight)]
        return Parts([weight for weight in outside if weight not in tail], [], tail, True)
    first = [weight for weight in outside if _of_embedding(weight)]
    tail = [weight for weight in outside if weight.name in ends]
    return Parts([weight for weight in outside if weight not in first and weight not in tail], first, tail)


def flat_parts(recipe: Recipe, parts: Parts) -> Parts:
    """FSDP1: PEFT's trained copies of embedding and head are units by themselves (``fsdp_auto_wrap_policy``)."""
    adapter = recipe.adapter
    if adapter is None or not wraps_copies(recipe):
        return parts
    saved = [weight for weight in parts.root if weight.trained and weight.name in adapter.saved]
    first, tail = ([weight for weight in saved if weight.unit == end] for end in ("embedding", "head"))
    return parts._replace(root=[weight for weight in parts.root if weight not in saved], first=first, tail=tail)


def _tail_names(recipe: Recipe, hidden: bool) -> set[str]:
    """Final norm, unless it is ``hidden``, and head; a score head is no output embedding."""
    spec, names = recipe.model, set()
    if spec.final_norm and not hidden:
        names |= {spec.final_norm.name, spec.final_norm.name + ".bias"}
    if not recipe.method.score_head:
        names |= {spec.head.name + part for part in ("", ".bias", *ADAPTERS)}
    return names


def _of_embedding(weight: Weight) -> bool:
    """Whether the embedding's module holds it, its adapters too."""
    return weight.name == "embed_tokens" or (weight.adapter and weight.name.startswith("embed_tokens."))


def _root_and_first(recipe: Recipe, spec: ModelSpec, outside: list[Weight]) -> tuple[list[Weight], list[Weight]]:
    """The root's weights, and the input embedding's where verl makes it a unit."""
    alone = recipe.sharding.fsdp.root_reshards and not spec.head_is_tied
    first = [weight for weight in outside if alone and _of_embedding(weight)]
    return [weight for weight in outside if weight not in first], first


def frozen_unit(recipe: Recipe, plan: PassPlan, weights: list[Weight]) -> Unit:
    """A unit that is gathered alone, in the dtype that its model computes in."""
    elements = sum(padded(weight, recipe.sharding.ranks) * weight.copies for weight in weights)
    return Unit(gathered=elements * plan.mode.numerics.itemsize)


def frozen_parts(recipe: Recipe, spec: ModelSpec) -> Parts:
    """The reference's weights outside the layers; all of it where it is one unit."""
    if recipe.sharding.fsdp.reference_whole:
        return Parts(model_weights(spec, False), [], [])
    outside = [weight for weight in model_weights(spec, False) if weight.unit != "layer" and not weight.apart]
    if not recipe.sharding.fsdp.own_ends or spec.head_is_tied:
        return Parts(*_root_and_first(recipe, spec, outside), [])
    ends = _tail_names(recipe, hidden=spec.tower is not None)
    first = [weight for weight in outside if weight.name == "embed_tokens"]
    tail = [weight for weight in outside if weight.name in ends]
    root = [weight for weight in outside if weight not in first and weight not in tail]
    return Parts(root, first, tail)
