"""The units that FSDP makes of a model, with their hooks."""

from memplan.engine.parallel.fsdp2.root import Parts, flat_parts, frozen_parts, frozen_unit, parts_of
from memplan.engine.parallel.fsdp2.units import in_flat, unit_of
from memplan.engine.pass_plan import PassPlan
from memplan.engine.play.fsdp1 import Fsdp1
from memplan.engine.play.fsdp2 import Fsdp2
from memplan.engine.play.notes import InTower
from memplan.engine.play.tape import PlayTape
from memplan.engine.tensors import Weight, layer_weights, marked, tower_in_order
from memplan.spec.lora import Adapter
from memplan.spec.model import ModelSpec
from memplan.spec.recipe import Recipe


def kind_of(recipe: Recipe) -> type[Fsdp2]:
    """FSDP1's hooks, or FSDP2's."""
    return Fsdp2 if recipe.sharding.name == "fsdp2" else Fsdp1


def flat_of(recipe: Recipe, weights: list[Weight]) -> list[Weight]:
    """Those that are one unit: without PEFT's, which FSDP1 wraps one by one."""
    adapter, apart = recipe.adapter, recipe.sharding.fsdp.wraps_adapters
    if adapter is None or recipe.sharding.name != "fsdp":
        return weights
    return [weight for weight in weights if not weight.trained or in_flat(weight, apart, adapter)]


def policy_units(recipe: Recipe, tape: PlayTape, weights: list[Weight]) -> Fsdp2:
    """Those of the policy."""
    adapter, layers = recipe.adapter, list[list[Weight]]()
    for run in recipe.model.runs:
        of_layer = list(marked(layer_weights(run.layer, 1, adapter is None, adapter), run.layer.frozen))
        layers += [flat_of(recipe, of_layer)] * run.count
    parts = parts_of(recipe, weights)
    root, first, tail = (flat_of(recipe, part) for part in parts[:3])
    own = flat_parts(recipe, parts)
    first, tail = (own.first, own.tail) if own is not parts else (first, tail)
    parts = Parts(root, first, tail, parts.opens)
    tower = tower_units(recipe, recipe.model, adapter is None, adapter)
    found = kind_of(recipe)(recipe, tape, parts, layers, lambda part: unit_of(part, recipe), tower)
    if found.parts > 1:
        whole = recipe._replace(sharding=recipe.sharding._replace(reshard_after_forward=True))
        for group, part in zip(found.layers, layers, strict=True):
            group.cast = unit_of(part, whole).cast
    return found


def reference_units(recipe: Recipe, tape: PlayTape, plan: PassPlan) -> Fsdp2:
    """Those of a reference that is sharded too, in the dtype that it computes in."""
    layers = [list(layer_weights(run.layer, 1, False, None)) for run in plan.spec.runs for _ in range(run.count)]
    parts = frozen_parts(recipe, plan.spec)
    if recipe.sharding.fsdp.reference_whole:
        layers = [[] for _ in layers]
    tower = {} if recipe.sharding.fsdp.reference_whole else tower_units(recipe, plan.spec, False, None)
    return kind_of(recipe)(recipe, tape, parts, layers, lambda part: frozen_unit(recipe, plan, part), tower)


def tower_units(recipe: Recipe, spec: ModelSpec, trained: bool, adapter: Adapter | None) -> dict[object, list[Weight]]:
    """The units of a tower that sees images, by their places in its pass."""
    found: dict[object, list[Weight]] = {}
    for number, weight in tower_in_order(spec, trained, adapter) if recipe.batch.images else ():
        if weight.apart:
            found.setdefault(InTower(number), []).append(weight)
    return {place: flat_of(recipe, unit) for place, unit in found.items()}
