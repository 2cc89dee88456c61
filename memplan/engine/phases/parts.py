"""What the rows of several phases ask."""

from collections.abc import Callable, Iterable
from typing import Any

from memplan.engine.ledger import NO_ROW, Entry, Ledger
from memplan.engine.model_states import left_bytes
from memplan.engine.parallel.sharding import held
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe

NODE = "node"
"""Once in the memory of a node."""


class Chosen:
    """A ledger that other rows' functions enter into: ``born`` says at which instant of the phase a row of a category
    and place is born, or nothing where the phase has it not."""

    detailed = False

    def __init__(self, ledger: Ledger, born: Callable[[str, str], str]) -> None:
        self._ledger, self._born = ledger, born

    @property
    def schedule(self) -> tuple[str, ...]:
        """The phase's instants."""
        return self._ledger.schedule

    def add(
        self, name: str, category: str, size: int, born: str = "", dies: str = "", *, at: str = "", **rest: Any
    ) -> Entry:
        """Enter the row, where the phase has it."""
        born = self._born(category, str(rest.get("place", "gpu")))
        return self._ledger.add(name, category, size, born, **rest) if born else NO_ROW


def stored_itemsize(recipe: Recipe, weight: Weight) -> int:
    """Bytes of an element of a weight as training keeps it; a packed one's as it was before."""
    if recipe.quantised is not None and not weight.trained and weight.quantised_by(recipe.quantised):
        return recipe.quantised.original_itemsize
    return held(recipe).stored_itemsize(recipe, weight)


def whole_bytes(recipe: Recipe, weights: Iterable[Weight]) -> int:
    """Bytes of all tensors as one process would keep them whole; quantised ones packed."""
    base, total = recipe.quantised, 0
    for weight in weights:
        if base is not None and not weight.trained and weight.quantised_by(base):
            sizes = base.scheme.tensors(weight.rows, weight.columns).values()
            total += (sum(sizes) * weight.stacked + left_bytes(base, weight)) * weight.copies
        else:
            total += weight.elements * weight.copies * stored_itemsize(recipe, weight)
    return total


def largest_bytes(recipe: Recipe, weights: Iterable[Weight]) -> int:
    """Bytes of the largest tensor, whole."""
    return max((weight.elements * stored_itemsize(recipe, weight) for weight in weights), default=0)


def units(recipe: Recipe, weights: Iterable[Weight], layers: bool | None = None) -> dict[str, int]:
    """Bytes of FSDP's largest units, whole, as they are stored: of the layers; and the root around them, or, where
    accelerate makes units of its ends, the larger of these. Where the model is one unit, all of it is the root;
    ``layers``: whether layers are units, whatever the settings say."""
    layer, run, last = 0, dict[str, int](), 0
    wraps = recipe.sharding.fsdp.wraps_layers if layers is None else layers
    around = {"embedding": 0, "tail": 0}
    for weight in weights:
        size = weight.elements * stored_itemsize(recipe, weight)
        if weight.unit != "layer" or not wraps:
            around["tail" if weight.unit in ("norm", "head") else "embedding"] += size * weight.copies
            continue
        if weight.copies != last or weight.name in run:  # another run of equal layers
            run, last = {}, weight.copies
        run[weight.name] = size
        layer = max(layer, sum(run.values()))
    apart = recipe.sharding.fsdp.own_ends and not recipe.model.head_is_tied
    return {"layer": layer, "root": max(around.values()) if apart else sum(around.values())}


def experts_bytes(weights: Iterable[Weight], itemsize: int, fused: bool = False) -> tuple[int, int]:
    """(all layers', one layer's) bytes of stacked experts; ``fused``: of gate and up in one tensor alone."""
    stacks = [w for w in weights if w.of_experts and not w.adapter]
    stacks = [w for w in stacks if not fused or "gate_up" in w.name]
    whole = sum(w.elements * w.copies for w in stacks) * itemsize
    return whole, sum({w.name: w.elements for w in stacks}.values()) * itemsize


WARM, POLICY, PREPARE, REFERENCE, SHARD, STATES = (
    f"load.{point}" for point in ("warm-up", "policy", "prepare", "reference", "shard", "states")
)
INSTANTS = (WARM, POLICY, PREPARE, REFERENCE, SHARD, STATES)
"""The allocator is warmed up; the policy is read; weights and adapters are cast; others are read; all is divided;
DeepSpeed copies to fp32."""
