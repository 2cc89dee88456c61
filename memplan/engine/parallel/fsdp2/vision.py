"""What FSDP2 adds to a vision tower's pass: its blocks are units, gathered one after another before the language
model's layers, and reduced one after another behind them.

The rules are those of layers (``fsdp2.py``). What is gathered ahead of a backward is the unit before it in the order of
forward, whether or not that has a backward."""

from memplan.engine.layers.vision.tower_ends import TowerPlan
from memplan.engine.layers.vision.tower_trace import Stretch, stretch_of
from memplan.engine.ledger import Ledger
from memplan.engine.parallel.fsdp2.frame import Frame, TowerUnits, Unit
from memplan.engine.parallel.fsdp2.reduce_scatter import gathered
from memplan.engine.parallel.fsdp2.units import unit_of
from memplan.engine.passes import TracedPass
from memplan.engine.tensors import tower_weights
from memplan.spec.parts import Part
from memplan.spec.recipe import Recipe
from memplan.spec.vision import Tower


def units_of(recipe: Recipe, tower: Tower) -> TowerUnits:
    """Sizes of each; of a block that is read, since those behind it run without a backward."""
    nothing = {"embedding": Part(), "after": Part(), "unused": Part(), "projector": Part(category="projector")}
    whole = {"used_blocks": tower.num_layers, "runs": ()}

    def unit(**kept: object) -> Unit:
        alone = tower.model_copy(update={**nothing, **whole, **kept})
        adapter = recipe.adapter
        weights = tower_weights(recipe.model, alone, adapter is None, adapter)
        return unit_of([weight for weight in weights if weight.apart], recipe)

    blocks, count = unit(runs=tower.runs), max(tower.num_layers, 1)
    block = Unit(*(size // count for size in blocks))
    return TowerUnits(unit(embedding=tower.embedding), block, unit(projector=tower.projector))


def forward_peak(own: Frame, units: TowerUnits, stretch: Stretch) -> int:
    """The most within its forward. A unit's all-gather output waits for the next one's copy-out: two copies of a block
    are there in it, three before anything of it runs."""
    block, kept = units.block.gathered, own.kept(units.block)
    before = units.front.gathered or own.root.gathered
    most = stretch.first.forward + units.front.gathered + own.root.gathered
    for i, layer in enumerate(stretch.layers):
        inside = layer.forward.size - layer.boundary
        size = stretch.before[i] + layer.forward.size + 2 * block + max(0, before - inside)
        most, before = max(most, size + i * kept + stretch.beside), block
    after = max(block, 2 * units.projector.gathered)
    most = max(most, stretch.end + after + len(stretch.layers) * kept)
    return most + own.kept(units.front) + stretch.shared


def backward_peak(own: Frame, units: TowerUnits, stretch: Stretch, reduces: bool, adds: bool) -> int:
    """The most within its backward, with the shards of the gradients that it has reduced.

    The input of the reduction above is there in a block; at its end its own beside its gradients, or the output, or the
    copy-out below. Gradients of what is no unit wait whole for the root's reduction.

    ``adds``: shards are added to those of micro-steps before."""
    plan, block, kept = stretch.plan, units.block, own.kept(units.block)
    used, above = plan.tower.used_blocks, units.projector.reduced or own.layers[0].reduced
    idle = block.gathered * own.reshards * (used < len(stretch.layers))  # gathered ahead, and never run back
    waits = stretch.embedded + stretch.leaf + idle
    ahead = block.gathered if own.reshards and not idle else 0
    most = stretch.saved + stretch.last.backward + units.projector.gathered + ahead + own.layers[0].reduced * reduces
    most += used * kept + stretch.leaf + idle
    shards, keep = 0, plan.gradients == "keep"
    whole = stretch.last.gradients * keep * (not units.projector.gathered)
    for i in reversed(range(used)):
        layer, base = stretch.layers[i], stretch.before[i] + waits + shards + whole + i * kept
        if not layer.backward:
            break
        below = (block if i else units.front).gathered if own.reshards else 0
        inside = max(alive.size for alive in layer.backward.values()) + block.gathered + below + above * reduces
        begins = layer.saved.size + layer.boundary + 2 * block.gathered * own.reshards + above * reduces
        end = layer.boundary + below + block.reduced * reduces
        end += max(block.gradients, block.scattered + block.last, below + block.shard) if reduces else block.gradients
        most = max(most, base + inside, base + begins, base + end)
        above, shards = block.reduced, shards + block.shard * (reduces and not adds)
        whole += max(0, layer.gradients - block.gradients) * keep
    ends = stretch.first.backward + waits + units.front.gathered + (above + units.front.gradients) * reduces
    return max(most, ends + shards + whole) + own.kept(units.front) + stretch.kept


def plan_of(traced: TracedPass) -> TowerPlan | None:
    """The pass of a tower whose blocks are traced one by one; None without images."""
    plan = traced.plan.tower
    return None if plan is None or plan.tower.crossed else plan


def last_runs_back(traced: TracedPass) -> bool:
    """Whether the unit before the language model's layers has a backward, for which it is copied out: a tower's last
    block has none where the one before it is read (LLaVA), or where the tower is frozen."""
    plan = plan_of(traced)
    if plan is None or "projector" in plan.tower.units:
        return True
    layers = stretch_of(plan).layers
    return plan.tower.used_blocks == len(layers) and bool(layers[-1].backward)


def enter_tower_gathers(ledger: Ledger, own: Frame, traced: TracedPass) -> None:
    """Its units in forward, and what stays of them until its backward."""
    plan, name = plan_of(traced), traced.plan.name
    enter_crossed_tower(ledger, own, traced)
    units = own.tower
    if plan is None or units is None or f"{name}.vision-forward" not in ledger.index:
        return
    stretch = stretch_of(plan)
    more = max(0, forward_peak(own, units, stretch) - traced.vision.forward)
    why = "two all-gathers' outputs, and what one is copied into"
    gathered(ledger, "blocks of the tower", more, f"{name}.vision-forward", why)
    stays = own.kept(units.block) * plan.tower.num_layers + own.kept(units.front) + own.kept(units.projector)
    last = ledger.before(f"{name}.vision-backward") if f"{name}.vision-backward" in ledger.index else f"{name}.forward"
    why = f"reshard_after_forward={own.resharding}"
    gathered(ledger, "blocks of the tower, kept from their forward", stays, f"{name}.layer-forward", why, last)


def enter_tower_reductions(ledger: Ledger, recipe: Recipe, own: Frame, traced: TracedPass, reduces: bool) -> None:
    """Its units in backward: gathered, and reduced."""
    plan, instant = plan_of(traced), f"{traced.plan.name}.vision-backward"
    if plan is None or own.tower is None or instant not in ledger.index or not traced.vision.backward:
        return
    peak = backward_peak(own, own.tower, stretch_of(plan), reduces, recipe.accumulates)
    why = "the block in use, the next one's all-gather, the input of the reduction before, whole gradients, shards"
    gathered(ledger, "blocks of the tower, backward", max(0, peak - traced.vision.alone), instant, why)


def enter_crossed_tower(ledger: Ledger, own: Frame, traced: TracedPass) -> None:
    """Blocks of a tower that is not traced one by one (Llama 3.2 Vision): in use and ahead; gradients count whole."""
    tower, name = traced.plan.spec.tower, traced.plan.name
    if tower is None or not tower.crossed or not own.blocks.gathered or f"{name}.vision-forward" not in ledger.index:
        return
    block = own.blocks.gathered // tower.num_layers
    gathered(ledger, "blocks of the tower", 3 * block, f"{name}.vision-forward", "all-gathers' outputs and a copy")
    if f"{name}.vision-backward" in ledger.index:
        instant, why = f"{name}.vision-backward", "the next is gathered ahead"
        gathered(ledger, "blocks of the tower, backward", 2 * block, instant, why)
