"""How states are split and stored: sharding, precision, the optimizer's implementation.

Products in float8, resolved: what torchao, torchtitan and accelerate run them with."""

from typing import NamedTuple

from memplan.errors import InvalidJob
from memplan.gpus import find_gpu
from memplan.resolve.notes import Notes
from memplan.spec.gpu import BLACKWELL, Gpu
from memplan.spec.job import Job
from memplan.spec.model import ModelSpec
from memplan.tables.precisions import CAPABILITY, FLOAT8, PRECISIONS, Float8, Precision
from memplan.tables.trainer import Trainer
from memplan.tables.trainers import on_megatron
from memplan.units import DTYPE_BYTES


class Split(NamedTuple):
    """How model states are divided."""

    name: str
    ranks: int

    @property
    def is_deepspeed(self) -> bool:
        """DeepSpeed runs the step: its own casts, no autocast."""
        return self.name.startswith("zero")

    @property
    def is_fsdp(self) -> bool:
        """FSDP of either version runs the step: units are gathered in their own dtype."""
        return self.name in ("fsdp", "fsdp2")


def sharding(job: Job, trainer: Trainer, notes: Notes) -> Split:
    """The strategy and how many ranks share. Several GPUs without a strategy run DDP, which is remarked."""
    name = f"zero{job.zero_stage}" if job.zero_stage is not None else job.sharding
    if job.zero_stage is not None and job.sharding not in (None, name):
        raise InvalidJob(f"sharding: {job.sharding} contradicts zero_stage {job.zero_stage}", "give one of them")
    if job.zero_stage is not None:
        notes.sources["sharding"] = notes.sources.get("zero_stage", "option")
    if name is None:
        own = trainer.parallelism.sharding
        divided = job.tensor_parallel == job.num_gpus and trainer.parallelism.sequence == "accelerate"
        name = own or ("ddp" if job.num_gpus > 1 and not divided else "none")
        why = "several GPUs and no sharding named: each holds the whole model" if job.num_gpus > 1 else ""
        why = f"{trainer.title} runs under it" if own else why
        notes.fill("sharding", name, "trainer" if own else "default", why)
    if trainer.megatron and name not in ("none", "ddp", "distributed-optimizer"):
        raise InvalidJob(
            f"sharding: {trainer.title} runs on Megatron, which has no {name}", "use sharding: distributed-optimizer"
        )
    if name == "distributed-optimizer" and not trainer.megatron:
        raise InvalidJob(
            f"sharding: distributed-optimizer is Megatron's, and {trainer.title} does not run on it",
            f"use {f'trainer: {other}' if (other := on_megatron(trainer.name, job.method)) else 'zero_stage: 1'}",
        )
    if name == "none" and job.num_gpus > 1 and job.tensor_parallel == 1:
        notes.remark(f"sharding none on {job.num_gpus} GPUs: each GPU is a job of its own")
    return Split(name, 1 if name == "none" else job.num_gpus)


class Stored(NamedTuple):
    """Dtypes, resolved."""

    precision: Precision
    compute_itemsize: int
    autocast: int
    gradient_itemsize: int
    reduce_itemsize: int


def precision(job: Job, trainer: Trainer, spec: ModelSpec, split: Split, lora: bool, notes: Notes) -> Stored:
    """The storage scheme, and what follows from it."""
    name = job.precision
    if name == "auto":
        name = notes.fill("precision", *_auto_precision(job, trainer, spec, split, lora))
    row = PRECISIONS[name]
    if job.dtype is not None and job.dtype != row.dtype:
        raise InvalidJob(
            f"dtype: {job.dtype} contradicts precision {name}", f"leave dtype out, or use precision {job.dtype}"
        )
    if row.master and not split.is_deepspeed and not trainer.megatron:
        raise InvalidJob(f"precision: {name} needs DeepSpeed", f"set zero_stage, or use {row.dtype} or {row.dtype}-amp")
    inside = split.is_deepspeed or split.is_fsdp
    mixed = row.mixed or (trainer.numerics.autocast and (lora or not split.is_fsdp))
    # Under autocast in FSDP too: accelerate's forward; verl's, with its loss (transformer_impl.py: forward_step).
    casts = not inside or (split.is_fsdp and (trainer.runs_on == "accelerate" or trainer.name == "verl"))
    autocast = job.autocast if job.autocast is not None else casts and mixed and row.dtype != "fp32"
    if job.autocast is None:
        notes.sources["autocast"] = "trainer" if trainer.numerics.autocast and casts else "default"
    if autocast and row.dtype == "fp32":
        raise InvalidJob("autocast: true contradicts precision fp32", "use bf16-amp: fp32 weights under autocast")
    if row.mixed and not autocast and not inside:
        raise InvalidJob(f"precision: {name} without autocast is fp32", "use precision fp32, or leave autocast out")
    if autocast and trainer.megatron and not trainer.numerics.autocasts_megatron:
        raise InvalidJob(
            f"precision: {trainer.title} runs no autocast: Megatron-LM's --bf16 and --fp16 store half precision, with "
            "fp32 weights in the optimizer",
            f"use precision {row.dtype}-master, and leave autocast out",
        )
    compute = DTYPE_BYTES[row.dtype] if split.is_fsdp and row.mixed else row.weights
    if trainer.megatron and row.master and job.grad_dtype in ("auto", "fp32"):
        return Stored(row, row.weights, 0, DTYPE_BYTES["fp32"], DTYPE_BYTES["fp32"])
    gradients = row.gradients if job.grad_dtype == "auto" else DTYPE_BYTES[job.grad_dtype]
    own = trainer.parallelism.reduce_dtype
    reduce = (DTYPE_BYTES[own] if own else compute) if split.is_fsdp else gradients
    reduce = reduce if job.reduce_dtype == "auto" else DTYPE_BYTES[job.reduce_dtype]
    return Stored(row, compute, DTYPE_BYTES[row.dtype] if autocast else 0, gradients, reduce)


def check_gradients(job: Job, trainer: Trainer, stored: Stored, split: Split) -> None:
    """Outside of DeepSpeed, FSDP and Megatron's buffer gradients have the dtype of their weights, which those beside a
    quantised base may have been cast to."""
    buffered = trainer.megatron and stored.precision.master and job.grad_dtype == "fp32"
    if job.grad_dtype == "auto" or split.is_deepspeed or split.is_fsdp or buffered:
        return
    if DTYPE_BYTES[job.grad_dtype] != stored.precision.gradients:
        raise InvalidJob(
            f"grad_dtype: {job.grad_dtype} with {stored.precision.name}: torch keeps gradients in the dtype of their "
            "weights",
            "leave grad_dtype out, or use DeepSpeed or FSDP2",
        )


def _auto_precision(job: Job, trainer: Trainer, spec: ModelSpec, split: Split, lora: bool) -> tuple[str, str, str]:
    """(scheme, source, why) where the job leaves precision to memplan."""
    dtype = job.dtype or "bf16"
    if dtype == "fp32":
        return "fp32", "default", "dtype fp32"
    if split.is_deepspeed:
        return f"{dtype}-master", "default", "DeepSpeed keeps fp32 master weights and states"
    if trainer.megatron:
        return (
            f"{dtype}-master",
            "trainer",
            f"{trainer.title} keeps fp32 main weights, moments and gradients (Megatron)",
        )
    if job.kernels == "unsloth":
        return dtype, "trainer", f"FastLanguageModel loads {dtype} weights"
    numerics = trainer.numerics
    half = "fp16" not in (dtype, spec.dtype) and spec.dtype != "fp32"
    own = "checkpoint" if job.method in numerics.checkpoints_dtype and half else numerics.weights
    told = numerics.loads_dtype and job.dtype == "bf16"
    whole = numerics.fsdp_in_fp32 and job.quantization == "none"
    loaded, under_fsdp = ("checkpoint", "checkpoint") if told else (own, "fp32" if whole else numerics.weights)
    accelerated = trainer.runs_on == "accelerate" or under_fsdp == "trained-fp32"
    if split.is_fsdp and lora and under_fsdp != "fp32" and accelerated:
        return dtype, "trainer", f"{trainer.title} loads the checkpoint's {dtype} weights; only trained ones are upcast"
    if split.is_fsdp:
        return f"{dtype}-amp", "default", "FSDP mixed precision over fp32 shards"
    if loaded == "trained-fp32" and not numerics.autocast and not lora:
        return "fp32", "trainer", f"{trainer.title} trains fp32 weights, without autocast"
    if loaded == "fp32" or (loaded == "trained-fp32" and not lora):
        return f"{dtype}-amp", "trainer", f"{trainer.title} trains fp32 weights under autocast"
    if trainer.name == "pytorch":
        return dtype, "default", f"a bare loop over a {dtype} model: weights, gradients and states in {dtype}"
    whose = "the checkpoint's" if loaded == own else "what dtype says:"
    return dtype, "trainer", f"{trainer.title} loads {whose} {dtype} weights"


RUNS = ("none", "ddp", "fsdp2")
"""accelerate 1.15 accelerator.py: torchao's fp8 needs FSDP2, one GPU or DDP."""
RUNS_TE = (*RUNS, "zero0", "zero1", "zero2", "zero3")
"""FSDP1 hands accelerate the model alone (transformers 5.24 trainer.py), and _prepare_te refuses it."""


def float8(job: Job, trainer: Trainer, spec: ModelSpec, stored: Stored, notes: Notes) -> Float8:
    """The recipe. Raises InvalidJob for what it does not run with here, and for a gather without one."""
    gathers = job.fsdp.float8_all_gather
    if job.float8 == "none":
        raise InvalidJob("fsdp.float8_all_gather: needs float8", "add float8: tensorwise")
    how = FLOAT8[job.float8]
    sharding = job.sharding or ("none" if job.zero_stage is None else f"zero{job.zero_stage}")
    half = (stored.autocast or stored.compute_itemsize) == 2 and job.dtype != "fp16"
    blocks = how.layouts and (how.block or TE_ROWS)
    leave, shared = "leave float8 out", job.tensor_parallel * job.pipeline_parallel > 1
    for bad, what, hint in (
        (trainer.megatron, f"under {trainer.title}", "use megatron: {fp8_format: hybrid}"),
        (sharding not in (RUNS_TE if how.layouts else RUNS), f"under {sharding}", f"use sharding fsdp2, or {leave}"),
        (job.lora is not None or job.quantization != "none", f"with adapters or a quantised base{_asks(how)}", leave),
        (how.layouts and job.freeze, f"with frozen weights{_asks(how)}", leave),
        (how.layouts and spec.tied, "with a tied head, which accelerate's conversion unties", leave),
        (how.layouts and job.compile, "with compile", "leave one of them out"),
        (how.block and not how.layouts and not job.compile, "without compile", "set compile: true"),
        (job.tensor_parallel > 1 and (how.layouts or how.block or trainer.name != "pytorch"), "with tensor_parallel",
         "leave one of them out"),
        (spec.tower is not None or spec.encoder is not None, f"for {spec.family}", leave),
        (job.kernels not in ("none", "liger"), f"with kernels {job.kernels}", "leave one of them out"),
        (job.tiled_mlp > 0, "with tiled_mlp", "leave one of them out"),
        (not half, "outside bf16", "use precision bf16-amp or bf16"),
        (gathers and (sharding != "fsdp2" or job.float8 != "tensorwise"), "with float8_all_gather", "use fsdp2"),
        (blocks and job.batch_size * job.sequence_length % blocks, f"in rows that are no multiple of {blocks} tokens",
         f"use a sequence_length that is a multiple of {blocks}, as pad_to_multiple_of makes"),
    ):  # fmt: skip
        if bad:
            raise InvalidJob(f"float8: {job.float8} {what} is not modelled", hint)
    gpu = _card(job, how)
    if how.layouts:
        notes.assume(f"float8: {job.float8}, TransformerEngine's linears in place of all others, the head's too; read "
                     "from its code, with copies of weights saved until backward: nothing is measured")  # fmt: skip
        either = gpu is not None and gpu.capability >= BLACKWELL and not how.block
        return how._replace(layouts=1) if either else how
    notes.assume(
        f"float8: {job.float8}, torchao's linears in the layers; the head and experts in stacked tensors stay bf16"
        + ("" if job.compile else ". Without compile each cast makes copies in fp32")
        + ("; what tensor-parallel ranks gather, and stages keep gathered, is counted in bf16" if shared else "")
    )
    return how._replace(gathered=gathers and job.pipeline_parallel == 1, fused=job.compile)


TE_ROWS = 8
"""Rows of a product in FP8 are a multiple of it (TransformerEngine 2.20 pytorch/utils.py: assert_dim_for_fp8_exec)."""


def _asks(how: Float8) -> str:
    return ", which accelerate's conversion makes trained" if how.layouts else ""


def _card(job: Job, how: Float8) -> Gpu | None:
    """The card. Raises InvalidJob for one that has no such products."""
    gpu, wanted = find_gpu(job.gpu) if job.gpu else None, CAPABILITY[how.block > 0]
    if gpu is not None and gpu.vendor == "nvidia" and gpu.capability < wanted:
        raise InvalidJob(
            f"float8: {job.float8} needs compute capability {wanted}, and {gpu.name} has {gpu.capability}",
            "leave float8 out",
        )
    return gpu if gpu is not None and gpu.vendor == "nvidia" else None
