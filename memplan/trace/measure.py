"""memplan measure: a job's step on the devices of this machine, and what it took, as one small file.

torch and transformers are imported only after the job was judged, so that a refusal is quick and needs no extra."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any

from memplan.api import as_input, estimate
from memplan.engine.tape.ops import FP32
from memplan.engine.tensors import count, model_weights
from memplan.errors import InvalidJob, UsageError
from memplan.measurement import Measurement, estimated_of, job_of, of_peak
from memplan.models import model_config
from memplan.resolve import resolve, resolve_training
from memplan.spec.job import Job
from memplan.spec.reading import JobInput, build_job
from memplan.spec.recipe import Recipe
from memplan.trace import require_extra
from memplan.trace.support import check
from memplan.trace.world import World, read_world

if TYPE_CHECKING:
    from memplan.trace.attempt import Attempt
    from memplan.trace.devices import CpuDevice

SHARDINGS = ("none", "ddp", "fsdp2", "zero0", "zero1", "zero2", "zero3")
TRAINERS = ("pytorch", "transformers")
SPLITS = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel", "expert_tensor_parallel")
ON_CPU = "no accelerator here: runs on the CPU"
RATES = {True: 10**9, False: 2 * 10**10}
"""Operations a second that a CPU may be counted on for: in half precision, and in fp32."""
PATIENCE = 2
"""Minutes that nobody is asked for."""
LEAST_STEPS = 2
"""Optimizer states exist from the second step on."""


def measure(
    job: Job | Mapping[str, Any] | JobInput,
    *,
    steps: int = 3,
    weights: str | None = None,
    snapshot: str | None = None,
    find_max: bool = False,
    cpu: bool = False,
    device: CpuDevice | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Measurement | None:
    """Run the job's step ``steps`` times on this machine; what the last one took. None on every rank but the first.
    ``cpu``: on its CPU too, however long it takes.

    Raises UsageError without the extra, InvalidJob for what cannot be measured, ModelError for a model or weights that
    are not there. Out of memory is a result."""
    world = read_world()
    if steps < LEAST_STEPS:
        raise UsageError(f"--steps {steps}: the optimizer's states exist from the second step on", "2 or more")
    given = _for_world(as_input(job), world)
    recipe = resolve_training(given)
    check_real(recipe, world)
    _check_search(given.job, world, find_max)
    require_packages(recipe)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    progress("importing torch and transformers")
    from memplan.trace import real
    from memplan.trace.attempt import Setup
    from memplan.trace.devices import this_device

    assert given.job.model is not None
    config = model_config(given.job.model, given.job.revision)
    device = device or this_device(world.local_rank)
    if find_max and not device.has_limit:
        raise UsageError("--find-max: a CPU does not say when it is full", "run it on a GPU")
    if not device.has_limit:
        progress(ON_CPU)
        _check_patience(recipe, steps, cpu)
    card = device.card()
    given = given if card is None or given.job.gpu else _with(given, gpu=card)
    setup = Setup(config, device, world, steps, weights, progress)
    real.join(device, world)
    try:
        with device.history(snapshot if world.is_rank_zero else None):
            return _measured(given, setup, find_max)
    finally:
        real.leave(world)


def _measured(given: JobInput, setup: Any, find_max: bool) -> Measurement | None:
    """The measurement of a job, or of the largest batch size of it that fits."""
    from memplan.trace.attempt import attempt, search

    def run(batch_size: int) -> Attempt:
        sized = given if batch_size == given.job.batch_size else _with(given, batch_size=batch_size)
        setup.progress(f"batch size {batch_size}")
        return attempt(sized.job, resolve(sized), setup)

    if not find_max:
        only = run(given.job.batch_size)
        return _written(given, setup, only.ranks, only.out_of_memory, None)
    found = search(given.job.batch_size, run)
    largest = _with(given, batch_size=max(1, found.batch_size))
    return _written(largest, setup, found.fits.ranks if found.fits else [], found.out_of_memory, found.batch_size)


def _written(
    given: JobInput, setup: Any, ranks: list[dict[str, Any]], lost: dict[str, Any] | None, largest: int | None
) -> Measurement | None:
    """All that the file holds."""
    if not setup.world.is_rank_zero:
        return None
    from memplan.callback import meters

    report = estimate(given)
    hardware = setup.device.hardware()
    if setup.world.size > 1:
        hardware = hardware | {"processes": setup.world.size}
    return Measurement(
        job=job_of(report),
        measured=of_peak(ranks) if ranks else {},
        meter=setup.device.meter,
        estimated=estimated_of(report),
        out_of_memory=lost,
        ranks=ranks,
        steps=setup.steps,
        weights=setup.weights or "random",
        largest_batch_size=largest,
        hardware=hardware,
        versions=meters.libraries() | _cuda_version(),
        source=f"memplan {_version()} measure on {hardware['device']}",
    )


def _version() -> str:
    try:
        return metadata.version("memplan")
    except metadata.PackageNotFoundError:
        return "from source"


def _cuda_version() -> dict[str, str]:
    import torch

    return {"cuda": torch.version.cuda} if torch.version.cuda else {}


def _with(given: JobInput, **changes: Any) -> JobInput:
    """The same job with other values."""
    job = build_job({**given.job.model_dump(exclude_unset=True), **changes})
    return given._replace(job=job, sources={**given.sources, **dict.fromkeys(changes, "option")})


def _for_world(given: JobInput, world: World) -> JobInput:
    """A job that names no number of GPUs has one for each process."""
    if world.size > 1 and "num_gpus" not in given.job.model_fields_set:
        return _with(given, num_gpus=world.size)
    return given


def require_packages(recipe: Recipe) -> None:
    """Raise UsageError, saying what to install, where a package is missing."""
    from importlib.util import find_spec

    require_extra("memplan measure")
    if recipe.zero_stage >= 0 and find_spec("deepspeed") is None:
        raise UsageError(
            f"sharding: {recipe.sharding.name} needs deepspeed", "pip install deepspeed, or sharding fsdp2"
        )


def check_real(recipe: Recipe, world: World) -> None:
    """Raise InvalidJob, naming the key, for a job whose real step is not written here."""
    gpus = int(recipe.provenance.job["num_gpus"])
    if recipe.sharding.name not in SHARDINGS:
        raise InvalidJob(f"sharding: {recipe.sharding.name} cannot be measured", "use " + ", ".join(SHARDINGS[:3]))
    if gpus != world.size:
        hint = f"torchrun --nproc-per-node {gpus} -m memplan measure …" if gpus > 1 else "leave num_gpus out"
        raise InvalidJob(f"num_gpus: {gpus}, but this run has {world.size} process{'es'[: 2 * (world.size > 1)]}", hint)
    split = [key for key in SPLITS if recipe.provenance.job.get(key, 1) != 1]
    if split:
        raise InvalidJob(
            f"{split[0]}: {recipe.provenance.job[split[0]]} cannot be measured", "use sharding ddp or fsdp2"
        )
    if recipe.trainer.name not in TRAINERS:
        hint = "use trainer pytorch or transformers, or memplan's callback in a run of your own"
        raise InvalidJob(f"trainer: {recipe.trainer.name} cannot be measured", hint)
    method = recipe.method
    if method.online or method.teacher:
        raise InvalidJob(f"method: {method.name} cannot be measured", "use memplan trace, or memplan's callback")
    for key in ("compile", "offload", "freeze"):
        if recipe.provenance.job.get(key):
            raise InvalidJob(f"{key}: cannot be measured", f"leave {key} out")
    try:
        gradients = recipe.storage.gradient_itemsize if recipe.zero_stage < 0 else recipe.storage.precision.weights
        sharding, storage = recipe.sharding, recipe.storage._replace(gradient_itemsize=gradients)
        check(recipe._replace(sharding=sharding._replace(name="none", ranks=1), storage=storage))
    except InvalidJob as error:
        raise InvalidJob(error.message.replace("traced", "measured"), error.hint.replace("trace", "measure")) from None
    _check_wrapped(recipe)


def _check_wrapped(recipe: Recipe) -> None:
    """What DDP, FSDP2 and DeepSpeed cannot run of what one process can."""
    if recipe.sharding.name == "none":
        return
    if recipe.zero_stage >= 0 and recipe.method.pairs and recipe.loss.pair_pass != "concatenated":
        raise InvalidJob(
            f"pair_pass: {recipe.loss.pair_pass} cannot be measured with {recipe.sharding.name}",
            "use pair_pass concatenated, or sharding fsdp2",
        )
    if (
        recipe.sharding.name == "fsdp2"
        and recipe.adapter
        and recipe.adapter.itemsize != recipe.storage.precision.weights
    ):
        raise InvalidJob("lora.dtype: FSDP2 wants adapters in the dtype of the weights", "use lora.dtype bf16")
    if recipe.zero_stage == 3 and recipe.others.reference == "resident":
        raise InvalidJob("reference: a resident one cannot be measured with zero3", "use reference precomputed")


def _check_patience(recipe: Recipe, steps: int, cpu: bool) -> None:
    """UsageError where a CPU needs minutes: six operations a parameter and token, at its rate of products."""
    tokens = recipe.rows * recipe.batch.sequence_length * recipe.batch.accumulation * steps
    half = recipe.numerics.itemsize < FP32
    minutes = 6 * count(model_weights(recipe.model)) * tokens // (RATES[half] * 60)
    if minutes >= PATIENCE and not cpu:
        hint = "take --precision fp32, fewer tokens, or --cpu to run it all the same"
        slow = ", in half precision" if half else ""
        raise UsageError(f"no accelerator here: on the CPU{slow} it takes some {minutes} minutes", hint)


def _check_search(job: Job, world: World, find_max: bool) -> None:
    if not find_max:
        return
    if world.size > 1:
        raise UsageError(f"--find-max searches on one GPU, not on {world.size}", "leave --find-max out")
    if job.global_batch_size is not None:
        raise InvalidJob("global_batch_size: --find-max changes batch_size", "leave global_batch_size out")
