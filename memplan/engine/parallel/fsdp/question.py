"""What a play of FSDP's hooks depends on, taken from a recipe and its passes."""

from functools import partial

from memplan.engine.critic import NAME as CRITIC
from memplan.engine.losses.scored import CALLING, FUSED_PROGRAMS
from memplan.engine.parallel.fsdp2.rules import Rules, rules_of
from memplan.engine.pass_plan import PassPlan
from memplan.engine.passes import Stage, TracedPass
from memplan.engine.play.boxes import Half, Question
from memplan.engine.play.sharding import Measure, Sizes, sizes_of
from memplan.engine.play.units import policy_groups, reference_groups
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe


def question_of(recipe: Recipe, weights: list[Weight], passes: list[Stage]) -> Question:
    """Of the passes of a micro-step. What a step leaves for the next one is there when the second begins."""
    rules = rules_of(recipe)
    in_full = recipe.sharding.fsdp.cpu_offload or rules.resharding not in (True, False)
    box = partial(_box, in_full)
    policy = policy_groups(recipe, weights, box)
    beside = next((traced.plan for traced, _ in passes if _owner(recipe, traced.plan) == "reference"), None)
    reference = reference_groups(recipe, beside, box) if beside is not None else None
    halves = tuple(_half(recipe, rules, len(policy.layers), *stage) for stage in passes)
    halves = tuple(
        half._replace(joined=recipe.loss.pair_pass == "two-forward" and half != halves[-1])
        if half.point == "backward"
        else half
        for half in halves
    )
    if recipe.evaluating:
        return Question(
            rules, policy, reference, halves, 2, tuple(half for half in halves if half.owner == "reference")
        )
    micro_steps = min(recipe.batch.accumulation, 3 if rules.late else 2)
    remembers = reference is not None or rules.resharding not in (True, False)
    return Question(rules, policy, reference, halves, micro_steps, halves if remembers else ())


def _box(in_full: bool, weights: list[Weight], measure: Measure, title: str) -> Sizes:
    """A unit as one tensor, but where a part of each stays, or each comes from the host."""
    if in_full:
        return sizes_of(weights, measure)._replace(title=title)
    unit = measure(weights)
    return Sizes(unit, (unit.gathered,) if unit.gathered else (), (unit.widest,), (f"rest of {title}", title), 0, title)


def _owner(recipe: Recipe, plan: PassPlan) -> str:
    if plan.name == CRITIC and recipe.others.critic is not None and recipe.others.critic.apart:
        return CRITIC
    if plan.name != "reference" or recipe.others.reference != "resident":
        return "policy"
    return "reference" if any(model.role == "reference" and model.sharded for model in recipe.others.residents) else ""


def _half(recipe: Recipe, rules: Rules, layers: int, traced: TracedPass, point: str) -> Half:
    plan = traced.plan
    graph, owner, program = plan.style != "no-grad", _owner(recipe, plan), plan.head.program
    back = tuple(not graph or bool(layer.backward) for layer in traced.layers)
    tower = plan.tower
    places: tuple[bool, ...] = ()
    if tower is not None and tower.tower.crossed:
        places = (traced.vision.reached,) * (tower.tower.num_layers + 2)
    elif tower is not None:
        from memplan.engine.layers.vision.tower_trace import stretch_of

        stretch = stretch_of(tower)
        own = [bool(layer.backward) and i < tower.tower.used_blocks for i, layer in enumerate(stretch.layers)]
        places = (stretch.first.reached, *own, traced.vision.reached)
    return Half(
        plan.name,
        point,
        owner if len(back) == layers or owner == "reference" else "",
        graph,
        back,
        plan.embedding_trained,
        places,
        tower.tower.used_blocks if tower is not None else 0,
        program not in FUSED_PROGRAMS or program in CALLING,
        nested=tuple(plan.style_of(i) == "reentrant" for i in range(len(back)))
        if plan.nested or rules.wrapped_within
        else (),
    )
