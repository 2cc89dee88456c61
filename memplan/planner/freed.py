"""What of a job a plan frees before it searches: a file's settings of its own sharding, the batch of a critic, and what
a frozen base is loaded in."""

from collections.abc import Mapping
from typing import Any

from memplan.gpus import find_gpu
from memplan.spec.job import Job
from memplan.spec.other_models import MODELS
from memplan.spec.reading import JobInput, build_job
from memplan.tables.trainers import find_trainer

OF_SHARDING = ("fsdp", "deepspeed", "ddp")
"""Settings of one way to shard, which another has no use for: a file's go with its sharding."""


def without_settings(given: JobInput, fixed: Mapping[str, Any]) -> tuple[JobInput, list[str]]:
    """The job without what a file says of its own sharding, where that is free; and what that was."""
    gone = [key for key in OF_SHARDING if "sharding" not in fixed and given.sources.get(key) in ("file", "trainer")]
    if not gone:
        return given, []
    values = {key: value for key, value in given.job.model_dump(exclude_unset=True).items() if key not in gone}
    sources = {key: source for key, source in given.sources.items() if key not in gone}
    return given._replace(job=build_job(values), sources=sources), gone


def without_critics_batch(given: JobInput) -> tuple[JobInput, list[str]]:
    """The job whose critic is trained in micro-batches of the plan, where a file says its own; and what that was."""
    models = [extra.model_dump(exclude_unset=True) for extra in given.job.extra_models]
    critics = [model for model in models if model["role"] == "critic"] if given.sources.get(MODELS) == "file" else []
    gone = [key for model in critics for key in ("batch_size", "token_budget") if model.pop(key, None) is not None]
    values = given.job.model_dump(exclude_unset=True) | {MODELS: models}
    return (given._replace(job=build_job(values)), [f"{MODELS}' critic {key}" for key in gone]) if gone else (given, [])


def half_base(job: Job) -> dict[str, Any]:
    """What tells a trainer that loads fp32 unless told to load a frozen base in half precision, of which nothing is
    lost: bf16, or fp16 where the job's card has no matmuls in bf16; nothing where the job says what it loads."""
    told = find_trainer(job.trainer, job.trainer_version or "").numerics.loads_dtype
    if not told or {"dtype", "precision"} & job.model_fields_set:
        return {}
    return {"dtype": "bf16" if job.gpu is None or find_gpu(job.gpu).has_bf16 else "fp16"}


def with_half_base(given: JobInput) -> tuple[JobInput, list[str]]:
    """A job of adapters whose base is in half precision where nobody says, and that it is so."""
    half = half_base(given.job) if given.job.lora is not None else {}
    if not half:
        return given, []
    said = f"dtype: {half['dtype']}, which the frozen base is loaded in (--fix dtype=fp32: as the trainer does untold)"
    return given._replace(job=given.job.but(**half), sources={**given.sources, "dtype": "option"}), [said]
