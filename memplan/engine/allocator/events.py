"""Every allocation and free of whole training steps, in order: what the caching allocator is simulated with."""

from typing import TYPE_CHECKING

from memplan.engine.allocator.reserved import FLAT_SLACK, SLACK, STAGED, Slack
from memplan.engine.tape.turns import TooManyTurns
from memplan.spec.recipe import Recipe

if TYPE_CHECKING:
    from memplan.engine.allocator.replay import StepEvents

CROSSING = ("shared-block", "layer-inputs", "streams")
"""Forms of layers that read more than the residual stream."""
SHARDINGS = ("fsdp", "fsdp2", "ddp")
"""Those whose hooks are played."""


def step_events(recipe: Recipe, steps: int = 2, rank: int | None = None) -> "StepEvents | None":
    """The events of so many steps, on the rank that holds most or another; None for what is not played yet."""
    if not is_covered(recipe):
        return None
    if recipe.in_megatron:
        from memplan.engine.play.megatron import megatron_events

        return megatron_events(recipe, steps)
    from memplan.engine.play.notes import UnknownParameter
    from memplan.engine.play.unfolding import played  # which a search never loads

    try:
        recorded = played(recipe, steps)
    except (UnknownParameter, TooManyTurns):
        return None
    return recorded if rank is None else on_rank(recorded, recipe, rank)


def on_rank(recorded: "StepEvents", recipe: Recipe, rank: int) -> "StepEvents":
    """What was played, on another rank."""
    from memplan.engine.play.other_ranks import of_rank

    return of_rank(recorded, recipe, rank)


def slack_of(recipe: Recipe, lasting: int) -> Slack | None:
    """How much more than its share a search takes of what can be played; None of what cannot. ``lasting``: what the
    rank holds throughout, which a quantised base under FSDP1 may take twice (``Played.left_over``)."""
    if not is_covered(recipe):
        return None
    if recipe.in_megatron:
        holes = int(STAGED.lasting * lasting)
        if recipe.adapter is not None:
            from memplan.engine.megatron.build import MegatronParts
            from memplan.engine.megatron.states import left_of_segments

            holes = max(holes, left_of_segments(MegatronParts(recipe).shares, recipe.storage.precision.weights))
        return Slack(SLACK + holes, STAGED.moving)
    if not (recipe.several and recipe.sharding.name == "fsdp"):
        return Slack(SLACK)
    return Slack(FLAT_SLACK + (lasting if recipe.quantised is not None else 0))


def is_covered(recipe: Recipe) -> bool:
    """One trained model: on one GPU, under DDP, FSDP and ZeRO, or in Megatron's stages; no engine alone, which takes no
    step and fills what it was given."""
    is_played = (
        _has_played_stages if recipe.in_megatron else _is_played_zero if recipe.zero_stage >= 0 else _has_played_hooks
    )
    return (
        not recipe.method.generates
        and is_played(recipe)
        and (recipe.batch.images is None or _sees_in_play(recipe))
        and not _crosses_unplayed(recipe)
        and _is_offload_played(recipe)
        and _has_played_critic(recipe)
        and not recipe.evaluating
    )


def _has_played_critic(recipe: Recipe) -> bool:
    """Whether there is none, or it steps with the policy, or has a training of its own; no engine takes gradients,
    and no loop names outputs over its steps."""
    critic = recipe.others.critic
    if critic is None or recipe.in_megatron:
        return critic is None
    from memplan.engine.critic_engine import has_critic_engine, parted

    if has_critic_engine(recipe):
        return is_covered(parted(recipe)[0])
    return not (critic.apart or recipe.loss.code.step_outputs or recipe.zero_stage >= 0)


def _sees_in_play(recipe: Recipe) -> bool:
    """Whether hooks know the modules of a tower that are units: FSDP's are of blocks and of both ends."""
    tower = recipe.model.tower
    known = tower is not None and not tower.crossed and "attention" not in tower.units
    return known or tower is None or not recipe.in_units


def _is_offload_played(recipe: Recipe) -> bool:
    """Nothing on the host, or the inputs of checkpoints alone, by torchtune's and TRL's ``OffloadActivations``,
    or LLaMA-Factory's function."""
    again = recipe.checkpointing
    return not again.offload or (again.offload in ("trl", "inputs") and again.form == "full")


def _crosses_unplayed(recipe: Recipe) -> bool:
    """Whether what crosses layers has no play: modules that ZeRO's hooks do not know, FSDP's units of layers that apply
    the same weights. Hyper-connections, whose play is exact, take seconds."""
    runs = recipe.model.runs
    forms = {run.layer.form for run in runs}
    crossing = "hyper" in forms or (recipe.zero_stage >= 0 and bool(forms.intersection(CROSSING)))
    shared = any(run.blocks for run in runs) and recipe.sharding.name in ("fsdp", "fsdp2")
    return crossing or shared


def _has_played_stages(recipe: Recipe) -> bool:
    """Of Megatron: one model in plain or pipelined stages, interleaved or not, whose optimizer is on the card."""
    settings = recipe.megatron
    return (
        recipe.model.tower is None
        and not settings.optimizer_cpu_offload
        and not settings.narrow_weights
        and not recipe.others.residents
        and not recipe.loss.code.stacked
    )


def _is_played_zero(recipe: Recipe) -> bool:
    """All stages; of stage 3 whose weights travel as they are."""
    zero = recipe.sharding.deepspeed
    travels = zero.hpz > 1 or zero.quantised_weights or zero.quantised_gradients or zero.fetch_by_all_reduce
    packed = zero.quantised_frozen or recipe.quantised is not None
    return (
        not (zero.wrapper == "zero3" and (travels or packed)) and zero.selective is None and recipe.divided.world == 1
    )


def _has_played_hooks(recipe: Recipe) -> bool:
    """Without ZeRO; of torch's own parallelism all but pipelines."""
    if recipe.storage.precision.master:
        return False
    if not (recipe.several or recipe.in_units):
        return True
    return recipe.sharding.name in SHARDINGS and recipe.parallel.pipeline == 1
