"""FSDP2's buffers: gathered weights, the inputs of reductions, whole gradients between reductions.

torch 2.13 distributed/fsdp/_fully_shard, in the program's order, which is that of the allocator's counters:

* forward: a layer's all-gather output is kept until the next layer's weights have been copied out of theirs
  (``wait_for_unshard``), so that two copies of a layer are there in it, and three, or two of the root, at a copy-out;
* the root stays gathered until the end of backward; the last all-gather's output until the root's forward returns;
* backward: the layer in use, the one before it gathered ahead, and the input of the reduction of the one after;
* the root is reduced last, when its own weights are gone.
"""

from __future__ import annotations

from memplan.engine.fsdp2_units import Frame, frame, frozen_frame, waits_for_reduction
from memplan.engine.ledger import Ledger
from memplan.engine.passes import TracedPass
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe

SOURCE = "torch 2.13 distributed/fsdp/_fully_shard"
Stage = tuple[TracedPass, str]


def enter_fsdp2(book: Ledger, recipe: Recipe, weights: list[Weight], passes: list[Stage]) -> None:
    """Every row that FSDP2 adds to the passes of a micro-step."""
    policy, opened = frame(recipe, weights), ""
    sharded = any(model.role == "reference" and model.sharded for model in recipe.residents)
    trained = [traced.plan.name for traced, point in passes if point == "backward"]
    late = waits_for_reduction(recipe)
    for position, (traced, point) in enumerate(passes):
        name, own = traced.plan.name, policy
        if name == "reference" and recipe.reference == "resident":
            if sharded:
                own = frozen_frame(recipe, traced)
                _enter_root(book, own, "reference's root", "", "")
                _enter_forward(book, recipe, own, traced)
            continue
        if point == "forward":
            if not opened:
                opened = f"{name}.gather" if f"{name}.gather" in book.index else traced.forward_instants()[0]
                _enter_first_gather(book, own, traced, opened)
            _enter_forward(book, recipe, own, traced)
            continue
        reduces = not late or (name == trained[-1] and not recipe.accumulates)
        reduces = reduces and not (recipe.pair_pass == "two-forward" and name != trained[-1])
        _enter_backward(book, recipe, own, traced, reduces)
        if position + 1 == len(passes) or passes[position + 1][1] == "forward":
            _enter_root(book, own, "root (embedding, norm, head)", opened, f"{name}.embedding-backward")
            opened = ""
        if name == trained[-1] and reduces:
            _enter_root_reduction(book, own, f"{name}.reduce", late)
    backwards = [traced for traced, point in passes if point == "backward"]
    if late:
        _enter_whole_gradients(book, recipe, policy, backwards)
    elif not recipe.accumulates:
        _enter_shards(book, policy, backwards[-1 if recipe.pair_pass == "two-forward" else 0])


def _enter_root(book: Ledger, own: Frame, label: str, born: str, dies: str) -> None:
    book.add(
        f"gathered {label}",
        "gathered_parameters",
        own.root.gathered,
        born,
        dies,
        template="padded elements × bytes",
        why="FSDP2 does not reshard the root after forward; only the end of a backward does",
        source=f"{SOURCE}/_fsdp_state.py: _lazy_init",
    )


def _gathered(book: Ledger, label: str, size: int, instant: str, why: str) -> None:
    book.add(
        label, "gathered_parameters", size, instant, instant, template="padded elements × bytes", why=why, source=SOURCE
    )


def _enter_first_gather(book: Ledger, own: Frame, traced: TracedPass, instant: str) -> None:
    """The root's all-gather output is there beside the root until the first layer's weights are copied out."""
    size = own.root.gathered + 2 * own.layers[0].gathered
    _gathered(book, "all-gathers of the root and the first layer", size, instant, "held until the next copy-out")
    book.add(
        "embedding output",
        "activations",
        traced.layers[0].boundary,
        instant,
        instant,
        template="T × h × bytes",
        why="the first layer is gathered when its input is there",
        source=SOURCE,
    )


def _enter_forward(book: Ledger, recipe: Recipe, own: Frame, traced: TracedPass) -> None:
    """Within the layer that is an instant; at norm and head; at the loss, where the model computes it itself."""
    instants, at = traced.forward_instants()[-3:], traced.forward_layer
    if traced.plan.style == "no-grad":
        instants = [*traced.forward_instants()[-2:], ""]
    within, end, loss = instants
    used, before = own.layers[at].gathered, own.layers[max(at - 1, 0)].gathered
    copied = max(2 * used, 2 * used + before - traced.layers[at].forward.size)
    _gathered(book, "gathered layer, and the all-gathers' outputs", copied, within, "an output waits for the next one")
    earlier = 0 if own.reshards else own.all_layers
    last = own.layers[-1].gathered
    if not own.reshards:
        kept = sum(unit.gathered for unit in own.layers[:at])
        _gathered(book, "layers gathered before", kept, within, "reshard_after_forward=False keeps them")
    over = traced.tail.forward["loss"].size if "loss" in traced.tail.forward else 0
    ends = max(traced.tail.forward[point].size for point in ("final-norm", "head") if point in traced.tail.forward)
    held = max(0, last - max(0, over - ends)) if traced.plan.style == "no-grad" else last
    why = "the last all-gather's output is held until the root's forward returns"
    _gathered(book, "all-gather of the last layer", held + earlier, end, why)
    if loss:
        inside = last if loss_is_inside(recipe) else 0
        _gathered(book, "all-gather of the last layer, loss", inside + earlier, loss, why)


def loss_is_inside(recipe: Recipe) -> bool:
    """Whether the model's own forward computes the loss (labels=), so that the root has not returned yet."""
    return recipe.method.name == "sft" and recipe.loss_head not in ("log-softmax", "selective", "score")


def _enter_backward(book: Ledger, recipe: Recipe, own: Frame, traced: TracedPass, reduces: bool) -> None:
    """The layer in use, the one gathered ahead, the input of the reduction before."""
    name, last = traced.plan.name, own.layers[-1].gathered
    for point in ("loss", "head", "final-norm"):
        # The root gathers ahead once in a backward, before the first of two uses.
        again = recipe.pair_pass == "two-forward" and name == "chosen"
        ahead = last if (point != "loss" or loss_is_inside(recipe)) and not again else 0
        size = ahead if own.reshards else own.all_layers
        _gathered(book, f"gathered ahead, {point}", size, f"{name}.{point}-backward", "the last layer, gathered ahead")
    for i in traced.backward_layers:
        used = own.layers[i].gathered + (own.layers[i - 1].gathered if i else 0)
        used = used if own.reshards else sum(unit.gathered for unit in own.layers[: i + 1])
        pending = own.layers[i + 1].reduced if reduces and i + 1 < len(own.layers) else 0
        for instant, _ in traced.layer_instants(i):
            _gathered(book, f"gathered layer {i}, and the one before", used, instant, "the next is gathered ahead")
            _reduction(book, f"reduce-scatter input of layer {i + 1}", pending, instant)
    if reduces:
        _reduction(book, "reduce-scatter input of layer 0", own.layers[0].reduced, f"{name}.embedding-backward")


def _reduction(book: Ledger, label: str, size: int, instant: str) -> None:
    book.add(
        label,
        "buffers",
        size,
        instant,
        instant,
        template="padded elements × reduce bytes",
        why="kept until the next unit's reduction",
        source=f"{SOURCE}/_fsdp_param_group.py: post_backward",
    )


def _enter_root_reduction(book: Ledger, own: Frame, instant: str, late: bool) -> None:
    """The root's gradients as the input of its reduction, and then its output in their place.

    Gradients that have waited are added to first, and the new ones freed.
    """
    root = own.root
    _reduction(book, "reduce-scatter input of the root", root.reduced - (root.gradients if late else 0), instant)
    waiting = root.reduced if late else root.gradients
    last = root.last * waiting // max(root.gradients, 1)
    beyond = max(0, root.scattered + last - waiting)
    _reduction(book, "reduce-scatter output of the root", beyond, instant)


def _enter_whole_gradients(book: Ledger, recipe: Recipe, own: Frame, backwards: list[TracedPass]) -> None:
    """Gradients that wait whole, in the reduction's dtype, and the shards that are left of them.

    Between micro-steps all of them wait (``accumulated gradients``); between the halves of pairs those of the chosen
    half, a layer after another as its backward goes, until the rejected half's reduces them.
    """
    total = sum(unit.shard for unit in own.layers) + own.root.shard
    if recipe.accumulates:
        step = book.schedule[-1]
        _gradients(book, "shards of the gradients", total, step, "", "left by the last micro-step's reductions")
        return
    chosen, rejected = backwards[0], backwards[-1]
    first_of, last_of = ({i: list(each.layer_instants(i)) for i in each.backward_layers} for each in (chosen, rejected))
    order = chosen.backward_layers
    for position, i in enumerate(order):
        below = order[position + 1] if position + 1 < len(order) else -1
        born, dies = book.after(first_of[i][-1][0]), last_of[i][-1][0]
        for label, units in (
            (f"layer {i}", own.layers[i : i + 1]),
            (f"layers {below + 1}-{i - 1}", own.layers[below + 1 : i]),
        ):
            whole, shard = sum(unit.reduced for unit in units), sum(unit.shard for unit in units)
            _gradients(book, f"gradients of {label}, unreduced", whole, born, dies, "they wait for the rejected half's")
            _gradients(book, f"shards of the gradients of {label}", shard, book.after(dies), "", "reduced")
            born = first_of[below][0][0] if below >= 0 else f"{chosen.plan.name}.embedding-backward"
    end = f"{rejected.plan.name}.reduce"
    born = book.after(f"{chosen.plan.name}.reduce")
    _gradients(
        book, "gradients of the root, unreduced", own.root.reduced, born, end, "they wait for the rejected half's"
    )
    _gradients(book, "shards of the gradients of the root", own.root.shard, book.after(end), "", "reduced")


def _enter_shards(book: Ledger, own: Frame, traced: TracedPass) -> None:
    """What the first reductions of a step leave: layer after layer, the root last; later ones are added to it."""
    instants = {i: list(traced.layer_instants(i)) for i in traced.backward_layers}
    order = traced.backward_layers
    for position, i in enumerate(order):
        below = order[position + 1] if position + 1 < len(order) else -1
        shard = sum(unit.shard for unit in own.layers[below + 1 : i + 1])
        born = book.after(instants[i][-1][0])
        _gradients(book, f"shards of the gradients of layers {below + 1}-{i}", shard, born, "", "reduced")
    born = book.after(f"{traced.plan.name}.reduce")
    _gradients(book, "shards of the gradients of the root", own.root.shard, born, "", "reduced")


def _gradients(book: Ledger, label: str, size: int, born: str, dies: str, why: str) -> None:
    book.add(
        label,
        "gradients",
        size,
        born,
        dies,
        template="padded elements × bytes",
        why=why,
        source=f"{SOURCE}/_fsdp_param_group.py: reduce_grads",
    )
