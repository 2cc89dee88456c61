"""The passes of one micro-step: which models run over which rows, in which order, forward and backward."""

from typing import Literal

from memplan.engine.critic import NAME as CRITIC
from memplan.engine.critic import STEP as CRITIC_STEP
from memplan.engine.critic import critic_pass
from memplan.engine.layers.modules import Mode, RouterLogits, Widths
from memplan.engine.layers.moe.in_order import FAMILIES as ORDERED
from memplan.engine.layers.quantised_linear import product_itemsize
from memplan.engine.losses.head_of_pass import has_reference_pass, policy_head, reference_head, rollout_head
from memplan.engine.losses.heads import NO_HEAD
from memplan.engine.parallel.fsdp1.flat_parameters import flat_mode, reached_spec, root_trains
from memplan.engine.parallel.fsdp2.units import (
    adds_in_place,
    casts_inputs,
    casts_outputs,
    gathers,
    keeps_buffers,
    used_adapter,
)
from memplan.engine.parallel.sharding import gradient_mode, second_mode, takes_gradients
from memplan.engine.pass_plan import PassPlan
from memplan.engine.passes import TracedPass, traced_pass
from memplan.engine.resident_models import reference_pass, repeats_keys, teacher_pass
from memplan.spec.model import ModelSpec
from memplan.spec.recipe import Recipe
from memplan.spec.recompute import Recompute
from memplan.tables.families import LOOPING
from memplan.tables.styles import GradientMode, PassStyle
from memplan.units import ceil_div


def policy_mode(recipe: Recipe, recompute: Recompute | None = None) -> Mode:
    """How the policy's modules run. ``recompute``: in place of the recipe's, of which nothing is read then."""
    return Mode(
        numerics=recipe.numerics,
        operators=recipe.operators,
        trained=recipe.adapter is None or root_trains(recipe),
        padded=recipe.batch.padded,
        adapter=used_adapter(recipe),
        quantised=recipe.quantised,
        widths=Widths(
            buffer=recipe.storage.precision.weights if keeps_buffers(recipe) else 0,
            stream=4 if recipe.model.residual_fp32 or _is_widened(recipe) else 0,
            product=product_itemsize(recipe.quantised, recipe.numerics.autocast, recipe.model.layers()),
            casts_all=bool(recipe.storage.precision.master),
            input=recipe.numerics.itemsize if casts_inputs(recipe) else 0,
            output=recipe.numerics.itemsize if casts_outputs(recipe) else 0,
            norms_cast=recipe.quantised is not None and _norms_cast(recipe.model),
        ),
        recompute=recipe.checkpointing.recompute if recompute is None else recompute,
        offload=recipe.checkpointing.offload,
        flat=flat_mode(recipe),
        in_place=recipe.hardware.has_card,
        lacks_flash=recipe.hardware.lacks_flash,
        loops_experts=loops_experts(recipe),
        saves_inputs=recipe.zero_stage == 3,
        orders_experts=recipe.trainer.name == "prime-rl" and recipe.model.family in ORDERED,
        repeats_keys=repeats_keys(recipe),
        tensor=1 if recipe.divided.whole_stream else recipe.divided.tensor,
        summed=recipe.divided.summed,
        context=recipe.divided.context,
        expert=recipe.divided.expert,
        slices=recipe.divided.tensor if recipe.divided.expert > 1 == recipe.divided.expert_tensor else 1,
        shares=shares_of(recipe),
    )


def shares_of(recipe: Recipe) -> Literal["ring", "ulysses", "gathered"]:
    """How ranks that share a sequence do in attention."""
    how = "gathered" if recipe.parallel.gathers_keys else recipe.trainer.parallelism.sequence
    how = "ulysses" if how == "accelerate" and recipe.zero_stage >= 0 else how
    return how if how in ("ulysses", "gathered") else "ring"


def with_router_loss(recipe: Recipe, mode: Mode, style: PassStyle) -> Mode:
    """The mode of a pass whose routers hand out their logits: scores without a graph do where the config says so."""
    graph = style != "no-grad" or recipe.evaluating
    how = recipe.loss.router.policy if graph else recipe.loss.router.scoring
    detached = style == "reentrant" and not recipe.checkpointing.recompute.is_partial
    given = recipe.batch.padded or (recipe.batch.masked and recipe.operators.attention != "flash")
    return mode._replace(router=RouterLogits(how, recipe.loss.router.stacked, detached, given)) if how else mode


def _is_widened(recipe: Recipe) -> bool:
    """Whether autocast widens the residual stream to fp32: norms that stand in it do, and AltUp's magnitudes
    (modeling_gemma3n.py: ``hidden_states_0**2``), unless FSDP2 casts what each layer is given."""
    widens = recipe.model.widens_stream or any(run.layer.form == "streams" for run in recipe.model.runs)
    return recipe.numerics.autocast > 0 and widens and not casts_inputs(recipe)


def _norms_cast(spec: ModelSpec) -> bool:
    """Whether every layer's norms give back the dtype of what they are given, though their weights are in fp32
    (``output.type_as(x)``: Gemma, Qwen3.5, OLMo 2); of experts, which may be in fp32 too, it is not said."""
    layers = [run.layer for run in spec.runs]
    return all(norm.casts for each in layers for norm in each.norms) and not any(each.experts for each in layers)


def loops_experts(recipe: Recipe) -> bool:
    """Experts of transformers 4, where none of them trains."""
    adapter = recipe.adapter
    frozen = adapter is not None and not adapter.experts and not any("w1" in each for each in adapter.saved)
    return recipe.trainer.models.transformers_4 and frozen and recipe.model.family in LOOPING


def policy_plan(
    recipe: Recipe, name: str, rows: int, style: PassStyle | None = None, gradients: GradientMode = "keep"
) -> PassPlan:
    """A pass of the policy over ``rows`` sequences."""
    plan = layers_plan(recipe, name, rows, style, gradients)
    return plan._replace(
        head=policy_head(recipe, rows, plan.style != "no-grad", recipe.evaluating and name == "policy"),
        in_units=gathers(recipe),
    )


def layers_plan(
    recipe: Recipe,
    name: str,
    rows: int,
    style: PassStyle | None = None,
    gradients: GradientMode = "keep",
    recompute: Recompute | None = None,
) -> PassPlan:
    """The same but for the loss and what a sharding gathers. ``recompute``: see ``policy_mode``."""
    checkpoint: PassStyle = (
        ("reentrant" if recipe.checkpointing.reentrant else "checkpoint") if recipe.checkpointing.layers else "plain"
    )
    style = style or checkpoint
    adapter, trained = recipe.adapter, "embed_tokens" not in recipe.model.frozen
    needs_grad = recipe.checkpointing.layers or (trained if adapter is None else adapter.trains("embed_tokens"))
    spec = reached_spec(recipe)
    needs_grad = needs_grad or root_trains(recipe) or spec.frozen != recipe.model.frozen
    return PassPlan(
        name=name,
        spec=spec,
        mode=with_router_loss(recipe, policy_mode(recipe, recompute), style),
        rows=rows,
        length=recipe.batch.completion_length if recipe.model.encoder else recipe.batch.sequence_length,
        memory=recipe.batch.sequence_length if recipe.model.encoder else 0,
        style=style,
        head=NO_HEAD,
        gradients=gradients,
        embedding_trained=needs_grad,
        images=recipe.batch.images if recipe.model.tower else None,
    )


def _reference(recipe: Recipe, rows: int) -> TracedPass | None:
    """The reference's forward: the policy's own without a graph where a second set of adapters is put in place."""
    if recipe.adapter is None or not (recipe.adapter.second_itemsize and has_reference_pass(recipe)):
        return reference_pass(recipe, rows)
    plan = policy_plan(recipe, "reference", rows, "no-grad")
    return traced_pass(plan._replace(head=reference_head(recipe, rows, recipe.numerics.itemsize)))


def stages(recipe: Recipe) -> list[tuple[TracedPass, str]]:
    """The passes of one micro-step in order, each with the half that happens then: forward or backward, or the loss
    where another model's forward comes before it."""
    if recipe.evaluating:
        return _evaluation(recipe)
    if recipe.teacher:
        return _distillation(recipe)
    if recipe.method.optional_reference:
        return _after_rollout(recipe)
    if recipe.loss.head == "own":
        policy = traced_pass(policy_plan(recipe, "policy", recipe.rows, gradients=gradient_mode(recipe)))
        return [(policy, "forward"), *_asked_by_loss(recipe), (policy, "backward")]
    first = gradient_mode(recipe)
    half, schedule = recipe.batch.size, recipe.loss.pair_pass
    scored_by = _reference(recipe, half if schedule != "concatenated" else recipe.rows)
    scoring = [(scored_by, "forward")] if scored_by else []
    if not recipe.method.pairs or schedule == "concatenated":
        policy = traced_pass(policy_plan(recipe, "policy", recipe.rows, gradients=first))
        kl = (
            [(traced_pass(policy_plan(recipe, "kl", recipe.rows, "no-grad")), "forward")]
            if recipe.method.kl_rows
            else []
        )
        forwards = (
            [*scoring, (policy, "forward")] if recipe.trainer.reference.first else [(policy, "forward"), *scoring]
        )
        if recipe.trainer.loss.kl_after_policy:
            forwards[1:1] = kl
            kl = []
        return [*kl, *forwards, (policy, "backward")]
    if schedule == "two-forward":
        chosen, rejected = _two_forwards(recipe, first)
        return [*scoring, (chosen, "forward"), (rejected, "forward"), (rejected, "backward"), (chosen, "backward")]
    names = ["rejected"] if schedule == "split" else ["chosen", "rejected"]
    scored = [(traced_pass(policy_plan(recipe, f"scoring-{name}", half, "no-grad")), "forward") for name in names]
    chosen = traced_pass(policy_plan(recipe, "chosen", half, gradients=first))
    rejected = traced_pass(policy_plan(recipe, "rejected", half, gradients=second_mode(recipe)))
    halves = [(chosen, "forward"), (chosen, "backward"), (rejected, "forward"), (rejected, "backward")]
    return [*scoring, *scored, *halves]


def _evaluation(recipe: Recipe) -> list[tuple[TracedPass, str]]:
    """The forwards of a batch without a graph: reference's, policy's, KTO's for its KL estimate. Halves are one."""
    rows = recipe.rows if not recipe.method.pairs or recipe.loss.pair_pass == "concatenated" else recipe.batch.size
    reference = _reference(recipe, rows)
    scoring = [(reference, "forward")] if reference else []
    policy = [(traced_pass(policy_plan(recipe, "policy", rows, "no-grad")), "forward")]
    forwards = [*scoring, *policy] if recipe.trainer.reference.first else [*policy, *scoring]
    kl = [(traced_pass(policy_plan(recipe, "kl", rows, "no-grad")), "forward")] if recipe.method.kl_rows else []
    after = recipe.trainer.loss.kl_after_policy
    return [*forwards[:after], *kl, *forwards[after:], *_asked_by_loss(recipe)]


def _asked_by_loss(recipe: Recipe) -> list[tuple[TracedPass, str]]:
    """The forward of a teacher that a loss of the program's own asks: its logits are among what that holds."""
    teachers = [each for each in recipe.others.residents if each.role == "teacher"] if recipe.loss.head == "own" else []
    return [(teacher_pass(recipe, each), "forward") for each in teachers]


def _distillation(recipe: Recipe) -> list[tuple[TracedPass, str]]:
    """Student and teacher; the loss is made when both have spoken."""
    assert recipe.teacher is not None
    student = traced_pass(policy_plan(recipe, "policy", recipe.rows, gradients=gradient_mode(recipe)))
    teacher = teacher_pass(recipe, recipe.teacher)
    if student.plan.head.waits:
        return [(student, "forward"), (teacher, "forward"), (student, "loss"), (student, "backward")]
    return [(teacher, "forward"), (student, "forward"), (student, "backward")]


def _after_rollout(recipe: Recipe) -> list[tuple[TracedPass, str]]:
    """Completions are scored by the policy (where the trainer does) and the reference; critic, then policy train."""
    mode, before, scoring = gradient_mode(recipe), [], scoring_recipe(recipe)
    if recipe.trainer.rollouts.scored:
        plan = policy_plan(scoring, "old", scoring.rows, "no-grad")
        before.append((traced_pass(plan._replace(head=rollout_head(scoring, scoring.rows))), "forward"))
    reference = _reference(scoring, scoring.rows)
    before += [(reference, "forward")] if reference else []
    policy = traced_pass(policy_plan(recipe, "policy", recipe.rows, gradients=mode))
    update = [(policy, "forward"), (policy, "backward")]
    if recipe.others.critic is None:
        return [*before, *update]
    critic = critic_pass(recipe.others.critic, policy.plan)
    if recipe.others.critic.together:
        return [*before, (critic, "forward"), *update, (critic, "backward")]
    return [*before, (critic, "forward"), (critic, "backward"), *update]


def scoring_recipe(recipe: Recipe) -> Recipe:
    """The recipe of the passes that score a rollout, whose rows may be packed to a limit of their own."""
    batch = recipe.batch
    if not batch.scoring:
        return recipe
    if batch.images is not None or recipe.loss.code.step_outputs:  # of whole sequences
        return recipe._replace(batch=batch._replace(size=batch.scoring // batch.sequence_length, group=1))
    completions = ceil_div(batch.scoring * batch.completion_length, batch.sequence_length)
    own = batch._replace(size=1, group=1, sequence_length=batch.scoring, completion_length=completions)
    return recipe._replace(batch=own)


def _two_forwards(recipe: Recipe, gradients: GradientMode) -> tuple[TracedPass, TracedPass]:
    """Chosen and rejected of one backward: rejected runs back first, and its gradients wait for those of chosen.

    Where weights are cast, it is the casts' gradients that wait, in low precision; elsewhere the weights' own. Those of
    reentrant layers do not wait: the backward in their checkpoint's leaves them in ``.grad``."""
    plans = policy_plan(recipe, "chosen", recipe.batch.size), policy_plan(recipe, "rejected", recipe.batch.size)
    if recipe.checkpointing.reentrant:
        nested: GradientMode = "keep" if gathers(recipe) else "add" if takes_gradients(recipe) else gradients
        plans = plans[0]._replace(nested="keep" if gathers(recipe) else "add"), plans[1]._replace(nested=nested)
    if not shares_casts(recipe):
        there = recipe.batch.accumulation > 1 or hands_over(recipe)
        joins = (
            gathers(recipe) and recipe.sharding.name == "fsdp2" and not (recipe.accumulates and adds_in_place(recipe))
        )
        apart = gathers(recipe) and not joins and recipe.sharding.name == "fsdp"  # each forward has views of its own
        how: GradientMode = "join" if joins else "keep" if apart else "meet" if there else "sum"
        return traced_pass(plans[0]._replace(gradients=how)), traced_pass(plans[1])
    chosen, rejected = plans
    first, second = chosen.mode._replace(shared_casts="first"), rejected.mode._replace(shared_casts="second")
    return traced_pass(chosen._replace(mode=first, gradients=gradients)), traced_pass(rejected._replace(mode=second))


def hands_over(recipe: Recipe) -> bool:
    """Whether a weight's gradient leaves ``.grad`` as it comes: then that of another graph is added up before."""
    return gathers(recipe) or takes_gradients(recipe)


def shares_casts(recipe: Recipe) -> bool:
    """Whether two forwards use the same autocast copies of trained fp32 weights: not where each leaves autocast."""
    copied = recipe.numerics.autocast > 0 and recipe.numerics.itemsize != recipe.numerics.autocast
    return copied and recipe.adapter is None and not recipe.loss.code.leaves_autocast


def instants_of(recipe: Recipe, traced: TracedPass, point: str) -> list[str]:
    """The instants of one half of a pass."""
    if point == "loss":
        return [f"{traced.plan.name}.loss"]
    if point == "forward":
        forward = traced.forward_instants()
        forward = forward[:-1] if traced.plan.head.waits else forward
        return ([f"{traced.plan.name}.gather"] if gathers(recipe) else []) + forward
    apart = recipe.others.critic is not None and recipe.others.critic.apart and traced.plan.name == CRITIC
    reduce = [f"{traced.plan.name}.reduce"] if recipe.several or recipe.in_units or recipe.zero_stage >= 1 else []
    return traced.backward_instants() + reduce + ([CRITIC_STEP] if apart else [])
