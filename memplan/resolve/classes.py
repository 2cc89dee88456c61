"""Which version of a model's class runs: what it refuses, where it fails, what earlier ones did otherwise.

A trainer's row says which classes it runs (``ModelClasses``); a version of transformers is known where the job names
one of the Hugging Face Trainer. Models are described as the newest classes build them."""

from functools import lru_cache
from typing import TYPE_CHECKING

from memplan.errors import InvalidJob
from memplan.resolve.notes import Notes
from memplan.resolve.storage import Split, Stored
from memplan.spec.job import Job
from memplan.spec.layer import Run
from memplan.spec.model import ModelSpec
from memplan.tables.families import FAILING, FLASH_UNTIL, FP32_ROUTERS
from memplan.tables.styles import Optimizer
from memplan.tables.trainer import Trainer
from memplan.units import DTYPE_BYTES

if TYPE_CHECKING:
    from memplan.spec.vision import Tower

JOINED = ("qwen2_vl", "qwen2_5_vl")
"""Families whose towers ran SDPA over all patches at once (transformers 4.45 to 4.52 modeling_qwen2_vl.py and
modeling_qwen2_5_vl.py: VisionSdpaAttention)."""
OTHER_CLASSES = ("litgpt", "nemo-aligner")
"""Trainers with model classes of their own, beside those that run on Megatron."""


def has_own_classes(trainer: Trainer) -> bool:
    """Whether a trainer runs model classes of its own, whatever those of transformers have."""
    return trainer.megatron or trainer.name in OTHER_CLASSES


def _names_newest(job: Job, trainer: Trainer) -> bool:
    """Whether a job names a version of transformers, and it is of the newest classes."""
    return trainer.name == "transformers" and bool(job.trainer_version) and trainer.models.newest


def as_class_runs(job: Job, trainer: Trainer, spec: ModelSpec, notes: Notes) -> ModelSpec:
    """The model as the trainer's version has it. InvalidJob where its class fails; a remark where it may be another."""
    if has_own_classes(trainer):
        return spec
    if not trainer.models.newest:
        return _of_older_class(spec, trainer.models.joined_towers if spec.family in JOINED else "")
    why = FAILING.get(spec.family)
    if why and _names_newest(job, trainer):
        raise InvalidJob(f"model: {why}", "use another version: trainer_version: 5.23")
    if why:
        notes.remark(f"model: {why}; it is counted as 5.23 runs it")
    if _has_older_attention(spec) and not _names_newest(job, trainer):
        notes.remark(
            f"model: {spec.family} is counted as transformers 5.24 has it; up to 5.23 its attention is eager and takes "
            "more: trainer transformers, trainer_version 5.23 counts that"
        )
    if spec.family in FP32_ROUTERS and job.sharding not in ("fsdp", "fsdp2"):  # which take one dtype alone
        return _with_wide_routers(spec)
    return spec


def in_units(spec: ModelSpec, job: Job, trainer: Trainer, stored: Stored, split: Split, notes: Notes) -> ModelSpec:
    """The model, as it was. Raises InvalidJob where FSDP would join routers that stay in fp32 with half-precision
    weights; a remark where the version may be another. FSDP1 flattens tensors of one dtype alone, trained or not (torch
    2.13 _flat_param.py: flatten_tensors); FSDP2 has one dtype for the trained weights of a unit
    (_fsdp_param_group.py: _init_mp_dtypes)."""
    joined = split.is_fsdp and stored.precision.weights < DTYPE_BYTES["fp32"]
    if spec.family not in FP32_ROUTERS or not joined or has_own_classes(trainer) or not trainer.models.newest:
        return spec
    if split.name == "fsdp2" and (job.lora is not None or all(_has_frozen_router(run) for run in spec.runs)):
        return spec
    name = {"fsdp": "FSDP1", "fsdp2": "FSDP2"}[split.name]
    why = (
        f"transformers 5.24 keeps the routers of {spec.family} in fp32 among {stored.precision.dtype} weights, and "
        f"{name} joins weights of one dtype alone: torch stops with an error"
    )
    if _names_newest(job, trainer):
        raise InvalidJob(
            f"precision: {why}",
            f"use precision: {stored.precision.dtype}-amp (fp32 weights), DeepSpeed, or trainer_version: 5.23",
        )
    notes.remark(f"precision: {why}; it is counted as 5.23 runs it")
    return spec


def _has_frozen_router(run: Run) -> bool:
    part = run.layer.feed_forward
    return part is None or part.experts is None or part.experts.router.frozen


def _has_older_attention(spec: ModelSpec) -> bool:
    """Whether older classes had eager attention alone: GPT-J and CodeGen."""
    return any(getattr(mixer, "style", "") == "interleaved" for mixer in spec.mixers)


@lru_cache(maxsize=64)
def _with_wide_routers(spec: ModelSpec) -> ModelSpec:
    """Their weights in fp32, whatever the others are in."""
    return spec.but(runs=tuple(map(_with_wide_router, spec.runs)))


def _with_wide_router(run: Run) -> Run:
    part = run.layer.feed_forward
    if part is None or part.experts is None:
        return run
    routing = part.experts.routing.but(stored_itemsize=DTYPE_BYTES["fp32"], kept_wide=True)
    part = part.but(experts=part.experts.but(routing=routing))
    return run.but(layer=run.layer.but(feed_forward=part))


@lru_cache(maxsize=64)
def _of_older_class(spec: ModelSpec, joined: str) -> ModelSpec:
    """The model's outputs did not hold those of its tower (transformers 5.23 modeling_outputs.py), and Gemma 4 handed
    no keys on where none are read (configuration_gemma4.py: kv_sharing_modes). GPT-J and CodeGen had eager attention
    alone, and a table of positions in each layer (modeling_gptj.py)."""
    if _has_older_attention(spec):
        mixer = {"style": spec.family, "eager_only": True, "rotary": "concatenated"}
        runs = tuple(_with_mixer(run, mixer) for run in spec.runs)
        return spec.but(runs=runs, buffer_bytes=spec.buffer_bytes * spec.num_layers)
    update: dict[str, object] = {"tower": _older_tower(spec.tower, joined)} if spec.tower else {}
    mixers = [run.layer.mixer for run in spec.runs]
    if any(getattr(each, "makes_kv", "") for each in mixers) and not any(getattr(each, "reads", "") for each in mixers):
        update["runs"] = tuple(_with_mixer(run, {"makes_kv": ""}) for run in spec.runs)
    return spec.model_copy(update=update) if update else spec


def _older_tower(tower: "Tower", joined: str) -> "Tower":
    """``joined``: 'kept' is 'math', and no block is a checkpoint (transformers 4.45 to 4.47)."""
    kernel = "math" if joined == "kept" else joined
    blocks = [run.block.but(attention=run.block.attention.but(joined=kernel)) for run in tower.runs]
    runs = tuple(run.but(block=block) for run, block in zip(tower.runs, blocks, strict=True))
    return tower.but(older=True, checkpoints=joined != "kept", runs=runs)


def _with_mixer(run: Run, update: dict[str, object]) -> Run:
    mixer = run.layer.mixer and run.layer.mixer.model_copy(update=update)
    return run.but(layer=run.layer.but(mixer=mixer))


def check_flash(job: Job, trainer: Trainer, spec: ModelSpec, notes: Notes) -> None:
    """Raise InvalidJob where transformers refuses flash attention to a class; a remark where some versions give it."""
    if job.attention != "flash" or spec.family not in trainer.models.without_flash or has_own_classes(trainer):
        return
    if spec.family in FLASH_UNTIL and not _names_newest(job, trainer):
        notes.remark(f"attention: {spec.family} has flash up to transformers 5.23, and 5.24 refuses it: use sdpa")
        return
    instead = "eager" if spec.eager_only else "sdpa"
    raise InvalidJob(
        f"attention: the {spec.family} class of transformers does not support flash attention",
        f"leave attention out, or use {instead}",
        {"attention": instead},
    )


def check_checkpoints(job: Job, spec: ModelSpec, how: str) -> None:
    """Raise InvalidJob where the class refuses gradient checkpointing, or keeps what halves of pairs would share."""
    remembers = any(mixer.kind == "gated-recurrence" for mixer in spec.mixers)
    if how != "none" and job.pair_pass != "concatenated" and remembers:
        raise InvalidJob(
            f"pair_pass: {job.pair_pass} is not modelled with gradient checkpointing for {spec.family}, whose layers "
            "keep the graph of their last states",
            "use pair_pass: concatenated",
        )
    if how != "none" and not spec.checkpoints:
        raise InvalidJob(
            f"gradient_checkpointing: {how} is refused by transformers' {spec.family}, whose layers are no checkpoints",
            "use gradient_checkpointing: none",
        )


def check_shared(job: Job, split: Split, optimizer: Optimizer, spec: ModelSpec) -> None:
    """Raise InvalidJob for what is not modelled where layers share weights."""
    if not any(run.layer.recurs for run in spec.runs):
        return
    what = f"is not modelled for {spec.family}, whose layers share weights"
    refused = (
        (f"sharding: {split.name}", split.name not in ("none", "ddp"), "use none or ddp"),
        (f"pair_pass: {job.pair_pass}", job.pair_pass == "two-forward", "use pair_pass: concatenated"),
        (f"quantization: {job.quantization}", job.quantization != "none", "leave quantization out"),
        (f"optimizer: {job.optimizer}", optimizer.fused_backward is not None, "use another optimizer"),
    )
    for key, wrong, hint in refused:
        if wrong:
            raise InvalidJob(f"{key} {what}", hint)
