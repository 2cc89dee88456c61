"""Whether Megatron's layers run a job, as they are modelled, and of which models its norms are also counted as
PyTorch's operations.

Sources: megatron-core 0.14 to 0.16 transformer/transformer_layer.py; of August 2026 ssm/gated_delta_net."""

from memplan.resolve.freezing import PROJECTOR, TOWER
from memplan.resolve.megatron_adapters import adapters_refused
from memplan.spec.job import Job
from memplan.spec.layer import Layer
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Attention
from memplan.tables.styles import PARTED
from memplan.tables.trainer import Trainer

STORED = ("auto", "fp32", "bf16-master", "fp16-master")
"""How Megatron stores weights, gradients and states."""


def not_in_megatron(job: Job, spec: ModelSpec, trainer: Trainer) -> str:
    """Why the job does not run in Megatron's layers as they are modelled here; nothing where it does."""
    if job.lora is not None and job.megatron.fp8_format:
        return "LoRA and products in FP8"
    if not job.megatron.norm_fusion and not plain_norms(job, spec):
        return "megatron.norm_fusion: false, but for RMS norms of the residual stream before products in half precision"
    if job.lora is not None and (why := adapters_refused(job.lora, trainer)):
        return why
    if job.quantization != "none":
        return f"a base in {job.quantization}"
    if spec.encoder is not None or spec.task != "causal":
        return "an encoder"
    seen = job.lora is not None and job.images is not None
    if spec.tower is not None and (spec.tower.crossed or spec.resting or seen):
        return "adapters, images and a vision tower" if seen else "a vision tower whose layers cross the model's"
    if job.pair_pass != "concatenated":
        return f"pair_pass {job.pair_pass}"
    if (job.method == "ppo" and trainer.rollouts.critic not in PARTED) or job.method == "distill":
        return "a critic or a teacher"
    inside = any(run.layer.frozen for run in spec.runs)
    if job.freeze and (inside or not spec.frozen or not spec.frozen <= {TOWER, PROJECTOR}):
        return "frozen weights of the language model"
    if job.precision not in STORED:
        return f"precision {job.precision}"
    if job.kernels not in ("none", "te"):
        return f"kernels {job.kernels}"
    unknown = any(mixer.eager_only and getattr(mixer, "style", "") != "sinks" for mixer in spec.mixers)
    capped = any(mixer.softcap is not None for mixer in spec.mixers)
    if unknown or capped or (job.attention == "eager" and job.context_parallel > 1):
        return "eager attention" + (" over a divided sequence" if job.context_parallel > 1 else "")
    if job.attention == "eager" and any(getattr(run.layer.mixer, "kind", "") == "latent" for run in spec.runs):
        return "eager latent attention"
    mixed = trainer.name != "slime" or job.tensor_parallel * job.context_parallel == 1
    return next(filter(None, (_not_a_layer(run.layer, mixed) for run in spec.runs)), "")


def _not_a_layer(layer: Layer, mixed: bool) -> str:
    """Why a layer is none of those that are modelled; nothing where it is. ``mixed``: gated delta nets are; slime's are
    transformers' (slime_plugins/models/hf_attention.py), the same products and kernels, but whole on each rank."""
    mixer, part = layer.mixer, layer.feed_forward
    if mixer is None:
        return "layers without a mixer"
    delta = mixer.kind == "gated-delta" and mixed
    if not isinstance(mixer, Attention) and mixer.kind != "latent" and not delta:
        return f"{mixer.kind} layers"
    if mixer.kind == "latent" and mixer.indexed:
        return "an indexer of tokens"
    if layer.form != "pre" or layer.cross is not None or layer.extra:
        return f"layers whose norms stand {layer.form}"
    own = [bare for each in (None if delta else mixer, part) if each is not None for bare in each.tensors]
    if any(not bare.frozen and bare.name != "sinks" for bare in own):
        return "attention's or experts' parameters beside their products"
    return ""


def plain_norms(job: Job, spec: ModelSpec) -> bool:
    """Whether all norms are RMS norms of the residual stream, whose outputs nothing else quantises or joins."""
    layers = [run.layer for run in spec.runs]
    inner = any(part.norms for layer in layers for part in layer.parts)
    rms = all(norm.kind == "rms" for layer in layers for norm in layer.norms)
    return rms and not inner and not job.megatron.fp8_format and not job.megatron.mtp_num_layers
