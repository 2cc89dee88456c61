"""FSDP2's buffers: gathered weights, the inputs of reductions, whole gradients between reductions.

torch 2.13 distributed/fsdp/_fully_shard, in the program's order, which is that of the allocator's counters:

* forward: a layer's all-gather output is kept until the next layer's weights have been copied out of theirs
  (``wait_for_unshard``), so that two copies of a layer are there in it, and three, or two of the root, at a copy-out;
* the root stays gathered until the end of backward; the last all-gather's output until the root's forward returns;
* backward: the layer in use, the one before it gathered ahead, and the input of the reduction of the one after;
* a layer's reduction has its whole gradients beside it; then the layer below is gathered, and the input waits;
* the root is reduced last, when its own weights are gone. The tail that accelerate wraps, final norm and head, is
  gathered like a layer and stays to its own reduction; with tied weights it begins and ends like a root."""

from memplan.engine.ledger import Ledger
from memplan.engine.losses.heads import INSIDE
from memplan.engine.losses.scored import FUSED_PROGRAMS
from memplan.engine.parallel.fsdp2.all_gather import (
    Stage,
    enter_backward,
    enter_first_gather,
    enter_forward,
    enter_left,
    enter_root,
    enter_root_again,
    first_gather,
)
from memplan.engine.parallel.fsdp2.frame import NOTHING, Frame, enter_pools
from memplan.engine.parallel.fsdp2.reduce_scatter import SOURCE, enter_root_reduction, gathered, reductions
from memplan.engine.parallel.fsdp2.root import frame, frozen_frame
from memplan.engine.parallel.fsdp2.units import waits_for_reduction
from memplan.engine.parallel.fsdp2.vision import enter_tower_gathers
from memplan.engine.passes import TracedPass
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe


def enter_fsdp2(ledger: Ledger, recipe: Recipe, weights: list[Weight], passes: list[Stage]) -> None:
    """Every row that FSDP2 adds to the passes of a micro-step."""
    if recipe.evaluating:
        _enter_forwards(ledger, recipe, weights, passes)
        return
    policy, opened, there, tail_from = frame(recipe, weights), "", False, ""
    trained = [traced.plan.name for traced, point in passes if point == "backward"]
    late = waits_for_reduction(recipe)
    policy = _with_left(ledger, recipe, policy, passes)
    for position, (traced, point) in enumerate(passes):
        name, own = traced.plan.name, policy
        if name == "reference" and recipe.others.reference == "resident":
            _enter_reference(ledger, recipe, traced, own if there else None)
            continue
        if point == "forward":
            if not opened:
                opened = f"{name}.gather" if f"{name}.gather" in ledger.index else traced.forward_instants()[0]
                enter_first_gather(ledger, own, traced, opened)
                there, tail_from = False, ""
            elif f"{name}.gather" in ledger.index:
                runs = own if own.reshards else own._replace(layers=[NOTHING] * len(own.layers), first=NOTHING)
                enter_first_gather(ledger, runs._replace(root=NOTHING, opens=False), traced, f"{name}.gather")
                kept = own.kept_until(len(own.layers)) if there else 0
                gathered(ledger, "layers gathered before", kept, f"{name}.gather", "kept from a forward before")
            enter_forward(ledger, recipe, own, traced, there, bool(tail_from))
            enter_tower_gathers(ledger, own, traced)
            there, tail_from = own.resharding is not True, tail_from or f"{name}.forward"
            opened = _enter_root_of_pass(ledger, own, traced, opened) if recipe.sharding.fsdp.root_reshards else opened
            continue
        reduces = not late or (name == trained[-1] and recipe.batch.accumulation == 1)
        reduces = reduces and not (recipe.loss.pair_pass == "two-forward" and name != trained[-1])
        if passes[position - 1][1] == "backward":  # the one before has resharded everything
            own = own._replace(resharding=True)
        enter_backward(ledger, recipe, own, traced, reduces)
        opened = opened or enter_root_again(ledger, recipe, own, traced)
        if reduces:
            _enter_held(ledger, own, traced, adds=not late and _adds(recipe, name != trained[0]))
        if not own.opens:
            why, born = "it stays from its forward to its reduction", tail_from or f"{name}.head-backward"
            gathered(ledger, "gathered tail (norm, head)", own.tail.gathered, born, why, f"{name}.final-norm-backward")
            tail_from = ""
        if position + 1 == len(passes) or passes[position + 1][1] == "forward":
            enter_root(ledger, own, "root (embedding, norm, head)", opened, f"{name}.embedding-backward")
            opened = ""
        if name == trained[-1] and (reduces or recipe.accumulates):
            enter_root_reduction(ledger, recipe, own, f"{name}.reduce", late)
    backwards = [traced for traced, point in passes if point == "backward"]
    if late:
        _enter_whole_gradients(ledger, recipe, policy, backwards)
    elif recipe.batch.accumulation == 1:
        _enter_shards(ledger, policy, backwards[-1 if recipe.loss.pair_pass == "two-forward" else 0])
    gather = next(each for each in ledger.schedule if each.endswith((".gather", ".layer-forward", ".forward")))
    enter_pools(ledger, policy, gather, f"{backwards[0].plan.name}.final-norm-backward", recipe.accumulates)


def _with_left(ledger: Ledger, recipe: Recipe, policy: Frame, passes: list[Stage]) -> Frame:
    """The policy with what no backward reshards to nothing, under resharding to a number; its rows."""
    if policy.resharding in (True, False):
        return policy
    layers = next(traced.layers for traced, point in passes if point == "backward")
    idle = recipe.adapter is not None and not recipe.checkpointing.layers and not policy.first.gradients
    policy = policy._replace(left=sum(not trace.backward for trace in layers), first_left=idle)
    unused = [*policy.layers[: policy.left], *([policy.first] if idle else [])]
    enter_left(ledger, unused, policy, "units without a backward")
    return policy


def _enter_forwards(ledger: Ledger, recipe: Recipe, weights: list[Weight], passes: list[Stage]) -> None:
    """An evaluation's first batch, which gathers all, and the next: no backward reshards what a forward leaves."""
    policy, leaves = frame(recipe, weights), recipe.sharding.fsdp.root_reshards
    opens = next(f"{traced.plan.name}.gather" for traced, _ in passes if traced.plan.name != "reference")
    if not leaves:
        enter_root(ledger, policy, "policy's root", "", "")
    if not (leaves or policy.opens):
        why = "no backward reshards it: the batch before has left it"
        first = next(traced for traced, _ in passes if f"{traced.plan.name}.gather" == opens)
        later = first_gather(policy._replace(root=NOTHING), first) - first_gather(policy, first)
        for born, dies in (("", ledger.before(opens)), (opens, opens), (ledger.after(opens), ledger.schedule[-1])):
            if (dies == opens) == (born == opens):  # the first batch gathers the root there, the next has it
                size = policy.tail.gathered + (later if born == opens else 0)
                gathered(ledger, "gathered tail (norm, head)", max(0, size), born, why, dies)
    for traced, _ in passes:
        if traced.plan.name != "reference" or recipe.others.reference != "resident":
            if leaves:
                _enter_root_of_pass(ledger, policy, traced, f"{traced.plan.name}.gather")
            root = policy.root if leaves or f"{traced.plan.name}.gather" == opens else NOTHING
            enter_first_gather(ledger, policy._replace(root=root), traced, f"{traced.plan.name}.gather")
            left = policy.reshards and policy.resharding is not True  # by the batch before
            enter_forward(ledger, recipe, policy, traced, left)
        else:
            _enter_reference(ledger, recipe, traced, None)


def _enter_root_of_pass(ledger: Ledger, own: Frame, traced: TracedPass, opened: str) -> str:
    """A root that is resharded after forward, where the loss is not within it: it is open no more."""
    within = traced.plan.head.program in (*INSIDE, *FUSED_PROGRAMS) and traced.plan.style != "no-grad"
    name = traced.plan.name
    enter_root(ledger, own, f"{name} pass's root", opened, f"{name}.{'loss' if within else 'forward'}")
    return ""


def _adds(recipe: Recipe, later: bool) -> bool:
    """Whether a reduction's result is added to gradients that are there: of micro-steps or halves before."""
    return recipe.accumulates or (recipe.loss.pair_pass != "two-forward" and later)


def _enter_reference(ledger: Ledger, recipe: Recipe, traced: TracedPass, policy: Frame | None) -> None:
    """The forward of a sharded reference: nothing reshards its root. ``policy``: ran before, keeps layers gathered."""
    if policy is not None:
        name, kept = traced.plan.name, policy.first_kept + policy.kept_until(len(policy.layers))
        begins = next(each for each in ledger.schedule if each.startswith(f"{name}."))
        why = "of the forward before the reference's"
        gathered(ledger, "layers gathered before, the policy's", kept, begins, why, f"{name}.forward")
    if not any(model.role == "reference" and model.sharded for model in recipe.others.residents):
        return
    own = frozen_frame(recipe, traced.plan)
    own = own._replace(root=own.always)
    span = (
        (f"{traced.plan.name}.gather", f"{traced.plan.name}.forward")
        if recipe.sharding.fsdp.root_reshards
        else ("", "")
    )
    enter_root(ledger, own, "reference's root", *span)
    _enter_gather(ledger, own if own.reshards else own._replace(layers=[NOTHING] * len(own.layers)), traced)
    enter_forward(ledger, recipe, own, traced, there=own.resharding is not True)
    enter_left(ledger, [*own.layers, own.first], own, "reference's units")


def _enter_gather(ledger: Ledger, own: Frame, traced: TracedPass) -> None:
    """The first gather of a forward whose root is there."""
    instant = f"{traced.plan.name}.gather"
    if instant in ledger.index:
        enter_first_gather(ledger, own._replace(root=NOTHING), traced, instant)


def _enter_whole_gradients(ledger: Ledger, recipe: Recipe, own: Frame, backwards: list[TracedPass]) -> None:
    """Gradients that wait whole, in the reduction's dtype, and the shards that are left of them.

    Between micro-steps all of them wait (``accumulated gradients``); between the halves of pairs those of the chosen
    half, a layer after another as its backward goes, until the rejected half's reduces them."""
    total = sum(unit.shard for unit in (*own.layers, *own.ends, own.blocks))
    if recipe.accumulates:
        step = ledger.schedule[-1]
        _gradients(
            ledger, "shards of the gradients", total, step, "", "left by the last micro-step's reductions", own.place
        )
        return
    chosen, rejected = backwards[0], backwards[-1].plan.name
    for label, units, point in reductions(own, chosen):
        whole, shard = sum(unit.waiting for unit in units), sum(unit.shard for unit in units)
        born, dies = ledger.after(f"{chosen.plan.name}.{point}"), f"{rejected}.{point}"
        why = "they wait for the rejected half's"
        _gradients(ledger, f"gradients of {label}, unreduced", whole, born, dies, why)
        _shards(ledger, own, label, shard, dies)


def _enter_shards(ledger: Ledger, own: Frame, traced: TracedPass) -> None:
    """What the first reductions of a step leave: layer after layer, the root last; later ones are added to it."""
    for label, units, point in reductions(own, traced):
        _shards(ledger, own, label, sum(unit.shard for unit in units), f"{traced.plan.name}.{point}")


def _shards(ledger: Ledger, own: Frame, label: str, size: int, reduced: str) -> None:
    name = f"shards of the gradients of {label}"
    _gradients(ledger, name, size, ledger.after(reduced), "", "reduced", own.place)


def _enter_held(ledger: Ledger, own: Frame, traced: TracedPass, adds: bool) -> None:
    """What hybrid sharding all-reduces stays beside its copy in another dtype, or beside what it is added to."""
    for label, units, point in reductions(own, traced):
        ledger.add(
            f"reduced gradients of {label}, held",
            "buffers",
            sum(unit.replicated if adds else unit.held for unit in units),
            ledger.after(f"{traced.plan.name}.{point}"),
            f"{traced.plan.name}.reduce",
        ).formula("padded elements / ranks × reduce bytes").since(
            "hybrid sharding holds what it all-reduces until backward is done (AllReduceState)",
            f"{SOURCE}/_fsdp_param_group.py: finalize_backward",
        )


def _gradients(ledger: Ledger, label: str, size: int, born: str, dies: str, why: str, place: str = "gpu") -> None:
    ledger.add(label, "gradients", size, born, dies, place=place).formula("padded elements × bytes").since(
        why, f"{SOURCE}/_fsdp_param_group.py: reduce_grads"
    )
