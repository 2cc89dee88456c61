"""What DeepSpeed's step holds beside states and the gradients that it begins with.

deepspeed 0.19: ``step`` of runtime/zero/stage_1_and_2.py, stage3.py, runtime/bf16_optimizer.py,
runtime/fp16/fused_optimizer.py, unfused_optimizer.py. Norms are taken in fp64 of one tensor at a time."""

from memplan.engine.allocator.replay import StepEvents
from memplan.engine.ledger import Ledger
from memplan.engine.parallel.zero.flat_groups import Group, groups_of
from memplan.engine.parallel.zero.reductions import Held
from memplan.engine.parallel.zero.states import persistent_bytes
from memplan.engine.play.zero.divided import Divided
from memplan.engine.play.zero.engine import Engine, step_of
from memplan.engine.play.zero.partitions import Partitions
from memplan.engine.play.zero.sub_groups import sub_groups_of
from memplan.engine.play.zero.whole import WholeEngine
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe

FP32, FP64 = 4, 8
NOTHING = StepEvents((), 0)
NORMS = "gradient in double precision", "part in double precision"


def enter_zero_step(
    ledger: Ledger, recipe: Recipe, weights: list[Weight], step: str, played: Held | None = None
) -> None:
    """The row of one step: bytes over what stands at its beginning. ``played``: what stages 1 and 2 begin it with."""
    groups = groups_of(recipe, weights)
    if not groups:
        return
    moments = _played(recipe, groups, played)
    moments["persistent parameters × bytes, gathered again"] = persistent_bytes(recipe, weights)
    what = max(moments, key=lambda moment: moments[moment])
    size = max(moments[what], 0)
    ledger.add("temporaries of DeepSpeed's step", "optimizer_temporaries", size, at=step).formula(what, size).since(
        "the largest moment of the step: norms, fp32 gradients, or the optimizer's own temporaries",
        "deepspeed 0.19 runtime/zero/stage_1_and_2.py, stage3.py: step; runtime/fp16, runtime/bf16_optimizer.py",
    )


def _played(recipe: Recipe, groups: list[Group], begins: Held | None) -> dict[str, int]:
    """Of engines that are played. Of stages 1 and 2 another rank may have most while norms are taken: that
    on which its gradients and one of them in fp64 are most together."""
    whole, moments = recipe.sharding.deepspeed.whole_gradients, dict[str, int]()
    engine = WholeEngine(recipe, groups) if whole else Engine(NOTHING)
    if recipe.zero_stage == 3:
        engine = Divided(NOTHING, recipe, {}, sub_groups_of(recipe, groups), [])
    elif begins:
        engine = Partitions(NOTHING, recipe, begins.places)
        own = sum(group.partition for group in groups) * FP32 * engine.in_fp32
        norms = ((own or kept * engine.itemsize) + piece * FP64 for kept, piece in begins.places.touched.values())
        norm = "largest gradient × 8 (its norm), on the rank where that and its gradients are most"
        if not recipe.sharding.deepspeed.optimizer:
            moments[norm] = max(norms) - sum(begins.ends.values())
            engine.accumulated_before()
    step = step_of(engine)
    made = [label for label, size in step.most_things.items() if size > step.things.get(label, 0)]
    what = dict.fromkeys(name if of == "gradients" or name in NORMS else "the optimizer's" for of, name in made)
    return {" + ".join(what): step.most - step.inside} | moments
