"""Gradients and buffers of backward in DeepSpeed's stages 0 to 2 and BF16_Optimizer; and the rows of each backward, put
together for every stage.

deepspeed 0.19 runtime/zero/stage_1_and_2.py (``process_gradients``, ``reduce_ipg_grads``, ``average_tensor``),
runtime/engine.py , runtime/bf16_optimizer.py. Run: tests/with_torch/test_deepspeed.py."""

from collections.abc import Iterable, Sequence

from memplan.engine.ledger import Ledger
from memplan.engine.parallel.sharding import takes_gradients
from memplan.engine.parallel.zero.flat_groups import (
    Group,
    fills,
    groups_of,
    largest,
    largest_slice,
    owned_elements,
    sizes_in_order,
)
from memplan.engine.parallel.zero.selective import enter_selected
from memplan.engine.parallel.zero.stage3 import (
    Stage,
    engine_of,
    enter_gathered,
    enter_left,
    enter_norms,
    enter_zero3,
    figures_of,
    left_by,
)
from memplan.engine.parallel.zero.states import weight_itemsize
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe

ENGINE_BUCKET = 500_000_000
"""Elements of a bucket of the engine's own all-reduce (engine.py: MEMORY_OPT_ALLREDUCE_SIZE)."""
SOURCE = "deepspeed 0.19 runtime/zero/stage_1_and_2.py"


def enter_buffers_of_zero(
    ledger: Ledger, recipe: Recipe, weights: list[Weight], born: str, end: str, takes: bool
) -> None:
    """The rows of one backward. ``born``: when the first gradient has come, ``end``: its last instant; ``takes``:
    gradients go into the bucket as they come, else all are reduced at the end."""
    groups, zero = groups_of(recipe, weights), recipe.sharding.deepspeed
    if not groups:
        return
    if zero.wrapper == "zero":
        _enter_bucket(ledger, recipe, groups, born, end, takes)
        flushes = born if takes and fills(recipe, groups) else end
        _enter_owned(ledger, recipe, groups, flushes, end, takes)
        if recipe.several:
            _enter_copies(ledger, recipe, groups, flushes, end, takes)
    elif recipe.several:
        _enter_engine_copies(ledger, recipe, groups, end)


def _enter_bucket(ledger: Ledger, recipe: Recipe, groups: list[Group], born: str, end: str, takes: bool) -> None:
    """The IPG bucket: whole, however little it is filled; without contiguous gradients, the gradients themselves.

    Stage 1 frees it where micro-steps end in a reduction alone: so it is there in the forward of later ones too."""
    zero, e = recipe.sharding.deepspeed, weight_itemsize(recipe, groups[0])
    if not zero.contiguous_gradients:
        if takes:
            trained = sum(group.elements for group in groups)
            waiting = min(zero.reduce_bucket_size, trained)
            ledger.add(
                "gradients that wait for a bucket",
                "gradients",
                waiting * e,
                born,
                end,
                low=0,
                high=min(waiting + max(map(largest, groups)), trained) * e,
            ).formula("elements until the bucket is full × bytes", waiting, e).since(
                "contiguous_gradients false: gradients stay where they are until enough of them are there",
                f"{SOURCE}: buffered_reduce_fallback",
            )
        return
    buckets = 2 if zero.overlap_comm else 1
    ledger.add(
        "reduction bucket",
        "buffers",
        zero.reduce_bucket_size * e * buckets,
        "" if recipe.accumulates and recipe.zero_stage == 1 else born,
        end,
    ).formula("reduce_bucket_size × bytes × buckets", zero.reduce_bucket_size, e, buckets).since(
        "gradients are copied into a bucket and reduced together; overlap_comm fills a second meanwhile",
        f"{SOURCE}: setup_buckets",
    )


def _enter_owned(ledger: Ledger, recipe: Recipe, groups: list[Group], born: str, end: str, takes: bool) -> None:
    """What a rank keeps of the gradients: parameters that touch its part, in the model's dtype, each whole.

    Stage 2 adds later micro-steps' to the first's: both are there in backward, whatever grad_accum_dtype."""
    zero, e = recipe.sharding.deepspeed, weight_itemsize(recipe, groups[0])
    if zero.optimizer:
        weights = [weight for group in groups for weight in group.weights]
        enter_norms(ledger, weights, 1, born, end)
        return
    elements = owned_elements(groups)
    adds = (recipe.accumulates and recipe.zero_stage == 2) or (takes and _runs_back_by_halves(recipe))
    if adds and recipe.accumulates:
        ledger.add("accumulated gradients", "gradients", elements * e).formula(
            "Σ parameters that touch the rank's part × bytes", elements, e
        ).since(
            "kept from micro-step to micro-step, in the model's dtype whatever grad_accum_dtype says",
            f"{SOURCE}: all_grad_tensors, get_all_grad_tensors",
        )
    ledger.add(
        "gradients in partition",
        "gradients",
        elements * e,
        born,
        end if adds else "",
        low=0 if takes and not adds and born != end else -1,
    ).formula("Σ parameters that touch the rank's part × bytes", elements, e).since(
        "one buffer, allocated whole when the first of the rank's gradients has been reduced",
        f"{SOURCE}: copy_grads_in_partition",
    )


def _enter_copies(ledger: Ledger, recipe: Recipe, groups: list[Group], born: str, end: str, takes: bool) -> None:
    """Copies that a reduction makes of a full bucket.

    Parts of one rank alone are reduced where they are; those of several are flattened into a copy. Another
    communication dtype is one more copy. Where all is reduced at the end, whole gradients make room for them."""
    zero, e = recipe.sharding.deepspeed, weight_itemsize(recipe, groups[0])
    trained = sum(group.elements for group in groups)
    bucket = min(zero.reduce_bucket_size, trained)
    cast = zero.communication if zero.communication != e else 0
    flattens = zero.reduce_scatter or not zero.contiguous_gradients
    crowded = not zero.contiguous_gradients or min(group.partition for group in groups) < bucket
    always = crowded and takes
    wide = max(bucket, *(largest_slice(group) for group in groups))
    copied = bucket * e if flattens else 0
    once = born == end and takes and not zero.optimizer  # its copies are gone when its parts are kept
    kept = owned_elements(groups) * e if once else 0
    ledger.add(
        "copies of the bucket",
        "buffers",
        max(0, (copied if always else 0) + wide * cast - kept),
        born,
        end,
        low=0,
        high=max(0, copied + wide * cast - kept),
    ).formula(
        "elements of a full bucket × (bytes, where parts of several ranks meet in it, + communication bytes)",
        bucket,
        e if always and flattens else 0,
        cast,
    ).since(
        "a bucket that holds parts of several ranks is flattened into a copy",
        f"{SOURCE}: average_tensor, allreduce_bucket",
    )


def buckets_of(sizes: Iterable[int], most: int = ENGINE_BUCKET) -> tuple[int, int]:
    """(elements of the largest bucket of several tensors, of any): a bucket closes once it holds more than ``most``."""
    several = any_ = held = tensors = 0
    for size in (*sizes, -1):
        if size < 0 or held > most:
            any_ = max(any_, held)
            several = max(several, held if tensors > 1 else 0)
            held = tensors = 0
        held, tensors = held + size, tensors + 1
    return several, any_


def _enter_engine_copies(ledger: Ledger, recipe: Recipe, groups: Sequence[Group], end: str) -> None:
    """Stage 0 and BF16_Optimizer: the engine reduces whole gradients at the last micro-step, bucket by bucket."""
    zero, of_bf16 = recipe.sharding.deepspeed, recipe.sharding.deepspeed.wrapper == "bf16"
    e = 4 if of_bf16 else weight_itemsize(recipe, groups[0])
    weights = tuple(weight for group in groups for weight in group.weights)
    sizes = tuple(group.flat for group in groups) if of_bf16 else sizes_in_order(weights)
    several, whole = buckets_of(sizes)
    cast = zero.communication if zero.communication != e else 0
    ledger.add("copies of the bucket", "buffers", several * e + whole * cast, at=end).formula(
        "elements of the largest bucket × bytes, + × communication bytes where they differ", several, e, whole, cast
    ).since(
        "buckets of 500 million elements and what crosses it, flattened unless one tensor fills them",
        "deepspeed 0.19 runtime/engine.py: allreduce_no_retain, allreduce_bucket",
    )


def enter_zero(ledger: Ledger, recipe: Recipe, weights: list[Weight], name: str, first: str) -> None:
    """Rows of the reductions in backward, from the pass ``first`` to ``name``, of the engine with ``weights``."""
    born, end = first_gradient(ledger, weights, first), f"{name}.reduce"
    end = end if end in ledger.index else f"{name}.embedding-backward"
    if recipe.zero_stage == 3:
        enter_zero3(ledger, recipe, weights, born, name)
    else:
        if _runs_back_by_halves(recipe) and name == "rejected":
            _enter_first_half(ledger, recipe, weights, born)
        enter_buffers_of_zero(ledger, recipe, weights, born, end, takes_gradients(recipe))
        enter_selected(ledger, recipe, weights, born)


def _runs_back_by_halves(recipe: Recipe) -> bool:
    """Whether the halves of a pair have a backward each, and the optimizer steps after both."""
    return recipe.method.pairs and recipe.loss.pair_pass in ("split", "gradcache") and not recipe.accumulates


def _enter_first_half(ledger: Ledger, recipe: Recipe, weights: list[Weight], second: str) -> None:
    """What the first half's backward makes and leaves: its bucket to the second half's (``second``: the first gradient
    of that), or, where it reduces too, its parts to the step."""
    groups, takes = groups_of(recipe, weights), takes_gradients(recipe)
    born, end = first_gradient(ledger, weights, "chosen"), "chosen.reduce"
    end = end if end in ledger.index else "chosen.embedding-backward"
    zero = recipe.sharding.deepspeed
    if zero.wrapper != "zero" or not groups or zero.optimizer:
        return
    _enter_bucket(ledger, recipe, groups, born, end if takes else ledger.before(second), takes)
    if not takes:
        return
    flushes = born if fills(recipe, groups) else end
    if recipe.several:
        _enter_copies(ledger, recipe, groups, flushes, end, takes)
    elements, e = owned_elements(groups), weight_itemsize(recipe, groups[0])
    ledger.add("gradients of the first half", "gradients", elements * e, flushes).formula(
        "Σ parameters that touch the rank's part × bytes", elements, e
    ).since("those of the second half are added to them", f"{SOURCE}: all_grad_tensors, get_all_grad_tensors")


def enter_whole_weights(ledger: Ledger, recipe: Recipe, passes: Sequence[Stage], before: Sequence[Stage]) -> None:
    """Stage 3: weights that are gathered, pass by pass; of other models, where they are divided too. ``before``: the
    passes of the step that an evaluation comes after, whose order its engine knows."""
    if not recipe.several and not recipe.sharding.deepspeed.parameters:
        return
    whole = {model.role for model in recipe.others.residents if not model.sharded}
    figures, left = figures_of(recipe, passes, before), dict[str, int]()
    for traced, point in passes if before else ():  # the batch before
        left[engine_of(recipe, traced.plan.name)] = left_by(figures, traced, point)
    for traced, point in passes:
        name = traced.plan.name
        engine = engine_of(recipe, name)
        if point == "forward":
            enter_left(ledger, sum(left.values()) - left.get(engine, 0), traced)
        if name not in whole:
            enter_gathered(ledger, recipe, figures, traced, point)
            left[engine] = left_by(figures, traced, point)


def first_gradient(ledger: Ledger, weights: list[Weight], name: str) -> str:
    """The instant from which on a gradient has come: after the head's backward, or within the last layer's."""
    outer = any(weight.trained and weight.unit in ("head", "norm") for weight in weights)
    last = f"{name}.last-layer-backward"
    layer = last if last in ledger.index else ledger.after(f"{name}.final-norm-backward")
    return ledger.after(f"{name}.head-backward") if outer else layer
