"""From a recipe to its ledger: the schedule of the step, then every kind of row."""

from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

from memplan.engine.critic import NAME as CRITIC
from memplan.engine.critic import STEP as CRITIC_STEP
from memplan.engine.critic import critic_weights
from memplan.engine.layers.vision.tower_rows import enter_tower_backward, enter_tower_forward
from memplan.engine.ledger import Ledger
from memplan.engine.micro_step import hands_over, instants_of, shares_casts, stages
from memplan.engine.model_states import enter_states
from memplan.engine.overhead import enter_overhead
from memplan.engine.parallel.fsdp2.units import gathers
from memplan.engine.parallel.sharding import held, kept_gradients, main_gradients
from memplan.engine.passes import TracedPass
from memplan.engine.resident_models import enter_other_forwards, enter_residents, enter_waiting_reference
from memplan.engine.rollouts import enter_critic_outputs, enter_rollout, enter_step_outputs, enter_teacher
from memplan.engine.rows.embedding import enter_buffers
from memplan.engine.rows.kernels import (
    enter_kernels,
    enter_logits_of_few,
    enter_mixer_kernels,
    enter_rotary_tables,
    enter_unpacking,
)
from memplan.engine.rows.model import enter_batch, enter_embedding, enter_shared
from memplan.engine.rows.outputs import enter_choices, enter_kept_logits, enter_outputs
from memplan.engine.rows.passes import PassRows
from memplan.engine.rows.router_loss import enter_router_backward, enter_router_forward
from memplan.engine.rows.step import enter_gradients, enter_step
from memplan.engine.tensors import Weight, model_weights
from memplan.spec.recipe import Recipe

if TYPE_CHECKING:
    from memplan.engine.parallel.zero.prefetch import Figures
    from memplan.engine.parallel.zero.reductions import Held
    from memplan.engine.parallel.zero.stage3 import Orders

STEP = "step.optimizer"
BUCKETS, REDUCTIONS, STAGE3 = (f"memplan.engine.parallel.zero.{name}" for name in ("buckets", "reductions", "stage3"))


class Parts:
    """What several kinds of rows are made from, each made when it is first asked for."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    @cached_property
    def weights(self) -> list[Weight]:
        """The policy's tensors."""
        adapter = self.recipe.adapter
        return model_weights(self.recipe.model, adapter is None, adapter)

    @cached_property
    def critic_weights(self) -> list[Weight]:
        """The critic's tensors; none without one."""
        return critic_weights(self.recipe)

    @cached_property
    def passes(self) -> tuple[tuple[TracedPass, str], ...]:
        """The passes of one micro-step (see ``stages``)."""
        return tuple(stages(self.recipe))

    @cached_property
    def step_passes(self) -> tuple[tuple[TracedPass, str], ...]:
        """Those of the step that an evaluation comes after."""
        of, batch = self.recipe, self.recipe.batch
        return tuple(stages(of._replace(evaluating=False, batch=batch.step or batch))) if of.evaluating else ()

    @cached_property
    def backwards(self) -> tuple[str, ...]:
        """The passes that run back, but for the first of two forwards that run back together, to whose gradients those
        of the other come; a reentrant checkpoint's come by themselves, and DeepSpeed's hooks run."""
        names = tuple(traced.plan.name for traced, point in self.passes if point == "backward")
        alone = self.recipe.checkpointing.reentrant and self.recipe.zero_stage > 0
        return names[-1:] if self.recipe.loss.pair_pass == "two-forward" and not alone else names

    @cached_property
    def reductions(self) -> "dict[str, Held]":
        """What ZeRO's engines hold of gradients, by the last pass that each runs back."""
        from memplan.engine.parallel.zero.reductions import reductions

        own = (CRITIC,) if _apart(self.recipe) else ()
        engines = [names for names in (own, tuple(name for name in self.backwards if name not in own)) if names]
        found = ((names[-1], reductions(self.recipe, names, self.ranks_of_reductions)) for names in engines)
        return {name: held for name, held in found if held}

    @cached_property
    def ranks_of_reductions(self) -> int:
        """As many as their plays tell apart."""
        return import_module(REDUCTIONS).ranks_told_apart(self.recipe)  # type: ignore[no-any-return]

    @cached_property
    def orders(self) -> "Orders":
        """In which ZeRO-3's engines see modules run."""
        return import_module(STAGE3).orders_of(self.recipe, self.passes, self.step_passes)  # type: ignore[no-any-return]

    @cached_property
    def gathered(self) -> "Figures":
        """What each pass has gathered under ZeRO-3: alike for most numbers of ranks."""
        return import_module(STAGE3).figures_of(self.recipe, self.orders)  # type: ignore[no-any-return]

    @cached_property
    def schedule(self) -> tuple[str, ...]:
        """The instants of the step."""
        return (*(each for traced, point in self.passes for each in instants_of(self.recipe, traced, point)), STEP)


def build_ledger(recipe: Recipe, detailed: bool = True) -> Ledger:
    """Every row of one rank of the job, over one steady step; totals alone without ``detailed``."""
    if recipe.in_megatron:
        from memplan.engine.megatron.build import megatron_ledger  # an engine of its own, which most jobs never load

        return megatron_ledger(recipe, detailed)
    parts = Parts(recipe)
    ledger = Ledger(parts.schedule, detailed)
    for section in SECTIONS:
        section(ledger, parts)
    return ledger


def _apart(recipe: Recipe) -> bool:
    """Whether a critic has an engine and a step of its own."""
    return recipe.others.critic is not None and recipe.others.critic.apart


def _stepped(parts: Parts) -> list[Weight]:
    """What the last step of the schedule steps."""
    return parts.weights if _apart(parts.recipe) else [*parts.weights, *parts.critic_weights]


def _enter_states(ledger: Ledger, parts: Parts) -> None:
    recipe, holds = parts.recipe, held(parts.recipe)
    enter = enter_states
    if recipe.zero_stage >= 0:
        from memplan.engine.parallel.zero.states import enter_zero_states

        enter = enter_zero_states
    enter(ledger, recipe, parts.weights, holds)
    if parts.critic_weights:
        enter(ledger, recipe, parts.critic_weights, holds, "critic")


def _enter_gradients(ledger: Ledger, parts: Parts) -> None:
    if parts.recipe.evaluating:
        return
    recipe, apart = parts.recipe, _apart(parts.recipe)
    if gathers(recipe):  # a play of its hooks knows them, but for a critic's that steps with the policy
        enter_gradients(ledger, recipe, [] if apart else parts.critic_weights)
        return
    enter_gradients(ledger, recipe, _stepped(parts), ledger.after(CRITIC_STEP) if apart else "")
    if apart:
        enter_gradients(ledger, recipe, parts.critic_weights, dies=CRITIC_STEP)


def _enter_passes(ledger: Ledger, parts: Parts) -> None:
    recipe = parts.recipe
    for traced, point in parts.passes:
        if point == "forward":
            PassRows(traced, ledger).enter_forward()
            enter_shared(ledger, recipe, traced, lambda: parts.step_passes)
            enter_choices(ledger, traced)
            enter_kernels(ledger, recipe, traced)
            enter_tower_forward(ledger, traced, recipe.loss.keeps_outputs)
            enter_router_forward(ledger, traced)
        elif point == "backward":
            waits = recipe.loss.pair_pass == "two-forward" and traced.plan.name == "rejected"
            kept = kept_gradients(recipe, waits)
            waits = waits and (recipe.accumulates or shares_casts(recipe) or hands_over(recipe))
            consumer = "chosen" if waits else ""
            if _apart(recipe) and traced.plan.name == CRITIC:
                kept = kept._replace(until=CRITIC_STEP)
            PassRows(traced, ledger, consumer).enter_backward(kept)
            enter_outputs(ledger, traced)
            enter_embedding(ledger, traced, kept, consumer)
            enter_tower_backward(ledger, traced, kept)
            enter_router_backward(ledger, traced)
        _enter_beside(ledger, recipe, traced, point)


def _enter_pipeline(ledger: Ledger, parts: Parts) -> None:
    if parts.recipe.divided.pipeline > 1:
        from memplan.engine.parallel.pipeline import enter_pipeline

        enter_pipeline(ledger, parts.recipe, [traced for traced, point in parts.passes if point == "backward"])


def _enter_sharding(ledger: Ledger, parts: Parts) -> None:
    recipe = parts.recipe
    if recipe.zero_stage >= 0 and not recipe.evaluating:
        import_module(BUCKETS).enter_zero(ledger, recipe, _stepped(parts), parts.backwards[-1])
    elif recipe.in_units:
        from memplan.engine.parallel.fsdp.rows import enter_units

        enter_units(ledger, recipe, _stepped(parts), list(parts.passes))
    elif recipe.several and recipe.sharding.name == "ddp" and not main_gradients(recipe):
        from memplan.engine.parallel.ddp import enter_ddp

        enter_ddp(ledger, recipe, _stepped(parts))


def _enter_reductions(ledger: Ledger, parts: Parts) -> None:
    """What ZeRO holds of gradients, of the policy's engine behind that of a critic that steps by itself."""
    zero = parts.recipe.sharding.deepspeed
    if parts.recipe.zero_stage < 0 or parts.recipe.evaluating:
        return
    if zero.wrapper not in ("zero", "zero3") or (zero.quantised_gradients and parts.recipe.several):
        return
    from memplan.engine.parallel.zero.reductions import enter_reductions

    first = ledger.schedule[0]
    for name, engine in parts.reductions.items():
        end = CRITIC_STEP if name == CRITIC and _apart(parts.recipe) else STEP
        traced = [each for each, point in parts.passes if point == "backward" and each.plan.name in engine.parts]
        enter_reductions(ledger, engine, traced, first, end)
        first = ledger.after(end)


def _enter_gathered(ledger: Ledger, parts: Parts) -> None:
    """Whole weights under ZeRO-3."""
    if parts.recipe.zero_stage == 3 and (parts.recipe.several or parts.recipe.sharding.deepspeed.parameters):
        from memplan.engine.parallel.zero.buckets import enter_whole_weights

        enter_whole_weights(ledger, parts.recipe, parts.gathered, parts.passes, bool(parts.step_passes))


def _enter_steps(ledger: Ledger, parts: Parts) -> None:
    if parts.recipe.evaluating:
        return
    recipe, wrapper = parts.recipe, parts.recipe.sharding.deepspeed.wrapper
    steps = [(STEP, parts.backwards[-1], _stepped(parts))]
    steps += [(CRITIC_STEP, CRITIC, parts.critic_weights)] if _apart(recipe) else []
    for step, name, weights in steps:
        if wrapper in ("", "plain"):
            enter_step(ledger, recipe, weights, step)
        else:
            from memplan.engine.parallel.zero.step import enter_zero_step

            engine = parts.reductions.get(name) if wrapper == "zero" else None
            enter_zero_step(ledger, recipe, weights, step, engine)
    if _apart(recipe) and recipe.zero_stage >= 0:
        from memplan.engine.parallel.zero.buckets import enter_zero

        enter_zero(ledger, recipe, parts.critic_weights, CRITIC)


def _enter_others(ledger: Ledger, parts: Parts) -> None:
    enter_rollout(ledger, parts.recipe)
    enter_residents(ledger, parts.recipe)
    enter_other_forwards(ledger, parts.recipe)
    enter_waiting_reference(ledger, parts.recipe)


def _enter_surroundings(ledger: Ledger, parts: Parts) -> None:
    around = (enter_batch, enter_buffers, enter_overhead, enter_mixer_kernels, enter_rotary_tables, enter_logits_of_few)
    for enter in around:
        enter(ledger, parts.recipe)
    enter_unpacking(ledger, parts.recipe, parts.weights)
    if parts.recipe.evaluating and parts.recipe.batch.eval_kept:
        enter_kept_logits(ledger, parts.recipe)


SHARDING = (_enter_sharding, _enter_reductions, _enter_gathered)  # the last two seldom read how many ranks there are
SECTIONS: tuple[Callable[[Ledger, Parts], None], ...] = (
    _enter_states,
    _enter_gradients,
    _enter_passes,
    _enter_pipeline,
    *SHARDING,
    _enter_steps,
    _enter_others,
    _enter_surroundings,
)
"""Every kind of row, in the order of the ledger. What one of them reads of the recipe decides its rows, and nothing
else does: ``quick`` remembers a section's sums by what it read."""


def _enter_alone(ledger: Ledger, parts: Parts) -> None:
    """Of other rows those that no batch decides."""
    enter_residents(ledger, parts.recipe)
    enter_overhead(ledger, parts.recipe)


CALM = (_enter_states, _enter_gradients, _enter_alone)
"""What follows no pass, first the states: rows that name no instant are known before any pass is traced."""


def _enter_beside(ledger: Ledger, recipe: Recipe, traced: TracedPass, point: str) -> None:
    """What the loops of online methods and of distillation hold beside a pass."""
    if traced.plan.name == CRITIC and point == "forward":
        enter_critic_outputs(ledger, recipe, traced)
    elif traced.plan.name == "policy" and point == "forward":
        enter_teacher(ledger, recipe, traced)
        enter_step_outputs(ledger, recipe, traced)
