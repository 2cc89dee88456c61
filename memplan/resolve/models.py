"""What is trained, scored and resident: adapters, the loss head, reference and other models."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from memplan.errors import InvalidJob, did_you_mean
from memplan.models import load_model
from memplan.resolve.notes import Notes
from memplan.resolve.quantised import Base
from memplan.resolve.storage import Split, Stored
from memplan.spec.job import Job
from memplan.spec.lora import ALL_LINEAR, Adapter, Lora
from memplan.spec.model import ModelSpec
from memplan.spec.recipe import Resident
from memplan.tables.families import EXPERT_FAMILIES, MAMBA_FAMILIES, MIXTRAL_NAMES, MODULE_NAMES, ROUTER, STACKS
from memplan.tables.methods import Method
from memplan.tables.trainer import Trainer
from memplan.units import DTYPE_BYTES, format_count


@lru_cache(maxsize=64)
def _untied(spec: ModelSpec) -> ModelSpec:
    return spec.model_copy(update={"tied": False})


def as_trainer_ties(trainer: Trainer, spec: ModelSpec, notes: Notes) -> ModelSpec:
    """The model as the trainer's own class has it: with a head of its own, where that is never the embeddings'."""
    if not trainer.unties or not spec.head_is_tied:
        return spec
    more = spec.vocab_size * (spec.embedding_width or spec.hidden_size)
    notes.assume(
        f"{trainer.title}'s model has a head of its own: the embeddings of {spec.name} are there twice, "
        f"{format_count(more)} parameters more"
    )
    return _untied(spec)


class Targets(NamedTuple):
    """LoRA's settings and modules, before dtypes are known."""

    lora: Lora
    names: frozenset[str]
    experts: frozenset[str]
    router: bool

    def resolved(self, stored: Stored, base: Base, trainer: Trainer, notes: Notes) -> Adapter:
        """DeepSpeed casts adapters with the rest of the module, TRL those over a quantised base; elsewhere they keep
        their dtype. DoRA's magnitudes follow only the first of these.
        """
        lora, master = self.lora, stored.precision.master
        itemsize = stored.precision.weights if master else DTYPE_BYTES[lora.dtype]
        magnitude = itemsize
        halves = {"bf16", "fp16"} & {lora.dtype, stored.precision.dtype}
        if len(halves) == 2 and not master:
            here = stored.precision.dtype
            notes.assume(f"lora.dtype: {lora.dtype} in {here} products: copies between both are not counted")
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
            self.router,
        )


def adapter(job: Job, spec: ModelSpec, notes: Notes) -> Targets | None:
    """Which modules LoRA adapts. Raises InvalidJob for a target that the model does not have."""
    if job.lora is None:
        return None
    text = {linear.name for run in spec.runs for linear in run.layer.linears}
    text |= {linear.name for linear in spec.outer_linears}
    stacked = [run.layer.experts for run in spec.runs if run.layer.experts]
    routers = {experts.router.name for experts in stacked if not experts.plain_router}
    text -= routers
    known = text | {linear.name for linear in (spec.tower.linears if spec.tower else ())} - routers
    notes.sources["lora"] = notes.sources.get("lora", "default")
    _check_saved(job.lora, spec, notes)
    rewrites = STACKS[spec.family in MIXTRAL_NAMES] if spec.family in EXPERT_FAMILIES else {}  # with experts or not
    everything = job.lora.targets == ALL_LINEAR
    given = known | {*rewrites, *([ROUTER] if rewrites else [])} if everything else set(job.lora.targets)
    if not given:
        raise InvalidJob("lora.targets: no module named", "use all-linear, or names such as q_proj,v_proj")
    if stacked and everything:
        how = "adapts" if rewrites else "leaves alone"
        router = " and the router" if routers else ""
        notes.assume(f"lora: all-linear {how} the stacked experts{router} of {spec.family} (peft 0.21)")
    experts = _stacks(given, rewrites) if stacked else frozenset()
    lost = sorted(given & set(rewrites) & known)
    if lost:
        notes.remark(f"lora: {', '.join(lost)} of dense layers and shared experts are not adapted (peft 0.21)")
    names = _modules(given - set(rewrites) - ({ROUTER} if rewrites else set()), known, spec, notes, bool(experts))
    if not (names & text or experts):
        raise InvalidJob(
            f"lora.targets: only the vision tower of {spec.family} has {', '.join(sorted(names))}, and a tower "
            "trained alone is not modelled",
            f"use all-linear, or name targets: {', '.join(sorted(text))}",
        )
    if experts and (job.lora.dora or job.lora.dropout):
        key = "dora" if job.lora.dora else "dropout"
        raise InvalidJob(
            f"lora.{key}: PEFT's ParamWrapper, which adapts stacked experts, works without it",
            f"leave {key} out, or name targets: q_proj,k_proj,v_proj,o_proj",
        )
    return Targets(job.lora, frozenset(names), experts, bool(rewrites) and ROUTER in given)


def _stacks(given: set[str], rewrites: Mapping[str, str]) -> frozenset[str]:
    """The stacked parameters that targets are rewritten to. Raises InvalidJob for a half of two fused projections."""
    stacks = {rewrites[name] for name in given & set(rewrites)}
    for stack in stacks:
        missing = sorted({name for name, whole in rewrites.items() if whole == stack} - given)
        if missing:
            raise InvalidJob(
                f"lora.targets: {', '.join(sorted(given & set(rewrites)))} without {', '.join(missing)}, fused in "
                f"{stack} of the stacked experts (PEFT refuses it)",
                f"add {', '.join(missing)}",
            )
    return frozenset(stacks)


def _modules(names: set[str], known: set[str], spec: ModelSpec, notes: Notes, others: bool) -> set[str]:
    """The linears among the targets; PEFT passes over names of other families while something is adapted."""
    if spec.family in MAMBA_FAMILIES and "out_proj" in names:
        rest = sorted(known - {"out_proj"})
        raise InvalidJob(
            f"lora.targets: out_proj of {spec.family} cannot be adapted (PEFT refuses it; all-linear includes it)",
            f"name targets: {', '.join(rest)}",
        )
    if spec.family == "deepseek_v4" and "o_a_proj" in names:
        rest = sorted(known - {"o_a_proj"})
        raise InvalidJob(
            "lora.targets: o_a_proj of deepseek_v4 is a matrix for each group of heads, of which PEFT's branch "
            "does not know: its forward fails (all-linear includes it)",
            f"name targets: {', '.join(rest)}",
        )
    foreign = (names - known) & MODULE_NAMES if names & known or others else set()
    if foreign:
        notes.remark(f"lora.targets: {spec.family} has no {', '.join(sorted(foreign))}, which PEFT passes over")
    for name in sorted(names - known - foreign):
        raise InvalidJob(
            f"lora.targets: {spec.family} has no linear module {name!r}", did_you_mean(name, sorted(known))
        )
    return names & known


def _check_saved(lora: Lora, spec: ModelSpec, notes: Notes) -> None:
    """modules_to_save may name the embedding and the head. Raises InvalidJob for another module."""
    known = ("embed_tokens", spec.head.name)
    for name in lora.modules_to_save:
        if name not in known:
            raise InvalidJob(f"lora.modules_to_save: {name!r} is not modelled", "modelled: " + " and ".join(known))
    if lora.modules_to_save and spec.head_is_tied:
        notes.assume("modules_to_save: the trained copy is no longer tied (peft 0.21, ensure_weight_tying=False)")


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
        usual = trainer.reference_with_lora if lora else trainer.reference
        kind = trainer.references.get(method.name, usual) if method.reference else "none"
        off = method.reference and kind == "none"
        notes.fill(
            "reference",
            kind,
            "default",
            f"{trainer.title}'s default for {method.name} has no KL term" if off else _reference_reason(kind),
        )
    elif method.reference and trainer.own_references and kind not in (*trainer.own_references, "none"):
        notes.remark(
            f"reference: {trainer.title} has none that is {kind} ({' or '.join(trainer.own_references)} alone): "
            "estimated as if it had"
        )
    if kind == "adapter" and not lora:
        raise InvalidJob("reference: adapter needs LoRA", "use resident or precomputed, or set lora")
    if kind == "precomputed" and method.online:
        raise InvalidJob(
            f"reference: {method.name} generates what is scored, so nothing can be precomputed",
            "use resident or none" if method.optional_reference else "use resident (or adapter with LoRA)",
        )
    if kind == "none" and method.reference and not method.optional_reference:
        raise InvalidJob(
            f"reference: {method.name} needs reference log-probabilities",
            "use resident or precomputed (or adapter with LoRA)",
        )
    if kind == "offloaded" and not trainer.offloads_reference:
        raise InvalidJob(
            f"reference: {trainer.title} keeps no reference on the host", "use resident, precomputed or adapter"
        )
    if kind not in ("none", "precomputed") and not method.reference:
        raise InvalidJob(f"reference: {method.name} uses none", "leave reference out")
    models = []
    sharded = split.ranks > 1 and split.name in ("zero3", "fsdp2")
    if kind == "resident":
        follows = trainer.reference_follows_policy and not split.is_deepspeed
        itemsize = stored.precision.weights if follows else DTYPE_BYTES[stored.precision.dtype]
        models.append(Resident("reference", spec, itemsize, sharded, trainer.reference_is_frozen, base.quantised))
    models.extend(_extra(extra, trainer) for extra in job.extra_models if extra.role != "critic")
    return References(kind, tuple(models))


def _reference_reason(kind: str) -> str:
    reasons = {
        "resident": "a second copy of the model scores each batch",
        "adapter": "the base model with its adapters switched off",
        "offloaded": "its weights wait on the host and are swapped in for its forward",
    }
    return reasons.get(kind, "")


def _extra(extra: Any, trainer: Trainer) -> Resident:
    spec, itemsize = load_model(extra.model), DTYPE_BYTES[extra.precision or "bf16"]
    if extra.role == "reward":
        return Resident(extra.role, spec.as_reward_model(), itemsize, False)
    return Resident(extra.role, spec, itemsize, False, trainer.reference_is_frozen)
