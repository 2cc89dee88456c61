"""Which moments beside the steady step a job has, and how weights come to the card and leave it."""

from typing import NamedTuple

from memplan.errors import InvalidJob
from memplan.resolve.notes import Notes
from memplan.spec.job import Job
from memplan.spec.moments import Evaluation, Loading, Loads, Moments, Saves, Saving
from memplan.spec.parallel import Parallel
from memplan.spec.recipe import Recipe
from memplan.tables.methods import Method
from memplan.tables.phases import PHASES, SEPARATE_EXPERTS, Habits, habits_of, largest_file
from memplan.tables.trainers import TRAINERS
from memplan.units import DTYPE_BYTES, ceil_div

FP32 = DTYPE_BYTES["fp32"]


def moments(job: Job, recipe: Recipe, notes: Notes) -> Moments:
    """The phases of a recipe that is whole but for them. Raises InvalidJob for one that it cannot have."""
    habits = habits_of(recipe.trainer)
    return Moments(_names(job, recipe, habits), loading(job, recipe, habits, notes), saving(job, recipe, habits))


def _names(job: Job, recipe: Recipe, habits: Habits) -> tuple[str, ...]:
    lacks = _lacking(recipe)
    if job.phases is None:
        own = (*habits.phases, *(("sync",) if recipe.generator is not None else ()))
        own = (*own, "load", "save") if recipe.in_megatron else own
        return tuple(name for name in PHASES if name in own and name not in lacks)
    for name in job.phases:
        if name in lacks:
            raise InvalidJob(f"phases: {name}: {lacks[name]}", f"leave {name} out")
    return tuple(name for name in PHASES if name in job.phases)


def _lacking(recipe: Recipe) -> dict[str, str]:
    """Phases that a job has not, or that are not modelled, and why."""
    lacks: dict[str, str] = {}
    critic = recipe.others.critic
    if recipe.in_megatron:
        lacks["merge"] = "under Megatron it is not modelled"
    elif recipe.parallel.model > 1:
        lacks |= dict.fromkeys(("load", "resume", "save", "merge"), "under model parallelism it is not modelled")
    if critic is not None and critic.apart:
        phases = ("load", "resume", "first-step", "save", "merge")
        lacks |= dict.fromkeys(phases, "beside a critic's engine it is not modelled")
    if recipe.adapter is None:
        lacks["merge"] = "there is no adapter"
    if not recipe.batch.eval_size:
        own = "Megatron evaluates in micro-batches of the training's size, in less than a step takes"
        lacks["evaluate"] = own if recipe.in_megatron else "there is no eval_batch_size"
    if recipe.generator is None or recipe.generator.engine == "hf" or recipe.generator.shared_weights:
        lacks["sync"] = "there is no engine that weights are sent to"
    return lacks


def loading(job: Job, recipe: Recipe, habits: Habits, notes: Notes) -> Loading:
    """How weights come to the card. Before transformers 5 those on the host are copies even in the checkpoint's dtype:
    the model is made there first (low_cpu_mem_usage is off), where 5 maps the file's pages."""
    itemsize = _loaded(recipe)
    checkpoint = DTYPE_BYTES[recipe.model.dtype] if recipe.model.dtype else 2
    upcasts = recipe.sharding.name == "fsdp2" and recipe.sharding.fsdp.casts and recipe.quantised is None
    return Loading(
        way=_way(job, recipe, habits, notes),
        itemsize=itemsize,
        copied=recipe.trainer.models.transformers_4 or itemsize != checkpoint,
        upcast=FP32 if upcasts and itemsize != FP32 else 0,
        stacks=_converts(recipe),
        warms_up=recipe.trainer.models.warms_up
        and recipe.quantised is not None
        and recipe.quantised.scheme.product.startswith("bnb"),
        sent=recipe.quantised is not None
        and job.fsdp.cpu_ram_efficient_loading is not False
        and _may_pack_for_host(job, recipe),
    )


def _loaded(recipe: Recipe) -> int:
    """Bytes of an element as from_pretrained makes it: under FSDP's mixed precision it is accelerate that upcasts."""
    if recipe.quantised is not None:
        return recipe.quantised.original_itemsize
    numerics = recipe.trainer.numerics
    loads_half = numerics.weights != "fp32" and not numerics.fsdp_in_fp32
    if recipe.sharding.fsdp.casts and loads_half:
        return 2
    return recipe.storage.precision.weights


def _way(job: Job, recipe: Recipe, habits: Habits, notes: Notes) -> Loads:
    sharding, several = recipe.sharding, recipe.several
    if recipe.quantised is not None:
        return "rank0" if _packs_for_host(job, recipe, several, notes) else "card"
    if recipe.zero_stage == 3:
        return "host" if job.deepspeed.zero_init is False else "partitioned"
    if sharding.name in ("fsdp", "fsdp2") and several:
        given = job.fsdp.cpu_ram_efficient_loading
        return "rank0" if (habits.rank0 if given is None else given) else "host"
    here = habits.placed == "card" or (habits.placed == "one process" and not several and recipe.parallel.world == 1)
    return "card" if here and recipe.zero_stage < 0 else "host"


def _packs_for_host(job: Job, recipe: Recipe, several: bool, notes: Notes) -> bool:
    """Whether a matrix that was packed on the card leaves it again before the next, for the host of a node's first
    process: transformers 4 does so where FSDP loads sparingly (4.57 modeling_utils.py: ``param_to``), 5 keeps them all
    there; a loop of one's own does as it says, and as AnswerDotAI/fsdp_qlora does where it says nothing and weights
    wait on the host (train.py: load_and_quantize, low_memory)."""
    given, own = job.fsdp.cpu_ram_efficient_loading, recipe.trainer.name == "pytorch"
    divided = recipe.sharding.name in ("fsdp", "fsdp2") and several
    if not _may_pack_for_host(job, recipe):
        before = [era.since for era in TRAINERS[recipe.trainer.name] if era.models.transformers_4]
        if divided and before:
            notes.remark(
                "load: transformers 5 packs the whole base on every card before FSDP divides it, and 4 hands each "
                "matrix to the host with fsdp.cpu_ram_efficient_loading true; "
                f"trainer_version: {before[-1]} counts what runs with 4"
            )
        return False
    if divided and not (given or own or job.fsdp.packs_on_host):
        notes.remark("load: without fsdp.cpu_ram_efficient_loading the whole base is packed on every card first")
    if given is None and own and several and recipe.sharding.fsdp.cpu_offload:
        notes.assume(
            "fsdp.cpu_ram_efficient_loading: true, as loops that shard a quantised base onto the host load it; false: "
            "each process packs the whole model on its card first"
        )
        return True
    return bool(given) or job.fsdp.packs_on_host


def _may_pack_for_host(job: Job, recipe: Recipe) -> bool:
    own = recipe.trainer.name == "pytorch" or job.fsdp.packs_on_host
    return recipe.sharding.name in ("fsdp", "fsdp2") and (own or recipe.trainer.models.transformers_4)


def _converts(recipe: Recipe) -> bool:
    """Whether experts are stacked when they are read, and split when they are written: by transformers from 5 on."""
    by_transformers = not recipe.trainer.models.transformers_4 and recipe.trainer.runs_on == "accelerate"
    return by_transformers and recipe.model.family in SEPARATE_EXPERTS


def saving(job: Job, recipe: Recipe, habits: Habits) -> Saving:
    """How a checkpoint is written."""
    return Saving(
        way=_saved(job, recipe, habits),
        adapters=recipe.adapter is not None,
        largest_file=largest_file(recipe.trainer),
        splits=_converts(recipe),
    )


def _saved(job: Job, recipe: Recipe, habits: Habits) -> Saves:
    if recipe.zero_stage == 3:
        return "partitions" if job.deepspeed.stage3_gather_16bit_weights_on_model_save is False else "gathered"
    if recipe.zero_stage >= 0:
        return "cloned"
    if recipe.several and recipe.sharding.name in ("fsdp", "fsdp2"):
        given = job.fsdp.state_dict_type or ("SHARDED_STATE_DICT" if habits.shards else "FULL_STATE_DICT")
        return "whole" if given == "FULL_STATE_DICT" else "shards"
    return "plain"


class EvalSizes(NamedTuple):
    """Examples of an evaluation's batch per GPU, and what it keeps; all 0 where nothing is evaluated."""

    size: int = 0
    kept: int = 0
    """Batches whose logits wait on the card at once."""
    examples: int = 0


def evaluated(job: Job, method: Method, degrees: Parallel, in_megatron: bool, notes: Notes) -> EvalSizes:
    """The evaluation's batch. Raises InvalidJob for what is not modelled."""
    if job.eval_batch_size is None or (job.phases is not None and "evaluate" not in job.phases):
        return EvalSizes()
    if method.optional_reference or method.teacher:
        what = "generates" if method.optional_reference else "runs a teacher"
        raise InvalidJob(
            f"eval_batch_size: an evaluation of {method.name} {what}, which is not modelled",
            "leave eval_batch_size out",
        )
    if in_megatron or degrees.pipeline > 1:
        what = "Megatron-LM" if in_megatron else "a pipeline"
        raise InvalidJob(
            f"eval_batch_size: {what} evaluates in micro-batches of the training's size", "leave eval_batch_size out"
        )
    if job.evaluation.keeps_logits:
        return _keeping(job.eval_batch_size, job.evaluation, method, degrees)
    notes.assume("evaluation: without compute_metrics, so that the loss alone is kept of each batch")
    return EvalSizes(job.eval_batch_size)


def _keeping(size: int, said: Evaluation, method: Method, degrees: Parallel) -> EvalSizes:
    """With compute_metrics. Raises InvalidJob where nobody says of how many batches."""
    if method.name != "sft":
        raise InvalidJob(
            f"evaluation.keeps_logits: an evaluation of {method.name} keeps scores, not logits",
            "leave keeps_logits out",
        )
    batches = ceil_div(said.examples, size * degrees.data) if said.examples else 0
    kept = min(filter(None, (said.accumulation_steps, batches)), default=0)
    if not kept:
        raise InvalidJob(
            "evaluation.keeps_logits: of how many batches?", "add evaluation.examples, or evaluation.accumulation_steps"
        )
    return EvalSizes(size, kept, said.examples or 0)
