"""Fused kernels and torch.compile of a job, resolved: which pieces of the layers they stand in for."""

from memplan.errors import InvalidJob
from memplan.resolve.adapters import Targets
from memplan.resolve.notes import Notes
from memplan.resolve.offloading import offloads_activations
from memplan.resolve.quantised import Base
from memplan.resolve.storage import Split, Stored, float8
from memplan.spec.groups import Checkpointing, Operators
from memplan.spec.job import Job
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Attention, FeedForward
from memplan.spec.recompute import Recompute
from memplan.tables.kernels import COMPILED, FOAK, LIGER, NO_KERNELS, UNSLOTH, Kernels
from memplan.tables.methods import METHODS
from memplan.tables.optimizers import OPTIMIZERS
from memplan.tables.trainer import Trainer
from memplan.units import ceil_div

UNSLOTH_BASES = ("none", "nf4", "nf4-double")
UNSLOTH_SENDS_FROM = 512
"""unsloth 2026.8 models/_utils.py: apply_unsloth_gradient_checkpointing."""


def operators(
    job: Job,
    trainer: Trainer,
    spec: ModelSpec,
    again: Checkpointing,
    base: Base,
    lora: Targets | None,
    attention: str,
    notes: Notes,
) -> Operators:
    """Whose code runs the layers. Raises InvalidJob for what cannot be together."""
    fused = _kernels(job, trainer, spec, again, base, lora, attention, notes)
    mixers = mixer_kernels(job, spec, notes) == "cuda"
    tiled, sums = tiles(job, trainer, spec, base.stored, notes)
    if job.float8 != "none" or job.fsdp.float8_all_gather:
        fused = fused._replace(float8=float8(job, trainer, spec, base.stored, notes))
    if job.flash_version > 2 and job.attention != "flash":
        raise InvalidJob(f"flash_version: {job.flash_version} is of attention: flash", "use attention: flash")
    return Operators(attention, fused, mixers, tiled, sums, job.flash_version if attention == "flash" else 2)


TILED = ("none", "zero0", "zero1", "zero2", "zero3", "fsdp2")
"""Where a TiledMLP runs: DDP and FSDP1 reduce a weight's gradient at its first tile."""


def _sharding(job: Job) -> str:
    """As the job says it."""
    return job.sharding or (f"zero{job.zero_stage}" if job.zero_stage is not None else "none")


def tiles(job: Job, trainer: Trainer, spec: ModelSpec, stored: Stored, notes: Notes) -> tuple[int, bool]:
    """Tiles of feed-forwards, and whether their gradients have own sums. InvalidJob for what does not go with them."""
    if not job.tiled_mlp:
        return 0, False
    count = max(job.tiled_mlp, 0) or ceil_div(job.sequence_length, spec.hidden_size)
    bound = "ddp" if _sharding(job) == "none" and job.num_gpus > 1 else _sharding(job)
    adapted = job.lora is not None and bound != "fsdp2"  # whose adapters are as wide as its weights
    wide = stored.autocast > 0 and (stored.compute_itemsize != stored.autocast or adapted)
    dense = all(type(run.layer.feed_forward) is FeedForward and not run.layer.feed_forward.experts for run in spec.runs)
    for bad, what, hint in (
        (trainer.megatron, f"under {trainer.title}", "leave tiled_mlp out"),
        (bound not in TILED, f"under {bound}", "use fsdp2 or a ZeRO stage, or leave it out"),
        (not dense, f"with experts, or what {spec.family} has for a feed-forward", "leave tiled_mlp out"),
        (wide, "under autocast, which its backward leaves", "use precision bf16, or leave it out"),
        (job.tensor_parallel > 1, "with tensor_parallel", "leave one of them out"),
        (job.kernels in ("unsloth", "foak") or job.compile, "with kernels of their own", "leave one of them out"),
        (OPTIMIZERS[job.optimizer].fused_backward is not None, f"with {job.optimizer}", "leave one of them out"),
    ):
        if bad:
            raise InvalidJob(f"tiled_mlp: {what} is not modelled", hint)
    if job.tiled_mlp < 0:
        notes.assume(f"tiled_mlp: {count} tiles (sequence_length {job.sequence_length} over {spec.hidden_size} hidden)")
    return count, bound == "fsdp2" or (bound == "none" and trainer.name != "pytorch")


def with_offload(
    job: Job, trainer: Trainer, split: Split, again: Checkpointing, fused: Kernels, notes: Notes
) -> Checkpointing:
    """With what waits on the host: what the job offloads, else what kernels send there of themselves."""
    away = offloads_activations(job, trainer, split, notes)
    if not away and sends_checkpoints(job, fused, again.layers, notes):
        away = "unsloth"
    return again._replace(offload=away)


def _kernels(
    job: Job,
    trainer: Trainer,
    spec: ModelSpec,
    again: Checkpointing,
    base: Base,
    lora: Targets | None,
    attention: str,
    notes: Notes,
) -> Kernels:
    """What runs fused in each layer, around its ``attention``. Raises InvalidJob for what cannot be together."""
    stored = base.stored
    if job.compile and (compiled := _compiled(job, trainer, spec, again, attention, notes)) is not None:
        return compiled
    if job.kernels == "te":
        _check_te(trainer)
    if job.kernels == "unsloth":
        return _unsloth(job, spec, again.recompute, stored, notes)
    if job.kernels == "foak":
        return _foak(job, spec, stored, base, lora, notes)
    if job.kernels != "liger":
        return NO_KERNELS
    if again.recompute.policy:
        notes.assume(
            "kernels: Liger's functions are no operations of torch, so selective checkpointing makes them again"
        )
    found = LIGER.get(spec.family, NO_KERNELS) if _plain_layers(spec) else NO_KERNELS
    if found == NO_KERNELS:
        notes.remark(f"kernels: Liger's kernels are modelled for the head of {spec.family} alone, not for its layers")
        return found
    notes.assume(
        "kernels: Liger's RMSNorm, rotary embedding and gated product in every layer, as it patches by default"
    )
    return found


def _foak(job: Job, spec: ModelSpec, stored: Stored, base: Base, lora: Targets | None, notes: Notes) -> Kernels:
    if spec.family not in FOAK or not _plain_layers(spec):
        raise InvalidJob(f"kernels: foak is not modelled for {spec.family}", "modelled: " + ", ".join(FOAK))
    fused = ""
    if base.quantised is not None and lora is not None:
        _check_foak_adapters(job, spec, stored, base, lora)
        fused = "foak"
        if job.num_gpus > 1:
            notes.remark("kernels: foak leaves adapters whole on every GPU; here they are counted as sharded")
    notes.assume(
        "kernels: foak's RMSNorm and rotary embedding in every layer, both in place"
        + ("; its fused adapters of attention; " if fused else "; ")
        + "its cross-entropy, or the fused head that loss_head says"
    )
    return FOAK[spec.family]._replace(adapters=fused)


def _check_foak_adapters(job: Job, spec: ModelSpec, stored: Stored, base: Base, adapted: Targets) -> None:
    """What foak's functions over a quantised base cannot do. Raises InvalidJob."""
    lora = adapted.lora
    inner = [layer.feed_forward for layer in (run.layer for run in spec.runs) if layer.feed_forward is not None]
    refused = (
        (
            job.quantization != "nf4-double",
            f"over {job.quantization}: its kernels unpack NF4 whose scales are quantised too; GPTQ's are not modelled",
            "use quantization: nf4-double, or leave kernels out",
        ),
        (not stored.autocast, "without mixed precision, which its plugin asks for", "use autocast: true"),
        (
            base.upcast != "none" or stored.compute_itemsize > 2,
            "beside norms in fp32: it multiplies their outputs by bf16 weights",
            "use precision: bf16" if base.upcast == "none" else "use kbit_upcast: false, as its own preparation does",
        ),
        (
            lora.dora or lora.bias != "none" or lora.lora_bias,
            "with DoRA or trained biases, which its functions do not know",
            "leave it out",
        ),
        (
            any(all(linear.name in adapted.names for linear in each.linears) for each in inner),
            "with an adapted feed-forward: its backward multiplies tensors of different widths and raises "
            "(fused_ops/unsloth_lora/bnb/fast_lora.py: LoRA_MLP)",
            "name attention's projections in lora.targets",
        ),
    )
    for cannot, what, hint in refused:
        if cannot:
            raise InvalidJob(f"kernels: foak {what}", hint)


def _check_te(trainer: Trainer) -> None:
    """Megatron's layers are made of TransformerEngine's modules; elsewhere it serves fp8 alone."""
    if not trainer.megatron:
        raise InvalidJob(
            f"kernels: te with {trainer.title}: accelerate puts TransformerEngine's modules in for fp8 alone",
            "use float8: te, or a trainer that runs on Megatron",
        )


UNSLOTH_LOSS = {
    "sft": "loss in chunks of at most 4 GiB of fp32 logits (half of what is free, where that is less)",
    "grpo": "log-probabilities in chunks, whose logits torch.compile keeps",
    "cross-entropy": "loss of all logits, as until 2024.11.7",
    "cut-cross-entropy": "loss without logits but for short batches, as until 2025.8.4",
}
"""By method, and by an older version's loss_head."""


def _unsloth(job: Job, spec: ModelSpec, again: Recompute, stored: Stored, notes: Notes) -> Kernels:
    """Its adapters, norms and rotary embedding, by its own code, for what FastLanguageModel loads on one GPU."""
    refused = (
        (spec.family not in UNSLOTH or not _plain_layers(spec), spec.family, "modelled: " + ", ".join(UNSLOTH)),
        (job.lora is None, "full training, which runs transformers' own modules", "add lora, or leave kernels out"),
        (
            METHODS[job.method].name not in ("sft", "grpo"),
            f"method {job.method}",
            "use sft, grpo, or leave kernels out",
        ),
        (job.num_gpus > 1, "several GPUs", "use num_gpus: 1, or leave kernels out"),
        (_sharding(job) not in ("none", "ddp"), _sharding(job), "use sharding: none, or leave kernels out"),
        (job.quantization not in UNSLOTH_BASES, job.quantization, "use nf4 or nf4-double, or leave kernels out"),
        (
            stored.compute_itemsize > 2,
            "weights in fp32: it loads half precision",
            "use precision: bf16, and kbit_upcast: false over a quantised base",
        ),
        (bool(again.policy or again.modules) or again.is_partial, "selective checkpointing", "use full or none"),
    )
    for cannot, what, hint in refused:
        if cannot:
            raise InvalidJob(f"kernels: unsloth is not modelled for {what}", hint)
    loss = UNSLOTH_LOSS.get(str(job.loss_head), UNSLOTH_LOSS[METHODS[job.method].name])
    notes.assume(
        f"kernels: Unsloth's adapters, RMSNorm, rotary embedding, and {loss}, read "
        "from its code; the high figure is that of the same layers without it"
    )
    return UNSLOTH[spec.family]


def sends_checkpoints(job: Job, fused: Kernels, checkpointing: bool, notes: Notes) -> bool:
    """Whether checkpoints' inputs wait on the host: Unsloth's default (use_gradient_checkpointing) from 512 tokens."""
    sent = fused.adapters == "fused" and checkpointing and job.sequence_length >= UNSLOTH_SENDS_FROM
    if sent:
        notes.assume(
            'gradient_checkpointing: use_gradient_checkpointing="unsloth", its default: layer inputs wait on the host, '
            "the last layer's excepted"
        )
    return sent


def _plain_layers(spec: ModelSpec) -> bool:
    layers = [run.layer for run in spec.runs]
    dense = all(layer.feed_forward is not None and not layer.feed_forward.experts for layer in layers)
    return dense and all(type(layer.mixer) is Attention for layer in layers)


def _compiled(
    job: Job, trainer: Trainer, spec: ModelSpec, again: Checkpointing, attention: str, notes: Notes
) -> Kernels | None:
    for key, value in (("kernels", job.kernels), ("quantization", job.quantization), ("attention", attention)):
        if value not in ("none", "sdpa", "flash", "liger"):
            raise InvalidJob(f"compile: not modelled with {key}: {value}", f"leave compile or {key} out")
    if again.recompute.modules:
        raise InvalidJob("compile: not modelled for Megatron's modules", "leave compile out")
    within = trainer.loss.compiles_layers and again.form == "full"
    liger = "Liger's kernels" if job.kernels == "liger" else ""
    if liger or job.offload or within or not _plain_layers(spec):
        what = "offload" if job.offload else "recomputed layers" if within else liger or f"layers of {spec.family}"
        notes.assume(f"compile: its savings are not counted beside {what}: layers as eager torch runs them")
        return None if liger else NO_KERNELS
    notes.assume(
        "compile: an approximation; each layer is one graph whose pointwise operations are fused, and made again in "
        "backward from what products, attention and reductions left (torch's min-cut partitioner)"
    )
    return COMPILED


PACKAGES = {
    "state-space": "mamba-ssm and causal-conv1d",
    "state-space-dual": "mamba-ssm and causal-conv1d",
    "both": "mamba-ssm and causal-conv1d",
    "short-convolution": "causal-conv1d",
    "time-mix": "kernels (with kernels-community/rwkv) and ninja",
    "gated-delta": "flash-linear-attention and causal-conv1d",
}


def mixer_kernels(job: Job, spec: ModelSpec, notes: Notes) -> str:
    """torch or cuda. transformers takes the kernels where their packages are installed, which a named GPU is taken to
    mean; without one, it is what transformers runs by itself."""
    kinds = sorted({mixer.kind for mixer in spec.mixers if mixer.kind in PACKAGES})
    given = job.mixer_kernels
    if not kinds:
        if given == "cuda":
            notes.remark(f"mixer_kernels has no effect: {spec.family} has no mixer with kernels of its own")
        return notes.plain("mixer_kernels", "torch")
    packages = PACKAGES[kinds[0]]
    longest = spec.max_positions if "time-mix" in kinds else None
    too_long = longest is not None and job.sequence_length > longest
    if too_long and given == "cuda":
        raise InvalidJob(
            f"sequence_length: {job.sequence_length} is over context_length {longest}, on which RWKV's kernel fails",
            "use a shorter sequence, a larger context_length, or mixer_kernels torch",
        )
    if given != "auto":
        return notes.plain("mixer_kernels", given)
    if too_long and job.gpu is not None:
        why = f"its kernel fails on more than context_length {longest}: transformers' own code, which needs far more"
        return notes.fill("mixer_kernels", "torch", "default", why)
    if job.gpu is None:
        why = f"no gpu is named: transformers' own code, which runs where {packages} are not installed"
        return notes.fill("mixer_kernels", "torch", "default", why)
    why = f"{packages} are taken to be installed; torch for transformers' own code, which needs far more"
    return notes.fill("mixer_kernels", "cuda", "default", why)
