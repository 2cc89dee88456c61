"""FSDP1's flat gradients: put together beside those of the views, then cast and scattered."""

from memplan.engine.ledger import Ledger
from memplan.engine.parallel.fsdp1.beside_layers import add_gathered
from memplan.engine.parallel.fsdp1.held_inputs import RUN, never_freed
from memplan.engine.parallel.fsdp2.frame import Unit
from memplan.spec.recipe import Recipe

ROOT, HEAD = "the root", "the head's copy"


def _flat_reduction(unit: Unit, recipe: Recipe) -> int:
    """What a reduction holds beside the flat gradient: its cast, a padded copy, the scattered output."""
    cast = unit.reduced if recipe.storage.reduce_itemsize != recipe.numerics.itemsize else 0
    return cast + unit.scattered


def enter_flat(
    ledger: Ledger, recipe: Recipe, unit: Unit, below: Unit, instant: str, label: str, reduces: bool, used: int
) -> None:
    """The flat gradient beside those it is made of, while the unit is gathered (``used``); then its reduction."""
    if not unit.gradients:
        add_gathered(ledger, f"after {label}", below.gathered, instant, instant, "gathered ahead")
        return
    root = label in (ROOT, HEAD)  # whose gradients are rows until then
    made = used + (1 if root else 2) * unit.gradients + unit.zeros
    reduction = below.gathered + (0 if root else unit.gradients) + _flat_reduction(unit, recipe)
    if not reduces or made >= reduction:
        add_gathered(
            ledger, f"{label}, at its flat gradient", used, instant, instant, "freed when its gradient is whole"
        )
        size, why = made - used, "put together from views' gradients, which are there still"
    else:
        add_gathered(ledger, f"after {label}", below.gathered, instant, instant, "gathered ahead")
        size, why = reduction - below.gathered, "cast for the reduction, and scattered"
    ledger.add(f"flat gradient of {label}", "buffers", size, at=instant).formula(
        "elements of the flat parameter × bytes"
    ).since(why, f"{RUN}: _post_backward_hook, _reduce_grad")


def enter_last_step(ledger: Ledger, recipe: Recipe, unit: Unit, above: list[Unit], instant: str, label: str) -> None:
    """The last micro-step reduces what has waited: a cast comes beside its own flat gradient, which autograd has added
    and holds; what is reduced is gone, and the gathered unit."""
    gone = sum(other.gradients - other.shard for other in above)
    gone += sum(other.gathered for other in above) if never_freed(recipe, 3) else 0
    more = _flat_reduction(unit, recipe) - gone - unit.gradients - unit.gathered
    ledger.add(f"reduction of {label}, last micro-step", "buffers", max(0, more), at=instant).formula(
        "elements of the flat parameter × bytes"
    ).since("what waited is cast and scattered", f"{RUN}: _reduce_grad")
