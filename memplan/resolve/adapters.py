"""Which modules LoRA adapts, and what cannot be adapted."""

from collections.abc import Mapping
from typing import NamedTuple

from memplan.errors import InvalidJob, did_you_mean
from memplan.resolve import adapted_parts
from memplan.resolve.fsdp import check_flat, upcast
from memplan.resolve.megatron_adapters import megatron_targets, not_in_megatron, products
from memplan.resolve.notes import Notes
from memplan.resolve.quantised import Base
from memplan.resolve.storage import Split, Stored
from memplan.spec.fsdp import FsdpSettings
from memplan.spec.job import Job
from memplan.spec.lora import ALL_LINEAR, EMBEDDING, Adapter, Lora
from memplan.spec.model import ModelSpec
from memplan.tables.families import (
    EXPERT_FAMILIES,
    MAMBA_FAMILIES,
    MIXTRAL_NAMES,
    MODULE_NAMES,
    OWN_NAMES,
    ROUTER,
    STACKS,
    elsewhere,
)
from memplan.tables.trainer import Trainer
from memplan.units import DTYPE_BYTES

READS_HEAD = {
    "fused": "TRL's fused head",
    **dict.fromkeys(("liger", "liger-preference", "liger-policy", "liger-policy-blocks"), "Liger's loss"),
    "cut-cross-entropy": "cut cross-entropy",
    "chunked-log-probs": "the chunked head",
    "chunked-nll": "TRL's chunked_nll",
    "unsloth-chunks": "Unsloth's loss",
    "compiled-unsloth-chunks": "Unsloth's loss",
    "compiled-unsloth-log-probs": "Unsloth's loss",
}
"""Programs that multiply by the head's weight and never call its module: an adapter beside it gets no gradient. TRL
raises ValueError for it (trl 1.16 trainer/sft_trainer.py, dpo_trainer.py, kto_trainer.py, grpo_trainer.py; 1.6 for
chunked_nll); the others train without a word (liger-kernel 0.8.5 model/llama.py: lce_maybe_trainable_lm_head,
cut-cross-entropy 25.1 transformers/llama.py, verl 0.9 models/transformers/dense_common.py, unsloth 2026.8
models/llama.py)."""


class Targets(NamedTuple):
    """LoRA's settings and modules, before dtypes are known."""

    lora: Lora
    names: frozenset[str]
    experts: frozenset[str]
    router: bool
    tokens: tuple[tuple[str, int], ...] = ()
    """Rows that are trained, of the embedding and of the head: tied, both share them."""
    method: str = ""
    second: bool = False
    """A second set of adapters is the reference."""

    def resolved(self, stored: Stored, base: Base, trainer: Trainer, notes: Notes) -> Adapter:
        """DeepSpeed casts adapters with the rest of the module, TRL those over a quantised base; elsewhere they keep
        their dtype. DoRA's magnitudes follow only the first of these."""
        lora, master = self.lora, stored.precision.master
        itemsize = stored.precision.weights if master else DTYPE_BYTES[lora.dtype]
        magnitude = itemsize
        crossed = not master and len({"bf16", "fp16"} & {lora.dtype, stored.precision.dtype}) == 2
        if crossed:
            here = stored.precision.dtype
            notes.assume(f"lora.dtype: {lora.dtype} in {here} products: not every copy between both is counted")
        if base.quantised and base.upcast != "norms" and trainer.adapters.quantised_dtype and not master:
            itemsize = DTYPE_BYTES[trainer.adapters.quantised_dtype]
            notes.assume(
                f"lora.dtype: {trainer.adapters.quantised_dtype} ({trainer.title} casts adapters over a quantised base)"
            )
        off = lora.dropout > 0 and self.method in trainer.disables_dropout
        if off:
            how = f"{trainer.title} turns dropout off in the policy that it trains by {self.method}"
            notes.assume(f"lora.dropout: off ({how})")
        return Adapter(
            lora.r,
            self.names,
            itemsize,
            lora.dropout > 0 and not off,
            lora.dora,
            magnitude,
            lora.bias,
            frozenset(lora.modules_to_save),
            self.experts,
            self.router,
            ranks=lora.rank_pattern,
            crossed=crossed,
            lora_bias=lora.lora_bias,
            tokens=self.tokens,
            idle_dropout=off,
            # trl 1.16 dpo_trainer.py: what trains is cast over a quantised base, ``ref`` keeps PEFT's dtype
            second_itemsize=self.second * (itemsize if master else DTYPE_BYTES[lora.dtype]),
        )


def adapter(job: Job, spec: ModelSpec, notes: Notes, trainer: Trainer) -> Targets | None:
    """Which modules LoRA adapts. Raises InvalidJob for a target that the model does not have."""
    if job.lora is None:
        return None
    second = job.reference == "second-adapter"
    notes.sources["lora"] = notes.sources.get("lora", "default")
    _check_saved(job.lora, spec, notes)
    if trainer.adapters.on_megatron and not not_in_megatron(job, spec, trainer):
        chosen_names, halves = megatron_targets(job.lora, spec, trainer)
        return Targets(job.lora, frozenset(chosen_names), halves, False, (), job.method, second)
    text, stacked, routers = adapted_parts.linears_of(spec)
    known = text | adapted_parts.of_tower(job.lora, spec) - routers
    known |= {spec.head.name, EMBEDDING} if job.lora.targets != ALL_LINEAR else set()
    rewrites = STACKS[spec.family in MIXTRAL_NAMES] if spec.family in EXPERT_FAMILIES else {}  # with experts or not
    everything = ALL_LINEAR in (job.lora.targets, *job.lora.targets)
    if everything and trainer.adapters.lists_linears:
        rewrites = {}  # names of nn.Linear modules, which stacked experts are not
        _check_looped(trainer, bool(stacked), text)
    named = set() if job.lora.targets == ALL_LINEAR else set(job.lora.targets) - {ALL_LINEAR}
    if trainer.adapters.on_megatron:  # layers as Hugging Face writes them stand in for Megatron's, and so do names
        named = set().union(*(products(spec).get(name, {name}) | ({name} & known) for name in named))
    given = _by_own_code(named, spec, notes) if named else set()
    if everything:
        given |= known - {spec.head.name, EMBEDDING} | {*rewrites, *([ROUTER] if rewrites else [])}
    given = adapted_parts.chosen(job.lora, given, known, bool(stacked and rewrites), spec, notes)
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
    if not (names & (text | {spec.head.name, EMBEDDING}) or experts):
        raise InvalidJob(
            f"lora.targets: only the vision tower of {spec.family} has {', '.join(sorted(names))}, and a tower "
            "trained alone is not modelled",
            f"use all-linear, or name targets: {', '.join(sorted(text))}",
        )
    unknown = [key for key in ("dora", "dropout", "lora_bias") if getattr(job.lora, key)] if experts else []
    for key in unknown:
        raise InvalidJob(
            f"lora.{key}: PEFT's ParamWrapper, which adapts stacked experts, works without it",
            f"leave {key} out, or name targets: q_proj,k_proj,v_proj,o_proj",
        )
    adapted_parts.check_ranks(job.lora, names)
    tokens = adapted_parts.trained_rows(job.lora, spec, names)
    return Targets(job.lora, frozenset(names), experts, bool(rewrites) and ROUTER in given, tokens, job.method, second)


def _by_own_code(given: set[str], spec: ModelSpec, notes: Notes) -> set[str]:
    """Names of a checkpoint's own code as those of the class that stands for it."""
    own = {name: OWN_NAMES[spec.family][name] for name in given if name in OWN_NAMES.get(spec.family, {})}
    if own:
        notes.assume(f"lora: {', '.join(sorted(own))} of {spec.family}'s own code stand for "
                     f"{', '.join(sorted({each for names in own.values() for each in names}))}")  # fmt: skip
    return given - set(own) | {each for names in own.values() for each in names}


def _check_looped(trainer: Trainer, mixes: bool, names: set[str]) -> None:
    """Raise InvalidJob where each expert is a module of its own, whose linears are adapted one by one."""
    if mixes and trainer.models.transformers_4:
        plain = sorted(names & {"q_proj", "k_proj", "v_proj", "o_proj"})
        raise InvalidJob(
            f"lora.targets: {trainer.title} on transformers 4 adapts the linears of each expert, which is not modelled",
            f"add --lora-targets {','.join(plain)}, or the --trainer-version that has transformers 5",
        )


def adapted_model(job: Job, spec: ModelSpec, notes: Notes, trainer: Trainer) -> tuple[Targets | None, ModelSpec]:
    """What LoRA adapts, and the model with the layers marked in which it adapts nothing."""
    targets = adapter(job, spec, notes, trainer)
    if job.lora:
        spec = adapted_parts.partly_adapted(spec, frozenset(job.lora.layers_to_transform))
        spec = adapted_parts.with_tower(spec, job.lora)
    return targets, spec


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
    there = elsewhere(spec.family)
    foreign = {name for name in names - known if name.rpartition(".")[2] in MODULE_NAMES or name in there}
    foreign = foreign if names & known or others else set()
    if foreign:
        notes.remark(f"lora.targets: {spec.family} has no {', '.join(sorted(foreign))}, which PEFT passes over")
    for name in sorted(names - known - foreign):
        hint = "the embedding is embed_tokens here, and the head lm_head" if name in elsewhere() else ""
        raise InvalidJob(
            f"lora.targets: {spec.family} has no linear module {name!r}", hint or did_you_mean(name, sorted(known))
        )
    return names & known


def _check_saved(lora: Lora, spec: ModelSpec, notes: Notes) -> None:
    """modules_to_save may name the embedding and the head. Raises InvalidJob for another module."""
    known = ("embed_tokens", spec.head.name)
    for name in lora.modules_to_save:
        if name in elsewhere(spec.family):
            notes.remark(f"lora.modules_to_save: {spec.family} has no {name}, which PEFT passes over")
        elif name not in known:
            rest = ",".join(each for each in lora.modules_to_save if each in known) or "null"
            hint = f"modelled: {' and '.join(known)}; or add --set lora.modules_to_save={rest}, if the rest is small"
            raise InvalidJob(f"lora.modules_to_save: {name!r} is not modelled", hint)
    if lora.modules_to_save and spec.head_is_tied:
        notes.assume("modules_to_save: the trained copy is no longer tied (peft 0.21, ensure_weight_tying=False)")


def settled(
    adapted: Adapter | None, split: Split, settings: FsdpSettings, weights: int, notes: Notes
) -> Adapter | None:
    """Adapters as FSDP stores them, beside weights of so many bytes."""
    if adapted is None:
        return None
    check_flat(adapted, split, settings, weights)
    if EMBEDDING in adapted.targets and split.name == "fsdp" and settings.wraps_adapters:
        raise InvalidJob(
            f"lora.targets: adapters of {EMBEDDING} in accelerate's FSDP1, which leaves them in the root's flat "
            "parameter, are not modelled",
            "use sharding fsdp2",
        )
    if adapted.saved and split.name == "fsdp" and settings.wraps_adapters:
        notes.remark(
            "lora.modules_to_save: counted in the root's flat parameter, where accelerate's FSDP1 makes a unit of the "
            "trained copy: forward and backward may be 13 % too high"
        )
    return upcast(adapted, settings, notes)


def check_ends(
    adapted: Adapter | None, spec: ModelSpec, program: str, job: Job, split: Split, in_megatron: bool
) -> None:
    """Raise InvalidJob for adapters of embedding or head where the framework breaks, or trains nothing."""
    ends = {EMBEDDING, spec.head.name}
    named = sorted(adapted.targets & ends | {name for name, _ in adapted.tokens}) if adapted else []
    if not (named and adapted):
        return
    said = " and ".join(named)
    if spec.head.name in adapted.targets and program in READS_HEAD:
        refused = f"TRL refuses to adapt {spec.head.name}: " if job.trainer == "trl" else ""
        raise InvalidJob(
            f"lora.targets: {refused}{READS_HEAD[program]} reads {spec.head.name}.weight, so that its adapter would "
            "never be trained",
            f"take {spec.head.name} out of lora.targets, or name it in lora.modules_to_save",
        )
    if job.kernels == "unsloth":
        raise InvalidJob(
            f"lora.targets: Unsloth trains a copy of {EMBEDDING}, not an adapter",
            f"name it in lora.modules_to_save: [{EMBEDDING}]",
        )
    if EMBEDDING in named and (spec.encoder is not None or spec.streams > 1 or spec.has_layer_inputs):
        raise InvalidJob(
            f"lora.targets: an adapter of the embedding of {spec.family}, which several stacks or layers read, is not "
            "modelled",
            f"take {EMBEDDING} out of lora.targets",
        )
    if in_megatron:
        raise InvalidJob(
            f"lora.targets: adapters of {said} are not modelled in Megatron yet", f"take {said} out of lora.targets"
        )
    if adapted.tokens and split.is_fsdp and (spec.head_is_tied or split.name == "fsdp"):
        raise InvalidJob(
            "lora.trainable_token_indices: rows of tied embeddings, or in flat parameters, are not modelled under FSDP",
            "use sharding ddp or a ZeRO stage",
        )
