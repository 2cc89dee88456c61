"""Which optimizer's code steps, in which implementation and with which settings, and where it cannot run."""

from memplan.errors import InvalidJob, did_you_mean
from memplan.resolve.deepspeed import ON_HOST
from memplan.resolve.notes import Notes
from memplan.resolve.plans import whole_streams
from memplan.resolve.storage import Split
from memplan.spec.groups import OptimizerChoice, OptimizerSettings
from memplan.spec.job import Job
from memplan.spec.lora import ALL_LINEAR
from memplan.spec.model import ModelSpec
from memplan.tables.optimizers import HF_TRAINERS, VARIANTS, find_optimizer, refusals_of
from memplan.tables.styles import Fused, Optimizer
from memplan.tables.trainer import Trainer


def optimizer(
    job: Job, trainer: Trainer, split: Split, spec: ModelSpec, accumulation: int, notes: Notes
) -> OptimizerChoice:
    """The optimizer's row, implementation and settings. Raises InvalidJob for what it cannot do, with the reason."""
    row = _on_flat(_on_host(_row(job, trainer, notes), job, trainer, split, notes), split, notes)
    implementation = _implementation(job, trainer, row, notes)
    row = _in_backward(row, implementation) if job.optimizer_args.in_backward else row
    dtensors = whole_streams(job, trainer) and trainer.parallelism.shares_embedding
    _check(job, row, split, spec, accumulation, dtensors)
    return OptimizerChoice(row, implementation, _settings(job, trainer, row, spec))


def _row(job: Job, trainer: Trainer, notes: Notes) -> Optimizer:
    """Whose code: what the job says, else what the trainer takes."""
    library = job.optimizer_args.library or ""
    row = find_optimizer(job.optimizer, trainer.name, library)
    if row is None:
        raise InvalidJob(
            f"optimizer_args.library: {library} has no {job.optimizer} here",
            "use " + " or ".join(variant.library for variant in VARIANTS[job.optimizer]),
        )
    if row is not VARIANTS[job.optimizer][0] and not library:
        notes.assume(f"optimizer_args.library: {row.library} ({trainer.title} takes its {job.optimizer})")
    given = job.optimizer_args.model_dump(exclude_none=True, exclude={"library", "in_backward"})
    for key in given:
        if key not in row.arguments:
            takes = ", ".join(row.arguments) or "none but library"
            raise InvalidJob(f"optimizer_args.{key}: {row.library}'s {row.name} has no such setting", f"it has {takes}")
    return row


def _on_host(row: Optimizer, job: Job, trainer: Trainer, split: Split, notes: Notes) -> Optimizer:
    """States on the host under DeepSpeed: accelerate puts DeepSpeed's CPU Adam in the place of whatever optimizer it is
    given, but Lion (accelerate 1.15 utils/deepspeed.py: map_pytorch_optim_to_deepspeed)."""
    where, forced = job.deepspeed.offload_optimizer, job.deepspeed.zero_force_ds_cpu_optimizer is not False
    away = "optimizer" in job.offload or (where is not None and where.device != "none")
    maps = split.is_deepspeed and trainer.runs_on == "accelerate" and away and forced
    adam = find_optimizer("adamw", trainer.name, "")
    if not maps or row.name in ON_HOST or adam is None:
        return row
    notes.remark(f"optimizer: with its states on the host {row.name} is DeepSpeed's Adam there: accelerate replaces it")
    return adam


def _on_flat(row: Optimizer, split: Split, notes: Notes) -> Optimizer:
    """torchao's on flat partitions, which are seldom a multiple of its block: AdamW's, whose states are whole
    (``_new_buffer``). Its step is compiled, and counted from above, a tensor at a time."""
    way = "zero" if split.is_deepspeed else split.name
    whole = find_optimizer("adamw", "pytorch", "")
    if row.library != "torchao" or way not in ("zero", "fsdp") or whole is None:
        return row
    notes.assume(
        f"optimizer: torchao's {row.name} keeps whole states, as flat partitions are seldom of its block's size"
    )
    return whole._replace(implementations=("loop",), default_implementation="loop")


def _in_backward(row: Optimizer, implementation: str) -> Optimizer:
    """The row as a hook behind each weight's gradient runs it, a tensor at a time. Raises InvalidJob."""
    if row.fused_backward:
        return row
    if row.step not in ("adamw", "in-place") or row.rule != "elementwise":
        raise InvalidJob(f"optimizer_args.in_backward: {row.name} is not modelled so", "use adamw, sgd or adamw-8bit")
    copies = row.foreach_copies if implementation == "foreach" else 0
    return row._replace(
        fused_backward=Fused(2 * copies, 4 * copies, waits=False),
        shardings=("none", "fsdp2"),
        refusals=refusals_of(
            "ddp=in-backward zero=in-backward fsdp=in-backward distributed-optimizer=in-backward "
            "accumulation=each-micro-step passes=each-backward"
        ),
    )


def _check(job: Job, row: Optimizer, split: Split, spec: ModelSpec, accumulation: int, dtensors: bool) -> None:
    """Where the optimizer cannot run, or not as modelled: on ``dtensors`` as under FSDP2. Raises InvalidJob with the
    reason."""
    way = "fsdp2" if dtensors else "zero" if split.is_deepspeed else split.name
    if way not in row.shardings:
        reason = row.refusals.get(way, "not modelled")
        hint = "leave optimizer_args.in_backward out" if job.optimizer_args.in_backward else _elsewhere(row, way)
        raise InvalidJob(f"optimizer: {row.name} with {'tensor_parallel' if dtensors else split.name}: {reason}", hint)
    for key, present, what, instead in (
        ("lora", job.lora is not None, "LoRA", "use another optimizer, or leave lora out"),
        ("experts", spec.routed, f"the stacked experts of {spec.family}", "use another optimizer"),
        (
            "accumulation",
            accumulation > 1,
            f"gradient_accumulation_steps {accumulation}",
            "use gradient_accumulation_steps 1",
        ),
        ("passes", job.pair_pass != "concatenated", f"pair_pass {job.pair_pass}", "use pair_pass concatenated"),
    ):
        if present and key in row.refusals:
            raise InvalidJob(f"optimizer: {row.name} with {what}: {row.refusals[key]}", instead)


def _elsewhere(row: Optimizer, way: str) -> str:
    """What to type instead: another library's implementation, else the optimizers that run there."""
    for other in VARIANTS[row.name]:
        if way in other.shardings:
            return f"use optimizer_args.library={other.library}"
    fit = [name for name, rows in VARIANTS.items() if way in rows[0].shardings]
    return "use " + ", ".join(fit)


def _implementation(job: Job, trainer: Trainer, row: Optimizer, notes: Notes) -> str:
    """foreach, fused or loop. Raises InvalidJob for one that the optimizer does not have."""
    if job.optimizer_impl == "auto":
        wanted = trainer.optimizer_impl
        name = wanted if wanted in row.implementations else row.default_implementation
        return notes.fill("optimizer_impl", name, "trainer" if wanted == name else "default")
    if job.optimizer_impl not in row.implementations:
        raise InvalidJob(
            f"optimizer_impl: {job.optimizer} has no {job.optimizer_impl} implementation",
            "use " + " or ".join(row.implementations),
        )
    return notes.plain("optimizer_impl", job.optimizer_impl)


def _settings(job: Job, trainer: Trainer, row: Optimizer, spec: ModelSpec) -> OptimizerSettings:
    """Numbers in place of what the job leaves out."""
    args, inside = job.optimizer_args, trainer.name in HF_TRAINERS
    return OptimizerSettings(
        rank=args.rank or row.rank,
        targets=_targets(job, spec),
        block_size=args.block_size or (row.trainer_block if inside else 0),
        min_8bit_size=args.min_8bit_size or 0,
        wide_embeddings=row.skips_embeddings and inside,
        max_precondition_dim=args.max_precondition_dim or 10_000,
        head_elements=max(1, spec.hidden_size**2 // max(spec.num_heads, 1)),
    )


def _targets(job: Job, spec: ModelSpec) -> frozenset[str] | None:
    """Linears whose gradients are projected. Raises InvalidJob for one that the model does not have."""
    targets = job.optimizer_args.targets
    if targets is None or targets == ALL_LINEAR:
        return None
    known = {linear.name for run in spec.runs for linear in run.layer.linears}
    for name in targets:
        if name not in known:
            raise InvalidJob(
                f"optimizer_args.targets: {spec.family} has no linear module {name!r}",
                did_you_mean(name, sorted(known)),
            )
    return frozenset(targets)
