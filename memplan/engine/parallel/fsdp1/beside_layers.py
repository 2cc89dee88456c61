"""FSDP1's units beside a layer that runs: trained copies of embedding and head, and the next layer where forward
gathers it ahead (``forward_prefetch``).

PEFT's policy wraps each trained linear by itself, the copies that ``modules_to_save`` makes too. What forward gathers
ahead has its views before the layer runs that stands before it, so that autograd, which runs the latest node first,
puts the flat gradient together when that layer has run back: until then gradients and gathered weights wait (torch 2.13
distributed/fsdp/_runtime_utils.py: ``_pre_forward_unshard``; csrc/autograd/engine.cpp: ``CompareNodeTaskTime``).

What FSDP1 holds longer than a layer needs it: gathered layers between micro-steps, inputs of frozen units.

FSDP1's flat gradients: put together beside those of the views, then cast and scattered."""

from itertools import accumulate
from operator import add

from memplan.engine.ledger import Ledger
from memplan.engine.parallel.fsdp2.frame import Frame, Unit
from memplan.engine.passes import TracedPass
from memplan.spec.recipe import Recipe

FLAT = "torch 2.13 distributed/fsdp/_flat_param.py"


def add_gathered(ledger: Ledger, label: str, size: int, born: str, dies: str, why: str) -> None:
    """A row of a gathered flat parameter."""
    ledger.add(f"gathered {label}", "gathered_parameters", size, born, dies).formula(
        "elements of the flat parameter × bytes"
    ).since(why, f"{FLAT}: _alloc_padded_unsharded_flat_param")


def gathered_next(own: Frame, traced: TracedPass, within: bool, stays: bool) -> int:
    """By how much the fullest layer with the next one's weights is above the fullest layer alone; ``within``: they are
    gathered before it runs, and not behind its last adapter; ``stays``: earlier ones are there still."""
    saved, layers = traced.saved_before, traced.layers
    there = [unit.gathered for unit in own.layers]
    there = list(accumulate(there)) if stays else there
    held = [saved[i] + layer.forward.size + there[i] for i, layer in enumerate(layers)]
    behind = [saved[i + 1] + layer.boundary + there[i] for i, layer in enumerate(layers)]
    ahead = (unit.gathered for unit in own.layers[1:])
    return max(0, max(map(add, held if within else behind, ahead), default=0) - held[traced.forward_layer])


def enter_copies(ledger: Ledger, own: Frame, traced: TracedPass, stays: bool, instants: tuple[str, str, str]) -> None:
    """The copies in a forward: while they run, or to their backward (``stays``)."""
    *_, end, loss = instants
    why = "a copy that modules_to_save makes is a unit by itself"
    forward = traced.tail.forward
    ends = max((forward[point].size for point in ("final-norm", "head") if point in forward), default=0)
    more = forward["loss"].size - ends if "loss" in forward and not (loss or stays) else 0
    add_gathered(ledger, "copy of the head", max(0, own.tail.gathered - max(0, more)), end, end, why)
    if loss and (stays or "head" not in forward):  # or the loss reads its weight
        add_gathered(ledger, "copy of the head", own.tail.gathered, loss, loss, why)
    if stays:
        add_gathered(ledger, "copy of the embedding", own.first.gathered, instants[0], loss or end, why)


def enter_copies_backward(ledger: Ledger, own: Frame, traced: TracedPass, stays: bool) -> None:
    """The same in a backward, the head's until it is reduced (``tail-reduce``, a row of its own)."""
    points, why, name = ("loss-backward", "head-backward", "final-norm-backward"), "a unit by itself", traced.plan.name
    for point in points if stays or "head" not in traced.tail.forward else points[1:]:
        add_gathered(ledger, "copy of the head", own.tail.gathered, f"{name}.{point}", f"{name}.{point}", why)
    first = f"{name}.loss-backward" if stays else f"{name}.embedding-backward"
    add_gathered(ledger, "copy of the embedding", own.first.gathered, first, f"{name}.embedding-backward", why)


def waits_for_layer_before(recipe: Recipe) -> bool:
    """Whether a layer's flat gradient is put together when the layer before it has run back."""
    apart = recipe.adapter is not None and recipe.sharding.fsdp.wraps_adapters
    return recipe.sharding.fsdp.forward_prefetch and not apart and not recipe.checkpointing.reentrant


def enter_layer_above(ledger: Ledger, recipe: Recipe, own: Frame, traced: TracedPass, i: int) -> None:
    """The layer above is whole, its gradients wait, while one runs back; the first one's wait for the embedding's."""
    if not waits_for_layer_before(recipe):
        return
    at = [*(instant for instant, _ in traced.layer_instants(i)), traced.end_of(i)]
    units = own.layers[i + 1 : i + 2]
    for instant, unit in [*((one, each) for one in dict.fromkeys(at) for each in units)]:
        _enter_waiting(ledger, f"layer {i + 1}", unit.gathered, unit.gradients, instant)
    if i == 0:
        first = own.layers[0]
        _enter_waiting(ledger, "layer 0", first.gathered, first.gradients, f"{traced.plan.name}.embedding-backward")


def _enter_waiting(ledger: Ledger, label: str, gathered: int, gradients: int, instant: str) -> None:
    why = "forward_prefetch: its views are older than the layer before it"
    add_gathered(ledger, f"{label}, whose gradients wait", gathered, instant, instant, why)
    ledger.add(f"gradients of {label}, not yet flat", "gradients", gradients, at=instant).formula(
        "elements × bytes"
    ).since(why, "torch 2.13 csrc/autograd/engine.cpp: CompareNodeTaskTime")


RUN = "torch 2.13 distributed/fsdp/_runtime_utils.py"


def never_freed(recipe: Recipe, steps: int = 2) -> bool:
    """Whether micro-steps before the last leave all layers gathered (_runtime_utils.py: _should_free_in_backward), and
    there are so many: gradients wait beside them in a backward from the second on, which is the last of two."""
    return (
        recipe.sharding.fsdp.keeps_gathered
        and recipe.batch.accumulation >= steps
        and not recipe.sharding.sync_each_batch
    )


def enter_held_inputs(
    ledger: Ledger, recipe: Recipe, traced: TracedPass, i: int, instant: str, inside: bool = False
) -> None:
    """Inputs of the checkpoints of frozen units above, and their gradients.

    The hook that reshards a frozen unit hangs on its inputs (register_multi_grad_hook), and its closure holds their
    AccumulateGrad nodes: where the input is a checkpoint's own leaf, the leaf and its ``.grad`` with it, until the end
    of backward. ``inside`` the layer's backward: what comes in is such a ``.grad``."""
    if (
        recipe.adapter is None
        or not recipe.checkpointing.layers
        or not (recipe.sharding.fsdp.checkpoints_around and recipe.checkpointing.reentrant)
    ):
        return
    above = traced.layers[i + 1 :]
    size = 2 * sum(trace.boundary for trace in above)
    if inside and above:  # the gradient that the layer above has left is counted as this layer's own
        size -= above[0].boundary
    ledger.add(f"inputs of checkpoints above layer {i}, and their gradients", "activations", size, at=instant).formula(
        "layers × 2 × T × h × bytes", len(above), 2, traced.layers[i].boundary
    ).since(
        "held by the hooks that reshard frozen units",
        f"{RUN}: _register_post_backward_reshard_only_hook; torch.autograd.graph.register_multi_grad_hook",
    )


def leaves_behind(recipe: Recipe) -> bool:
    """Whether a frozen unit is whole until the unit before is: the hook that reshards it hangs on its input, behind the
    one that gathers the unit before (_register_post_backward_reshard_only_hook). A reentrant checkpoint around the unit
    detaches its input; with BACKWARD_POST that is not modelled."""
    detached = recipe.sharding.fsdp.checkpoints_around and recipe.checkpointing.reentrant
    return not detached and recipe.sharding.fsdp.backward_prefetch != "BACKWARD_POST"


ROOT, HEAD, EMBEDDING = "the root", "the head's copy", "the embedding's copy"


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
