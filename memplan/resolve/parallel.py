"""Degrees of parallelism, checked: what multiplies, what divides, and which framework has which."""

from memplan.errors import InvalidJob
from memplan.resolve.fsdp import replicas
from memplan.resolve.megatron import sequence_parallel
from memplan.resolve.megatron_stages import chunks, instances
from memplan.resolve.native import native
from memplan.resolve.notes import Notes
from memplan.resolve.plans import whole_streams
from memplan.resolve.storage import Split
from memplan.resolve.trainers import DEGREES, degrees_of, megatron_instead
from memplan.spec.job import Job
from memplan.spec.model import ModelSpec
from memplan.spec.parallel import Parallel
from memplan.tables.trainer import Trainer
from memplan.tables.trainers import find_trainer, on_megatron
from memplan.units import divisor


def with_framework(job: Job, notes: Notes) -> Job:
    """The job with Megatron as its trainer where degrees ask for it and nothing else is named."""
    given = degrees_of(job)
    if job.sharding == "fsdp2" and job.pipeline_parallel > 1:
        return _pipelined(job, notes)
    wanted = job.sharding == "distributed-optimizer" or (given and job.sharding is None and job.zero_stage is None)
    if not wanted or notes.is_given("trainer"):
        return job
    why = f"{given[0]}: {getattr(job, given[0])}" if given else "sharding: distributed-optimizer"
    name = on_megatron(job.trainer, job.method, taken=True)
    if not name:
        named = f"add --method, such as --method dpo: {job.method} is assumed"
        hint = megatron_instead(job, job.trainer) if notes.is_given("method") else named
        raise InvalidJob(f"{why} needs a trainer on Megatron that has {job.method}", hint)
    notes.fill("trainer", name, "default", f"{why} and no trainer named: {find_trainer(name).title}")
    return job.but(trainer=name)


def _pipelined(job: Job, notes: Notes) -> Job:
    """FSDP2 under torch's pipeline: the schedule keeps weights gathered and reduces gradients once."""
    why = "torch's pipeline schedules turn it off"
    changes = {
        key: notes.fill(key, False, "default", why)
        for key in ("reshard_after_forward", "sync_each_batch")
        if getattr(job, key) is None
    }
    return job.model_copy(update=changes)


def parallel(job: Job, trainer: Trainer, split: Split, spec: ModelSpec, notes: Notes) -> Parallel:
    """The degrees. InvalidJob where they do not multiply, do not divide the model, or the framework lacks them."""
    for key in DEGREES:
        notes.plain(key, getattr(job, key))
        if getattr(job, key) > 1 and key in trainer.methods.lacks.get(job.method, ()):
            notes.remark(f"{key}: {trainer.title} has none for {job.method}: estimated as if it had")
    whole = whole_streams(job, trainer)
    world = job.num_gpus if split.name != "none" or trainer.megatron or whole else 1
    degrees = Parallel(
        world=world,
        tensor=job.tensor_parallel,
        pipeline=job.pipeline_parallel,
        context=job.context_parallel,
        expert=job.expert_parallel,
        expert_tensor=_expert_tensor(job, trainer),
        virtual=chunks(job, notes),
        sequence=_sequence(job, trainer, split, notes),
        replicas=replicas(job, split),
        gathers_keys=job.context_exchange == "gathered",
        whole_stream=whole,
        whole_embedding=whole and not trainer.parallelism.shares_embedding,
    )
    _check_multiplies(degrees)
    _check_framework(job, trainer, split, spec, notes)
    _check_divides(degrees, spec)
    if degrees.context > 1 and trainer.parallelism.sequence == "accelerate":
        how = "heads exchanged for sequence (Ulysses)" if split.is_deepspeed else "torch's ring of keys and values"
        notes.assume(f"context_parallel: {how} in the trainer's own step; each is measured, both together are not")
    return instances(degrees, job.megatron, split.name) if trainer.megatron else degrees


def _sequence(job: Job, trainer: Trainer, split: Split, notes: Notes) -> bool:
    """Megatron's choice; always so beside FSDP2, whose plans are torchtitan's."""
    if trainer.megatron or split.name != "fsdp2" or job.tensor_parallel == 1 or whole_streams(job, trainer):
        return sequence_parallel(job, trainer, notes)
    if job.sequence_parallel is False:
        raise InvalidJob(
            "sequence_parallel: false with torch's own tensor parallelism, which splits the sequence between its "
            "products",
            "leave sequence_parallel out",
        )
    return True


def _expert_tensor(job: Job, trainer: Trainer) -> int:
    """Megatron's default: experts are split as the rest is, unless expert parallelism is on and it is said."""
    if "expert_tensor_parallel" in job.model_fields_set or not trainer.megatron:
        return job.expert_tensor_parallel
    return job.tensor_parallel


def _check_framework(job: Job, trainer: Trainer, split: Split, spec: ModelSpec, notes: Notes) -> None:
    """Which framework has which degree."""
    given = degrees_of(job)
    if not given or trainer.megatron:
        return
    if native(job, trainer, split, spec, notes):
        return
    raise InvalidJob(
        f"{given[0]}: {getattr(job, given[0])} with {trainer.title} and sharding {split.name} is not modelled",
        megatron_instead(job, trainer.name),
    )


def _check_multiplies(degrees: Parallel) -> None:
    model, world = degrees.model, degrees.world
    if world % model:
        raise InvalidJob(
            f"num_gpus: {world} is no multiple of tensor × pipeline × context parallel = {model}",
            f"use num_gpus {max(1, round(world / model)) * model}",
            {"num_gpus": model} if world < model else {},
        )
    experts = degrees.pipeline * degrees.expert * degrees.expert_tensor
    if degrees.expert > 1 and world % experts:
        whole = degrees.expert_tensor > 1 and world % (experts // degrees.expert_tensor) == 0
        raise InvalidJob(
            f"num_gpus: {world} is no multiple of pipeline × expert × expert-tensor parallel = {experts}",
            f"use num_gpus {max(1, round(world / experts)) * experts}" + ", or expert_tensor_parallel 1" * whole,
            {"num_gpus": experts} if world < experts else {},
        )


def _check_divides(degrees: Parallel, spec: ModelSpec) -> None:
    """Heads, layers and experts."""
    if degrees.tensor > 1 and spec.num_heads % degrees.tensor:
        raise InvalidJob(
            f"tensor_parallel: {degrees.tensor} does not divide the {spec.num_heads} attention heads of {spec.name}",
            f"use {divisor(spec.num_heads, degrees.tensor)}",
        )
    if degrees.sequence and degrees.tensor == 1:
        raise InvalidJob("sequence_parallel: true needs tensor_parallel", "set tensor_parallel 2 or more")
    if degrees.pipeline > spec.num_layers:
        raise InvalidJob(
            f"pipeline_parallel: {degrees.pipeline} is more than the {spec.num_layers} layers of {spec.name}",
            f"use {spec.num_layers} or less",
        )
    if degrees.virtual > 1 and degrees.pipeline == 1:
        raise InvalidJob("virtual_pipeline: needs pipeline_parallel", "set pipeline_parallel 2 or more")
    if degrees.expert == 1:
        return
    experts = {
        layer.feed_forward.experts.count
        for layer in (run.layer for run in spec.runs)
        if layer.feed_forward is not None and layer.feed_forward.experts
    }
    if not experts:
        raise InvalidJob(
            f"expert_parallel: {degrees.expert}, but {spec.name} has no experts", "leave expert_parallel out"
        )
    for count in experts:
        if count % degrees.expert:
            raise InvalidJob(
                f"expert_parallel: {degrees.expert} does not divide the {count} experts of {spec.name}",
                f"use {divisor(count, degrees.expert)}",
            )
