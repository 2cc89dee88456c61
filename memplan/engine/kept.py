"""What the policy's layers keep from forward to backward, without anything else of a step: what a search asks first."""

from functools import lru_cache
from typing import Any

from memplan.engine.losses.head_of_pass import policy_head
from memplan.engine.micro_step import layers_plan, shares_casts
from memplan.engine.parallel.fsdp2.units import gathered_layers
from memplan.engine.parallel.sharding import gradient_mode
from memplan.engine.pass_plan import PassPlan
from memplan.engine.passes import shares, trace_layers
from memplan.engine.rows.kernels import unfused
from memplan.engine.tail_trace import trace_tail
from memplan.engine.totals import remembered
from memplan.engine.traces import LayerTrace
from memplan.spec.recipe import Recipe
from memplan.spec.recompute import Recompute

NO_RECOMPUTE = Recompute()


def most_at_loss(recipe: Recipe) -> int:
    """The most bytes within the norm, head and loss of the last forward before a backward, beside what layers keep; 0
    where the loss waits for another model, or nothing trains."""
    rows = recipe.batch.size if recipe.method.pairs and recipe.loss.pair_pass != "concatenated" else recipe.rows
    head = policy_head(recipe, rows, graph=True)
    if head.waits:
        return 0
    plan = layers_plan(recipe, "policy", rows, recompute=NO_RECOMPUTE)  # of which no tail reads anything
    if plan.spec.is_frozen:
        return 0
    tail = trace_tail(plan.spec, plan.mode, rows, plan.length, head, True, gradient_mode(recipe), True).forward
    return max((tail[point].size for point in ("final-norm", "head", "loss") if point in tail), default=0)


def kept_by_layers(recipe: Recipe) -> int:
    """Bytes that the layers of a rank keep when the last forward before a backward is through, at the most that fused
    kernels leave open: all rows', or those of a half where halves run back one by one. Of two forwards both keep
    theirs. 0 where they are not known by themselves: images' states. What layers share is counted with them."""
    if recipe.batch.images is not None:
        return 0
    if not recipe.method.pairs or recipe.loss.pair_pass == "concatenated":
        return _kept(layers_plan(recipe, "policy", recipe.rows))
    plan = layers_plan(recipe, "policy", recipe.batch.size)
    if recipe.loss.pair_pass != "two-forward":
        return _kept(plan)
    if not shares_casts(recipe):
        return 2 * _kept(plan)
    mode = plan.mode
    first, second = mode._replace(shared_casts="first"), mode._replace(shared_casts="second")
    return _kept(plan._replace(mode=first)) + _kept(plan._replace(mode=second))


def kept_gathered(recipe: Recipe) -> int:
    """Bytes of the layers' weights that FSDP2 leaves gathered from forward to backward, where it does not reshard."""
    stays = recipe.sharding.name == "fsdp2" and recipe.sharding.reshard_after_forward is False
    return gathered_layers(recipe) if stays else 0


@lru_cache(maxsize=1024)
def _kept(plan: PassPlan) -> int:
    """Of one pass, with what its layers would save more without kernels or the compiler (``rows/compiled.py``)."""
    if shares(plan):
        from memplan.engine.play.stacks import kept_at_least, layers_alone

        return kept_at_least(*layers_alone(plan._replace(gradients="keep"), False))
    traces, other = _traces(plan), unfused(plan)
    more = _with_casts(_traces(other)) - _with_casts(traces) if other else 0
    return sum(trace.saved.size for trace in traces) + max(0, more)


def _traces(plan: PassPlan) -> list[LayerTrace]:
    return trace_layers(plan, False, to_the_end=False)[0]


def _with_casts(traces: list[LayerTrace]) -> int:
    """What they save, with autocast's copies that no node holds."""
    return sum(trace.saved.size + trace.casts for trace in traces)


def _kept_forward(parts: Any) -> int:
    from memplan.engine.megatron.activations import kept_forward

    return kept_forward(parts.shape, parts.chunks)


kept_in_megatron = remembered(_kept_forward, megatron=True)
"""Bytes that the layers of a rank of Megatron's keep while the fullest micro-batch goes forward."""
