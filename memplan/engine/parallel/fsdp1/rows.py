"""FSDP1's buffers: a flat parameter for each unit, gathered whole, and the flat gradient autograd makes of its parts.

torch 2.13 distributed/fsdp/_flat_param.py and _runtime_utils.py, in the program's order:

* forward: a unit's flat parameter is gathered straight into place, and freed when the unit has run (FULL_SHARD) or not
  (SHARD_GRAD_OP); its shard in low precision (``_mp_shard``) is there while the gather runs;
* the root stays gathered to the end of backward;
* backward: the unit in use, and the one before it where it is prefetched (BACKWARD_PRE: from the start of the backward;
  BACKWARD_POST: from the reduction);
* modules use views of the flat parameter, so that autograd puts the flat gradient together from all of theirs when
  the last has come: both are there for a moment; then it is cast for the reduction, padded, and scattered."""

from memplan.engine.allocator.settings import pinned
from memplan.engine.ledger import Ledger
from memplan.engine.parallel.fsdp1.beside_layers import (
    EMBEDDING,
    HEAD,
    ROOT,
    RUN,
    enter_copies,
    enter_copies_backward,
    enter_flat,
    enter_held_inputs,
    enter_last_step,
    enter_layer_above,
    gathered_next,
    leaves_behind,
    never_freed,
)
from memplan.engine.parallel.fsdp1.beside_layers import add_gathered as _gathered
from memplan.engine.parallel.fsdp2.all_gather import Stage, loss_is_inside
from memplan.engine.parallel.fsdp2.frame import NOTHING as NO_UNIT
from memplan.engine.parallel.fsdp2.frame import Frame
from memplan.engine.parallel.fsdp2.reduce_scatter import reductions
from memplan.engine.parallel.fsdp2.root import frame, frozen_frame
from memplan.engine.parallel.fsdp2.units import waits_for_reduction, wraps_copies
from memplan.engine.passes import TracedPass
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe


def enter_fsdp1(ledger: Ledger, recipe: Recipe, weights: list[Weight], passes: list[Stage]) -> None:
    """Every row that FSDP1 adds to the passes of a micro-step; of an evaluation, to its forwards."""
    policy, opened, late = frame(recipe, weights), "", waits_for_reduction(recipe)
    trained = [traced.plan.name for traced, point in passes if point == "backward"]
    sharded = any(model.role == "reference" and model.sharded for model in recipe.others.residents)
    if recipe.evaluating:
        _gathered(ledger, "root (embedding, norm, head)", policy.root.gathered, "", "", "the root stays gathered")
    for position, (traced, point) in enumerate(passes):
        name = traced.plan.name
        if name == "reference" and recipe.others.reference == "resident":
            if sharded:
                own = frozen_frame(recipe, traced.plan)
                _gathered(ledger, "reference's root", own.root.gathered, "", "", "the root stays gathered")
                _enter_forward(ledger, recipe, own, traced)
            continue
        if point == "forward":
            if not opened:
                opened = f"{name}.gather" if f"{name}.gather" in ledger.index else traced.forward_instants()[0]
                _enter_first(ledger, policy, traced, opened)
            _enter_forward(ledger, recipe, policy, traced)
            continue
        reduces = not late or (name == trained[-1] and recipe.batch.accumulation == 1)
        half = "" if recipe.loss.pair_pass != "two-forward" else "first" if name != trained[-1] else "second"
        reduces = reduces and half != "first"
        _enter_backward(ledger, recipe, policy, traced, reduces, half)
        if half == "second":
            born, dies = (f"{name}.{point}-backward" for point in ("final-norm", "embedding"))
            _whole(ledger, "the root", policy.root.gradients, born, dies)
        if position + 1 == len(passes) or passes[position + 1][1] == "forward":
            why = "the root stays gathered from the first forward to the end of backward"
            _gathered(
                ledger, "root (embedding, norm, head)", policy.root.gathered, opened, f"{name}.embedding-backward", why
            )
            opened = ""
        last, whole = policy.root, policy.root.gathered
        if policy.first.gradients:
            last, whole = policy.first, whole + policy.first.gathered
        enter_flat(ledger, recipe, last, NO_UNIT, f"{name}.reduce", ROOT, reduces, whole)
        if waits_for_reduction(recipe) and recipe.batch.accumulation > 1:
            enter_last_step(ledger, recipe, last, [*policy.layers, policy.tail], f"{name}.reduce", ROOT)
        if never_freed(recipe, 3):
            why = "SHARD_GRAD_OP frees nothing in a backward that reduces nothing"
            _gathered(ledger, "all layers", policy.all_layers, f"{name}.embedding-backward", f"{name}.reduce", why)
    backwards = [traced for traced, point in passes if point == "backward"]
    if recipe.evaluating:
        return
    if late:
        _enter_waiting(ledger, recipe, policy, backwards)
    elif recipe.batch.accumulation == 1:
        _enter_shards(ledger, policy, backwards[-1 if recipe.loss.pair_pass == "two-forward" else 0])


def _enter_first(ledger: Ledger, own: Frame, traced: TracedPass, instant: str) -> None:
    """The root's gather with its shard in low precision; then the first layer's, when its input is there."""
    first, embedded = own.layers[0], traced.layers[0].boundary
    size = max(own.root.cast, own.first.gathered + own.first.cast, first.gathered + first.cast + embedded)
    _gathered(ledger, "first layer, with its shard and input", size, instant, instant, "beside the root")


def _enter_forward(ledger: Ledger, recipe: Recipe, own: Frame, traced: TracedPass) -> None:
    """The layer that is an instant, its shard while it is gathered, and those that stay."""
    instants, at, stays = traced.forward_instants()[-3:], traced.forward_layer, recipe.sharding.fsdp.keeps_gathered
    if traced.plan.style == "no-grad":
        instants = [*traced.forward_instants()[-2:], ""]
    within, end, loss = instants
    trace = traced.layers[at]
    copied = max(0, trace.boundary + own.layers[at].cast - trace.forward.size)
    _gathered(ledger, "layer", own.layers[at].gathered + copied, within, within, "gathered straight into place")
    if recipe.sharding.fsdp.forward_prefetch:
        ahead = gathered_next(own, traced, not wraps_copies(recipe) or recipe.adapter is None, stays)
        _gathered(ledger, "next layer", ahead, within, within, "forward_prefetch")
    enter_copies(ledger, own, traced, stays, (within, end, loss))
    if stays:
        whole = never_freed(recipe)
        before = own.all_layers - own.layers[at].gathered if whole else sum(unit.gathered for unit in own.layers[:at])
        _gathered(ledger, "layers before", before, within, within, "SHARD_GRAD_OP keeps them to their backward")
        _gathered(ledger, "all layers", own.all_layers, end, loss or end, "SHARD_GRAD_OP keeps them to their backward")


def _enter_tail(ledger: Ledger, recipe: Recipe, own: Frame, traced: TracedPass, reduces: bool, stays: bool) -> None:
    """A backward until it comes to the layers."""
    last = own.layers[-1].gathered * (recipe.sharding.fsdp.backward_prefetch == "BACKWARD_PRE")
    name = traced.plan.name
    for point in ("loss-backward", "head-backward", "final-norm-backward", "tail-reduce"):
        early = point == "loss-backward" and not loss_is_inside(recipe)
        size = own.all_layers if stays else 0 if early else last
        _gathered(ledger, f"layers, {point}", size, f"{name}.{point}", f"{name}.{point}", "gathered ahead")
    enter_copies_backward(ledger, own, traced, stays)
    if own.tail.gradients:
        enter_flat(ledger, recipe, own.tail, NO_UNIT, f"{name}.tail-reduce", HEAD, reduces, own.tail.gathered)


def _enter_backward(ledger: Ledger, recipe: Recipe, own: Frame, traced: TracedPass, reduces: bool, half: str) -> None:
    """The layer in use and the one gathered ahead; its flat gradient. Through which two forwards run back (``half``),
    a layer stays whole from the ``first`` to the ``second``, whose flat gradient is added to that of the first."""
    name, stays = traced.plan.name, recipe.sharding.fsdp.keeps_gathered or half == "second"
    ahead = recipe.sharding.fsdp.backward_prefetch == "BACKWARD_PRE"
    _enter_tail(ledger, recipe, own, traced, reduces, stays)
    # Trained linears that are units of their own come between: the layer below is gathered at the first of them.
    between = recipe.adapter is not None and recipe.sharding.fsdp.wraps_adapters
    ahead = ahead or (between and recipe.sharding.fsdp.backward_prefetch == "BACKWARD_POST")
    for i in traced.backward_layers:
        below = own.layers[i - 1].gathered if i and ahead and traced.layers[i - 1].backward else 0
        beside = below + own.layers[i - 1].cast * (between and below > 0)
        earlier = sum(unit.gathered for unit in own.layers[:i])
        earlier = own.all_layers - own.layers[i].gathered if never_freed(recipe, 3) else earlier
        if half == "first":
            above = sum(unit.gathered for unit in own.layers[i + 1 :])
            for instant in (*(instant for instant, _ in traced.layer_instants(i)), traced.end_of(i)):
                _gathered(ledger, "layers above", above, instant, instant, "whole until the other forward runs back")
        for instant, alive in traced.layer_instants(i):
            size = own.layers[i].gathered + (0 if stays else beside)
            if between and below and not stays:
                size -= _not_ahead(traced, i, instant, beside)
            copied = 0
            if ahead and i and not stays:
                before = traced.layers[i].saved.size + traced.layers[i].boundary + own.layers[i - 1].cast
                copied = max(0, before - alive.size) if not between else 0
            elif not (stays or ahead):
                copied = max(
                    0, traced.layers[i].saved.size + traced.layers[i].boundary + own.layers[i].cast - alive.size
                )
            _gathered(ledger, f"layer {i}, and the one ahead", size + copied, instant, instant, "in use and prefetched")
            _gathered(ledger, "layers below", earlier if stays else 0, instant, instant, "SHARD_GRAD_OP")
        end = traced.end_of(i)
        enter_layer_above(ledger, recipe, own, traced, i)
        if i == 0:
            enter_held_inputs(ledger, recipe, traced, i, f"{name}.embedding-backward")
        for instant, _ in traced.layer_instants(i):
            enter_held_inputs(ledger, recipe, traced, i, instant, inside=True)
        enter_held_inputs(ledger, recipe, traced, i, end)
        _gathered(ledger, "layers below", earlier if stays else 0, end, end, "SHARD_GRAD_OP")
        ledger.add(
            f"gradient of the residual stream, below layer {i}", "temporaries", traced.layers[i].boundary, at=end
        ).formula("T × h × bytes").since(source="torch.autograd")
        post = recipe.sharding.fsdp.backward_prefetch != "NO_PREFETCH" and i and not stays
        post = post and bool(traced.layers[i - 1].backward)
        under = own.layers[i - 1] if post else NO_UNIT
        alone = between and recipe.adapter is not None and recipe.adapter.bias == "none"
        if i and not stays and (alone or not own.layers[i].gradients) and leaves_behind(recipe):
            size = 0 if below else own.layers[i - 1].gathered + own.layers[i - 1].cast
            size += 0 if own.layers[i].gradients else own.layers[i].gathered
            _gathered(ledger, "unit before", size, end, end, "gathered before this is freed")
        used = own.layers[i].gathered + (below if not stays else 0)
        used += own.layers[i].gradients * (half == "second" and not traced.plan.mode.in_place)
        enter_flat(ledger, recipe, own.layers[i], under, end, f"layer {i}", reduces, used)
        if waits_for_reduction(recipe) and recipe.batch.accumulation > 1:
            enter_last_step(ledger, recipe, own.layers[i], own.layers[i + 1 :], end, f"layer {i}")


def _not_ahead(traced: TracedPass, i: int, instant: str, below: int) -> int:
    """What is not gathered yet at the layer's worst point: the layer below is when its first adapter runs back."""
    sizes = {point: alive.size for point, alive in traced.layers[i].backward.items()}
    attention, other = sizes.get("attention", 0), sizes.get("feed-forward", 0)
    late, before = sizes.get("projections", attention), attention if "projections" in sizes else 0
    if instant.endswith("last-layer-backward"):
        return below
    other = 0 if instant.endswith("attention-backward") else other
    more = max(before, other, late + below) - max(attention, other)
    return max(0, below - max(0, more))


def _enter_waiting(ledger: Ledger, recipe: Recipe, own: Frame, backwards: list[TracedPass]) -> None:
    """Flat gradients that wait whole: between micro-steps (``accumulated gradients``), or between halves of pairs."""
    total = sum(unit.shard for unit in (*own.layers, *own.ends, own.blocks))
    if recipe.batch.accumulation > 1:
        _shards(ledger, "gradients", total, ledger.schedule[-1], own.place)
        return
    chosen, rejected = backwards[0], backwards[-1].plan.name
    for label, units, point in reductions(own, chosen, HEAD, EMBEDDING):
        born, dies = ledger.after(f"{chosen.plan.name}.{point}"), f"{rejected}.{point}"
        _whole(ledger, label, sum(unit.gradients for unit in units), born, dies)
        _shards(ledger, label, sum(unit.shard for unit in units), ledger.after(dies), own.place)


def _whole(ledger: Ledger, label: str, size: int, born: str, dies: str) -> None:
    ledger.add(f"flat gradients of {label}, unreduced", "gradients", size, born, dies).formula(
        "elements × bytes"
    ).since("they wait for the rejected half's", f"{RUN}: no_sync")


def _enter_shards(ledger: Ledger, own: Frame, traced: TracedPass) -> None:
    """What the reductions leave: layer after layer, the root last."""
    for label, units, point in reductions(own, traced, HEAD, EMBEDDING):
        size = sum(_kept(unit.shard, own.place) for unit in units)
        _shards(ledger, label, size, ledger.after(f"{traced.plan.name}.{point}"), own.place)


def _kept(shard: int, place: str) -> int:
    """Bytes of a unit's shard; on the host it is page-locked (torch 2.13 _flat_param.py: _cpu_grad)."""
    return pinned(shard) if place == "host" else shard


def _shards(ledger: Ledger, label: str, size: int, born: str, place: str) -> None:
    ledger.add(f"shards of the gradients of {label}", "gradients", size, born, "", place=place).formula(
        "elements / ranks × bytes"
    ).since("reduced, in the dtype of the stored weights", f"{RUN}: _accumulate_sharded_grad")
