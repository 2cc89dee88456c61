"""What is trained, scored and resident: adapters, the loss head, reference and other models."""

from __future__ import annotations

from typing import Any, NamedTuple

from memplan.errors import InvalidJob, did_you_mean
from memplan.models import load_model
from memplan.resolve.notes import Notes
from memplan.resolve.storage import Split, Stored
from memplan.spec.job import ALL_LINEAR, Job
from memplan.spec.model import ModelSpec
from memplan.spec.recipe import Adapter, Resident
from memplan.tables.methods import Method
from memplan.tables.trainers import Trainer
from memplan.units import DTYPE_BYTES


class Targets(NamedTuple):
    """LoRA's rank and modules, before its dtype is known."""

    rank: int
    names: frozenset[str]
    dtype: str
    dropout: bool

    def with_itemsize(self, stored: Stored) -> Adapter:
        """DeepSpeed casts adapters with the rest of the module; elsewhere they keep their dtype."""
        itemsize = stored.precision.weights if stored.precision.master else DTYPE_BYTES[self.dtype]
        return Adapter(self.rank, self.names, itemsize, self.dropout)


def adapter(job: Job, spec: ModelSpec, notes: Notes) -> Targets | None:
    """Which linears LoRA adapts. Raises InvalidJob for a target that the model does not have."""
    if job.lora is None:
        return None
    known = {linear.name for run in spec.runs for linear in run.layer.linears}
    stacked = spec.routed
    routers = {run.layer.experts.router.name for run in spec.runs if run.layer.experts}
    notes.sources["lora"] = notes.sources.get("lora", "default")
    if job.lora.targets == ALL_LINEAR:
        if stacked:
            raise InvalidJob(
                f"lora: all-linear adapts the stacked experts of {spec.family}, which is not modelled yet",
                "name targets: q_proj,k_proj,v_proj,o_proj",
            )
        names = known
    else:
        names = set(job.lora.targets)
        for name in sorted(names - (known - routers)):
            raise InvalidJob(
                f"lora.targets: {spec.family} has no linear module {name!r}",
                did_you_mean(name, sorted(known - routers)),
            )
        if not names:
            raise InvalidJob("lora.targets: no module named", "use all-linear, or names such as q_proj,v_proj")
    return Targets(job.lora.r, frozenset(names), job.lora.dtype, job.lora.dropout > 0)


class HeadChoice(NamedTuple):
    """How hidden states become a loss, resolved."""

    name: str
    to_fp32: bool
    keeps_outputs: bool
    sft_term: bool
    fp32_outputs: bool = False


def head(job: Job, method: Method, trainer: Trainer, stored: Stored, split: Split, notes: Notes) -> HeadChoice:
    """The head program of this trainer and method, and in which dtype it sees the logits."""
    own = trainer.heads.get(method.name, trainer.heads["*"])
    if method.score_head:
        notes.fill("loss_head", "score", "default")
        return HeadChoice("score", False, False, False)
    if job.loss_head == "auto":
        name = notes.fill("loss_head", own, "trainer" if trainer.name != "pytorch" else "default")
    else:
        name = own if (job.loss_head, own) == ("selective", "selective-kernel") else job.loss_head
        if name == "cross-entropy" and method.name != "sft":
            raise InvalidJob(
                f"loss_head: cross-entropy gives no log-probabilities for {method.name}", "use log-softmax or selective"
            )
    native_amp = stored.autocast > 0 and not split.is_deepspeed
    wide = job.logits_dtype == "fp32" or (
        job.logits_dtype == "auto" and (method.name in trainer.fp32_logits or (trainer.fp32_outputs and native_amp))
    )
    wide = wide and name not in ("cross-entropy", "fused")
    term = job.sft_term if job.sft_term is not None else method.name in trainer.sft_term
    return HeadChoice(
        name,
        wide,
        trainer.keeps_outputs and name == "cross-entropy",
        term and method.pairs and name != "fused",
        trainer.fp32_outputs and native_amp,
    )


class References(NamedTuple):
    """Where reference log-probabilities come from, and which models are resident."""

    kind: str
    models: tuple[Resident, ...]


def references(
    job: Job, method: Method, trainer: Trainer, stored: Stored, split: Split, spec: ModelSpec, lora: bool, notes: Notes
) -> References:
    """Resident models. Raises InvalidJob where the job asks for what cannot be."""
    kind = job.reference
    if kind == "auto":
        kind = "none" if not method.reference else trainer.reference_with_lora if lora else "resident"
        notes.fill("reference", kind, "default", _reference_reason(kind))
    if kind == "adapter" and not lora:
        raise InvalidJob("reference: adapter needs LoRA", "use resident or precomputed, or set lora")
    if kind == "none" and method.reference:
        raise InvalidJob(
            f"reference: {method.name} needs reference log-probabilities",
            "use resident or precomputed (or adapter with LoRA)",
        )
    if kind not in ("none", "precomputed") and not method.reference:
        raise InvalidJob(f"reference: {method.name} uses none", "leave reference out")
    models = []
    sharded = split.ranks > 1 and split.name in ("zero3", "fsdp2")
    if kind == "resident":
        follows = trainer.reference_follows_policy and not split.is_deepspeed
        itemsize = stored.precision.weights if follows else DTYPE_BYTES[stored.precision.dtype]
        models.append(Resident("reference", spec, itemsize, sharded, trainer.reference_is_frozen))
    models.extend(_extra(extra) for extra in job.extra_models)
    return References(kind, tuple(models))


def _reference_reason(kind: str) -> str:
    reasons = {
        "resident": "a second copy of the model scores each batch",
        "adapter": "the base model with its adapters switched off",
    }
    return reasons.get(kind, "")


def _extra(extra: Any) -> Resident:
    spec = load_model(extra.model)
    return Resident(
        extra.role, spec.as_reward_model() if extra.role == "reward" else spec, DTYPE_BYTES[extra.precision], False
    )
