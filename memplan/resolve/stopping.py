"""What torch itself stops at: combinations that can be said, and counted, and do not run."""

from collections.abc import Iterator

from memplan.resolve.notes import Notes
from memplan.resolve.recompute import is_from
from memplan.spec.groups import Checkpointing, Sharding
from memplan.spec.job import Job
from memplan.spec.model import ModelSpec
from memplan.spec.recipe import Recipe
from memplan.tables.trainer import Trainer


def searched(shared: Sharding, job: Job, trainer: Trainer, spec: ModelSpec, again: Checkpointing) -> Sharding:
    """The same, with what the trainer makes of DDP's find_unused_parameters where nobody says it (transformers 4.45 to
    5.24 trainer.py: ddp_find_unused_parameters; trl 1.16 trainer/sft_trainer.py: _is_vlm; llamafactory 0.9.5
    hparams/parser.py)."""
    own, found = trainer.parallelism, job.ddp.find_unused_parameters
    if shared.name != "ddp":
        return shared
    if found is None and own.searches and job.kernels != "unsloth":
        sees = spec.tower is not None and bool(own.searches_towers) and is_from(job, own.searches_towers)
        usual = own.searches == "trainer" if job.lora is not None else own.searches != "never" and not again.layers
        found = usual or (sees and not again.reentrant)
    return shared._replace(ddp=job.ddp.but(find_unused_parameters=None), searches=found)


def warned_of_stops(recipe: Recipe, notes: Notes) -> Recipe:
    """The same: a job that torch stops at still has figures, which nobody will see."""
    for said, hint in stops(recipe):
        key, _, words = said.partition(": ")
        notes.remark(f"{key}: torch stops at this job ({words}); {hint}")
    if rests_unseen(recipe):
        notes.remark(f"{UNSEEN}; {AS_WHOLE}")
    return recipe


UNSEEN = "reshard_after_forward: a number beside reference adapter leaves the adapters without a gradient"
AS_WHOLE = "use reshard_after_forward true, or reference resident"


def rests_unseen(recipe: Recipe) -> bool:
    """Whether adapters are off for good: PEFT turns them off for a reference that comes first, and on again in the
    parts that FSDP2 puts in their place until backward (peft 0.21 tuners/tuners_utils.py: enable_adapters; torch 2.13
    fsdp/_fully_shard/_fsdp_param.py: to_sharded_post_forward)."""
    parts = recipe.sharding.name == "fsdp2" and not isinstance(recipe.sharding.reshard_after_forward, bool)
    first = recipe.trainer.reference.first and recipe.method.name != "kto"  # whose policy scores mismatched ones first
    return parts and recipe.others.reference == "adapter" and first


def stops(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """The key and torch's own words, and what to do, as traces of the real models have met them."""
    if recipe.sharding.name == "ddp":
        yield from _by_reducer(recipe)
    elif recipe.sharding.name != "fsdp2" and recipe.checkpointing.recompute.policy != "products":
        return
    adapter, sharding, fsdp = recipe.adapter, recipe.sharding, recipe.sharding.fsdp
    kinds, two = [run.layer for run in recipe.model.runs], sharding.name == "fsdp2"
    routings = [layer.experts.routing for layer in kinds if layer.experts]
    in_place = any(each.normalize == "in-place" and not each.corrected for each in routings)
    biases = [linear.name + ".bias" for layer in kinds for linear in layer.linears if linear.bias]
    apart = adapter is not None and adapter.itemsize != recipe.storage.precision.weights and not fsdp.casts
    unread = recipe.model.tower is not None and recipe.batch.images is None
    waits = recipe.batch.accumulation > 1 and not sharding.sync_each_batch
    for stopped, said, hint in (
        (
            in_place and recipe.checkpointing.recompute.policy == "products",
            "gradient_checkpointing: Tensor cached during selective activation checkpoint has been mutated",
            "use gradient_checkpointing full",
        ),
        (
            two and apart and adapter is not None and any(map(adapter.trains_bias, biases)),
            "lora.bias: FSDP expects uniform original parameter dtype",
            "use lora.dtype bf16",
        ),
        (
            two and apart and adapter is not None and adapter.saved and not fsdp.own_ends and _adapts_root(recipe),
            "lora.modules_to_save: FSDP expects uniform original parameter dtype",
            "use lora.dtype as the weights have it",
        ),
        (
            two and fsdp.own_ends and adapter is not None and adapter.saved and recipe.model.head_is_tied,
            "lora.modules_to_save: Parameter is shared with a parameter already managed by another FSDP group",
            "use sharding fsdp",
        ),
        (
            two and unread and waits and recipe.storage.reduce_itemsize != recipe.numerics.itemsize,
            "images: 'FSDPParam' object has no attribute '_unsharded_param'",
            "use sync_each_batch true, or images",
        ),
    ):
        if stopped:
            yield said, hint


def _by_reducer(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """What DDP's reducer stops at: hooks that come twice, or never (torch 2.13 csrc/distributed/c10d/reducer.cpp:
    prepare_for_backward, mark_variable_ready, ensure_prior_reduction_finished). A search from the outputs finds nothing
    within reentrant checkpoints, whose weights thus count as unused before their hooks come; and each of two forwards
    has them come, while embedding and head, which adapters leave alone, still wait."""
    searches, waits = recipe.sharding.searches, recipe.batch.accumulation > 1 and not recipe.sharding.sync_each_batch
    twice = recipe.method.pairs and recipe.loss.pair_pass == "two-forward" and recipe.adapter is None
    unsought = searches is False and recipe.trainer.parallelism.searches != "whole"
    if recipe.sharding.ddp.static_graph:
        if waits:
            yield "ddp.static_graph: expect_autograd_hooks_ INTERNAL ASSERT FAILED", "use sync_each_batch true"
    elif recipe.checkpointing.reentrant and (searches or twice):
        yield (
            "gradient_checkpointing_reentrant: Expected to mark a variable ready only once",
            f"use {'' if twice else 'ddp.find_unused_parameters false, or '}gradient_checkpointing_reentrant false",
        )
    elif unsought and _waits_in_vain(recipe):
        yield (
            "ddp.find_unused_parameters: Expected to have finished reduction in the prior iteration",
            "use ddp.find_unused_parameters true, or freeze what has no part in the loss",
        )


def _waits_in_vain(recipe: Recipe) -> bool:
    """Whether something that is to be trained gets no gradient. LLaMA-Factory shows an empty image to such towers."""
    spec, adapter, tower = recipe.model, recipe.adapter, recipe.model.tower
    unread = [each for each in (tower.parts if tower else ()) if not (each.is_read and not spec.tower_idle)]
    unread = [each for each in unread if each.category not in spec.frozen]
    if adapter is None:
        return any(each.part.by_category for each in unread) or any(not run.layer.frozen for run in spec.resting)
    within = [linear for run in spec.resting for linear in run.layer.linears]
    within += [linear for run in spec.runs for linear in run.layer.linears if linear.idle or linear.bypassed]
    if tower is not None:
        within += [each for part in unread if part.category not in tower.unadapted for each in part.part.linears]
    whole = tower is not None and any(each.category in tower.trained and each.part.by_category for each in unread)
    return whole or any(linear.name in adapter.targets for linear in within)


def _adapts_root(recipe: Recipe) -> bool:
    """Whether adapters stand in what is no unit of FSDP2: parts of a tower that its class does not name."""
    tower, adapter = recipe.model.tower, recipe.adapter
    parts = [each for each in tower.parts if not each.is_unit and each.category not in tower.unadapted] if tower else []
    return adapter is not None and any(one.name in adapter.targets for each in parts for one in each.part.linears)
