"""LoRA in Megatron's layers: its targets by Megatron's names or the Hub's, and what is not modelled of it.

Whether Megatron's layers, as modelled, run a job, and of which models its norms count as PyTorch's operations too.

Sources: megatron-core 0.14 to 0.16 transformer/transformer_layer.py; of August 2026 ssm/gated_delta_net."""

from collections.abc import Iterable
from functools import lru_cache

from memplan.errors import InvalidJob
from memplan.resolve.freezing import PROJECTOR, TOWER, tower_rests
from memplan.spec.job import Job
from memplan.spec.layer import Layer
from memplan.spec.lora import ALL_LINEAR, EMBEDDING, Lora
from memplan.spec.model import ModelSpec
from memplan.spec.parallel import Parallel
from memplan.spec.parts import Attention
from memplan.tables.styles import PARTED
from memplan.tables.trainer import Trainer

QKV, PROJ, FC1, FC2 = "linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"
OF_BRIDGE = (QKV, PROJ, FC1, FC2)
"""What Megatron-Bridge adapts where nothing is named (peft/lora.py: target_modules)."""
LATENT = {
    "linear_q_proj": "q_proj",
    "linear_q_down_proj": "q_a_proj",
    "linear_q_up_proj": "q_b_proj",
    "linear_kv_down_proj": "kv_a_proj_with_mqa",
    "linear_kv_up_proj": "kv_b_proj",
}
"""Latent attention's products."""
HALVES = {
    **dict.fromkeys(("gate_proj", "up_proj", "w1", "w3"), "gate_up_proj"),
    **dict.fromkeys(("down_proj", "w2"), "down_proj"),
}
"""Which of the stacked experts' parameters a name stands for."""
NARROW_SIDE = 16
"""Of what goes into a product in FP8 (TransformerEngine 2.20 pytorch/utils.py: assert_dim_for_fp8_exec)."""
REFUSED = ("dora", "lora_bias", "trainable_token_indices", "layers_to_transform", "rank_pattern", "modules_to_train")
"""Fields of LoRA that are not modelled in Megatron's layers."""


def adapters_refused(lora: Lora, trainer: Trainer) -> str:
    """What of the adapters is not modelled in Megatron's layers; nothing where all is."""
    if not trainer.adapters.on_megatron:
        return "LoRA"
    field = next((name for name in REFUSED if getattr(lora, name)), "bias" if lora.bias != "none" else "")
    return f"lora.{field}" if field else ""


@lru_cache(maxsize=64)
def products(spec: ModelSpec) -> dict[str, set[str]]:
    """Megatron's names of products, and the linears of the model that each stands for."""
    found: dict[str, set[str]] = {name: set() for name in OF_BRIDGE}
    for run in spec.runs:
        mixer, part = run.layer.mixer, run.layer.feed_forward
        linears = [linear.name for linear in mixer.linears] if mixer is not None else []
        delta = getattr(mixer, "kind", "") == "gated-delta"
        if delta:
            found |= {"in_proj": set(linears[:-1]), "out_proj": set(linears[-1:])}
        elif isinstance(mixer, Attention):
            found[QKV] |= set(linears[:-1])
        else:
            found |= {name: {linear} for name, linear in LATENT.items() if linear in linears}
        found[PROJ] |= set() if delta else set(linears[-1:])
        for group in (part.linears, part.shared) if part is not None else ():
            names = [linear.name for linear in group if linear.outputs != 1]
            found[FC1] |= set(names[:-1])
            found[FC2] |= set(names[-1:])
        if part is not None and part.experts is not None:
            found[FC1] |= {"gate_proj", "up_proj"}
            found[FC2] |= {"down_proj"}
    return found


def megatron_targets(lora: Lora, spec: ModelSpec, trainer: Trainer) -> tuple[set[str], frozenset[str]]:
    """The linears that are adapted, and the halves of the experts. Raises InvalidJob for a part of a fused product."""
    known = products(spec)
    chosen: set[str] = set()
    for name in [lora.targets] if isinstance(lora.targets, str) else lora.targets:
        if name == ALL_LINEAR:
            few = OF_BRIDGE if trainer.adapters.on_megatron == "bridge" else tuple(known)
            chosen |= {linear for each in few for linear in known[each]}
        else:
            chosen |= known.get(name, {name})
    chosen -= set(lora.exclude_modules)
    for product, linears in known.items():
        missing = linears - chosen
        if missing and missing != linears:
            raise InvalidJob(
                f"lora.targets: {', '.join(sorted(linears & chosen))} without {', '.join(sorted(missing))}, fused in "
                f"Megatron's {product}",
                f"add {', '.join(sorted(missing))}",
            )
    mixes = any(run.layer.experts for run in spec.runs)
    experts = frozenset(HALVES[name] for name in chosen & set(HALVES)) if mixes else frozenset()
    unknown = sorted(chosen - {linear for linears in known.values() for linear in linears})
    ends = [name for name in unknown if name in (EMBEDDING, spec.head.name)]
    if unknown and not ends:
        raise InvalidJob(f"lora.targets: {unknown[0]!r} is no product of Megatron's layers of {spec.family}",
                         f"use all-linear, or names of {', '.join(known)}")  # fmt: skip
    return chosen, experts


def check_adapters(job: Job, degrees: Parallel, trainer: Trainer, experts: Iterable[str]) -> None:
    """Raise InvalidJob for what the frameworks refuse."""
    lora = job.lora
    if lora is None:
        return
    if trainer.adapters.on_megatron == "swift" and degrees.expert_tensor > 1 and any(experts):
        raise InvalidJob(
            "expert_tensor_parallel: Megatron-SWIFT's adapters of experts run without it",
            "use expert_tensor_parallel 1",
        )
    if trainer.adapters.on_megatron == "swift" and job.megatron.narrow and lora.r % NARROW_SIDE:
        raise InvalidJob(
            f"lora.r: {lora.r} is no multiple of {NARROW_SIDE}, as Transformer Engine's products in "
            f"{job.megatron.narrow_kind.upper()} need, which Megatron-SWIFT's adapters are",
            f"use r: {-(-lora.r // NARROW_SIDE) * NARROW_SIDE}",
        )
    if trainer.adapters.on_megatron == "bridge" and lora.r % degrees.tensor:
        raise InvalidJob(
            f"lora.r: {lora.r} is no multiple of tensor_parallel {degrees.tensor}, which divides adapters",
            f"use r: {-(-lora.r // degrees.tensor) * degrees.tensor}",
        )


STORED = ("auto", "fp32", "bf16-master", "fp16-master")
"""How Megatron stores weights, gradients and states."""


def not_in_megatron(job: Job, spec: ModelSpec, trainer: Trainer) -> str:
    """Why the job does not run in Megatron's layers as they are modelled here; nothing where it does."""
    if not job.megatron.norm_fusion and not plain_norms(job, spec):
        return "megatron.norm_fusion: false, but for RMS norms of stream and heads before products in half precision"
    if job.lora is not None and (why := adapters_refused(job.lora, trainer)):
        return why
    if job.quantization != "none":
        return f"a base in {job.quantization}"
    if spec.encoder is not None or spec.task != "causal":
        return "an encoder"
    if spec.tower is not None and (spec.tower.crossed or spec.resting):
        return "a vision tower whose layers cross the model's"
    if job.lora is not None and job.images is not None and not tower_rests(spec):
        return "adapters of a vision tower (lora.exclude_modules: vision_tower, multi_modal_projector leaves it alone)"
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
    """Whether all norms are RMS norms of the residual stream or of attention's heads, whose outputs nothing else
    quantises or joins."""
    layers = [run.layer for run in spec.runs]
    inner = any(part.norms and not isinstance(part, Attention) for layer in layers for part in layer.parts)
    norms = [
        norm for layer in layers for norms in (layer.norms, *(part.norms for part in layer.parts)) for norm in norms
    ]
    plain = not inner and all(norm.kind == "rms" for norm in norms)
    return plain and not job.megatron.narrow and not job.megatron.mtp_num_layers
