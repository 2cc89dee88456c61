"""The units that FSDP makes of a model, with their hooks."""

from collections.abc import Callable

from memplan.engine.parallel.fsdp2.root import flat_parts, frozen_parts, frozen_unit, parts_of
from memplan.engine.parallel.fsdp2.rules import rules_of
from memplan.engine.parallel.fsdp2.units import head_gathered_whole, in_flat, unit_of
from memplan.engine.pass_plan import PassPlan
from memplan.engine.play.fsdp1 import Fsdp1
from memplan.engine.play.fsdp2 import Fsdp2
from memplan.engine.play.notes import InTower
from memplan.engine.play.sharding import Groups, Measure, Sizes, sizes_of
from memplan.engine.play.tape import PlayTape
from memplan.engine.tensors import Weight, layer_weights, marked, tower_in_order
from memplan.spec.layer import Layer
from memplan.spec.lora import Adapter
from memplan.spec.model import ModelSpec
from memplan.spec.recipe import Recipe

LAYERS, TOWER = "layers", "the tower's blocks"
ENDS = "the root", "the embedding", "the tail"


def kind_of(recipe: Recipe) -> type[Fsdp2]:
    """FSDP1's hooks, or FSDP2's."""
    return Fsdp2 if recipe.sharding.name == "fsdp2" else Fsdp1


def flat_of(recipe: Recipe, weights: list[Weight]) -> list[Weight]:
    """Those that are one unit: without PEFT's, which FSDP1 wraps one by one."""
    adapter, apart = recipe.adapter, recipe.sharding.fsdp.wraps_adapters
    if adapter is None or recipe.sharding.name != "fsdp":
        return weights
    return [weight for weight in weights if not weight.trained or in_flat(weight, apart, adapter)]


Sized = Callable[[list[Weight], Measure, str], Sizes]
"""The sizes of a unit of these weights, and how it is called."""


def _in_full(weights: list[Weight], measure: Measure, title: str) -> Sizes:
    return sizes_of(weights, measure)


def policy_units(recipe: Recipe, tape: PlayTape, weights: list[Weight]) -> Fsdp2:
    """Those of the policy."""
    return kind_of(recipe)(rules_of(recipe), tape, policy_groups(recipe, weights, _in_full))


def _by_layer(spec: ModelSpec, sized: Callable[[Layer], Sizes]) -> tuple[Sizes, ...]:
    """Of each layer, once for those that are equal."""
    found = {layer: sized(layer) for layer in dict.fromkeys(spec.layers())}
    return tuple(map(found.__getitem__, spec.layers()))


def policy_groups(recipe: Recipe, weights: list[Weight], sized: Sized) -> Groups:
    """Their sizes."""
    adapter = recipe.adapter
    shared = recipe.sharding.reshard_after_forward not in (True, False)
    whole = recipe._replace(sharding=recipe.sharding._replace(reshard_after_forward=True)) if shared else recipe

    def sizes(part: list[Weight], title: str) -> Sizes:
        flat, alone = flat_of(recipe, part), tuple[tuple[str, int], ...]()
        if len(flat) < len(part):
            alone = tuple((each.name, each.elements) for each in part if each not in flat for _ in range(each.copies))
        in_forward = unit_of(flat, whole).cast if shared and title == LAYERS else 0
        return sized(flat, lambda each: unit_of(each, recipe), title)._replace(cast=in_forward, alone=alone)

    layers = _by_layer(
        recipe.model, lambda of: sizes(list(marked(layer_weights(of, 1, adapter is None, adapter), of.frozen)), LAYERS)
    )
    parts = parts_of(recipe, weights)
    own = flat_parts(recipe, parts)
    ends = [sizes(part, title) for part, title in zip(own[:3], ENDS, strict=True)]
    if own is not parts:  # trained copies of embedding and head are units by themselves
        ends[1:] = [
            sized(part, lambda each: unit_of(each, recipe), title)
            for part, title in zip(own[1:3], ENDS[1:], strict=True)
        ]
    if head_gathered_whole(recipe):
        ends[2] = ends[2]._replace(each=(), casts=(), cast=0)
    tower = tower_units(recipe, recipe.model, adapter is None, adapter)
    blocks = tuple((place, sizes(unit, TOWER)) for place, unit in tower.items())
    return Groups(layers, ends[0], ends[1], ends[2], parts.opens, blocks)


def reference_units(recipe: Recipe, tape: PlayTape, plan: PassPlan) -> Fsdp2:
    """Those of a reference that is sharded too, in the dtype that it computes in."""
    return kind_of(recipe)(rules_of(recipe), tape, reference_groups(recipe, plan, _in_full))


def reference_groups(recipe: Recipe, plan: PassPlan, sized: Sized) -> Groups:
    """Their sizes."""
    whole = recipe.sharding.fsdp.reference_whole

    def sizes(part: list[Weight], title: str) -> Sizes:
        return sized(
            part, lambda each: frozen_unit(recipe, plan, each), f"the reference's {title.removeprefix('the ')}"
        )

    layers = _by_layer(plan.spec, lambda of: sizes([] if whole else list(layer_weights(of, 1, False, None)), LAYERS))
    ends = [sizes(part, title) for part, title in zip(frozen_parts(recipe, plan.spec)[:3], ENDS, strict=True)]
    tower = {} if whole else tower_units(recipe, plan.spec, False, None)
    blocks = tuple((place, sizes(unit, TOWER)) for place, unit in tower.items())
    return Groups(layers, ends[0], ends[1], ends[2], False, blocks)


def tower_units(recipe: Recipe, spec: ModelSpec, trained: bool, adapter: Adapter | None) -> dict[object, list[Weight]]:
    """The units of a tower that sees images, by their places in its pass."""
    found: dict[object, list[Weight]] = {}
    for number, weight in tower_in_order(spec, trained, adapter) if recipe.batch.images else ():
        if weight.apart:
            found.setdefault(InTower(number), []).append(weight)
    return found
