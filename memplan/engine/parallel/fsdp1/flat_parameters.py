"""FSDP1's flat parameters that hold trained and frozen weights together (``use_orig_params``).

A flat parameter needs a gradient as soon as one of its weights does, and modules use views of it: they save, and
autograd makes gradients, as if all of it were trained (torch 2.13 distributed/fsdp/_flat_param.py:
_validate_tensors_to_flatten, _use_unsharded_views). The optimizer steps on the trained ones, of which a rank holds what
its part of the flat parameter covers (_get_shard_metadata): one rank more than another."""

from functools import lru_cache
from itertools import accumulate

from memplan.engine.layers.modules import Mode
from memplan.engine.parallel.fsdp2.units import gathers, in_flat, is_reached
from memplan.engine.tensors import Weight, layer_weights, marked, model_weights
from memplan.spec.layer import Layer
from memplan.spec.lora import Adapter
from memplan.spec.model import ModelSpec
from memplan.spec.recipe import Recipe
from memplan.tables.styles import FlatAdapters
from memplan.units import ceil_div

Unit = tuple[list[Weight], int]
"""The weights of one flat parameter, one of each, and how many such units there are."""
TOWER = frozenset({"vision", "projector"})


def mode_of_layer(mode: Mode, layer: Layer) -> Mode:
    """How a layer's modules run: which of its weights receive gradients."""
    if layer.unadapted and mode.adapter is not None:
        mode = mode._replace(adapter=mode.adapter.nowhere)
    if mode.flat:
        weights = layer_weights(layer, 1, False, mode.adapter)
        return mode._replace(trained=any(in_flat(weight, mode.flat == "apart", mode.adapter) for weight in weights))
    return mode._replace(frozen=layer.frozen) if layer.frozen else mode


def flat_mode(recipe: Recipe) -> FlatAdapters:
    """``Mode.flat`` of the policy."""
    if recipe.sharding.name != "fsdp" or recipe.adapter is None or not gathers(recipe):
        return ""
    return "apart" if recipe.sharding.fsdp.wraps_adapters else "together"


def flattens(recipe: Recipe) -> bool:
    """Whether flat parameters are stepped on. Critics are seen without."""
    return recipe.sharding.name == "fsdp" and gathers(recipe) and recipe.others.critic is None


def mixes(recipe: Recipe) -> bool:
    """Whether some flat parameter may hold trained weights and others."""
    some = recipe.adapter is not None or recipe.model.is_frozen or recipe.model.tower is not None
    return flattens(recipe) and some


def root_trains(recipe: Recipe) -> bool:
    """Whether the root's flat parameter holds a trained weight beside adapters, so that all of it gets gradients."""
    if not flat_mode(recipe):
        return False
    *_, (root, _) = _units(recipe.model, recipe.adapter)
    return _is_trained(recipe, root)


def reached_spec(recipe: Recipe) -> ModelSpec:
    """The model with nothing frozen where autograd makes gradients all the same."""
    spec = recipe.model
    if not (mixes(recipe) and recipe.adapter is None and spec.is_frozen):
        return spec
    *layers, (root, _) = _units(spec, None)
    nothing: frozenset[str] = frozenset()
    runs = tuple(
        run.but(layer=run.layer.but(frozen=nothing)) if run.layer.frozen and _is_trained(recipe, weights) else run
        for run, (weights, _) in zip(spec.runs, layers, strict=False)
    )
    outside = spec.frozen & TOWER if _is_trained(recipe, root) else spec.frozen
    return spec.but(runs=runs, frozen=outside)


def fullest(recipe: Recipe, weights: list[Weight]) -> list[Weight]:
    """The trained weights as the optimizer sees them: under FSDP1 vectors, of which the fullest rank holds so much that
    all would hold it; whole flat parameters without ``use_orig_params``."""
    trained = [weight for weight in weights if weight.trained]
    if not flattens(recipe):
        return trained
    rank, found = fullest_rank(recipe), list[Weight]()
    *units, root = _units(recipe.model, recipe.adapter)
    for unit, count in (root, *units):
        found += [piece._replace(copies=count) for piece in _pieces(recipe, unit, rank)]
    return sorted(found, key=lambda piece: _is_behind(recipe, piece))


def stepped_by(recipe: Recipe, rank: int) -> list[Weight]:
    """The same of any rank, one after another as the optimizer meets them: layer by layer."""
    *units, (root, _) = _units(recipe.model, recipe.adapter)
    layers = [piece for unit, count in units for _ in range(count) for piece in _pieces(recipe, unit, rank)]
    return sorted([*_pieces(recipe, root, rank), *layers], key=lambda piece: _is_behind(recipe, piece))


def _is_behind(recipe: Recipe, piece: Weight) -> bool:
    """Original parameters are stepped in the model's order: what stands behind the layers comes after them."""
    return recipe.sharding.fsdp.use_orig_params and piece.unit in ("norm", "head")


def _pieces(recipe: Recipe, unit: list[Weight], rank: int) -> list[Weight]:
    """What a rank's optimizer steps on of one unit."""
    ranks = recipe.sharding.ranks
    pieces = [weight._replace(rows=size * ranks, columns=1) for weight, size in _held(recipe, unit, rank) if size]
    if pieces and not recipe.sharding.fsdp.use_orig_params and _is_trained(recipe, unit):
        pieces = [pieces[0]._replace(rows=sum(piece.rows for piece in pieces))]
    return [piece._replace(copies=1, stacked=1) for piece in pieces]


def flat_shards(recipe: Recipe) -> list[tuple[int, int]]:
    """(elements of a rank's part of a flat parameter, how many such there are), the root's last."""
    units = _units(recipe.model, recipe.adapter)
    sizes = ((sum(weight.elements * weight.copies for weight in unit), count) for unit, count in units)
    return [(ceil_div(elements, recipe.sharding.ranks), count) for elements, count in sizes]


def fullest_rank(recipe: Recipe) -> int:
    """The rank that holds most of what is trained: the first, where all hold as much."""
    if not mixes(recipe):
        return 0
    held = [0] * recipe.sharding.ranks
    for unit, count in _units(recipe.model, recipe.adapter):
        for _, start, end, part in _places(recipe, unit):
            for rank in range(start // part, ceil_div(end, part)):
                held[rank] += _overlap(start, end, part, rank) * count
    return held.index(max(held))


def _held(recipe: Recipe, unit: list[Weight], rank: int) -> list[tuple[Weight, int]]:
    """What is stepped of a unit, with the elements that a rank holds; adapters apart are split evenly."""
    together = [(weight, _overlap(start, end, part, rank)) for weight, start, end, part in _places(recipe, unit)]
    alone = [weight for weight in unit if weight.trained and not _is_flat(recipe, weight)]
    even = [
        (weight, ceil_div(weight.elements, recipe.sharding.ranks)) for weight in alone for _ in range(weight.copies)
    ]
    return together + even


def _overlap(start: int, end: int, part: int, rank: int) -> int:
    return max(0, min(end, (rank + 1) * part) - max(start, rank * part))


def _places(recipe: Recipe, unit: list[Weight]) -> list[tuple[Weight, int, int, int]]:
    """What is stepped of a flat parameter: where it begins and ends, and how long a rank's part is."""
    together = [weight for weight in unit if not weight.trained or _is_flat(recipe, weight)]
    ends = list(accumulate(weight.elements * weight.copies for weight in together))
    part = ceil_div(ends[-1], recipe.sharding.ranks) if ends else 1
    zeros = _is_trained(recipe, unit)  # are the gradients of what no image reaches
    return [
        (weight, end - weight.elements * weight.copies, end, part)
        for weight, end in zip(together, ends, strict=True)
        if weight.trained or (weight.idle and zeros)
    ]


def _is_flat(recipe: Recipe, weight: Weight) -> bool:
    return in_flat(weight, recipe.sharding.fsdp.wraps_adapters, recipe.adapter)


def _is_trained(recipe: Recipe, unit: list[Weight]) -> bool:
    return is_reached(unit, recipe.sharding.fsdp.wraps_adapters, recipe.adapter)


@lru_cache(maxsize=64)
def _units(spec: ModelSpec, adapter: Adapter | None) -> list[Unit]:
    """The flat parameter of each run's layers and of what a tower has apart; the root's last."""
    found: list[Unit] = [
        (list(marked(layer_weights(run.layer, 1, adapter is None, adapter), run.layer.frozen)), run.count)
        for run in spec.runs
    ]
    outside = [weight for weight in model_weights(spec, adapter is None, adapter) if weight.unit != "layer"]
    outside.sort(key=lambda weight: weight.unit != "vision")  # a class makes its tower first (modeling_llava.py)
    found += [([weight], 1) for weight in outside if weight.apart]
    return [*found, ([weight for weight in outside if not weight.apart], 1)]
