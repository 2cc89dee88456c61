"""Which attention runs: what was asked for, where the model's class has it."""

from __future__ import annotations

from memplan.errors import InvalidJob
from memplan.gpus import find_gpu
from memplan.resolve.notes import Notes
from memplan.resolve.storage import Stored
from memplan.spec.gpu import FIRST_WITH_BF16
from memplan.spec.job import Job
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Attention
from memplan.tables.families import WITHOUT_FLASH
from memplan.tables.trainer import Trainer
from memplan.units import DTYPE_BYTES

OTHER_CLASSES = ("litgpt", "nemo-aligner")
"""Trainers with model classes of their own, beside those that run on Megatron."""


def attention_form(job: Job, trainer: Trainer, spec: ModelSpec, stored: Stored, notes: Notes) -> str:
    """Soft-capped scores are eager's and flash's (flash-attn 2.6 on, in its kernel); some classes have eager alone.

    Raises InvalidJob for what no kernel computes, and for what transformers refuses.
    """
    own = trainer.megatron or trainer.name in OTHER_CLASSES
    if job.attention == "flash" and spec.family in WITHOUT_FLASH and not own:
        raise InvalidJob(
            f"attention: the {spec.family} class of transformers does not support flash attention",
            "leave attention out, or use " + ("eager" if spec.eager_only else "sdpa"),
        )
    if job.attention == "flash" and stored.compute_itemsize == DTYPE_BYTES["fp32"] and not stored.autocast:
        raise InvalidJob(
            "attention: flash has no kernels for fp32 matmuls", "use attention: sdpa, or precision bf16-amp"
        )
    capped = any(mixer.softcap is not None for mixer in spec.mixers)
    if job.attention == "flash" and capped and not any(mixer.eager_only for mixer in spec.mixers):
        return notes.plain("attention", job.attention)
    if spec.eager_only and job.attention != "eager":
        if notes.is_given("attention"):
            cannot = f"cannot soft-cap the scores of {spec.name}" if capped else f"is not described for {spec.family}"
            raise InvalidJob(f"attention: {job.attention} {cannot}", "use attention: eager")
        why = "caps its attention scores, which sdpa does not compute"
        why = why if capped else "has eager attention alone"
        notes.fill("attention", "eager", "default", f"{spec.family} {why}")
        return "eager"
    if trainer.megatron and _makes_scores(job, spec, notes):
        why = "Megatron has no kernel of attention for cards below compute capability 8.0"
        notes.fill("attention", "eager", "default", why)
        return "eager"
    if job.attention == "sdpa" and _groups_without_flash(job, trainer, spec):
        notes.remark(
            "attention: sdpa has no flash kernel below compute capability 8.0, and no other takes grouped heads, which "
            "transformers 4.54 and later pass where nothing is padded: scores of sequence × sequence are counted; "
            "padded: true where batches are"
        )
    return notes.plain("attention", job.attention)


def _groups_without_flash(job: Job, trainer: Trainer, spec: ModelSpec) -> bool:
    """Whether heads are grouped in the call of SDPA on a card where only its math kernel takes them."""
    repeats = trainer.models.repeats or trainer.models.repeats_sdpa or job.kernels == "unsloth" or job.padded
    if job.gpu is None or trainer.megatron or repeats or find_gpu(job.gpu).capability >= FIRST_WITH_BF16:
        return False
    return any(isinstance(each, Attention) and each.num_kv_heads != each.num_heads for each in spec.mixers)


def _makes_scores(job: Job, spec: ModelSpec, notes: Notes) -> bool:
    """Whether Megatron has no kernel on the card and falls back on two products and a softmax: TransformerEngine 2.20
    pytorch/attention/dot_product_attention/utils.py: get_attention_backend (flash-attn and cuDNN's need sm80)."""
    if job.gpu is None or notes.is_given("attention") or job.context_parallel > 1:
        return False
    latent = any(getattr(mixer, "kind", "") == "latent" for mixer in spec.mixers)
    return not latent and find_gpu(job.gpu).capability < FIRST_WITH_BF16
