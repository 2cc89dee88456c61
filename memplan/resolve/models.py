"""What is trained, scored and resident: adapters, the loss head, reference and other models."""

from __future__ import annotations

from typing import Any, NamedTuple

from memplan.errors import InvalidJob, did_you_mean
from memplan.models import load_model
from memplan.resolve.notes import Notes
from memplan.resolve.quantised import Base
from memplan.resolve.storage import Split, Stored
from memplan.spec.job import ALL_LINEAR, Job, Lora
from memplan.spec.model import ModelSpec
from memplan.spec.recipe import Adapter, Resident
from memplan.tables.families import EXPERT_FAMILIES, EXPERT_PROJECTIONS
from memplan.tables.methods import Method
from memplan.tables.trainers import Trainer
from memplan.units import DTYPE_BYTES


class Targets(NamedTuple):
    """LoRA's settings and modules, before dtypes are known."""

    lora: Lora
    names: frozenset[str]
    experts: bool

    def resolved(self, stored: Stored, base: Base, trainer: Trainer, notes: Notes) -> Adapter:
        """DeepSpeed casts adapters with the rest of the module, TRL those over a quantised base; elsewhere they keep
        their dtype. DoRA's magnitudes follow only the first of these.
        """
        lora, master = self.lora, stored.precision.master
        itemsize = stored.precision.weights if master else DTYPE_BYTES[lora.dtype]
        magnitude = itemsize
        if base.quantised and base.upcast == "none" and trainer.quantised_adapters and not master:
            itemsize = DTYPE_BYTES[trainer.quantised_adapters]
            notes.assume(
                f"lora.dtype: {trainer.quantised_adapters} ({trainer.title} casts adapters over a quantised base)"
            )
        return Adapter(
            lora.r,
            self.names,
            itemsize,
            lora.dropout > 0,
            lora.dora,
            magnitude,
            lora.bias,
            frozenset(lora.modules_to_save),
            self.experts,
        )


def adapter(job: Job, spec: ModelSpec, notes: Notes) -> Targets | None:
    """Which linears LoRA adapts. Raises InvalidJob for a target that the model does not have."""
    if job.lora is None:
        return None
    known = {linear.name for run in spec.runs for linear in run.layer.linears}
    stacked = [run.layer.experts for run in spec.runs if run.layer.experts]
    known -= {experts.router.name for experts in stacked}
    notes.sources["lora"] = notes.sources.get("lora", "default")
    _check_saved(job.lora, spec, notes)
    if job.lora.targets == ALL_LINEAR:
        experts = bool(stacked) and spec.family in EXPERT_FAMILIES
        if stacked:
            notes.assume(_expert_rule(spec, experts))
        names = known
    else:
        given = set(job.lora.targets)
        split = given & EXPERT_PROJECTIONS - known if stacked and spec.family in EXPERT_FAMILIES else set()
        if split and split != EXPERT_PROJECTIONS - known:
            raise InvalidJob(
                f"lora.targets: {', '.join(sorted(split))} of the stacked experts alone is not modelled",
                "name gate_proj, up_proj and down_proj together, or none of them",
            )
        experts, names = bool(split), given - split
        for name in sorted(names - known):
            raise InvalidJob(
                f"lora.targets: {spec.family} has no linear module {name!r}", did_you_mean(name, sorted(known))
            )
        if not given:
            raise InvalidJob("lora.targets: no module named", "use all-linear, or names such as q_proj,v_proj")
    if experts and (job.lora.dora or job.lora.dropout):
        key = "dora" if job.lora.dora else "dropout"
        raise InvalidJob(
            f"lora.{key}: PEFT's ParamWrapper, which adapts stacked experts, works without it",
            f"leave {key} out, or name targets: q_proj,k_proj,v_proj,o_proj",
        )
    return Targets(job.lora, frozenset(names), experts)


def _expert_rule(spec: ModelSpec, experts: bool) -> str:
    if experts:
        return f"lora: all-linear adapts the stacked experts and the router of {spec.family} (peft 0.21)"
    return f"lora: all-linear leaves the stacked experts and the router of {spec.family} alone (peft 0.21)"


def _check_saved(lora: Lora, spec: ModelSpec, notes: Notes) -> None:
    """modules_to_save may name the embedding and the head. Raises InvalidJob for another module."""
    known = ("embed_tokens", spec.head.name)
    for name in lora.modules_to_save:
        if name not in known:
            raise InvalidJob(f"lora.modules_to_save: {name!r} is not modelled", "modelled: " + " and ".join(known))
    if lora.modules_to_save and spec.head_is_tied:
        notes.assume("modules_to_save: the trained copy is no longer tied (peft 0.21, ensure_weight_tying=False)")


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
    job: Job, method: Method, trainer: Trainer, base: Base, split: Split, spec: ModelSpec, lora: bool, notes: Notes
) -> References:
    """Resident models. Raises InvalidJob where the job asks for what cannot be."""
    kind, stored = job.reference, base.stored
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
        models.append(Resident("reference", spec, itemsize, sharded, trainer.reference_is_frozen, base.quantised))
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
