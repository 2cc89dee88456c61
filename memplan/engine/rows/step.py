"""Gradients that stay over micro-steps, and what the optimizer's step holds for a moment."""

from memplan.engine import model_states as states
from memplan.engine.ledger import ACCUMULATED, Ledger
from memplan.engine.parallel import sharding
from memplan.engine.parallel.fsdp1.flat_parameters import fullest
from memplan.engine.parallel.fsdp2.units import gathers
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe


def enter_gradients(ledger: Ledger, recipe: Recipe, weights: list[Weight], born: str = "", dies: str = "") -> None:
    """With accumulation, all gradients are there from the first micro-step's backward to the step. ``born``, ``dies``:
    of an engine whose micro-steps are not the whole schedule."""
    if not weights or not (recipe.accumulates or sharding.main_gradients(recipe)):
        return
    if sharding.takes_gradients(recipe):
        return  # they are in partitions
    in_buckets = sharding.in_buckets(recipe)
    if in_buckets and recipe.sharding.sync_each_batch:
        return
    trained = [weight for weight in weights if weight.trained]
    if recipe.zero_stage >= 0 and recipe.batch.images is None:  # a tower that sees nothing is in flat groups alone
        trained = [weight for weight in trained if weight.unit != "vision"]
    whole, padded = gathers(recipe) and not recipe.sharding.sync_each_batch, recipe.sharding.name == "fsdp2"
    shards = 1 if whole else sharding.held(recipe).gradient_shards
    dies = ledger.schedule[-2] if sharding.gone_in_step(recipe) and not dies else dies
    groups = [(ACCUMULATED, trained, dies)]
    if in_buckets and recipe.batch.accumulation == 2:  # the second backward copies each into its bucket as it comes
        last = [each for each in ledger.schedule if each.endswith("embedding-backward")][-1]
        late, early = list[Weight](), list[Weight]()
        for weight in trained:
            (late if weight.unit in ("embedding", "vision") else early).append(weight)
        groups = [(f"{ACCUMULATED}, until they are in buckets", early, ledger.before(last)), (ACCUMULATED, late, dies)]
    for name, group, until in groups:
        sizes = [states.shard_elements([weight], shards, padded) for weight in group]
        size = sum(each * sharding.gradient_itemsize(recipe, weight) for each, weight in zip(sizes, group, strict=True))
        size += _of_other_ranks(recipe, group) * recipe.storage.gradient_itemsize
        ledger.add(name, "gradients", size, born, until, place="gpu" if whole else states.place_of(recipe)).told(
            sum(sizes), round(size / max(sum(sizes), 1), 4)
        )


def enter_step(ledger: Ledger, recipe: Recipe, weights: list[Weight], step: str) -> None:
    """What the optimizer's step holds for a moment."""
    holds, optimizer, impl = sharding.held(recipe), recipe.optimizer.row, recipe.optimizer.implementation
    trained = fullest(recipe, weights)
    if recipe.fused_backward:
        elements, itemsize = states.last_update(recipe, trained)
    else:
        elements, itemsize = _largest_step(recipe, trained, holds)
    if not gathers(recipe):  # the rank's own rows are copied out of the embedding's gradient
        elements = max(elements, _of_other_ranks(recipe, trained) // max(recipe.model.embedding_parts - 1, 1))
    wide = recipe.storage.precision.weights == states.FP32
    refresh = states.refresh_bytes(recipe, trained, states.FP32 if wide else 2, 1)
    ledger.add(
        f"temporaries of the {impl} step",
        "optimizer_temporaries",
        elements * itemsize,
        at=step,
        place=states.place_of(recipe),
        low=0 if optimizer.band or (optimizer.gathers and holds.optimizer_shards > 1) else -1,
        high=refresh if refresh > elements * itemsize else -1,
    ).formula("elements × bytes", elements, itemsize).since(f"{optimizer.title}, {impl}", optimizer.source)


def _largest_step(recipe: Recipe, trained: list[Weight], holds: sharding.Held) -> tuple[int, int]:
    """(elements, bytes of each) of the temporaries, over the element sizes of what is stepped.

    foreach takes one dtype at a time, but its loop's variables hold the copies of the one before."""
    optimizer, impl = recipe.optimizer.row, recipe.optimizer.implementation
    if impl == "loop" and optimizer.rule != "muon" and not optimizer.gathers:  # all dtypes in one loop
        smallest = min(holds.stepped_itemsize(recipe, weight) for weight in trained)
        return states.loop_bytes(recipe, states.stepped_tensors(recipe, trained, holds)) // smallest, smallest
    sizes = {}
    for itemsize in {holds.stepped_itemsize(recipe, weight) for weight in trained}:
        same = [weight for weight in trained if holds.stepped_itemsize(recipe, weight) == itemsize]
        sizes[itemsize] = states.step_temporaries(recipe, same, itemsize, holds.optimizer_shards)
    smallest = min(sizes)
    return (sum if impl == "foreach" else max)(sizes.values()) // smallest, smallest


def _of_other_ranks(recipe: Recipe, weights: list[Weight]) -> int:
    """Elements of the embedding's gradient beyond the rank's own rows (``ModelSpec.embedding_parts``)."""
    spec = recipe.model
    own = sum(w.elements for w in weights if w.name == "embed_tokens" and w.trained and not spec.head_is_tied)
    return own * (spec.embedding_parts - 1)
