"""Groups and choices that need little of the others: batch, hardware, what contradicts itself."""

from memplan.calibrations import calibrated
from memplan.errors import InvalidJob
from memplan.gpus import find_gpu
from memplan.resolve.notes import Notes
from memplan.resolve.packing import sequences_of
from memplan.resolve.phases import EvalSizes
from memplan.spec.allocator import Allocator
from memplan.spec.gpu import Cluster, Gpu, Hardware
from memplan.spec.groups import Batch, ImageBatch
from memplan.spec.job import Job
from memplan.spec.model import ModelSpec
from memplan.tables.families import MASK_AS_GIVEN
from memplan.tables.methods import Method
from memplan.tables.trainer import Trainer
from memplan.units import GiB, ceil_div


def has_value_head(method: Method, trainer: Trainer) -> bool:
    """Whether scores come of a head of the trainer's own beside the vocabulary's, which projects every token too."""
    return method.score_head and trainer.loss.heads.get(method.name) == "value-head"


def with_method_head(method: Method, trainer: Trainer, spec: ModelSpec) -> ModelSpec:
    """The model with the head that the method trains. Raises InvalidJob where transformers has no such class."""
    if not method.score_head or has_value_head(method, trainer):
        return spec
    if not spec.classifies:
        raise InvalidJob(
            f"method: {method.name} needs a sequence-classification class, and transformers has none for {spec.family}",
            "use another method or a model that has one",
        )
    return spec.as_reward_model()


def remark_ignored(ignored: tuple[str, ...], method: Method, notes: Notes) -> None:
    """Keys that only training uses; ``beta`` of methods whose reference is there for it alone."""
    for key in ignored:
        notes.remark(f"{key} has no effect on memory")
    if method.optional_reference and "beta" in ignored:
        notes.remark("beta: where it is 0 no reference is needed: say reference: none")


def hardware(job: Job, cluster: Cluster, dtype: str, notes: Notes) -> Hardware:
    """Cards, nodes and the allocator."""
    gpu = _card(job, notes)
    if gpu is not None and not gpu.has_bf16 and dtype == "bf16":
        notes.remark(
            f"{gpu.name} has no bf16 matmuls (compute capability {gpu.architecture}): torch emulates them, far "
            "slower, and vLLM refuses them: use dtype fp16"
        )
    return Hardware(gpu, job.margin, _allocator(job, gpu, notes), job.gpus_per_node, cluster)


def _allocator(job: Job, gpu: Gpu | None, notes: Notes) -> Allocator:
    """The allocator's settings, as this card's PyTorch heeds them (c10/cuda/CUDAAllocatorConfig.h)."""
    if not (job.allocator.expandable_segments and gpu is not None and gpu.vendor == "amd"):
        return job.allocator
    notes.assume(
        "allocator.expandable_segments: without effect on AMD cards before torch 2.12 and ROCm 7: counted as off"
    )
    return job.allocator.but(expandable_segments=False)


def _emptied(job: Job, trainer: Trainer, notes: Notes) -> bool:
    """Whether the cache is given back before each backward. Raises InvalidJob for trainers without the setting."""
    steps = job.empty_cache_steps or 0
    if steps and trainer.runs_on != "accelerate" and trainer.name != "pytorch":
        raise InvalidJob(f"empty_cache_steps: {trainer.title} has no such setting", "leave empty_cache_steps out")
    if steps > 1:
        notes.remark("empty_cache_steps: played as never emptied: less may be held, and nearly as much is needed")
    return steps == 1


def batch(
    job: Job,
    trainer: Trainer,
    spec: ModelSpec,
    images: ImageBatch | None,
    steps: int,
    group: int,
    eval_sizes: EvalSizes,
    notes: Notes,
) -> Batch:
    """What a micro-step is made of."""
    length = job.sequence_length
    tower = spec.tower
    padded = job.padded or (tower is not None and (tower.masks_text or (tower.masked and images is not None)))
    padded = padded or (trainer.passes_mask and spec.family in MASK_AS_GIVEN)
    return Batch(
        size=job.batch_size,
        accumulation=steps,
        sequence_length=length,
        completion_length=min(job.completion_length or length, length),
        padded=padded,
        masked=padded or trainer.passes_mask,
        images=images,
        group=group,
        eval_size=eval_sizes.size,
        eval_kept=eval_sizes.kept,
        eval_examples=eval_sizes.examples,
        emptied=_emptied(job, trainer, notes),
    )


def _card(job: Job, notes: Notes) -> Gpu | None:
    """The card that the job names."""
    if job.gpu is None:
        return None
    gpu, said = calibrated(find_gpu(job.gpu), job.calibration)
    if said:
        notes.assume(said)
    if gpu.vendor == "custom":
        notes.assume(
            f"gpu {job.gpu} is read as {gpu.usable_bytes:,} bytes = {gpu.usable_bytes / GiB:.1f} GiB of usable memory"
        )
    if gpu.here:
        notes.assume(f"gpu local: {gpu.source}")
        if job.num_gpus > gpu.here:
            notes.remark(f"num_gpus: {job.num_gpus}, this machine shows {gpu.here}: the others are taken to be alike")
    elif gpu.usable_is_assumed:
        notes.assume(f"usable memory of {gpu.name} is derived, not published: {gpu.source}")
    share = job.allocator.per_process_memory_fraction
    return gpu if share is None else gpu.model_copy(update={"usable_bytes": int(share * gpu.usable_bytes)})


def check_lengths(job: Job, method: Method) -> None:
    """Keys that contradict each other. Raises InvalidJob."""
    if job.completion_length is not None and job.completion_length > job.sequence_length:
        raise InvalidJob(
            f"completion_length: {job.completion_length} is longer than sequence_length {job.sequence_length}",
            "a completion is part of its sequence",
        )
    if not method.pairs and job.pair_pass != "concatenated":
        raise InvalidJob(f"pair_pass: {job.pair_pass} needs pairs, and {method.name} has none", "leave pair_pass out")


def check_positions(job: Job, spec: ModelSpec, notes: Notes) -> None:
    """A model with a table of positions has no more of them."""
    longest = spec.max_positions
    if longest is None or job.sequence_length <= longest or not spec.fixed_positions:
        return
    said = f"sequence_length: {job.sequence_length} is longer than the {longest} positions of {spec.name}"
    if notes.is_given("sequence_length"):
        raise InvalidJob(said, f"use sequence_length: {longest} or less")
    notes.remark(f"{said}, which cannot run: set sequence_length to {longest} or less")


def accumulated(job: Job, ranks: int, notes: Notes) -> int:
    """Micro-steps of an optimizer step, over so many data-parallel ranks. Raises InvalidJob where keys contradict."""
    if job.global_batch_size is None:
        return notes.plain("gradient_accumulation_steps", job.gradient_accumulation_steps)
    step = sequences_of(job) * ranks
    if job.token_budget is not None:
        steps = job.gradient_accumulation_steps
        if not notes.is_given("gradient_accumulation_steps"):
            steps = ceil_div(job.global_batch_size, step)
        return notes.plain("gradient_accumulation_steps", steps)
    steps, rest = divmod(job.global_batch_size, step)
    if rest or not steps:
        raise InvalidJob(
            f"global_batch_size: {job.global_batch_size} is no multiple of batch_size × data-parallel ranks = {step}",
            f"use {max(steps, 1) * step}",
        )
    if notes.is_given("gradient_accumulation_steps") and job.gradient_accumulation_steps != steps:
        raise InvalidJob(
            f"gradient_accumulation_steps: {job.gradient_accumulation_steps} contradicts global_batch_size "
            f"{job.global_batch_size}",
            f"use {steps}",
        )
    return steps
