"""The models of a job: the one that trains, its reference, and others."""

from functools import lru_cache
from typing import Any

from memplan.errors import InvalidJob
from memplan.generic import generic_model
from memplan.models import load_model
from memplan.resolve.choices import with_method_head
from memplan.resolve.classes import as_class_runs
from memplan.resolve.notes import Notes
from memplan.resolve.quantised import Base
from memplan.resolve.rollouts import reward_model
from memplan.resolve.storage import Split
from memplan.resolve.trainers import check_method
from memplan.spec.groups import OtherModels, Resident
from memplan.spec.job import Job
from memplan.spec.layer import Layer
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Mixer
from memplan.spec.reading import JobInput
from memplan.tables.families import FUNCTIONAL_DROPOUT, PROBABILITIES_ALONE, SINCE_5
from memplan.tables.methods import METHODS, Method
from memplan.tables.trainer import Reference, Trainer, version_key
from memplan.tables.trainers import TRAINERS, find_trainer, is_newer, newest_read
from memplan.units import DTYPE_BYTES, format_count, parse_count


def policy_model(given: JobInput, job: Job, notes: Notes) -> ModelSpec:
    """The model that is trained. Raises InvalidJob when the job names none."""
    if job.model is not None:
        if job.total_params is not None:
            raise InvalidJob(f"total_params: {job.total_params} given beside model", "name a model, or only its size")
        spec = given.spec or load_model(job.model, job.revision)
        notes.assumptions.extend(spec.notes)
        return spec
    if job.total_params is None:
        raise InvalidJob(
            "no model named", "add --model: a preset (llama-3.1-8b), a Hub id, a config.json; or --total-params 8B"
        )
    spec = generic_model(parse_count(job.total_params))
    notes.assume(
        f"no architecture given: a dense decoder of {format_count(spec.params.total)} parameters, hidden "
        f"{spec.hidden_size}, "
        f"{spec.num_layers} layers, {spec.num_heads} heads, feed-forward {spec.intermediate_size}, "
        f"vocabulary {spec.vocab_size}, interpolated between published ones; the range is that of real models of that "
        "size"
    )
    return spec


def what_trains(given: JobInput, job: Job, notes: Notes) -> tuple[Method, Trainer, ModelSpec]:
    """Method, trainer, and the model with the head that they train. Raises InvalidJob where one cannot have another."""
    spec = policy_model(given, job, notes)
    method, trainer = METHODS[job.method], _beside_model(find_trainer(job.trainer, job.trainer_version or ""), spec)
    check_method(job, method, trainer)
    why = _one_version(job, trainer)
    if is_newer(job.trainer, job.trainer_version or ""):
        notes.remark(
            f"trainer_version: {job.trainer_version} is later than {trainer.title} {newest_read(job.trainer)}, the "
            "newest that was read: its defaults are taken"
        )
    elif job.trainer_version and "trainer_version" not in notes.taken and len(TRAINERS[job.trainer]) == 1 and why:
        notes.remark(f"trainer_version: {job.trainer_version} decides nothing: {why}")
    check_task(job, method, trainer, spec, notes)
    spec = as_class_runs(job, trainer, spec, notes)
    spec = as_trainer_ties(trainer, with_method_head(method, trainer, spec), notes)
    return method, trainer, trained_without_dropout(job, trainer, spec, notes)


def _beside_model(trainer: Trainer, spec: ModelSpec) -> Trainer:
    """The era of a version, beside transformers 5 where an older one has no such model: its classes, and the dtypes
    that it loads."""
    if spec.family not in SINCE_5 or not trainer.models.transformers_4:
        return trainer
    later = next((era for era in TRAINERS[trainer.name] if not era.models.transformers_4), trainer)
    return trainer._replace(models=later.models, numerics=later.numerics)


def _one_version(job: Job, trainer: Trainer) -> str:
    """Why the version of a trainer of one era bears on nothing; empty where it is the one that was read."""
    if job.trainer == "pytorch":
        return "a bare loop has no versions; name the trainer"
    newest = newest_read(job.trainer)
    if newest and version_key(newest) == version_key(job.trainer_version or "")[: len(version_key(newest))]:
        return ""
    return f"{trainer.title} {newest} alone was read" if newest else f"{trainer.title} was read at one commit"


@lru_cache(maxsize=64)
def _untied(spec: ModelSpec) -> ModelSpec:
    return spec.but(tied=False)


def as_trainer_ties(trainer: Trainer, spec: ModelSpec, notes: Notes) -> ModelSpec:
    """The model as the trainer's own class has it: with a head of its own, where that is never the embeddings'."""
    if not trainer.models.unties or not spec.head_is_tied:
        return spec
    more = spec.vocab_size * (spec.embedding_width or spec.hidden_size)
    notes.assume(
        f"{trainer.title}'s model has a head of its own: the embeddings of {spec.name} are there twice, "
        f"{format_count(more)} parameters more"
    )
    return _untied(spec)


def other_models(
    job: Job, method: Method, trainer: Trainer, base: Base, split: Split, spec: ModelSpec, lora: bool, notes: Notes
) -> OtherModels:
    """Resident models. Raises InvalidJob where the job asks for what cannot be."""
    kind, stored, own = job.reference, base.stored, trainer.reference
    if kind == "auto":
        usual = own.with_lora if lora else own.default
        kind = own.by_method.get(method.name, usual) if method.reference else "none"
        off = method.reference and kind == "none"
        notes.fill(
            "reference",
            kind,
            "default",
            f"{trainer.title}'s default for {method.name} has no KL term" if off else _reference_reason(kind),
        )
    elif method.reference and own.places and kind not in (*own.places, "none"):
        notes.remark(
            f"reference: {trainer.title} has none that is {kind} ({' or '.join(own.places)} alone): "
            "estimated as if it had"
        )
    if kind in ("adapter", "second-adapter") and not lora:
        raise InvalidJob(f"reference: {kind} needs LoRA", "use resident or precomputed, or set lora")
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
    if kind == "offloaded" and not own.offloads:
        raise InvalidJob(
            f"reference: {trainer.title} keeps no reference on the host", "use resident, precomputed or adapter"
        )
    if kind == "offloaded" and split.is_deepspeed and split.name != "zero3":
        notes.remark(
            f"reference: below ZeRO-3 DeepSpeed's engine of a model that only scores has no parameters on the host: "
            f"{trainer.title}'s switch does nothing, and it stays on the card"
        )
        kind = "resident"
    if kind not in ("none", "precomputed") and not method.reference:
        raise InvalidJob(f"reference: {method.name} uses none", "leave reference out")
    models = []
    sharded = split.ranks > 1 and split.name in ("zero3", "fsdp2")
    if kind == "resident":
        follows = own.follows_policy and not split.is_deepspeed
        itemsize = stored.precision.weights if follows else DTYPE_BYTES[stored.precision.dtype]
        models.append(Resident("reference", spec, itemsize, sharded, own.frozen, base.quantised))
    others = (extra for extra in job.extra_models if extra.role != "critic" and not extra.rollout)
    divides = split.ranks > 1 and split.name == "zero3"
    models.extend(_extra(extra, own, divides) for extra in others)
    models.extend(
        each._replace(sharded=divides)
        for each in reward_model(job, method, trainer, spec, stored.compute_itemsize, notes)
    )
    return OtherModels("adapter" if kind == "second-adapter" else kind, tuple(models))


def _reference_reason(kind: str) -> str:
    reasons = {
        "resident": "a second copy of the model scores each batch",
        "adapter": "the base model with its adapters switched off",
        "offloaded": "its weights wait on the host and are swapped in for its forward",
    }
    return reasons.get(kind, "")


def _extra(extra: Any, own: Reference, divides: bool) -> Resident:
    """``divides``: an engine of ZeRO-3's own divides each (trl 1.16 models/utils.py: prepare_deepspeed, of its
    grpo_trainer.py too; OpenRLHF 0.8 utils/deepspeed/deepspeed.py: get_ds_eval_config)."""
    spec, itemsize = load_model(extra.model), DTYPE_BYTES[extra.precision or "bf16"]
    if extra.role == "reward":
        return Resident(extra.role, spec.as_reward_model(), itemsize, divides)
    return Resident(extra.role, spec, itemsize, divides, own.frozen)


def trained_without_dropout(job: Job, trainer: Trainer, spec: ModelSpec, notes: Notes) -> ModelSpec:
    """The model that the method trains and scores with."""
    if job.method not in trainer.disables_dropout:
        return spec
    found = _without_modules(spec)
    if found is None:
        return spec
    notes.assume(f"dropout: off ({trainer.title} sets every nn.Dropout to 0 in {job.method}; others stay)")
    return found


@lru_cache(maxsize=64)
def _without_modules(spec: ModelSpec) -> ModelSpec | None:
    """None where its class has no such module, or none that drops. What its class calls itself stays.

    trl 0.9 to 1.16, trainer/utils.py: ``disable_dropout_in_model`` sets ``p = 0`` on every ``nn.Dropout``, which then
    hands its input on and keeps no mask (torch 2.13 aten/src/ATen/native/Dropout.cpp)."""
    called = any(getattr(mixer, "style", "") == "interleaved" for mixer in spec.mixers)  # GPT-J's from 5.24 on
    stays = PROBABILITIES_ALONE if called else FUNCTIONAL_DROPOUT.get(spec.family, PROBABILITIES_ALONE)
    runs = tuple(run.but(layer=_layer(run.layer, stays)) for run in spec.runs)
    update: dict[str, object] = {"runs": runs}
    if "front" not in stays:
        update["front"] = tuple(step for step in spec.front if step != "dropout")
    if spec.encoder and "front" not in stays:
        update["encoder"] = spec.encoder.but(dropout=False)
    if spec.pooler:
        update["pooler"] = spec.pooler.but(first_dropout=False, dropout=False)
    found = spec.model_copy(update=update)
    return None if found == spec else found


def _layer(layer: Layer, stays: frozenset[str]) -> Layer:
    update: dict[str, object] = {
        name: _mixer(part, stays) for name in ("mixer", "cross") if (part := getattr(layer, name)) is not None
    }
    if layer.feed_forward and "inner" not in stays:
        update["feed_forward"] = layer.feed_forward.but(dropout=False)
    if "branches" not in stays:
        update["dropout"] = ()
    return layer.model_copy(update=update)


def _mixer(mixer: Mixer, stays: frozenset[str]) -> Mixer:
    fields = [name for name in ("dropout", "position_dropout") if getattr(mixer, name, False)]
    return mixer if "probabilities" in stays or not fields else mixer.model_copy(update=dict.fromkeys(fields, False))


PLAIN_TRAINERS = ("pytorch", "transformers")
"""Trainers whose loss is the model's own, whatever its class."""


def check_task(job: Job, method: Method, trainer: Trainer, spec: ModelSpec, notes: Notes) -> None:
    """Raise InvalidJob for a method or trainer that the model's class cannot be trained with."""
    if spec.task == "causal":
        return
    shares = spec.task == "seq2seq" or any(mixer.kind == "disentangled" for mixer in spec.mixers)
    if job.gradient_checkpointing_reentrant and shares:
        raise InvalidJob(
            f"gradient_checkpointing_reentrant: true cannot run {spec.family}, whose layers share a tensor with a "
            "graph of its own",
            "leave gradient_checkpointing_reentrant out",
        )
    if spec.task == "masked" and not method.score_head:
        raise InvalidJob(
            f"method: {method.name} needs a model that predicts the next token, and {spec.family} is an encoder",
            "use method: reward, which trains its sequence-classification class",
        )
    if spec.task == "seq2seq" and method.name != "sft":
        raise InvalidJob(
            f"method: {method.name} is not modelled for {spec.family}, an encoder-decoder", "use method: sft"
        )
    if spec.task == "seq2seq" and trainer.name not in PLAIN_TRAINERS:
        raise InvalidJob(
            f"trainer: {trainer.title} is not modelled for {spec.family}, an encoder-decoder",
            f"use trainer {' or '.join(PLAIN_TRAINERS)}",
        )
    if spec.task == "seq2seq":
        _check_pair(job, spec)
        notes.assume(
            "an encoder-decoder: its encoder reads sequence_length tokens, its decoder completion_length tokens "
            "(or as many again)"
        )


def _check_pair(job: Job, spec: ModelSpec) -> None:
    """Raise InvalidJob for what is not modelled with two stacks."""
    what = f"is not modelled for {spec.family}, an encoder-decoder"
    if job.attention not in ("sdpa", "eager"):
        raise InvalidJob(
            f"attention: {job.attention} cannot add the relative positions of {spec.family}", "use sdpa or eager"
        )
    refused = (
        ("gradient_checkpointing", job.gradient_checkpointing not in ("none", "full"), "use none or full"),
        ("loss_head", job.loss_head not in ("auto", "cross-entropy"), "leave loss_head out"),
        ("kernels", job.kernels != "none", "leave kernels out"),
        ("compile", job.compile, "leave compile out"),
        ("quantization", job.quantization != "none", "leave quantization out"),
        ("freeze", bool(job.freeze), "leave freeze out"),
        ("offload", bool(job.offload), "leave offload out"),
        ("sharding", job.sharding not in (None, "none", "ddp"), "use none or ddp"),
        ("zero_stage", job.zero_stage is not None, "leave zero_stage out, or use sharding ddp"),
    )
    for key, wrong, hint in refused:
        if wrong:
            raise InvalidJob(f"{key}: {getattr(job, key)} {what}", hint)
