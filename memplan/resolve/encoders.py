"""What can be trained of a model that does not predict the next token: encoders alone, and encoder-decoders."""

from memplan.errors import InvalidJob
from memplan.resolve.notes import Notes
from memplan.spec.job import Job
from memplan.spec.model import ModelSpec
from memplan.tables.methods import Method
from memplan.tables.trainer import Trainer

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
