"""Which attention runs: what was asked for, where the model's class has it."""

from collections.abc import Mapping

from memplan.errors import InvalidJob
from memplan.gpus import find_gpu
from memplan.resolve.classes import check_flash
from memplan.resolve.notes import Notes
from memplan.resolve.storage import Stored
from memplan.spec.gpu import Gpu
from memplan.spec.job import Job
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Attention
from memplan.spec.recipe import Recipe
from memplan.tables.families import SDPA_SINCE
from memplan.tables.trainer import Trainer, version_key
from memplan.units import DTYPE_BYTES


def attention_form(job: Job, trainer: Trainer, spec: ModelSpec, stored: Stored, notes: Notes) -> str:
    """Soft-capped scores are eager's and flash's (flash-attn 2.6 on, in its kernel); some classes have eager alone.

    Raises InvalidJob for what no kernel computes, and for what transformers refuses."""
    late = _before_sdpa(job, trainer, spec) if job.attention == "sdpa" else ""
    if late and notes.is_given("attention"):
        raise InvalidJob(f"attention: {late}", "use attention: eager, or flash", {"attention": "eager"})
    if late:
        return notes.fill("attention", "eager", "trainer", late)
    if job.attention == "flash":
        job = _on_its_card(job, trainer, spec, notes)
    check_flash(job, trainer, spec, notes)
    if job.attention == "flash" and stored.compute_itemsize == DTYPE_BYTES["fp32"] and not stored.autocast:
        raise InvalidJob(
            "attention: flash has no kernels for fp32 matmuls",
            "use attention: sdpa, or precision bf16-amp",
            {"attention": "sdpa"},
        )
    capped = any(mixer.softcap is not None for mixer in spec.mixers)
    if job.attention == "flash" and capped and not any(mixer.eager_only for mixer in spec.mixers):
        return notes.plain("attention", job.attention)
    in_kernel = (
        trainer.megatron
        and not capped
        and all(not mixer.eager_only or getattr(mixer, "style", "") == "sinks" for mixer in spec.mixers)
    )
    if spec.eager_only and job.attention != "eager" and not in_kernel:
        if notes.is_given("attention"):
            cannot = f"cannot soft-cap the scores of {spec.name}" if capped else f"is not described for {spec.family}"
            raise InvalidJob(f"attention: {job.attention} {cannot}", "use attention: eager")
        why = "caps its attention scores, which sdpa does not compute"
        why = why if capped else "has eager attention alone"
        notes.fill("attention", "eager", "default", f"{spec.family} {why}")
        return "eager"
    if trainer.megatron and _is_old(job) and job.attention != "eager":
        return _scores_of_megatron(job, spec, notes)
    if job.attention == "sdpa" and _groups_without_flash(job, trainer, spec):
        notes.remark(
            "attention: sdpa has no flash kernel below compute capability 8.0, and no other takes grouped heads, which "
            "transformers 4.54 and later pass where nothing is padded: scores of sequence × sequence are counted; "
            "with padded batches say padded: true"
        )
    return notes.plain("attention", job.attention)


def _before_sdpa(job: Job, trainer: Trainer, spec: ModelSpec) -> str:
    """Why attention is no sdpa: the class has none in this version of transformers."""
    version, inline = job.trainer_version or "", job.model if isinstance(job.model, Mapping) else {}
    text = inline.get("text_config")  # of a model that a script puts together from a language model's class and a tower
    family = str(text.get("model_type")) if isinstance(text, Mapping) else spec.family
    since = SDPA_SINCE.get(family, "") if trainer.name == "transformers" and version else ""
    if not since or version_key(version) >= version_key(since):
        return ""
    return f"transformers {version} has no sdpa for {family}: {since} is the first that has"


def _groups_without_flash(job: Job, trainer: Trainer, spec: ModelSpec) -> bool:
    """Whether heads are grouped in the call of SDPA on a card where only its math kernel takes them."""
    repeats = trainer.models.repeats or trainer.models.repeats_sdpa or job.kernels == "unsloth" or job.padded
    if not _is_old(job) or trainer.megatron or repeats:
        return False
    return any(isinstance(each, Attention) and each.num_kv_heads != each.num_heads for each in spec.mixers)


def _is_old(job: Job) -> bool:
    """Whether the job's card came before the kernels of FlashAttention 2, TransformerEngine and cuDNN."""
    return job.gpu is not None and not find_gpu(job.gpu).has_bf16


def _on_its_card(job: Job, trainer: Trainer, spec: ModelSpec, notes: Notes) -> Job:
    """The job with the attention that its framework falls back on, where its card has no flash attention. Raises
    InvalidJob where it would be refused: flash-attn 2.8 csrc/flash_attn/flash_api.cpp ("FlashAttention only supports
    Ampere GPUs or newer"), and so hopper/flash_api.cpp of its version 3."""
    if not _is_old(job) or (trainer.megatron and notes.sources.get("attention") not in ("option", "file")):
        return job
    if job.kernels == "unsloth":
        why = "Unsloth takes flash attention from compute capability 8.0 on, and xformers, which keeps as much, below"
    elif not notes.is_given("attention"):
        why = "flash attention has no kernels for cards below compute capability 8.0"
    else:
        assert job.gpu is not None
        gpu = find_gpu(job.gpu)
        instead = "eager" if trainer.megatron or spec.eager_only else "sdpa"
        raise InvalidJob(
            f"attention: flash does not run on {gpu.name}: FlashAttention needs compute capability 8.0, and it has "
            f"{gpu.architecture}",
            f"use attention: {instead}",
            {"attention": instead},
        )
    return job.but(attention=notes.fill("attention", "sdpa", "default", why))


def attention_on(gpu: Gpu, recipe: Recipe) -> str:
    """Which attention a recipe of no card runs on this one; empty where it would not run."""
    form = recipe.operators.attention
    if gpu.has_bf16 or form == "eager":
        return form
    if recipe.trainer.megatron:
        return "" if recipe.parallel.context > 1 or _is_latent(recipe.model) else "eager"
    fused = recipe.operators.kernels.adapters == "fused"
    return "sdpa" if fused else "" if form == "flash" else form


def _is_latent(spec: ModelSpec) -> bool:
    return any(getattr(mixer, "kind", "") == "latent" for mixer in spec.mixers)


def _scores_of_megatron(job: Job, spec: ModelSpec, notes: Notes) -> str:
    """What Megatron falls back on without a kernel, two products and a softmax: TransformerEngine 2.20
    pytorch/attention/dot_product_attention/utils.py: get_attention_backend (flash-attn and cuDNN's need sm80). Raises
    InvalidJob for what is not computed so, or not modelled."""
    why = "Megatron has no kernel of attention for cards below compute capability 8.0"
    if job.context_parallel > 1:
        raise InvalidJob(f"context_parallel: {job.context_parallel}: {why}", "leave context_parallel out")
    if _is_latent(spec):
        raise InvalidJob(f"gpu: {job.gpu}: {why}, and scores of {spec.family} are not modelled", "use a later card")
    return notes.fill("attention", "eager", "default", why)
