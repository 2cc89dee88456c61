"""torch's own tensor, context and pipeline parallelism, as torchtitan joins them with FSDP2, and sequences that ranks
share under FSDP in other trainers: what they can run."""

from memplan.errors import InvalidJob
from memplan.resolve.notes import Notes
from memplan.resolve.plans import check_plan, grouped_heads, unsplit, whole_streams
from memplan.resolve.storage import Split
from memplan.resolve.trainers import degrees_of, megatron_instead
from memplan.spec.job import Job
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Attention
from memplan.tables.methods import METHODS
from memplan.tables.trainer import Trainer
from memplan.units import ceil_div, divisor

NATIVE = ("tensor_parallel", "context_parallel", "pipeline_parallel", "expert_parallel", "expert_tensor_parallel")
"""Degrees that torch's own parallelism has, as torchtitan joins them with FSDP2."""


def native(job: Job, trainer: Trainer, split: Split, spec: ModelSpec, notes: Notes) -> bool:
    """Whether torch's own tensor, context and pipeline parallelism run the job. Raises InvalidJob for a model, a method
    or a setting that they are not modelled with."""
    given, divides = degrees_of(job), whole_streams(job, trainer)
    others = [key for key in given if key != "tensor_parallel"] if divides else given
    shares: str = trainer.parallelism.sequence if others == ["context_parallel"] else ""
    shares = job.context_exchange if shares and job.context_exchange != "own" else shares
    if divides and shares in ("", "gathered") and set(others) <= {"context_parallel"}:
        check_plan(job, trainer, split, spec)
        notes.assume(
            "tensor_parallel: transformers' plan (tp_plan auto): each rank has a part of every product in the layers "
            "and of the head, and all of the residual stream, norms and logits; of the embedding a part from 5.21 on"
        )
        if METHODS[job.method].reference and job.reference in ("auto", "resident") and job.lora is None:
            notes.assume(
                "reference: whole on every rank, as TRL loads it beside a model that it is given; by model_init_kwargs "
                "with a distributed_config each rank has a part"
            )
        if not shares:
            return True
    if shares == "ulysses" and split.is_fsdp:
        _check_ulysses(job, spec)
        return True
    if shares == "gathered" and (split.is_deepspeed or split.is_fsdp):
        _check_kernel(job, spec, "ring-flash-attention", job.attention not in ("auto", "flash"))
        notes.assume("context_parallel: keys and values of all heads are counted as gathered at once")
        return True
    if divides:
        return False
    if shares == "accelerate" and split.is_deepspeed:
        _check_on_accelerate(job, trainer, job.context_parallel)
        _check_ulysses(job, spec)
        return True
    if shares == "accelerate" and split.name == "fsdp2":
        _check_on_accelerate(job, trainer, 2 * job.context_parallel)
        _check_ring(job, trainer, spec)
        return True
    if trainer.name != "pytorch" or split.name != "fsdp2" or not set(given) <= set(NATIVE):
        return False
    what = unmodelled(job, spec)
    if what:
        raise InvalidJob(
            f"{given[0]}: {getattr(job, given[0])} under FSDP2 is not modelled with {what}",
            megatron_instead(job, trainer.name),
        )
    why = unspread(job, spec) or unsplit(job, spec)
    if why:
        raise InvalidJob(
            f"{given[0]}: {spec.name} under FSDP2 and torch's own parallelism is not modelled ({why})",
            megatron_instead(job, trainer.name),
        )
    if job.expert_parallel > 1:
        notes.assume(
            "expert_parallel: torchtitan's, by all-to-all; each rank's experts receive the mean, and the fullest rank "
            "may receive more"
        )
    grouped = grouped_heads(spec)
    if grouped % job.tensor_parallel:
        raise InvalidJob(
            f"tensor_parallel: {job.tensor_parallel} does not divide the {grouped} key/value heads of {spec.name}, "
            "as DTensor's plans need",
            f"use a divisor of {grouped}",
        )
    if job.sequence_length % (job.context_parallel * job.tensor_parallel):
        raise InvalidJob(
            f"sequence_length: {job.sequence_length} is no multiple of tensor × context parallel = "
            f"{job.context_parallel * job.tensor_parallel}",
            "use a multiple of it",
        )
    return True


def unspread(job: Job, spec: ModelSpec) -> str:
    """Why a model's experts are not divided as torchtitan divides them; nothing where they are, or whole."""
    if job.tensor_parallel == job.expert_parallel == job.expert_tensor_parallel == 1:
        return ""
    routed = [layer.feed_forward for layer in (run.layer for run in spec.runs) if layer.feed_forward is not None]
    plain = all(
        not inner.linears and inner.experts.gated and len(inner.experts.stacked) == 2
        for inner in routed
        if inner.experts is not None
    )
    styles = [inner.experts for inner in routed if inner.experts is not None]
    if not plain or any(each.clamped or each.limited or each.routing.program == "scatter" for each in styles):
        return "its experts are not gated products in two stacks"
    if job.tensor_parallel > 1 and any(len(inner.shared) not in (0, 3) for inner in routed):
        return "its shared experts are not three products"
    if job.expert_tensor_parallel not in (1, job.tensor_parallel):
        return "expert_tensor_parallel is 1 or tensor_parallel in torchtitan"
    if spec.tower or spec.encoder:
        return "what stands outside their layers"
    ranks, parts = job.num_gpus // (job.fsdp.replicate or 1), job.expert_parallel * job.expert_tensor_parallel
    if ranks // job.pipeline_parallel % parts:
        return f"{ranks // job.pipeline_parallel} ranks that share states are no multiple of {parts}"
    return ""


def _check_ulysses(job: Job, spec: ModelSpec) -> None:
    """Heads exchanged for sequence: what verl asserts (validate_ulysses_config) or is not modelled is InvalidJob."""
    ranks = job.context_parallel
    if spec.num_heads % ranks:
        raise InvalidJob(
            f"context_parallel: {ranks} does not divide the {spec.num_heads} heads of {spec.name} (Ulysses)",
            f"use a divisor of {spec.num_heads}",
        )
    _check_kernel(job, spec, "Ulysses", job.attention == "eager")
    grouped = grouped_heads(spec)
    if grouped % ranks and ranks % grouped:
        raise InvalidJob(
            f"context_parallel: {ranks} and the {grouped} key/value heads of {spec.name} divide one another in no way "
            "(Ulysses)",
            f"use {divisor(grouped, ranks)}",
        )


def _check_kernel(job: Job, spec: ModelSpec, how: str, apart: bool) -> None:
    """What sharing a sequence around one kernel of attention is not modelled with, or does not run with (verl 0.9
    models/transformers/monkey_patch.py; ring_flash_attn 0.1.8 adapters/hf_adapter.py). ``apart``: another kernel
    is asked for. Raises InvalidJob."""
    plain = all(isinstance(mixer, Attention) and mixer.style == "standard" for mixer in spec.mixers)
    other = f"{'eager' if spec.eager_only else job.attention} attention"
    for bad, what in (
        (not plain, f"the attention of {spec.name}"),
        (apart or spec.eager_only, other),
        (job.images, "images"),
    ):
        if bad:
            raise InvalidJob(
                f"context_parallel: {job.context_parallel} ({how}) is not modelled with {what}",
                "leave context_parallel out",
                {"context_parallel": 1},
            )


def _check_on_accelerate(job: Job, trainer: Trainer, parts: int) -> None:
    """What shares sequences: TRL's supervised fine-tuning and the Trainer's own loss (TRL 1.16 trainer/sft_trainer.py:
    its other trainers know of neither). ``parts``: of a sequence; of torch's ring a rank has the first and the last of
    2 × ranks. Raises InvalidJob."""
    for bad, what, hint in (
        (job.method != "sft", f"method {job.method}", megatron_instead(job, trainer.name)),
        (job.token_budget, "packed rows", "leave token_budget out"),
    ):
        if bad:
            raise InvalidJob(
                f"context_parallel: {job.context_parallel} with {trainer.title} does not run with {what}", hint
            )
    if job.sequence_length % parts:
        raise InvalidJob(
            f"sequence_length: {job.sequence_length} is no multiple of {parts}, the parts that context_parallel makes",
            f"use {ceil_div(job.sequence_length, parts) * parts}: pad_to_multiple_of",
        )


def _check_ring(job: Job, trainer: Trainer, spec: ModelSpec) -> None:
    """What accelerate 1.15 (big_modeling.py: _attach_context_parallel_hooks; maybe_context_parallel), transformers 5.23
    (trainer.py: _prepare_context_parallel_inputs) refuse. Raises InvalidJob."""
    ranks, windowed = job.context_parallel, any(getattr(mixer, "window", None) for mixer in spec.mixers)
    plain = all(isinstance(mixer, Attention) and mixer.style == "standard" for mixer in spec.mixers)
    for bad, what, hint in (
        (job.attention != "sdpa" or spec.eager_only, f"attention {job.attention}", "use sdpa"),
        (windowed, f"sliding windows ({spec.name})", "leave context_parallel out"),
        (not plain, f"the attention of {spec.name}", "leave context_parallel out"),
        (job.images, "images", "leave context_parallel out"),
    ):
        if bad:
            raise InvalidJob(f"context_parallel: {ranks} with {trainer.title} does not run with {what}", hint)


def unmodelled(job: Job, spec: ModelSpec) -> str:
    """What of the job torch's own parallelism is not modelled with; nothing where it is with all of it."""
    for bad, what in (
        (job.method != "sft", f"method {job.method}"),
        (job.lora is not None, "lora"),
        (job.padded, "padded"),
        (job.attention == "eager" or spec.eager_only, "eager attention"),
        (job.images is not None, "images"),
        (job.loss_head not in ("auto", "cross-entropy", "compiled-cross-entropy"), f"loss_head {job.loss_head}"),
    ):
        if bad:
            return what
    return ""
