"""Gradients and buffers of backward in DeepSpeed's stage 0 and BF16_Optimizer; and the rows of each backward, put
together for every stage.

deepspeed 0.19 runtime/engine.py, runtime/bf16_optimizer.py. Run: tests/with_torch/test_deepspeed.py."""

from collections.abc import Sequence

from memplan.engine.critic import NAME as CRITIC
from memplan.engine.ledger import Ledger
from memplan.engine.parallel.zero import stage3
from memplan.engine.parallel.zero.flat_groups import Group, groups_of
from memplan.engine.parallel.zero.prefetch import Figures
from memplan.engine.parallel.zero.selective import enter_selected
from memplan.engine.passes import Stage
from memplan.engine.play.zero.engine import during
from memplan.engine.play.zero.whole import WholeEngine
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe


def _enter_engine_copies(ledger: Ledger, recipe: Recipe, groups: list[Group], end: str) -> None:
    """Stage 0 and BF16_Optimizer: the engine reduces whole gradients at the last micro-step, bucket by bucket."""
    engine = WholeEngine(recipe, groups)
    found = during(engine, lambda: engine.backward_ended(last=True))
    size = found.most - found.inside
    ledger.add("copies of the bucket", "buffers", size, at=end).told(size)


def enter_zero(ledger: Ledger, recipe: Recipe, weights: list[Weight], name: str) -> None:
    """Rows of the reductions in the backward of the pass ``name`` of the engine with ``weights``: but for those of
    stages 1 and 2 (``reductions.py``). A policy's gradients come before a critic's of the same engine."""
    together = name == CRITIC and not recipe.others.critic.apart if recipe.others.critic else False
    born, groups = first_gradient(ledger, weights, "policy" if together else name), groups_of(recipe, weights)
    if recipe.zero_stage == 3:
        stage3.enter_zero3(ledger, recipe, weights, born, name)
        return
    end = f"{name}.reduce"
    if groups and recipe.sharding.deepspeed.whole_gradients:
        _enter_engine_copies(ledger, recipe, groups, end if end in ledger.index else f"{name}.embedding-backward")
    enter_selected(ledger, recipe, weights, born)


def enter_whole_weights(
    ledger: Ledger, recipe: Recipe, figures: Figures, passes: Sequence[Stage], follows: bool
) -> None:
    """Stage 3: weights that are gathered, pass by pass; of other models, where they are divided too. ``follows``: one
    batch another, without a step between."""
    whole = {model.role for model in recipe.others.residents if not model.sharded}
    left = dict[str, int]()
    for traced, point in passes if follows else ():  # the batch before
        left[stage3.engine_of(recipe, traced.plan.name)] = stage3.left_by(figures, traced, point)
    for traced, point in passes:
        name = traced.plan.name
        engine = stage3.engine_of(recipe, name)
        if point == "forward":
            stage3.enter_left(ledger, sum(left.values()) - left.get(engine, 0), traced)
        if name not in whole:
            stage3.enter_gathered(ledger, recipe, figures, traced, point)
            left[engine] = stage3.left_by(figures, traced, point)


def first_gradient(ledger: Ledger, weights: list[Weight], name: str) -> str:
    """The instant from which on a gradient has come: after the head's backward, or within the last layer's."""
    outer = any(weight.trained and weight.unit in ("head", "norm") for weight in weights)
    last = f"{name}.last-layer-backward"
    layer = last if last in ledger.index else ledger.after(f"{name}.final-norm-backward")
    return ledger.after(f"{name}.head-backward") if outer else layer
