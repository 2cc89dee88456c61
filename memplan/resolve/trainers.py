"""Which trainer has a method and a way to split it, and what to type where the one that is named has not."""

from memplan.errors import InvalidJob
from memplan.spec.job import Job
from memplan.tables.methods import Method
from memplan.tables.trainer import Trainer, version_key
from memplan.tables.trainers import TRAINERS, on_megatron
from memplan.units import words_of

DEGREES = words_of(
    "tensor_parallel pipeline_parallel context_parallel expert_parallel expert_tensor_parallel virtual_pipeline"
)
MOST_NAMED = 4
"""Trainers that a hint names."""


def degrees_of(job: Job) -> list[str]:
    """The degrees of model parallelism that a job asks for."""
    return [key for key in DEGREES if getattr(job, key) > 1]


def check_method(job: Job, method: Method, trainer: Trainer) -> None:
    """Raise InvalidJob for a method that the trainer, in the job's version, has not."""
    name, known, version = method.name, trainer.methods, job.trainer_version or ""
    if name in known.later:
        raise InvalidJob(f"trainer: {trainer.title}'s {name} is not modelled yet", _use_another(job, trainer))
    ended, first = known.ended.get(name, ""), known.first_versions.get(name, "")
    if ended and (not version or version_key(version) >= version_key(ended)):
        older = "" if degrees_of(job) else f"use trainer_version: {_before(ended)}, or "
        raise InvalidJob(f"trainer: {trainer.title} has no {name} from {ended} on", older + _others(job, trainer))
    if first and version and version_key(version) < version_key(first):
        raise InvalidJob(
            f"trainer_version: {name} of {trainer.title} is modelled from {first} on, not {version}",
            f"use trainer_version: {first}, or a newer one",
        )
    if known.names and name not in known.names:
        since = f" {trainer.since}" if trainer.name in trainers_of(name) else ""
        lacks = f"trainer: {trainer.title}{since} has no {name}"
        if "method" not in job.model_fields_set:
            lacks = f"method: none is given, and the default is {name}, which {trainer.title}{since} has not"
        raise InvalidJob(f"{lacks}: it trains {', '.join(known.names)}", _use_another(job, trainer))


def megatron_instead(job: Job, name: str) -> str:
    """What to type for model parallelism that a trainer has not: one on Megatron that has the method, or without it."""
    found = on_megatron(name, job.method)
    if not found:
        return f"{_out(job)}: no trainer on Megatron has {job.method}"
    given = job.zero_stage is not None or job.sharding not in (None, "distributed-optimizer")
    return f"use trainer: {found}" + (", with sharding: distributed-optimizer" if given else "")


def _use_another(job: Job, trainer: Trainer) -> str:
    """Another trainer that has the method and the job's way to be split, or a method that this one has; that first
    where no method is given."""
    own = [name for name in trainer.methods.names if name not in trainer.methods.later]
    ways = [_others(job, trainer), f"method: {' or '.join(own)}" if own else ""]
    if own and "method" not in job.model_fields_set:
        return f"add {ways[1]}"
    return ", or ".join(filter(None, ways))


def _others(job: Job, trainer: Trainer) -> str:
    """Other trainers that have the method: on Megatron where the job is split as Megatron does; else without that."""
    split = bool(degrees_of(job)) or job.sharding == "distributed-optimizer"
    having = [name for name in trainers_of(job.method) if name != trainer.name]
    there = [name for name in having if TRAINERS[name][-1].megatron or not split]
    named = " or ".join((there or having)[:MOST_NAMED])
    return f"use trainer: {named}" if there else f"{_out(job)} and use trainer: {named}"


def trainers_of(method: str) -> list[str]:
    """Trainers whose newest version has a method; a bare loop, which has every one, last."""
    rows = {name: eras[-1].methods for name, eras in TRAINERS.items()}
    found = [name for name, row in rows.items() if (not row.names or method in row.names) and method not in row.ended]
    return sorted(found, key=lambda name: name == "pytorch")


def _before(version: str) -> str:
    """The minor version before one."""
    head, _, last = version.rpartition(".")
    return f"{head}.{int(last) - 1}" if head and last.isdecimal() and int(last) else f"older than {version}"


def _out(job: Job) -> str:
    degrees = degrees_of(job)
    return f"leave {' and '.join(degrees) or 'sharding'} out"
