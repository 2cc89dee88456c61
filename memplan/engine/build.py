"""From a recipe to its ledger: the schedule of the step, then every kind of row."""

from __future__ import annotations

from memplan.engine.choices import enter_choices
from memplan.engine.deepspeed import deepspeed_step
from memplan.engine.front_rows import enter_buffers
from memplan.engine.ledger import Ledger
from memplan.engine.losses import policy_head
from memplan.engine.model_rows import enter_batch, enter_embedding, enter_shared
from memplan.engine.modules import Mode
from memplan.engine.overhead import enter_overhead
from memplan.engine.pass_rows import PassRows
from memplan.engine.passes import PassPlan, TracedPass
from memplan.engine.resident import enter_residents, reference_pass
from memplan.engine.sharding import (
    Held,
    enter_sharding,
    gathers,
    gone_in_step,
    gradient_itemsize,
    gradient_mode,
    held,
    kept_gradients,
    main_gradients,
    second_mode,
)
from memplan.engine.states import (
    FP32,
    enter_states,
    flat_copies,
    last_update,
    refresh_bytes,
    shard_elements,
    step_temporaries,
)
from memplan.engine.tensors import Weight, count, model_weights
from memplan.engine.units_of_model import units
from memplan.engine.vision_rows import enter_tower_backward, enter_tower_forward
from memplan.spec.recipe import Recipe

STEP = "step.optimizer"


def ledger(recipe: Recipe, detailed: bool = True) -> Ledger:
    """Every row of one rank of the job, over the instants of one step in steady state; totals alone without
    ``detailed``.
    """
    adapter = recipe.adapter
    weights = model_weights(recipe.model, adapter is None, adapter)
    passes = stages(recipe)
    schedule = [instant for traced, point in passes for instant in _instants(recipe, traced, point)]
    book = Ledger([*schedule, STEP], detailed)
    holds = held(recipe)
    enter_states(book, recipe, weights, holds)
    _enter_gradients(book, recipe, weights)
    for traced, point in passes:
        if point == "forward":
            PassRows(traced, book).enter_forward()
            enter_shared(book, recipe, traced)
            enter_choices(book, traced)
            enter_tower_forward(book, traced, recipe.keeps_outputs)
        else:
            waits = recipe.pair_pass == "two-forward" and traced.plan.name == "rejected"
            kept = kept_gradients(recipe, waits)
            waits = waits and (recipe.accumulation > 1 or shares_casts(recipe) or gathers(recipe))
            consumer = "chosen" if waits else ""
            PassRows(traced, book, consumer).enter_backward(kept)
            enter_embedding(book, traced, kept, consumer)
            enter_tower_backward(book, traced, kept)
    enter_sharding(book, recipe, weights, units(weights, recipe.model), passes)
    _enter_step(book, recipe, weights)
    enter_residents(book, recipe)
    enter_batch(book, recipe)
    enter_buffers(book, recipe)
    enter_overhead(book, recipe)
    return book


def policy_mode(recipe: Recipe) -> Mode:
    """How the policy's modules run."""
    return Mode(
        weight_itemsize=recipe.compute_itemsize,
        trained=recipe.adapter is None,
        autocast=recipe.autocast,
        attention=recipe.attention,
        padded=recipe.padded,
        adapter=recipe.adapter,
        half_to_float=recipe.half_to_float,
        quantised=recipe.quantised,
        norm_itemsize=recipe.norm_itemsize,
        stream_itemsize=4 if recipe.autocast and recipe.model.widens_stream else 0,
    )


def policy_plan(recipe: Recipe, name: str, rows: int, style: str = "", gradients: str = "keep") -> PassPlan:
    """A pass of the policy over ``rows`` sequences."""
    checkpoint = ("reentrant" if recipe.reentrant else "checkpoint") if recipe.checkpointing else "plain"
    style = style or checkpoint
    head = policy_head(recipe, rows, graph=style != "no-grad")
    adapter, trained = recipe.adapter, "embed_tokens" not in recipe.model.frozen
    needs_grad = recipe.checkpointing or (trained if adapter is None else "embed_tokens" in adapter.saved)
    return PassPlan(
        name=name,
        spec=recipe.model,
        mode=policy_mode(recipe),
        rows=rows,
        length=recipe.sequence_length,
        style=style,
        head=head,
        gradients=gradients,
        neighbours=gathers(recipe),
        embedding_trained=needs_grad,
        images=recipe.images if recipe.model.tower else None,
    )


def stages(recipe: Recipe) -> list[tuple[TracedPass, str]]:
    """The passes of one micro-step in order, each with the half that happens then: forward or backward."""
    first = gradient_mode(recipe)
    half, schedule = recipe.batch_size, recipe.pair_pass
    scoring = (
        [(reference_pass(recipe, rows=half if schedule != "concatenated" else recipe.rows), "forward")]
        if reference_pass(recipe, 0)
        else []
    )
    if not recipe.method.pairs or schedule == "concatenated":
        policy = TracedPass(policy_plan(recipe, "policy", recipe.rows, gradients=first))
        kl = (
            [(TracedPass(policy_plan(recipe, "kl", recipe.rows, "no-grad")), "forward")]
            if recipe.method.kl_rows
            else []
        )
        forwards = (
            [*scoring, (policy, "forward")] if recipe.trainer.reference_first else [(policy, "forward"), *scoring]
        )
        if recipe.trainer.kl_after_policy:
            forwards[1:1] = kl
            kl = []
        return [*kl, *forwards, (policy, "backward")]  # type: ignore[list-item]
    if schedule == "two-forward":
        chosen, rejected = _two_forwards(recipe, first)
        return [*scoring, (chosen, "forward"), (rejected, "forward"), (rejected, "backward"), (chosen, "backward")]  # type: ignore[list-item]
    names = ["rejected"] if schedule == "split" else ["chosen", "rejected"]
    scored = [(TracedPass(policy_plan(recipe, f"scoring-{name}", half, "no-grad")), "forward") for name in names]
    chosen = TracedPass(policy_plan(recipe, "chosen", half, gradients=first))
    rejected = TracedPass(policy_plan(recipe, "rejected", half, gradients=second_mode(recipe)))
    halves = [(chosen, "forward"), (chosen, "backward"), (rejected, "forward"), (rejected, "backward")]
    return [*scoring, *scored, *halves]  # type: ignore[list-item]


def _two_forwards(recipe: Recipe, gradients: str) -> tuple[TracedPass, TracedPass]:
    """Chosen and rejected of one backward: rejected runs back first, and its gradients wait for those of chosen.

    Where weights are cast, it is the casts' gradients that wait, in low precision; elsewhere the weights' own.
    """
    plans = policy_plan(recipe, "chosen", recipe.batch_size), policy_plan(recipe, "rejected", recipe.batch_size)
    if not shares_casts(recipe):
        return TracedPass(plans[0]._replace(gradients="sum")), TracedPass(plans[1])
    chosen, rejected = (
        plan._replace(mode=plan.mode._replace(shared_casts=order))
        for plan, order in zip(plans, ("first", "second"), strict=True)
    )
    return TracedPass(chosen._replace(gradients=gradients)), TracedPass(rejected)


def shares_casts(recipe: Recipe) -> bool:
    """Whether two forwards use the same autocast copies of trained fp32 weights."""
    return recipe.autocast > 0 and recipe.compute_itemsize != recipe.autocast and recipe.adapter is None


def _instants(recipe: Recipe, traced: TracedPass, point: str) -> list[str]:
    if point == "forward":
        return ([f"{traced.plan.name}.gather"] if gathers(recipe) else []) + traced.forward_instants()
    reduce = [f"{traced.plan.name}.reduce"] if recipe.ranks > 1 or recipe.zero_stage >= 2 else []
    return traced.backward_instants() + reduce


def _enter_gradients(book: Ledger, recipe: Recipe, weights: list[Weight]) -> None:
    """With accumulation, all gradients are there from the first micro-step's backward to the step.

    FSDP2 keeps them whole, in the reduction's dtype, where micro-steps are not synchronised (``_fsdp_param.py``).
    """
    if (recipe.accumulation == 1 and not main_gradients(recipe)) or recipe.zero_stage == 3:
        return
    if recipe.ranks > 1 and recipe.sharding == "ddp" and recipe.gradient_as_bucket_view and recipe.sync_each_batch:
        return  # they are in the buckets
    trained = [weight for weight in weights if weight.trained]
    shards, whole = held(recipe).gradient_shards, False
    if recipe.sharding == "fsdp2" and shards > 1 and not recipe.sync_each_batch:
        shards, whole = 1, True
    rows = recipe.sharding == "fsdp2"
    elements = shard_elements(trained, shards, rows)
    size = sum(
        shard_elements([weight], shards, rows)
        * (recipe.reduce_itemsize if whole else gradient_itemsize(recipe, weight))
        for weight in trained
    )
    itemsize = round(size / max(elements, 1), 4)
    book.add(
        "accumulated gradients",
        "gradients",
        size,
        dies=book.schedule[-2] if gone_in_step(recipe) else "",
        template="trained elements × gradient bytes",
        numbers=(elements, itemsize),
        why="from the second micro-step on, gradients are resident in forward too",
        source="torch.autograd: .grad is kept until zero_grad; FSDP2: set_requires_gradient_sync",
    )


def _enter_step(book: Ledger, recipe: Recipe, weights: list[Weight]) -> None:
    """What the optimizer's step holds for a moment."""
    holds, optimizer, impl = held(recipe), recipe.optimizer, recipe.optimizer_impl
    trained = [weight for weight in weights if weight.trained]
    if recipe.zero_stage >= 0 and recipe.precision.master:
        elements, itemsize = deepspeed_step(recipe, count(trained), flat_copies(recipe))
        if recipe.zero_stage == 1:
            owned = shard_elements(trained, recipe.ranks)
            book.add(
                "owned gradients",
                "gradients",
                owned * recipe.gradient_itemsize,
                STEP,
                STEP,
                template="trained elements / ranks × bytes",
                numbers=(owned, recipe.gradient_itemsize),
                why="gradients of other ranks' partitions are freed before the step",
                source="deepspeed 0.19 runtime/zero/stage_1_and_2.py: free_grad_in_param_list",
            )
    elif optimizer.fused_backward[0]:
        elements, itemsize = last_update(recipe, trained)
    else:
        elements, itemsize = _largest_step(recipe, trained, holds)
    refresh = refresh_bytes(recipe, trained, FP32 if recipe.precision.weights == FP32 else 2, 1)
    book.add(
        f"temporaries of the {impl} step",
        "optimizer_temporaries",
        elements * itemsize,
        STEP,
        STEP,
        template="elements × bytes",
        numbers=(elements, itemsize),
        why=f"{optimizer.title}, {impl}",
        source=optimizer.source,
        low=0 if optimizer.band or (optimizer.gathers and holds.optimizer_shards > 1) else -1,
        high=refresh if refresh > elements * itemsize else -1,
    )


def _largest_step(recipe: Recipe, trained: list[Weight], holds: Held) -> tuple[int, int]:
    """(elements, bytes of each) of the temporaries, over the element sizes of what is stepped.

    foreach takes one dtype at a time, but its loop's variables hold the copies of the one before.
    """
    sizes = {}
    for itemsize in {holds.stepped_itemsize(recipe, weight) for weight in trained}:
        same = [weight for weight in trained if holds.stepped_itemsize(recipe, weight) == itemsize]
        sizes[itemsize] = step_temporaries(recipe, same, itemsize, holds.optimizer_shards)
    smallest = min(sizes)
    return (sum(sizes.values()) if recipe.optimizer_impl == "foreach" else max(sizes.values())) // smallest, smallest
