"""The rows of FSDP2's units over one pass: what is gathered in its forward, gathered and reduced in its backward."""

from memplan.engine.ledger import Ledger
from memplan.engine.losses.heads import INSIDE
from memplan.engine.parallel.fsdp2.frame import NOTHING, Frame, Unit
from memplan.engine.parallel.fsdp2.reduce_scatter import (
    SOURCE,
    enter_last_step,
    enter_reduction,
    enter_tail_reduction,
    gathered,
    gone,
    reduction,
)
from memplan.engine.parallel.fsdp2.units import reads_head, waits_for_reduction
from memplan.engine.parallel.fsdp2.vision import enter_tower_reductions, last_runs_back
from memplan.engine.passes import TracedPass
from memplan.spec.recipe import Recipe

Stage = tuple[TracedPass, str]


def enter_root(ledger: Ledger, own: Frame, label: str, born: str, dies: str) -> None:
    """What is whole from the first forward to the end of backward: the root, and a tail with a tied embedding."""
    for name, size in (label, own.root.gathered), ("tail (norm, tied head)", own.tail.gathered if own.opens else 0):
        ledger.add(f"gathered {name}", "gathered_parameters", size, born, dies).formula(
            "padded elements × bytes"
        ).since(
            "FSDP2 does not reshard the root after forward; only the end of a backward does",
            f"{SOURCE}/_fsdp_state.py: _lazy_init",
        )


def enter_root_again(ledger: Ledger, recipe: Recipe, own: Frame, traced: TracedPass) -> str:
    """Where a backward begins that gathers a root which was resharded: its output and its copy, or what its gather
    reads, before anything runs back; then the layer ahead. Returns the instant."""
    begins = f"{traced.plan.name}.{'loss' if loss_is_inside(recipe) else 'head'}-backward"
    if recipe.sharding.fsdp.root_reshards:
        within = _within_loss(traced) if begins.endswith("loss-backward") else _beyond_logits(traced)
        beyond = within if own.alone else own.layers[-1].gathered + max(own.layers[-1].cast, within)
        why = "gathered anew: its all-gather's output, before the layer ahead"
        gathered(ledger, "all-gather of the root, for backward", max(0, own.output(own.root) - beyond), begins, why)
    return begins


def first_gather(own: Frame, traced: TracedPass) -> int:
    """The output of the last all-gather before the layers is there until the first layer's weights are copied out;
    before that, the embedding's own copy-out."""
    before = own.tail if own.opens else own.first if own.first.gathered else own.root
    first, embedded = own.layers[0].gathered, traced.layers[0].boundary
    stays = 0 if own.resharding is True else own.first_kept
    into = own.ahead(before) + first + own.output(own.layers[0]) + stays + embedded
    embedding = own.first.gathered + own.output(own.first)
    alone = own.output(own.root) + (own.tail.gathered if own.opens else embedding)
    scaled = traced.plan.spec.embedding_multiplier and not traced.plan.spec.scaled_outside
    if own.first.gathered:  # the root's all-gather is there at its copy-out; then what it gives, before it is resharded
        alone = max(alone, embedding + embedded * (1 + scaled))
    return max(into, alone) - embedded


def enter_first_gather(ledger: Ledger, own: Frame, traced: TracedPass, instant: str) -> None:
    """What is gathered until the first layer has its weights, beside its input."""
    label, why = "all-gathers of the root and the first layer", "held until the next copy-out"
    gathered(ledger, label, first_gather(own, traced), instant, why)
    ledger.add("embedding output", "activations", traced.layers[0].boundary, at=instant).formula("T × h × bytes").since(
        "the first layer is gathered when its input is there", SOURCE
    )


def enter_left(ledger: Ledger, units: list[Unit], own: Frame, label: str) -> None:
    """What no backward reshards, nor frees: it waits for the next forward."""
    ledger.add(
        f"gathered {label}, left from their forward", "gathered_parameters", sum(own.kept(unit) for unit in units)
    ).formula("padded elements × bytes").since(
        f"reshard_after_forward={own.resharding}: only a backward frees it",
        f"{SOURCE}/_fsdp_param.py: to_sharded_post_forward",
    )


def _enter_uneven(ledger: Ledger, recipe: Recipe, traced: TracedPass, within: str) -> None:
    """What a rank holds of rows beyond the mean, where it receives twice as many: inputs, gate, activation, up and
    product of its experts; in every layer, or in the one that is made again."""
    routed = [run.layer.experts for run in recipe.model.runs for _ in range(run.count) if run.layer.experts]
    layers = routed if traced.plan.style == "plain" else routed[:1]
    hidden, tokens = recipe.model.hidden_size, traced.plan.rows * traced.plan.length
    rows = sum(tokens * each.active * (3 * hidden + 4 * each.intermediate) for each in layers)
    last = f"{traced.plan.name}.embedding-backward"
    ledger.add(
        "rows of tokens beyond the mean",
        "activations",
        0,
        within,
        last if last in ledger.index else within,
        high=rows * recipe.numerics.itemsize,
    ).formula("0 to tokens × k × (3h + 4F) × bytes, for each layer that is held").since(
        "how evenly tokens reach experts is not told: a rank may receive twice the mean",
        "torchtitan 0.2.2 distributed/expert_parallel.py: output_splits follow the routing",
    )


def enter_forward(
    ledger: Ledger, recipe: Recipe, own: Frame, traced: TracedPass, there: bool, has_tail: bool = False
) -> None:
    """Within the layer that is an instant; at norm and head; at the loss, where the model computes it itself.
    ``there``: layers stay gathered from a forward before; ``has_tail``: so does the tail."""
    instants, at = traced.forward_instants()[-3:], traced.forward_layer
    if traced.plan.style == "no-grad":
        instants = [*traced.forward_instants()[-2:], ""]
    within, end, loss = instants
    used = own.layers[at].gathered
    before = own.ahead(own.layers[at - 1]) if at else 0
    inside = traced.layers[at].forward.size - traced.layers[at].boundary
    # At the copy-out the part that a forward before left is there still: ``to_unsharded`` frees it.
    # At its end it is cut to parts beside what it saves.
    layer, plain = traced.layers[at], traced.plan.style_of(at) == "plain"
    parting = own.layers[at].parting + (layer.saved.size if plain else layer.boundary)
    beside = own.output(own.layers[at])  # where one rank is alone, a weight's cast is gone when the layer runs
    begins = beside if own.alone else before
    copied = (
        used + (0 if own.alone else beside) + max(0, begins + _left_part(own, at, there) - inside, parting - inside)
    )
    if there and not own.reshards:
        copied = 0
    gathered(ledger, "gathered layer, and the all-gathers' outputs", copied, within, "an output waits for the next one")
    if recipe.parallel.expert > 1:
        why = "beside experts that are spread, prefetch is told (set_modules_to_forward_prefetch)"
        gathered(ledger, "next layer, gathered ahead", used, within, why)
        _enter_uneven(ledger, recipe, traced, within)
    if traced.plan.name != "reference" or recipe.others.reference != "resident":
        forward_kept(ledger, own, traced, within, end, loss, there)
    last, tail, opens = own.ahead(own.layers[-1]), 0 if has_tail else own.ahead(own.tail), own.opens
    over = traced.tail.forward["loss"].size if "loss" in traced.tail.forward else 0
    sizes = [traced.tail.forward[point].size for point in ("final-norm", "head") if point in traced.tail.forward]
    ends = max(sizes, default=0)
    why = "the last all-gather's output is held until the root's forward returns"
    if tail and not opens:
        repeated = max(tail, last) if recipe.evaluating else tail  # the batch before has left the tail gathered
        last = max(tail, last + tail - max(0, ends - traced.tail.input_gradient)) if loss else repeated
    inside = reads_head(recipe) or (recipe.evaluating and loss_is_inside(recipe))
    alone = traced.plan.style == "no-grad" and not inside
    held = max(0, last - max(0, over - ends)) if alone else last
    held = 0 if there and not own.reshards else held
    gathered(ledger, "all-gather of the last unit", held, end, why)
    if loss and loss_is_inside(recipe) and held:
        gathered(
            ledger,
            "all-gather of the last unit, loss",
            tail if tail and not opens and not has_tail else last,
            loss,
            why,
        )


def forward_kept(ledger: Ledger, own: Frame, traced: TracedPass, within: str, end: str, loss: str, there: bool) -> None:
    """What stays of layers that have run: whole, or a part of each."""
    if own.resharding is True:
        return
    at, why = traced.forward_layer, f"reshard_after_forward={own.resharding}"
    embedding = own.first_kept
    count = len(own.layers) if there else at
    this = _left_part(own, at, there)
    gathered(ledger, "layers gathered before", embedding + own.kept_until(count) - this, within, why)
    every = embedding + own.kept_until(len(own.layers))
    gathered(ledger, "layers gathered before, all of them", every, end, why, loss)


def _left_part(own: Frame, at: int, there: bool) -> int:
    """What a forward before left of a layer under resharding to a number."""
    return own.kept(own.layers[at]) if there and own.reshards else 0


def loss_is_inside(recipe: Recipe) -> bool:
    """Whether the model's own forward computes the loss (labels=), so that the root has not returned yet."""
    inside = recipe.method.name == "sft" and recipe.loss.head in INSIDE
    return inside or reads_head(recipe)


def enter_backward(ledger: Ledger, recipe: Recipe, own: Frame, traced: TracedPass, reduces: bool) -> None:
    """The unit in use, the one gathered ahead, the input of the reduction before."""
    name, last = traced.plan.name, own.ahead(own.layers[-1])
    tail = own.tail if not own.opens else None
    stays = own.first_kept + own.kept_until(len(own.layers))
    for point in ("loss-backward", "head-backward", "final-norm-backward", "tail-reduce"):
        # The root gathers ahead once in a backward, before the first of two uses.
        again = recipe.loss.pair_pass == "two-forward" and name == "chosen"
        begins = loss_is_inside(recipe) and (not own.tail.gathered or reads_head(recipe))
        ahead = last if (point != "loss-backward" or begins) and not again and own.reshards else 0
        if point == "head-backward" and ahead and not begins:
            ahead += max(0, own.layers[-1].cast - _beyond_logits(traced))
        gathered(ledger, f"gathered ahead, {point}", ahead + stays, f"{name}.{point}", "the last layer, gathered ahead")
    if tail and tail.gathered:
        enter_tail_reduction(ledger, tail, f"{name}.tail-reduce", reduces, waits_for_reduction(recipe))
    ledger.add(
        "gradient of the residual stream, last layer", "temporaries", traced.input_gradient, at=f"{name}.tail-reduce"
    ).formula("T × h × bytes").since(source="torch.autograd")
    above = [*own.layers[1:], tail or NOTHING]
    for i in traced.backward_layers:
        below = own.layers[i - 1] if i else own.before_layers
        first = True
        for instant, alive in traced.layer_instants(i):
            _enter_whole(ledger, own, i, below, instant)
            trace = traced.layers[i]
            ahead = own.ahead(below) if own.reshards else 0
            whole = own.output(own.layers[i]) + own.kept(own.layers[i]) if own.reshards else 0
            cast = below.cast if own.reshards and not own.alone else 0
            before = trace.saved.size + trace.boundary + max(whole, ahead + cast)
            why = "its own all-gather's output, or the next one's input, before anything runs back"
            more = max(0, before - ahead - alive.size) if first else 0
            gathered(ledger, f"gathers before layer {i}", more, instant, why)
            first = False
            if reduces:
                reduction(ledger, f"reduce-scatter input before layer {i}", above[i].reduced, instant)
            elif waits_for_reduction(recipe) and recipe.batch.accumulation > 1:
                more = max(0, above[i].reduced - gone(own, i))
                reduction(ledger, f"reduce-scatter input before layer {i}, last micro-step", more, instant)
        _enter_layer_end(ledger, recipe, own, traced, i, reduces)
    size = own.first.gathered if own.first.gathered and own.resharding is True else own.first_kept
    gathered(
        ledger, "gathered embedding", max(size, own.first.gathered), f"{name}.embedding-backward", "a unit of its own"
    )
    if reduces:
        reduction(ledger, "reduce-scatter input of layer 0", own.layers[0].reduced, f"{name}.embedding-backward")
    enter_tower_reductions(ledger, recipe, own, traced, reduces)


def _within_loss(traced: TracedPass) -> int:
    """What the loss' backward makes beside what is saved since forward."""
    loss = traced.tail.backward.get("loss")
    return max(0, loss.size - traced.tail.saved.size) if loss else 0


def _beyond_logits(traced: TracedPass) -> int:
    """What the head's backward makes beside the logits' gradient, where the gather ahead begins: nothing saved."""
    plan, head = traced.plan, traced.tail.backward.get("head")
    made = sum(size for tag, size in head.tags.items() if tag.category != "activations") if head else 0
    itemsize = 4 if plan.spec.logits_fp32 else plan.mode.numerics.autocast or plan.mode.numerics.itemsize
    return max(0, made - plan.rows * plan.length * plan.spec.head.outputs * itemsize)


def _enter_whole(ledger: Ledger, own: Frame, i: int, below: Unit, instant: str) -> None:
    """The layer in use, the one below gathered ahead, and what stays of others."""
    used = own.layers[i].gathered + (own.ahead(below) if own.reshards else own.first_kept)
    others = own.kept_until(i)
    others += own.first_kept if own.reshards else 0
    gathered(ledger, f"gathered layer {i}, and the one before", used, instant, "the next is gathered ahead")
    gathered(ledger, "layers below", others if own.resharding is not True else 0, instant, "reshard_after_forward")


def _enter_layer_end(ledger: Ledger, recipe: Recipe, own: Frame, traced: TracedPass, i: int, reduces: bool) -> None:
    """After a layer's backward: the gradient that goes down, the reduction, the next layer's copy-out."""
    instant = traced.end_of(i)
    ledger.add(
        f"gradient of the residual stream, below layer {i}", "temporaries", traced.layers[i].boundary, at=instant
    ).formula("T × h × bytes").since(source="torch.autograd")
    below = own.layers[i - 1] if i else own.before_layers
    kept = own.first_kept + own.kept_until(i)
    gathered(ledger, "layers below", kept, instant, "reshard_after_forward")
    if own.reshards:
        gathered(
            ledger, f"gathered ahead of layer {i}'s reduction", own.ahead(below), instant, "the next is gathered ahead"
        )
    copied = below if not own.alone and (i or last_runs_back(traced)) else NOTHING
    enter_reduction(ledger, recipe, own, own.layers[i], copied, instant, f"layer {i}", reduces)
    if waits_for_reduction(recipe) and recipe.batch.accumulation > 1:
        enter_last_step(ledger, own, i, traced)
