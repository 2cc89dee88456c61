"""A pass through all layers, forward and backward, and what each of them and all of them hold."""

from functools import lru_cache

from memplan.engine.layers.modules import Mode
from memplan.engine.losses.heads import NO_HEAD
from memplan.engine.pass_plan import PassPlan, keys_of_images
from memplan.engine.play.cut import Cut, Played
from memplan.engine.play.encoder_decoder import TwoStacks
from memplan.engine.play.stack import Reached, StackRun, StackTape
from memplan.engine.play.weights import Weights, listed
from memplan.engine.tensors import model_weights
from memplan.engine.traces import Stack
from memplan.engine.uncollected import uncollected
from memplan.spec.model import ModelSpec
from memplan.spec.recompute import Recompute
from memplan.units import GPU_ROUNDING


@lru_cache(maxsize=64)
def _weights(spec: ModelSpec) -> tuple[bool, bool]:
    """Whether some weight has a dtype of its own, and whether all of them train where the model does."""
    found = model_weights(spec, True)
    return any(weight.itemsize for weight in found), all(weight.trained for weight in found)


def _mode_alone(plan: PassPlan) -> Mode:
    """What of a mode layers read: without a graph nothing is made again; few models have weights of own dtypes; and
    inputs are saved for weights that train, whatever else asks for them."""
    mode, graph, (own_dtypes, all_train) = plan.mode, plan.style != "no-grad", _weights(plan.spec)
    keeps = mode.numerics.norm_itemsize or not mode.widths.casts_all or own_dtypes
    asks = graph and not (mode.trained and mode.adapter is None and all_train)
    return mode._replace(
        recompute=mode.recompute if graph else Recompute(modules=mode.recompute.modules),
        widths=mode.widths if keeps else mode.widths._replace(casts_all=False),
        saves_inputs=mode.saves_inputs and asks,
    )


def layers_alone(plan: PassPlan, images: bool) -> tuple[PassPlan, Reached]:
    """What of a pass its layers know. ``images``: the tower's output needs a gradient."""
    seen = keys_of_images(plan) > 0
    plan = plan._replace(mode=_mode_alone(plan), gradients="keep" if plan.style == "no-grad" else plan.gradients)
    head = NO_HEAD._replace(loss=NO_HEAD.loss._replace(keeps_outputs=plan.head.loss.keeps_outputs))
    alone = plan._replace(name="", head=head, in_units=False)
    reached = Reached(plan.embedding_trained or (images and not seen), seen and images)
    return alone._replace(images=plan.images if seen else None), reached


@lru_cache(maxsize=512)
@uncollected()
def stack_of(plan: PassPlan, reached: Reached) -> Stack:
    """Forward and backward."""
    tape, weights, kind = _begun(plan)
    passes = 2 if any(mixer.kind == "gated-recurrence" for mixer in plan.spec.mixers) else 1
    for _ in range(passes):  # what a step leaves to the next one is there when that begins
        played = Played(tape, kind(tape, weights, reached))
    found = Cut(played).stack()
    tape.close()
    return found


def kept_at_least(plan: PassPlan, reached: Reached) -> int:
    """Bytes that are there when backward begins, at the least: forward alone is played, and nothing of a step before
    it. What more rows keep is in proportion to them, but for a storage's rounding, and for experts, whose tokens are
    rounded too."""
    if plan.rows <= 2 or any(run.layer.experts for run in plan.spec.runs):
        return _kept(plan, reached)[0]
    (one, _), (two, count) = (_kept(plan._replace(rows=rows), reached) for rows in (1, 2))
    return one + (plan.rows - 1) * (two - one - count * GPU_ROUNDING)


@lru_cache(maxsize=1024)
@uncollected()
def _kept(plan: PassPlan, reached: Reached) -> tuple[int, int]:
    """Bytes, and how many storages they are."""
    tape, weights, kind = _begun(plan)
    played = Played(tape, kind(tape, weights, reached), back=False)
    there = sum(1 if size > 0 else -1 for _, size in tape.events[: played.turn])
    tape.close()
    return played.kept, there


def _begun(plan: PassPlan) -> tuple[StackTape, Weights, type[StackRun]]:
    tape = StackTape(plan)
    return tape, Weights(tape, {}, listed(plan.spec)), TwoStacks if plan.spec.encoder else StackRun
